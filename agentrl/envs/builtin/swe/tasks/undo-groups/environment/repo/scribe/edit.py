"""One change of a text."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Edit:
    """At `at`, `old` was replaced by `new`."""

    at: int
    old: str
    new: str

    def apply(self, text):
        if text[self.at : self.at + len(self.old)] != self.old:
            raise ValueError(f"{self.old!r} is not at {self.at}")
        return text[: self.at] + self.new + text[self.at + len(self.old) :]

    def inverse(self):
        return Edit(self.at, self.new, self.old)
