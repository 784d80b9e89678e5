"""An amount in a currency, as a whole number of cents."""

import re
from dataclasses import dataclass

WRITTEN = re.compile(r"(-?)(\d+)(?:\.(\d{2}))? ([A-Z]{3})")


@dataclass(frozen=True, order=True)
class Money:
    cents: int
    currency: str = "EUR"

    @classmethod
    def parse(cls, text):
        match = WRITTEN.fullmatch(text)
        if match is None:
            raise ValueError(f"cannot read {text!r}")
        sign, whole, cents, currency = match.groups()
        amount = int(whole) * 100 + int(cents or 0)
        return cls(-amount if sign else amount, currency)

    def _same(self, other):
        if self.currency != other.currency:
            raise ValueError(f"{self.currency} and {other.currency}")

    def __add__(self, other):
        self._same(other)
        return Money(self.cents + other.cents, self.currency)

    def __neg__(self):
        return Money(-self.cents, self.currency)

    def __str__(self):
        sign = "-" if self.cents < 0 else ""
        return f"{sign}{abs(self.cents) // 100}.{abs(self.cents) % 100:02} {self.currency}"
