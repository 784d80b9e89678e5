"""The text on an algorithm or a policy loss in the tables of docs/algorithms.md; it stands at its class."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class About:
    """A row of the table.

    Attributes:
        paper: where it was published, as `Name, arXiv:NUMBER`.
        formula: of the advantage or the loss, in plain text.
        elsewhere: what TRL and verl call it.
    """

    paper: str = ""
    formula: str = ""
    use: str = ""
    elsewhere: str = ""
