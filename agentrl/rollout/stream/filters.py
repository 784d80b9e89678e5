"""Functions of a finished group, by name or import path: which groups a run trains on, and which go first."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean, pstdev
from typing import Any

from agentrl.errors import AgentRLError, ConfigError
from agentrl.registry import Registry
from agentrl.types import GREEDY, Group, Status

Measure = Callable[[Group], float]
"""A number of a finished group: as a filter, whether to train on it; as a priority, which goes first, the largest."""


def signal(group: Group) -> float:
    """Return the standard deviation of the group's scores, 0 where nothing can be learned from them."""
    scores = [session.score or 0.0 for session in group.scored]
    return pstdev(scores) if scores else 0.0


def complete(group: Group) -> float:
    """The share of the group's sessions that no limit cut off."""
    ended = [session.status is not Status.TRUNCATED for session in group.sessions if session.phase != GREEDY]
    return fmean(ended) if ended else 0.0


def wholly_complete(group: Group) -> bool:
    """Return whether no limit cut a session of the group off."""
    return complete(group) == 1.0


def _accept(found: Any) -> Measure | None:
    return found if callable(found) else None


FILTERS: Registry[Measure] = Registry(
    "filter of groups",
    "rollout.filter",
    "agentrl.filters",
    {"signal": signal, "complete": wholly_complete},
    accept=_accept,
)
PRIORITIES: Registry[Measure] = Registry(
    "priority of groups",
    "rollout.priority",
    "agentrl.priorities",
    {"signal": signal, "complete": complete},
    accept=_accept,
)


def make_measure(registry: Registry[Measure], name: str | None) -> Measure | None:
    """The named function, whose own errors name the setting; None where there is no name.

    Raises:
        UnknownName: there is none of that name.
        ConfigError: it can't be imported, or is no function.
    """
    if name is None:
        return None
    function, where = registry.find(name), f"{registry.setting}={name!r}"

    def measure(group: Group) -> float:
        try:
            return float(function(group))
        except AgentRLError:
            raise
        except Exception as error:
            raise ConfigError(f"{where} raised {type(error).__name__} for group {group.id}: {error}") from error

    return measure
