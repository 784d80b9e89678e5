"""All randomness follows from the run's seed.

Each random choice has a seed of its own, derived from what it is for (group, sample, turn) and never from when it
happens: arrival order, retries of other sessions and the number of workers don't change it.
"""

from __future__ import annotations

import hashlib


def derive(*parts: int | str) -> int:
    """A 63-bit seed from a path of names and numbers, for example (run seed, "step", 3, "group", 0)."""
    digest = hashlib.blake2b("\x1f".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def group_seed(run_seed: int, phase: str, number: int) -> int:
    """The seed of a group's sessions, the same for every attempt at a number."""
    return derive(run_seed, f"{phase}-{number}")
