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
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from agentrl.common.foreign_errors import words
from agentrl.common.plain import missing
from agentrl.config import RewardConfig, RewardSections, Section
from agentrl.envs.base import Env, FinalReward, RewardMark, reward_value
from agentrl.envs.closing import close_in_time
from agentrl.envs.context import context_of
from agentrl.envs.methods import with_own_notes
from agentrl.envs.state import resolved
from agentrl.errors import AgentRLError, ConfigError, DeadlineExceeded, InfraError
from agentrl.overrides import validate
from agentrl.registry import Registry
from agentrl.tools.threads import run_in_thread
from agentrl.types import Session

_log = logging.getLogger(__name__)
Value = float | Mapping[str, float] | None


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

    def compute(self, session: Session) -> Value | Awaitable[Value]:
        """The reward of a finished session (`session.task` is its task); None gives none.

        A plain method runs in a thread of its own. Where an environment has several agents, a mapping gives each one
        its own reward, and a number is the reward of all of them.
        """
        raise NotImplementedError(f"{type(self).__name__} has no compute(session)")

    def close(self) -> Awaitable[None] | None:
        """Release what it holds (connections); called once, in the end."""
        return None


def _is_reward(found: Any) -> bool:
    return isinstance(found, type) and issubclass(found, Reward)


REWARDS: Registry[type[Reward]] = Registry(
    "reward",
    "rewards.NAME",
    "agentrl.rewards",
    {},
    accept=lambda found: found if _is_reward(found) else None,
    settings=RewardConfig,
    default=lambda found: found is not Reward and _is_reward(found),
)
"""A package names its rewards as entry points of the group `agentrl.rewards`: `judge = "my_package.judge:Judge"`."""


@dataclass(frozen=True)
class NamedReward:
    """A reward under the name that the configuration gives it; calling it applies deadline and checks."""

    name: str
    reward: Reward

    @property
    def mark(self) -> RewardMark:
        """Name, weight and range, as `@reward` would have them."""
        return RewardMark(self.name, self.reward.config.weight, self.reward.range)

    async def __call__(self, session: Session) -> Value:
        """The reward of a finished session, checked.

        Raises:
            InfraError: it failed.
            InvalidReward: it gave something else than a finite number in its range.
            DeadlineExceeded: it took longer than its `timeout`.
            ConfigError: it would fail in the same way in every session.
        """
        config = self.reward.config
        where = f"rewards.{self.name}={config.name!r}"
        try:
            async with asyncio.timeout(config.timeout) as limit:
                value = await self._compute(session)
        except AgentRLError:
            raise
        except (NameError, ImportError, SyntaxError, NotImplementedError, SystemExit) as error:
            raise ConfigError(f"{where}: {words(error)}") from error
        except Exception as error:
            if isinstance(error, TimeoutError) and limit.expired():
                late = f"{where} took longer than {config.timeout:g} s (rewards.{self.name}.timeout)"
                raise DeadlineExceeded(late) from None
            raise InfraError(f"{where} raised {words(error)}") from error
        if isinstance(value, Mapping):
            given = {agent: each for agent, each in value.items() if not missing(each)}
            return {
                agent: reward_value(each, f"{where} for {agent!r}", self.reward.range) for agent, each in given.items()
            }
        return None if missing(value) else reward_value(value, where, self.reward.range)

    async def close(self) -> None:
        """Close the reward; a failure of that is logged."""
        try:
            await close_in_time(self.reward)
        except Exception as error:
            _log.warning("rewards.%s: closing it raised %s", self.name, words(error))

    async def _compute(self, session: Session) -> Value:
        if inspect.iscoroutinefunction(self.reward.compute):
            return await self.reward.compute(session)  # type: ignore[no-any-return]

        async def compute(own: Session) -> Any:
            return await resolved(await run_in_thread(self.reward.compute, own))

        return await with_own_notes(session, compute)  # type: ignore[no-any-return]


class _Rewards(Section):
    """The part of a configuration that `make_rewards` reads."""

    rewards: RewardSections


def make_rewards(configs: Mapping[str, Any]) -> tuple[NamedReward, ...]:
    """The rewards of a configuration's `rewards`, in the order of their names.

    Args:
        configs: settings by the reward's name, as `RunConfig.rewards` or as they are typed.

    Raises:
        UnknownName: there is no such plug-in.
        ConfigError: it does not have these settings, or can't be built with them.
    """
    checked = validate({"rewards": configs}, _Rewards).rewards
    made = []
    for name, config in sorted(checked.items()):
        try:
            made.append(NamedReward(name, REWARDS.find(config.name)(config)))
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
        ...

    async def __call__(self, session: Session) -> Value:
        """The reward of a finished session."""
        ...


def adding(make_env: Callable[[], Env], rewards: Sequence[AddedReward]) -> Callable[[], Env]:
    """Makes the same environments, with these rewards added; one of the same name replaces the environment's own."""
    added: tuple[FinalReward, ...] = tuple((reward.mark, reward) for reward in rewards)

    def make() -> Env:
        env = make_env()
        context_of(env.unwrapped).added_rewards = added
        return env

    return make


@asynccontextmanager
async def rewarded(
    make_env: Callable[[], Env], configs: Mapping[str, RewardConfig]
) -> AsyncIterator[Callable[[], Env]]:
    """Like `adding`, by their settings, and closes the rewards in the end; without any it gives `make_env` itself."""
    rewards = make_rewards(configs)
    try:
        yield adding(make_env, rewards) if rewards else make_env
    finally:
        for named in rewards:
            await named.close()
