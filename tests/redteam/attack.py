"""What an entry of the red team's lists is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Attack:
    """Something that was tried, or should be.

    Attributes:
        name: a few words; the test's id.
        payload: what is run, sent or unpacked; the list that holds it says how.
        must_not: what must not happen, as a sentence.
    """

    name: str
    payload: str
    must_not: str


def ids(attacks: list[Attack]) -> list[str]:
    """Names for pytest, each used once."""
    names = [attack.name for attack in attacks]
    assert len(set(names)) == len(names), "two attacks have one name"
    return names
