"""`@reward`: which of an environment's methods give its final rewards, and the rewards that a run adds to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar, overload

from agentrl.common.plain import number, within
from agentrl.errors import ConfigError, InvalidInput, InvalidReward, suggest
from agentrl.tools.schema import as_function, show_value

F = TypeVar("F", bound=Callable[..., Any])
MARK = "__agentrl_reward__"
ANY = (float("-inf"), float("inf"))
"""The range of a reward that has none."""


@dataclass(frozen=True)
class RewardMark:
    """The arguments of `@reward`, and what a run's settings say of a reward besides.

    Attributes:
        name: what logs call it.
        weight: its share of the session's reward.
        range: the least and the greatest value.
        gates: the names of rewards that count only where this one is at least `gate_at`.
        gate_at: see `gates`.
    """

    name: str
    weight: float
    range: tuple[float, float]
    gates: tuple[str, ...] = ()
    gate_at: float = 1.0

    @property
    def zero(self) -> float:
        """The value behind a closed gate: 0, or what of its range is nearest to it."""
        return min(max(0.0, self.range[0]), self.range[1])


FinalReward = tuple[RewardMark, Callable[..., Any]]
"""A final reward: its mark, and what is called with the finished session."""


def reward_value(value: Any, where: str, range: tuple[float, float] = ANY) -> float:
    """A reward as a number; whoever gives one, this decides what is taken for which.

    Args:
        value: what was given (`plain.number` says what is taken).
        where: what gave it, for the error.
        range: the least and the greatest value; what misses them by its rounding is taken for them.

    Raises:
        InvalidReward: it is no finite number in its range.
    """
    try:
        return within(number(value), *range)
    except ValueError as error:
        raise InvalidReward(f"{where} gave {show_value(value)}, {error}") from None


@overload
def reward(function: F, /) -> F: ...
@overload
def reward(
    *, weight: float = 1.0, range: tuple[float, float] = (0.0, 1.0), name: str | None = None
) -> Callable[[F], F]: ...
def reward(
    function: F | None = None,
    /,
    *,
    weight: float = 1.0,
    range: tuple[float, float] = (0.0, 1.0),
    name: str | None = None,
) -> F | Callable[[F], F]:
    """Let this method, called with the finished session, give a final reward.

    Returning None gives none: a session without any reward is not trained on. Where an environment has several agents
    a mapping gives each one, or each team (`Env.teams`), its own reward, and a number is the reward of all of them.

    Args:
        function: what to mark, when used without parentheses.
        weight: its share of the session's reward, which is the weighted sum.
        range: the least and the greatest value it can give; others are an error.
        name: what logs call it; the method's own name by default.

    Raises:
        InvalidInput: an empty range, or a weight that is no finite number.
    """

    def mark(target: F) -> F:
        marked = as_function(target, "@reward")
        if not range[0] < range[1]:
            raise InvalidInput(f"@reward on {marked.__qualname__}: range must rise, not {range}")
        try:
            weighs = number(weight)
        except ValueError as error:
            raise InvalidInput(f"@reward on {marked.__qualname__}: its weight is {weight!r}, {error}") from None
        setattr(marked, MARK, RewardMark(name or marked.__name__, weighs, (float(range[0]), float(range[1]))))
        return target

    return mark if function is None else mark(function)


@lru_cache(maxsize=256)
def reward_marks(cls: type) -> dict[str, RewardMark]:
    """Return the marks of a class's `@reward` methods by the methods' names, base classes first."""
    return {name: mark for name, member in members(cls).items() if (mark := reward_mark(member)) is not None}


def reward_mark(function: Any) -> RewardMark | None:
    """The mark that `@reward` set, or None."""
    mark = getattr(function, MARK, None)
    return mark if isinstance(mark, RewardMark) else None


def members(cls: type) -> dict[str, Any]:
    """A class's members as written, inherited ones first; an override stands in its original's place.

    Of static and class methods they are the functions, which marks are set on.
    """
    members: dict[str, Any] = {}
    for base in reversed(cls.__mro__[:-1]):
        members.update(vars(base))
    wrapped = {name: each.__func__ for name, each in members.items() if isinstance(each, staticmethod | classmethod)}
    return members | wrapped


def gates_first(rewards: Sequence[FinalReward], others: Iterable[str] = (), agents: int = 1) -> list[FinalReward]:
    """Return the rewards in an order in which each comes after those that may close it; unchanged without gates.

    Behind a closed gate a reward is 0 and is not computed, so a judge is not asked about what a rule has refused. A
    gate that gave no value (its `where` does not fit the task, say) closes nothing.

    Args:
        rewards: an environment's.
        others: names of rewards that are computed later, of groups.
        agents: how many the environment has.

    Raises:
        ConfigError: a gate names what is no reward, gates close each other in a circle, or there are several agents.
    """
    left = list(rewards)
    if not any(mark.gates for mark, _ in rewards):
        return left
    if agents > 1:
        raise ConfigError("rewards.NAME.gates is for environments with one agent")
    known = [*(mark.name for mark, _ in rewards), *others]
    for mark, _ in rewards:
        if unknown := [name for name in mark.gates if name not in known]:
            hint = suggest(unknown[0], known)
            raise ConfigError(
                f"rewards.{mark.name}.gates: there is no reward {unknown[0]!r}{hint} (rewards: {', '.join(known)})"
            )
    ordered: list[FinalReward] = []
    while left:
        waiting = {name for mark, _ in left for name in mark.gates}
        ready = [each for each in left if each[0].name not in waiting]
        if not ready:
            raise ConfigError(f"rewards.{left[0][0].name}.gates: rewards close each other in a circle")
        ordered += ready
        left = [each for each in left if each not in ready]
    return ordered


def close_gates(marks: Iterable[RewardMark], values: Mapping[str, float]) -> set[str]:
    """Return the names of the rewards that do not count, given the values of those that may close them."""
    shut = (mark for mark in marks if mark.gates and values.get(mark.name, mark.gate_at) < mark.gate_at)
    return {name for mark in shut for name in mark.gates}
