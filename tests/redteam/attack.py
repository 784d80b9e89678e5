"""What an entry of the red team's lists is, and a list's place in the catalogue."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


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


class Kind(StrEnum):
    """What kind of thing is attacked."""

    PROVIDER = "provider"  # of sandboxes
    PARSER = "parser"  # of what models and clients write
    SCORER = "scorer"
    LOADER = "loader"  # of files that somebody else made
    SERVER = "server"
    RUN = "run"  # its sessions, its means, its secrets


@dataclass(frozen=True, slots=True)
class Target:
    """What a list of attacks is run against.

    Attributes:
        kind: what it is one of.
        attacks: the list.
        tests: those that run each of them, as `FILE::FUNCTION` from the repository's root.
    """

    kind: Kind
    attacks: list[Attack]
    tests: tuple[str, ...]


def ids(attacks: list[Attack]) -> list[str]:
    """Names for pytest, each used once."""
    names = [attack.name for attack in attacks]
    assert len(set(names)) == len(names), "two attacks have one name"
    return names


def attacks(must_not: str, payloads: Iterable[str]) -> list[Attack]:
    """Attacks that need no other names than what they are."""
    return [Attack(ascii(payload)[:100], payload, must_not) for payload in payloads]
