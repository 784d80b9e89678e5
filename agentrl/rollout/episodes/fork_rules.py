"""Rules that say at which turns a session is forked (`rollout.branch`): by name, import path, or a function.

A rule sees what was there before the turn, and nothing of what came of it: neither rewards nor how a session ended. So
a fork does not depend on what is sampled at it: the session's own turn and its other continuations are equally likely,
and a mean over them is unbiased.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import Field, NonNegativeFloat, PositiveInt, model_validator

from agentrl.common.imports import load
from agentrl.config import BranchConfig
from agentrl.registry import Registry
from agentrl.types import Message


@dataclass(frozen=True, slots=True)
class ForkPoint:
    """A session before a turn.

    Attributes:
        turn: how many turns were taken before.
        branch: the branch's number in the session; 0 is its first path.
        messages: the conversation so far.
        surprisal: the mean -log p of the tokens of the turn before, in nats; an estimate of the policy's entropy there.
            None before the first turn.
        seed: of the session's group; `sample` is its place in the group.
        sample: see `seed`.
    """

    turn: int
    branch: int
    messages: tuple[Message, ...]
    surprisal: float | None
    seed: int
    sample: int


class ForkRule:
    """Says at which turns a session is forked.

    Attributes:
        settings: the class of its section of the configuration.
        config: the settings; subclasses annotate it with their own class.
    """

    settings: ClassVar[type[BranchConfig]] = BranchConfig
    config: BranchConfig

    def __init__(self, config: BranchConfig) -> None:
        self.config = config

    @property
    def active(self) -> bool:
        """True where the rule forks at all."""
        return True

    def forks(self, point: ForkPoint) -> bool:
        """Return whether to fork before this turn; what is random follows from the point's seed and sample."""
        raise NotImplementedError(f"{type(self).__name__} has no forks(point)")


class Never(ForkRule):
    """The rule without forks."""

    @property
    def active(self) -> bool:
        return False

    def forks(self, point: ForkPoint) -> bool:
        return False


class EveryConfig(BranchConfig):
    """The settings of `rollout.branch=every`."""

    name: str = "every"
    """The rule's name."""
    turns: PositiveInt = 1
    """Every so many turns."""
    start: int = Field(default=1, ge=0)
    """The first turn that is forked. Before turn 0 nothing was sampled: forks there are more sessions of the group."""


class Every(ForkRule):
    """A fork every k turns."""

    settings = EveryConfig
    config: EveryConfig

    def forks(self, point: ForkPoint) -> bool:
        return point.turn >= self.config.start and (point.turn - self.config.start) % self.config.turns == 0


class EntropyConfig(BranchConfig):
    """The settings of `rollout.branch=entropy`."""

    name: str = "entropy"
    """The rule's name."""
    threshold: NonNegativeFloat = 1.0
    """The least mean -log p of the tokens of the turn before, in nats."""


class Entropy(ForkRule):
    """A fork after turns that the policy was uncertain in."""

    settings = EntropyConfig
    config: EntropyConfig

    def forks(self, point: ForkPoint) -> bool:
        return point.surprisal is not None and point.surprisal >= self.config.threshold


class ValueConfig(BranchConfig):
    """The settings of `rollout.branch=value`."""

    name: str = "value"
    """The rule's name."""
    estimate: str
    """The import path of a function of a `ForkPoint` that estimates the return to come."""
    low: float = 0.2
    """The least value at which a session is forked."""
    high: float = 0.8
    """The greatest one."""

    @model_validator(mode="after")
    def _range(self) -> ValueConfig:
        if not self.low <= self.high:
            raise ValueError(f"low={self.low:g} must not exceed high={self.high:g}")
        return self


class Value(ForkRule):
    """A fork where a function's estimate of the return leaves the outcome open."""

    settings = ValueConfig
    config: ValueConfig

    def __init__(self, config: ValueConfig) -> None:
        super().__init__(config)
        self._estimate = load(config.estimate, f"rollout.branch.estimate={config.estimate!r}")

    def forks(self, point: ForkPoint) -> bool:
        return self.config.low <= float(self._estimate(point)) <= self.config.high


class _Function(ForkRule):
    """A user's function of a `ForkPoint`."""

    def __init__(self, function: Callable[[ForkPoint], Any], config: BranchConfig) -> None:
        super().__init__(config)
        self._function = function

    def forks(self, point: ForkPoint) -> bool:
        return bool(self._function(point))


MakeRule = Callable[[BranchConfig], ForkRule]


def _accept(found: Any) -> MakeRule | None:
    if isinstance(found, type):
        return found if issubclass(found, ForkRule) else None
    return (lambda config: _Function(found, config)) if callable(found) else None


FORK_RULES: Registry[MakeRule] = Registry(
    "fork rule",
    "rollout.branch",
    "agentrl.fork_rules",
    {"none": Never, "every": Every, "entropy": Entropy, "value": Value},
    accept=_accept,
    settings=BranchConfig,
)


def make_rule(config: BranchConfig) -> ForkRule:
    """The rule that the settings name; `Registry.find` describes the errors."""
    return FORK_RULES.find(config.name)(config)
