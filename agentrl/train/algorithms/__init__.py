"""Algorithms by name or import path; each module holds one, as `ALGORITHM`."""

from __future__ import annotations

from agentrl.errors import InvalidInput, unknown_name
from agentrl.imports import load
from agentrl.train.algorithms.base import Algorithm

_KNOWN: dict[str, str | Algorithm] = {
    name: f"agentrl.train.algorithms.{name}:ALGORITHM" for name in ("grpo", "ppo", "reinforce", "rloo", "sft")
}


def register(algorithm: Algorithm) -> None:
    """Make an algorithm known by its name; a later one of the same name replaces it."""
    _KNOWN[algorithm.name] = algorithm


def get_algorithm(name: str) -> Algorithm:
    """The algorithm of that registered name, or at that import path (`package.module:ATTRIBUTE`).

    Raises:
        UnknownName: neither; the message lists what is registered.
        InvalidInput: what stands at the import path is no `Algorithm`.
    """
    found = _KNOWN.get(name)
    if found is None and ":" not in name:
        raise unknown_name("algorithm", name, _KNOWN)
    if isinstance(found, Algorithm):
        return found
    algorithm = load(found or name, "algo")
    if not isinstance(algorithm, Algorithm):
        raise InvalidInput(f"algo={name!r} is a {type(algorithm).__name__}, not an Algorithm")
    return algorithm


__all__ = ["Algorithm", "get_algorithm", "register"]
