"""Environment workers: sessions are played in processes of the cluster, many in each, with tools and sandboxes there.

What decides a session stays in the run's process: groups, seeds, the limit on concurrent sessions, retries, deadlines,
the store. A worker plays one attempt at a session from its seeds, and generates by the run's engines, which it calls
over the network; so the tokens are those of a session that is played in the run's process. Where a worker dies, its
sessions end as INFRA_ERROR, are generated again from the same seeds on the others, and it is replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from agentrl import cluster, processes, tracing
from agentrl.cluster import Address, Connection, Resources, Role, connect
from agentrl.cluster.calls import Listener
from agentrl.config import RolloutConfig, RunConfig
from agentrl.envs import sandboxes
from agentrl.envs.added_tools import with_tools
from agentrl.envs.episode import Actor
from agentrl.envs.registry import factory
from agentrl.envs.rewards import rewarded
from agentrl.errors import DeadlineExceeded, EngineError, InfraError
from agentrl.rollout.environment_workers import Left, Workers
from agentrl.rollout.groups import Deadline, Rollouts
from agentrl.rollout.policies import Policy
from agentrl.rollout.programs import Program
from agentrl.rollout.prompts import Continued, ForgottenPrompt, PromptReceiver, PromptSender
from agentrl.rollout.unfinished import Restored
from agentrl.sessions.renderers import get_renderer
from agentrl.types import Capabilities, Chunk, Engine, Health, PauseMode, Sampling, Session, Turn

logger = logging.getLogger(__name__)
OVERTIME = 60.0
"""Seconds beyond a session's own deadline, after which its worker is given up."""
HEALTH_SECONDS = 60.0
CPUS = 1.0
"""Of Ray's logical CPUs, for each environment worker."""


class EngineAccess:
    """An engine's calls for other processes; deadlines are in seconds from now, since clocks differ."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._prompts = engine, PromptReceiver()

    async def generate(
        self, caller: str, request_id: str, prompt: Continued, sampling: Sampling, seconds: float | None
    ) -> AsyncIterator[Chunk | Turn]:
        """See `Engine.generate`.

        Raises:
            ForgottenPrompt: the whole prompt is needed.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        input_ids = self._prompts.restored(f"{caller}/{session_of(request_id)}", prompt).tolist()
        async with aclosing(self._engine.generate(request_id, input_ids, sampling, deadline)) as items:  # type: ignore[type-var]
            async for item in items:
                yield item

    async def score(self, input_ids: Sequence[int], temperature: float) -> list[float]:
        """See `Engine.score`."""
        return await self._engine.score(input_ids, temperature)

    async def health(self) -> Health:
        """See `Engine.health`."""
        return await self._engine.health()


class DistantEngine:
    """`agentrl.types.Engine` over an `EngineAccess` in another process; it only generates and scores.

    Args:
        address: the other process's.
        capabilities: the engine's.
    """

    def __init__(self, address: Address, capabilities: Capabilities) -> None:
        self._address, self.capabilities = address, capabilities
        self._connection: Connection | None = None
        self._prompts, self._name = PromptSender(), secrets.token_hex(8)

    @property
    def _calls(self) -> Connection:
        if self._connection is None or self._connection.ended.done():
            self._connection = connect(self._address)
        return self._connection

    async def generate(
        self, request_id: str, input_ids: Sequence[int], sampling: Sampling, deadline: float | None = None
    ) -> AsyncIterator[Chunk | Turn]:
        """Yield chunks, then one `Turn`."""
        seconds = None if deadline is None else deadline - time.monotonic()
        if seconds is not None and seconds <= 0:
            raise DeadlineExceeded(f"request {request_id!r} came after its deadline")
        for whole in (False, True):
            prompt = self._prompts.shortened(session_of(request_id), input_ids, whole=whole)
            items = self._calls.stream("generate", self._name, request_id, prompt, sampling, seconds, timeout=seconds)
            with contextlib.suppress(ForgottenPrompt):  # before anything was generated
                async with aclosing(items):
                    async for item in items:
                        yield item
                    return

    async def score(self, input_ids: Sequence[int], temperature: float = 1.0) -> list[float]:
        """Log-probability of each token given those before it."""
        found: list[float] = await self._calls.call("score", list(input_ids), temperature, timeout=None)
        return found

    async def health(self) -> Health:
        """The engine's."""
        found: Health = await self._calls.call("health", timeout=HEALTH_SECONDS)
        return found

    def version(self) -> int:
        """Unknown here: each turn says which version generated it."""
        return 0

    async def publish(self, weights: Any, version: int) -> None:
        """Weights go to engines from the run's process."""
        raise EngineError("weights are published by the run's process")

    async def pause(self, mode: PauseMode = PauseMode.DRAIN) -> None:
        """See `publish`."""
        raise EngineError("engines are paused by the run's process")

    async def resume(self) -> None:
        """See `publish`."""
        raise EngineError("engines are resumed by the run's process")

    async def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()


def session_of(request_id: str) -> str:
    """The session that a request is of."""
    return request_id.partition("/")[0]


class EnvironmentRole:
    """Plays sessions.

    Args:
        config: the run's.
        base: the folder of the model, for its tokenizer.
        address: where the run's engines are called.
        capabilities: the engines'.
        traces: where spans are sent.
    """

    def __init__(
        self,
        config: RunConfig,
        base: Path,
        address: Address,
        capabilities: Capabilities,
        traces: tracing.Destination | None = None,
    ) -> None:
        sandboxes.configure(config.sandbox)
        self._config, self._make_env = config, factory(config.env.name, **config.env.kwargs)
        self._engine = DistantEngine(address, capabilities)
        stripping = config.model.reasoning == "strip"
        renderer = get_renderer(base, config.model.renderer)
        self._policy = Policy(renderer, self._engine, model=base, strip_reasoning=stripping)
        self._open, self._opening = AsyncExitStack(), asyncio.Lock()
        self._rollouts: Rollouts | None = None
        if traces is not None:
            self._open.enter_context(tracing.exported(*traces, logger.warning))

    async def play(self, session: Session, actor: Actor, limits: RolloutConfig, left: Left) -> Session:
        """Play one attempt at a session; see `Rollouts._play`."""
        deadline = None if left is None else Deadline(left[0], time.monotonic() + left[1])
        async with self._opening:
            if self._rollouts is None:
                config = self._config
                equipped = await self._open.enter_async_context(with_tools(self._make_env, config.tools))
                make_env = await self._open.enter_async_context(rewarded(equipped, config.rewards))
                self._rollouts = Rollouts(make_env, self._policy, config.rollout, config.seed)
        return await self._rollouts.limited(limits, apart=False)._play(session, actor, deadline, None)

    async def close(self) -> None:
        """Close rewards and the connection to the engines, and remove sandboxes: no exit handler runs in a worker."""
        await self._open.aclose()
        await self._engine.close()
        await sandboxes.close_all()


@dataclass(frozen=True)
class WorkerRollouts(Rollouts):
    """`Rollouts` whose sessions are played by workers."""

    workers: Workers = field(kw_only=True)

    async def _play(
        self, session: Session, actor: Actor | Program, deadline: Deadline | None, restored: Restored | None
    ) -> Session:
        if restored is not None:  # its environment is here
            return await super()._play(session, actor, deadline, restored)
        assert not isinstance(actor, Program)
        left = None if deadline is None else (deadline.seconds, deadline.left())
        timeout = None if self.rule.active else self._limits(deadline).timeout + OVERTIME  # forks have deadlines each
        return await self.workers.play(session, actor, self.limits, left, timeout)


@asynccontextmanager
async def in_workers(config: RunConfig, rollouts: Rollouts, base: Path) -> AsyncIterator[Rollouts]:
    """The same rollouts, played by `cluster.environments` workers; as they are where there are none."""
    count = config.cluster.environments
    if not count:
        yield rollouts
        return
    folder = await asyncio.to_thread(os.path.abspath, base)
    engine, host = rollouts.engines[0], cluster.current().host
    access, key = EngineAccess(engine), secrets.token_bytes(32)
    capabilities = await asyncio.to_thread(lambda: engine.capabilities)
    async with Listener(access, "the run's engines", "the run's engines", host, key) as address:
        role = Role(
            "environments",
            "agentrl.rollout.environments:EnvironmentRole",
            (config, Path(folder), address, capabilities, tracing.destination()),
            name="environments",
            resources=Resources(cpus=CPUS),
        )
        limits = config.cluster
        workers = Workers(role, count, limits.start_timeout, limits.max_restarts, limits.max_environments)
        processes.register_cleanup("containers of environment workers", sandboxes.remove_left)
        try:
            await workers.start()
            own = {item.name: getattr(rollouts, item.name) for item in fields(rollouts) if item.init}
            yield WorkerRollouts(**own, workers=workers)
        finally:
            with contextlib.suppress(InfraError):
                await workers.close()
