"""Rewards as plug-ins: `rewards.NAME=PLUGIN` adds a reward to any environment, or replaces its own of that name.

A plug-in is a subclass of `Reward`, with settings of its own: a judge, a service, a rule. It is given the finished
session with its task, whatever played it: training, evaluation, `agentrl check`, a program at `agentrl serve`.

Whose fault a failure is. A reward often depends on a service, so whatever it raises, a deadline that passes, and a
value that is no finite number in its range are infrastructure errors: the session never gets 0 for it, and is generated
again but for such a value. What would fail in every session (a name or an import in its code) stops the run.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence, Set
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol, TypeVar

from agentrl.common.foreign_errors import is_foreign, words
from agentrl.common.plain import missing
from agentrl.config import GroupRewardConfig, RewardConfig, RewardSections, Section
from agentrl.envs.base import Env, FinalReward, RewardMark, reward_value
from agentrl.envs.closing import close_in_time
from agentrl.envs.context import context_of
from agentrl.envs.data.conditions import conditions, fits, inside
from agentrl.envs.methods import with_own_notes
from agentrl.envs.state import resolve
from agentrl.errors import AgentRLError, ConfigError, DeadlineExceeded, InfraError
from agentrl.overrides import validate
from agentrl.registry import Registry, subclass_of
from agentrl.tools.schema import show_value
from agentrl.tools.threads import run_in_thread
from agentrl.types import Session, Task

_log = logging.getLogger(__name__)
Value = float | Mapping[str, float] | None
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """Memory of a reward's model on a device.

    Attributes:
        device: `cpu` or `cuda`.
        weights: bytes of its weights.
        batch: bytes that a batch takes besides.
    """

    device: str
    weights: float
    batch: float

    @property
    def total(self) -> float:
        """Bytes of both."""
        return self.weights + self.batch


class Reward:
    """A reward with its settings; one instance scores all sessions of a run, many of them at the same time.

    Attributes:
        settings: the class of its section of the configuration (`rewards.NAME.*`).
        range: the least and the greatest value that it can give.
        config: the settings; subclasses annotate it with their own class.
    """

    settings: ClassVar[type[RewardConfig]] = RewardConfig
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    config: RewardConfig

    def __init__(self, config: RewardConfig) -> None:
        """Build a reward; in the process, but not always in the event loop, in which it is used."""
        self.config = config

    @classmethod
    def memory(cls, config: Any) -> ModelMemory | None:
        """Estimate what its model takes on a device, before anything is loaded; None: it holds none.

        Raises:
            ConfigError, InvalidInput: there is no such model.
        """
        return None

    def compute(self, session: Session) -> Value | Awaitable[Value]:
        """The reward of a finished session (`session.task` is its task); None gives none.

        A plain method runs in a thread of its own. Where an environment has several agents, a mapping gives each one
        its own reward, and a number is the reward of all of them.
        """
        raise NotImplementedError(f"{type(self).__name__} has no compute(session)")

    def close(self) -> Awaitable[None] | None:
        """Release what it holds (connections); called once, in the end."""
        return None


_SCORING = "agentrl.envs.scoring"
BUILT_IN = {
    "exact_match": f"{_SCORING}.answers:ExactMatch",
    "f1": f"{_SCORING}.answers:F1",
    "math": f"{_SCORING}.answers:Math",
    "choice": f"{_SCORING}.answers:ChoiceAnswer",
    "regex": f"{_SCORING}.shapes:Regex",
    "json_schema": f"{_SCORING}.shapes:JsonSchema",
    "format": f"{_SCORING}.shapes:TaggedFormat",
    "length": f"{_SCORING}.shapes:Length",
    "easyr1_math": f"{_SCORING}.vision:EasyR1Math",
    "r1v": f"{_SCORING}.vision:R1V",
    "box_iou": f"{_SCORING}.vision:BoxIoU",
    "box_format": f"{_SCORING}.vision:BoxFormat",
    "llm_judge": f"{_SCORING}.judges:LlmJudge",
    "pairwise": f"{_SCORING}.judges:Pairwise",
    "rank": f"{_SCORING}.judges:SiblingRank",
    "trl": f"{_SCORING}.functions:TrlFunction",
    "verl": f"{_SCORING}.functions:VerlFunction",
    "slime": f"{_SCORING}.functions:SlimeFunction",
    "reward_model": f"{_SCORING}.reward_models:ScoreModelReward",
}
"""agentrl's own rewards by name."""


def _hint(path: str, found: Any) -> str:
    """Say how a function is a reward, by the names of its parameters."""
    if isinstance(found, type) or not callable(found):
        return "a subclass of agentrl.plugins.reward.Reward is one"
    try:
        names = list(inspect.signature(found).parameters)
    except (TypeError, ValueError):
        names = []
    known = (("trl", "completions"), ("verl", "solution_str"), ("slime", "sample"))
    framework = next((name for name, parameter in known if parameter in names), "")
    given = f"rewards.NAME={framework or 'trl|verl|slime'} rewards.NAME.function={path}"
    other = "" if framework else ", or is the method `compute` of a subclass of agentrl.plugins.reward.Reward"
    return f"a function of another framework is given as {given}{other}"


REWARDS: Registry[type[Reward]] = Registry(
    "reward",
    "rewards.NAME",
    "agentrl.rewards",
    BUILT_IN,
    settings=RewardConfig,
    default=subclass_of(Reward),
    hint=_hint,
)
"""A package names its rewards as entry points of the group `agentrl.rewards`: `judge = "my_package.judge:Judge"`."""


@dataclass(frozen=True)
class _Named:
    """A reward under the name that the configuration gives it."""

    name: str
    reward: Reward

    @property
    def mark(self) -> RewardMark:
        config = self.reward.config
        return RewardMark(self.name, config.weight, self.reward.range, config.gates, config.gate_at)

    @property
    def _where(self) -> str:
        """The setting that names it, as errors say it."""
        return f"rewards.{self.name}={self.reward.config.name!r}"

    def takes(self, task: Task) -> bool:
        """Return whether the reward is for a task (`rewards.NAME.where`); a field that it lacks fits nothing."""
        try:
            return all(fits(inside(task.data, name), wanted) for name, wanted in self._wanted)
        except KeyError:
            return False

    @cached_property
    def _wanted(self) -> Sequence[tuple[str, Any]]:
        return tuple(conditions(self.reward.config.where, f"rewards.{self.name}.where"))

    async def close(self) -> None:
        """Close the reward; a failure of that is logged."""
        try:
            await close_in_time(self.reward)
        except Exception as error:
            _log.warning("rewards.%s: closing it raised %s", self.name, words(error))

    async def _in_time(self, compute: Callable[[], Awaitable[T]]) -> T:
        """Return what it gives within its deadline; whose fault a failure is, is in its type (see `NamedReward`)."""
        where, seconds = self._where, self.reward.config.timeout
        try:
            async with asyncio.timeout(seconds) as limit:
                return await compute()
        except AgentRLError:
            raise
        except (NameError, ImportError, SyntaxError, NotImplementedError, SystemExit) as error:
            raise ConfigError(f"{where}: {words(error)}") from error
        except BaseException as error:
            if not is_foreign(error):
                raise
            if isinstance(error, TimeoutError) and limit.expired():
                late = f"{where} took longer than {seconds:g} s (rewards.{self.name}.timeout)"
                raise DeadlineExceeded(late) from None
            raise InfraError(f"{where} raised {words(error)}") from error


@dataclass(frozen=True)
class NamedReward(_Named):
    """A session's reward; calling it applies deadline and checks."""

    async def __call__(self, session: Session) -> Value:
        """The reward of a finished session, checked; None where it is not for the session's task.

        Raises:
            InfraError: it failed.
            InvalidReward: it gave something else than a finite number in its range.
            DeadlineExceeded: it took longer than its `timeout`.
            ConfigError: it would fail in the same way in every session.
        """
        if not self.takes(session.task):
            return None
        where = self._where
        value = await self._in_time(lambda: self._compute(session))
        if isinstance(value, Mapping):
            given = {agent: each for agent, each in value.items() if not missing(each)}
            return {
                agent: reward_value(each, f"{where} for {agent!r}", self.reward.range) for agent, each in given.items()
            }
        return None if missing(value) else reward_value(value, where, self.reward.range)

    async def _compute(self, session: Session) -> Value:
        if inspect.iscoroutinefunction(self.reward.compute):
            return await self.reward.compute(session)  # type: ignore[no-any-return]

        async def compute(own: Session) -> Any:
            return await resolve(await run_in_thread(self.reward.compute, own))

        return await with_own_notes(session, compute)  # type: ignore[no-any-return]


class GroupReward(Reward):
    """A reward that sees all sessions of a group, and gives each its own value: by comparing them, say.

    It is computed when they have ended and have their other rewards. `settings` is a subclass of `GroupRewardConfig`.
    """

    settings: ClassVar[type[RewardConfig]] = GroupRewardConfig

    def compute(self, session: Session) -> None:
        return None

    def compute_group(self, sessions: Sequence[Session]) -> Sequence[float | None] | Awaitable[Sequence[float | None]]:
        """The value of each session, in their order; their order makes no difference.

        They are of one task. Those that the infrastructure failed, or whose reward is behind a closed gate, are not
        among them; there may be only one. A plain method runs in a thread of its own.
        """
        raise NotImplementedError(f"{type(self).__name__} has no compute_group(sessions)")


@dataclass(frozen=True)
class NamedGroupReward(_Named):
    """A group's reward; calling it applies deadline and checks."""

    reward: GroupReward

    async def __call__(self, sessions: Sequence[Session]) -> list[float | None]:
        """The value of each session, checked; None for all where the reward is not for their task.

        Raises:
            AgentRLError: as `NamedReward`.
        """
        if not sessions or not self.takes(sessions[0].task):
            return [None] * len(sessions)
        where = self._where
        given: Any = await self._in_time(lambda: self._compute(sessions))
        if isinstance(given, str | Mapping | Set) or not isinstance(given, Iterable):
            raise InfraError(f"{where} gave {show_value(given)}: a value for each session, in a list, is wanted")
        values = list(given)
        if len(values) != len(sessions):
            raise InfraError(f"{where} gave {len(values)} values for {len(sessions)} sessions")
        return [None if missing(value) else reward_value(value, where, self.reward.range) for value in values]

    async def _compute(self, sessions: Sequence[Session]) -> Sequence[float | None]:
        if inspect.iscoroutinefunction(self.reward.compute_group):
            return await self.reward.compute_group(sessions)  # type: ignore[no-any-return]
        return await resolve(await run_in_thread(self.reward.compute_group, sessions))  # type: ignore[no-any-return]


class _Rewards(Section):
    """The part of a configuration that `make_rewards` reads."""

    rewards: RewardSections


def make_rewards(configs: Mapping[str, Any]) -> tuple[NamedReward | NamedGroupReward, ...]:
    """The rewards of a configuration's `rewards`, in the order of their names.

    Args:
        configs: settings by the reward's name, as `RunConfig.rewards` or as they are typed.

    Raises:
        UnknownName: there is no such plug-in.
        ConfigError: it does not have these settings, or can't be built with them.
    """
    checked = validate({"rewards": configs}, _Rewards).rewards
    made: list[NamedReward | NamedGroupReward] = []
    for name, config in sorted(checked.items()):
        try:
            reward = REWARDS.find(config.name)(config)
            made.append(
                NamedGroupReward(name, reward) if isinstance(reward, GroupReward) else NamedReward(name, reward)
            )
            _ = made[-1]._wanted  # a bound that is no number is found now
        except AgentRLError:
            raise
        except (Exception, SystemExit) as error:
            raise ConfigError(f"rewards.{name}={config.name!r}: {words(error)}") from error
    return tuple(made)


class AddedReward(Protocol):
    """A reward that a run adds: a `NamedReward`, or one that is computed in another process."""

    @property
    def mark(self) -> RewardMark:
        """Name, weight and range, as `@reward` would have them."""

    async def __call__(self, session: Session) -> Value:
        """The reward of a finished session."""


@dataclass(frozen=True)
class RewardedEnvs:
    """Makes environments with rewards added; one of the same name replaces an environment's own.

    Attributes:
        make_env: makes the environments without them.
        added: the rewards of a session.
        of_groups: the rewards of a group, which whoever plays the group computes.
    """

    make_env: Callable[[], Env]
    added: tuple[FinalReward, ...]
    of_groups: tuple[NamedGroupReward, ...] = ()

    def __call__(self) -> Env:
        env = self.make_env()
        context = context_of(env.unwrapped)
        context.added_rewards = self.added
        context.group_rewards = tuple((reward.mark, reward) for reward in self.of_groups)
        return env


def list_group_rewards(make_env: Callable[[], Env]) -> tuple[NamedGroupReward, ...]:
    """The rewards of a group that environments from there are made with."""
    return make_env.of_groups if isinstance(make_env, RewardedEnvs) else ()


def adding(make_env: Callable[[], Env], rewards: Sequence[AddedReward | NamedGroupReward]) -> RewardedEnvs:
    """Makes the same environments, with these rewards added; one of the same name replaces the environment's own."""
    added = tuple((each.mark, each) for each in rewards if not isinstance(each, NamedGroupReward))
    return RewardedEnvs(make_env, added, tuple(each for each in rewards if isinstance(each, NamedGroupReward)))


@asynccontextmanager
async def open_rewards(
    make_env: Callable[[], Env], configs: Mapping[str, RewardConfig]
) -> AsyncIterator[Callable[[], Env]]:
    """Like `adding`, by their settings, and closes the rewards in the end; without any it gives `make_env` itself."""
    rewards = make_rewards(configs)
    try:
        yield adding(make_env, rewards) if rewards else make_env
    finally:
        for named in rewards:
            await named.close()
