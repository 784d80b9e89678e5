"""`@reward`: which of an environment's methods give its final rewards, and the rewards that a run adds to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar, overload

from agentrl.common.plain import number, within
from agentrl.errors import InvalidInput, InvalidReward
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
