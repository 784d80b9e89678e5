"""Reward workers: the rewards that a run adds are computed in processes of the cluster (`cluster.rewards`).

A session is played in the run's process or in an environment worker, and what plays it sends the finished session to
the reward worker that has fewest, and gets the value back. A worker builds all of the run's rewards once. Deadlines and
checks are those of `NamedReward`, which runs in the worker, so that a failure is the same one as without workers. Where
a worker dies, or holds its process past the deadline (code that never gives up the interpreter), the sessions that it
has are INFRA_ERRORs, and it is replaced.

`@reward` methods of environments stay where the episode is: they read the instance and its sandbox.
"""

from __future__ import annotations

import pickle
import traceback
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from agentrl.cluster import Address, Resources, Role
from agentrl.cluster.pool import WorkerPool, Workers, open_pool
from agentrl.cluster.shared_pool import DistantPool, shared_pool
from agentrl.common import cores, processes
from agentrl.common.foreign_errors import words
from agentrl.config import ClusterConfig, GroupRewardConfig, RewardConfig, SandboxConfig
from agentrl.envs import sandboxes
from agentrl.envs.base import Env, RewardMark
from agentrl.envs.rewards import NamedReward, Value, adding, list_group_rewards, make_rewards, open_rewards
from agentrl.errors import AgentRLError, Blame, DeadlineExceeded, EnvError, InfraError, WorkerLost, WorkerTimeout
from agentrl.sessions.tree.codec import odd_place
from agentrl.types import Session

CPUS = 1.0
"""Of Ray's logical CPUs, for each reward worker."""
OVERTIME = 15.0
"""Seconds beyond a reward's own deadline, after which its worker is given up."""
Notes = tuple[dict[str, Any], dict[str, int]]
"""A session's `info` and `counters`, in which a reward may have left something."""
MakeEnv = Callable[[], Env]


class RewardRole:
    """Computes rewards, in a worker's process.

    Args:
        configs: the rewards' settings by name.
        sandbox: the run's settings of sandboxes, which rewards may use.
    """

    def __init__(self, configs: Mapping[str, RewardConfig], sandbox: SandboxConfig) -> None:
        sandboxes.configure(sandbox)
        self._rewards = {named.name: named for named in make_rewards(configs) if isinstance(named, NamedReward)}

    def marks(self) -> list[RewardMark]:
        """Name, weight and range of each reward."""
        return [named.mark for named in self._rewards.values()]

    async def compute(self, name: str, data: bytes) -> tuple[Value, Notes | None] | AgentRLError:
        """A reward of a pickled session.

        Returns:
            The value, and `info` and `counters` where the reward changed them; or the error that it raised.
        """
        try:
            session: Session = pickle.loads(data)
        except Exception as error:
            return InfraError(f"rewards.{name}: the session can't be read here: {type(error).__name__}: {error}")
        before = pickle.dumps((session.info, session.counters))
        try:
            value = await self._rewards[name](session)
        except AgentRLError as error:
            return _portable(error)
        notes = session.info, session.counters  # which may be new ones
        try:
            return value, None if pickle.dumps(notes) == before else notes
        except Exception as error:
            odd = odd_place({"info": session.info}) or words(error)
            return EnvError(f"rewards.{name}: what it left in the session can't be sent back: {odd}")

    async def close(self) -> None:
        for named in self._rewards.values():
            await named.close()
        await sandboxes.close_all()


def _portable(error: AgentRLError) -> AgentRLError:
    """An error without what only this process knows: classes of a plug-in's own, and its cause.

    Where the user has to mend something, the cause's traceback becomes a note.
    """
    kind = next(each for each in type(error).__mro__ if each.__module__ == AgentRLError.__module__)
    found: AgentRLError = kind(str(error))
    if error.blame is Blame.USER and error.__cause__ is not None:
        found.add_note("".join(traceback.format_exception(error.__cause__)).rstrip())
    return found


@dataclass(frozen=True)
class DistantReward:
    """A reward that workers compute; called as a `NamedReward` is."""

    mark: RewardMark
    config: RewardConfig
    workers: Workers

    async def __call__(self, session: Session) -> Value:
        """The reward of a finished session; see `NamedReward.__call__`.

        Raises:
            InfraError: it failed or gave an invalid number, or its worker died.
            DeadlineExceeded: it took longer than its `timeout`.
            ConfigError: it would fail in the same way in every session.
        """
        name, seconds = self.mark.name, self.config.timeout
        where = f"rewards.{name}={self.config.name!r}"
        try:
            data = pickle.dumps(session, pickle.HIGHEST_PROTOCOL)
        except Exception as error:
            raise InfraError(f"{where}: the session can't be sent to a worker: {error}") from error
        try:
            found = await self.workers.call("compute", name, data, timeout=seconds + OVERTIME)
        except WorkerTimeout:
            raise DeadlineExceeded(
                f"{where} took longer than {seconds:g} s (rewards.{name}.timeout), and held its worker, which was ended"
            ) from None
        except WorkerLost as error:
            raise InfraError(f"{where}: its worker was lost: {error}") from None
        if isinstance(found, AgentRLError):
            raise found
        value, notes = found
        if notes is not None:
            for own, changed in zip((session.info, session.counters), notes, strict=True):
                own.clear()
                own.update(changed)
        return value  # type: ignore[no-any-return]


@dataclass(frozen=True)
class SharedRewards:
    """A run's reward workers, for other processes."""

    address: Address
    marks: tuple[RewardMark, ...]


@dataclass(frozen=True)
class RewardWorkers:
    """A run's reward workers, in the run's process."""

    pool: WorkerPool
    marks: tuple[RewardMark, ...]

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[SharedRewards]:
        """Lend them to other processes within the block."""
        async with shared_pool(self.pool, "the run's reward workers") as address:
            yield SharedRewards(address, self.marks)


def longest(limits: ClusterConfig, rewards: Mapping[str, RewardConfig]) -> float:
    """Seconds that the added rewards of a session may take: one after the other, with the start of another worker."""
    waiting = limits.start_timeout if limits.rewards else 0.0
    return waiting + sum(each.timeout + OVERTIME for each in rewards.values())


@asynccontextmanager
async def open_reward_workers(
    make_env: MakeEnv, rewards: Mapping[str, RewardConfig], limits: ClusterConfig, sandbox: SandboxConfig
) -> AsyncIterator[tuple[MakeEnv, RewardWorkers | None]]:
    """Makes the same environments with a run's `rewards.*`, and the workers that compute them.

    Without `cluster.rewards` there are no workers: the rewards are computed where a session is played.
    """
    configs = of_sessions(rewards)
    if not limits.rewards or not configs:
        async with open_rewards(make_env, rewards) as made:
            yield made, None
        return
    role = Role(
        "rewards",
        f"{__name__}:RewardRole",
        (configs, sandbox),
        resources=Resources(cpus=CPUS),
        threads=cores.choose_threads(None, 1),  # as many as rewards have in the run's process
    )
    processes.register_cleanup("containers of workers", sandboxes.remove_left)
    async with open_pool(role, limits.rewards, limits) as pool:
        marks = tuple(await pool.call("marks", timeout=limits.start_timeout))
        async with _distant(make_env, rewards, marks, pool) as made:
            yield made, RewardWorkers(pool, marks)


@asynccontextmanager
async def scored_in_worker(
    make_env: MakeEnv, configs: Mapping[str, RewardConfig], rewards: SharedRewards | None
) -> AsyncIterator[MakeEnv]:
    """`open_reward_workers` in another process of the run: by its reward workers where it has any, else by itself."""
    if rewards is None:
        async with open_rewards(make_env, configs) as made:
            yield made
        return
    pool = DistantPool(rewards.address)
    try:
        async with _distant(make_env, configs, rewards.marks, pool) as made:
            yield made
    finally:
        pool.close()


def of_sessions(configs: Mapping[str, RewardConfig]) -> dict[str, RewardConfig]:
    """Return the settings of the rewards of single sessions; those of groups are computed where groups are played."""
    return {name: each for name, each in configs.items() if not isinstance(each, GroupRewardConfig)}


@asynccontextmanager
async def _distant(
    make_env: MakeEnv, configs: Mapping[str, RewardConfig], marks: Sequence[RewardMark], workers: Workers
) -> AsyncIterator[MakeEnv]:
    of_groups = {name: each for name, each in configs.items() if isinstance(each, GroupRewardConfig)}
    async with open_rewards(make_env, of_groups) as inner:
        distant = [DistantReward(mark, configs[mark.name], workers) for mark in marks]
        yield adding(make_env, [*distant, *list_group_rewards(inner)])
