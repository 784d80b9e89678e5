"""A version and its order."""

import re
from dataclasses import dataclass
from functools import total_ordering

FORM = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:-([0-9A-Za-z.-]+))?(?:\+([0-9A-Za-z.-]+))?")


@total_ordering
@dataclass(frozen=True, eq=False)
class Version:
    numbers: tuple
    pre: str = ""
    build: str = ""

    @classmethod
    def parse(cls, text):
        match = FORM.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"{text!r} is no version")
        major, minor, patch, pre, build = match.groups()
        return cls((major, minor, patch), pre or "", build or "")

    @property
    def key(self):
        """What versions are compared by."""
        return (self.numbers, self.pre, self.build)

    def __eq__(self, other):
        return isinstance(other, Version) and self.key == other.key

    def __lt__(self, other):
        return self.key < other.key

    def __hash__(self):
        return hash(self.numbers)

    def __str__(self):
        text = ".".join(str(number) for number in self.numbers)
        return text + (f"-{self.pre}" if self.pre else "") + (f"+{self.build}" if self.build else "")
