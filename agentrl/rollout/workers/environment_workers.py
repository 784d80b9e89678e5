"""Environment workers: sessions are played in processes of the cluster, many in each, with tools and sandboxes there.

What decides a session stays in the run's process: groups, seeds, the limit on concurrent sessions, retries, deadlines,
which policy plays an agent, the store. A worker plays one attempt at a session from its seeds, and generates by the
run's engines, which it calls directly; so the tokens are those of a session that is played in the run's process. An
agent program runs beside its worker, which has a gateway for it, or calls a gateway worker. Where a worker dies, its
sessions end as INFRA_ERROR, are generated again from the same seeds on the others, and it is replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from agentrl import tracing, watchdog
from agentrl.cluster import Address, Resources, Role
from agentrl.cluster.pool import WorkerPool
from agentrl.cluster.shared_pool import DistantPool, shared_pool
from agentrl.common import processes
from agentrl.common.deadline import Deadline
from agentrl.config import PAST, ModelConfig, Policies, RolloutConfig, RunConfig
from agentrl.envs import sandboxes
from agentrl.envs.added_tools import with_tools
from agentrl.envs.registry import factory
from agentrl.envs.turns import Actor
from agentrl.errors import InfraError, WorkerLost
from agentrl.rollout.episodes.groups import DEMO, Rollouts
from agentrl.rollout.episodes.opponents import open_rules
from agentrl.rollout.episodes.policies import Fixed, Opponent, Partners, Policy
from agentrl.rollout.episodes.programs import Program, ServedProgram, serving
from agentrl.rollout.workers import gateway_workers
from agentrl.rollout.workers.distant_engine import DistantEngine, EngineCalls
from agentrl.rollout.workers.distant_recorder import DistantRecorder
from agentrl.rollout.workers.engine_access import serve_engines
from agentrl.rollout.workers.gateway_workers import distant_program
from agentrl.rollout.workers.held import SessionHead, SessionRef
from agentrl.rollout.workers.reward_workers import RewardWorkers, SharedRewards, longest, scored_in_worker
from agentrl.sessions.renderers import get_renderer
from agentrl.sessions.store.store import Store
from agentrl.types import MAIN, Capabilities, Session, Status

logger = logging.getLogger(__name__)
OVERTIME = 60.0
"""Seconds after which a session's worker is given up, beyond those of its episode and as many for its rewards."""
CPUS = 1.0
"""Ray's logical CPUs for each environment worker."""
Left = tuple[float, float] | None
"""A group's deadline: its seconds in all, and those that are left."""


def model_played(
    policies: Policies, agents: Mapping[str, str], main: ModelConfig, agent: str, policy: str
) -> ModelConfig:
    """Return the settings of the model with which a policy, or an earlier version of one, plays an agent."""
    own = policies[policy if policy in policies else agents[agent]]
    if own.name != PAST:
        return own.model
    return main if own.past.of == MAIN else policies[own.past.of].model


@dataclass(frozen=True)
class EnginePolicy:
    """A policy that plays an agent by an engine of the run's process."""

    policy: str
    model: Path
    capabilities: Capabilities
    actor: Actor


ByEngine = Mapping[str, EnginePolicy]
"""Such policies of a session, by agent; the worker knows who plays all other agents."""


@dataclass(frozen=True)
class OtherWeights:
    """The policy that is evaluated where it is the trained one with other weights, such as their average."""

    policy: str
    capabilities: Capabilities


class EnvironmentRole:
    """Plays sessions.

    Args:
        config: the run's.
        base: the folder of the model, for its tokenizer.
        address: where the run's engines are called.
        capabilities: those of the trained policy's engines.
        rewards: the run's reward workers; None: rewards are computed here.
        gateways: where the run's gateway workers are called; None: agent programs have a gateway of this process.
        traces: where spans are sent.
        sessions: where the run's session worker is called; None: finished sessions go to the run's process.
    """

    def __init__(
        self,
        config: RunConfig,
        base: Path,
        address: Address,
        capabilities: Capabilities,
        rewards: SharedRewards | None = None,
        gateways: Address | None = None,
        traces: tracing.Destination | None = None,
        sessions: Address | None = None,
    ) -> None:
        sandboxes.configure(config.sandbox)
        self._config, self._make_env = config, factory(config.env.name, **config.env.kwargs)
        self._calls, self._rewards, self._gateways = EngineCalls(address), rewards, gateways
        self._equipped = self._make_env
        stripping = config.model.reasoning == "strip"
        renderer = get_renderer(base, config.model.renderer, config.model.stop)
        engine = DistantEngine(self._calls, capabilities)
        self._policy = Policy(renderer, engine, model=base, strip_reasoning=stripping)
        self._open, self._opening = AsyncExitStack(), asyncio.Lock()
        self._rollouts: Rollouts | None = None
        self._program: ServedProgram | None = None
        self._partners: dict[str, Policy] = {}
        self._sessions = None if sessions is None else DistantPool(sessions)
        if traces is not None:
            self._open.enter_context(tracing.export_spans(*traces, logger.warning))

    async def play(
        self,
        session: Session,
        actor: Actor | Program,
        limits: RolloutConfig,
        left: Left,
        by_engine: ByEngine,
        other: OtherWeights | None,
    ) -> Session | SessionHead:
        """Play one attempt at a session; see `Rollouts._play`. A session that is held elsewhere is stored there."""
        deadline = None if left is None else Deadline(left[0], time.monotonic() + left[1])
        async with self._opening:
            rollouts = self._rollouts = self._rollouts or await self._make_rollouts()
            told = {agent: await self._partner(agent, given) for agent, given in by_engine.items()}
            if isinstance(actor, Program):
                actor = replace(await self._serve(actor.agent), recorded=actor.recorded)
        policy = self._policy
        if other is not None:
            engine = DistantEngine(self._calls, other.capabilities, other.policy)
            policy = replace(policy, engine=engine, name=other.policy)
        partners = {**rollouts.partners, **told}
        make_env = self._equipped if session.phase == DEMO else rollouts.make_env
        own = replace(rollouts, make_env=make_env, limits=limits, policy=policy, partners=partners)
        with self._calls.leases.session(session.id):
            if self._sessions is None:
                return await own._play(session, actor, deadline, None)
            limits = limits.model_copy(update={"save_states": "never"})
            own = replace(own, limits=limits, recorder=DistantRecorder(self._sessions))
            return SessionHead.of(await own._play_recorded(session, actor, deadline, None))

    async def _make_rollouts(self) -> Rollouts:
        config = self._config
        self._equipped = await self._open.enter_async_context(with_tools(self._make_env, config.tools))
        make_env = await self._open.enter_async_context(scored_in_worker(self._equipped, config.rewards, self._rewards))
        partners = await self._open.enter_async_context(open_rules(config.policies, config.agents, config.rollout))
        return Rollouts(make_env, self._policy, config.rollout, config.seed, partners, views=config.views)

    async def _serve(self, agent: str) -> ServedProgram:
        config = self._config
        if self._program is None and self._gateways is not None:
            self._open.callback((workers := DistantPool(self._gateways)).close)
            self._program = distant_program(agent, config.gateway, workers)
        elif self._program is None:
            store = self._open.enter_context(Store(":memory:"))
            program = serving(agent, self._policy, store, config.rollout, config.gateway, keeps=False)  # the run does
            self._program = await self._open.enter_async_context(program)
        return self._program

    async def _partner(self, agent: str, given: EnginePolicy) -> Opponent:
        if given.policy not in self._partners:
            config, renderer = self._config, self._policy.renderer
            model = model_played(config.policies, config.agents, config.model, agent, given.policy)
            if model is not config.model:  # whose versions share its tokenizer
                renderer = await asyncio.to_thread(get_renderer, given.model, model.renderer, model.stop)
            engine = DistantEngine(self._calls, given.capabilities, given.policy)
            strips, frozen = model.reasoning == "strip", given.policy not in config.learned
            self._partners[given.policy] = Policy(
                renderer, engine, given.policy, given.model, strip_reasoning=strips, frozen=frozen
            )
        return Fixed(self._partners[given.policy], given.actor)

    async def close(self) -> None:
        """Close what was opened, and remove sandboxes: no exit handler runs in a worker."""
        async with AsyncExitStack() as closing:  # each of them, also where one fails; the last of these first
            closing.push_async_callback(sandboxes.close_all)
            closing.push_async_callback(self._calls.close)
            if self._sessions is not None:
                closing.callback(self._sessions.close)
            closing.push_async_callback(self._open.aclose)


class InWorkers:
    """Plays a run's sessions in its environment workers (`programs.RemoteSessionRunner`).

    Args:
        workers: they.
        trained: the name of the policy that they know.
        evaluated: gets the other policies that are evaluated, by name, before sessions are played by them.
        more: seconds that a session may take beside its episode: for the rewards that the run adds, and its gateway.
        holding: where finished sessions are held; None: in the run's process.
    """

    def __init__(
        self,
        workers: WorkerPool,
        trained: str,
        evaluated: dict[str, Policy],
        more: float = 0.0,
        holding: Holding | None = None,
    ) -> None:
        self._workers, self._trained, self._evaluated, self._more = workers, trained, evaluated, more
        self.holding, self.records = holding, holding is not None
        self._engine_policies: dict[str, EnginePolicy] = {}

    async def play(
        self, rollouts: Rollouts, session: Session, actor: Actor | Program, deadline: Deadline | None
    ) -> Session:
        """Play one attempt at a session in a worker; the worker's death makes it an INFRA_ERROR."""
        left = None if deadline is None else (deadline.seconds, deadline.left())
        timeout: float | None = rollouts._limits(deadline).timeout + rollouts.limits.timeout + self._more + OVERTIME
        if rollouts.rule.active:  # forks have deadlines each
            timeout = None
        by_engine = await self._by_engine(rollouts.partners, session)
        how = (actor, rollouts.limits, left, by_engine, await self._other(rollouts.policy))
        try:
            found = await self._workers.call("play", session, *how, timeout=timeout)
        except WorkerLost as error:
            session.status, session.error = Status.INFRA_ERROR, str(error)
            return session if self.holding is None else await self._store(rollouts, session)
        watchdog.progress()
        return found if self.holding is None else SessionRef.of(found, session.task, self.holding.store.load)

    async def _store(self, rollouts: Rollouts, session: Session) -> Session:
        session.started = session.ended = time.time()
        if session.attempt:
            session.count("infra_retries", session.attempt)
        if rollouts.recorder is not None:
            await rollouts.recorder.resume(session, None)
            await rollouts.recorder.end(session)
        return session

    async def _other(self, policy: Policy) -> OtherWeights | None:
        """The policy's description for workers; None: it is the trained one."""
        engine = policy.engine
        if policy.name == self._trained or engine is None:
            return None
        self._evaluated[policy.name] = policy
        return OtherWeights(policy.name, await asyncio.to_thread(lambda: engine.capabilities))

    async def _by_engine(self, partners: Partners, session: Session) -> ByEngine:
        played = {agent: partner.plays(session) for agent, partner in partners.items()}
        return {
            agent: await self._engine_policy(*found) for agent, found in played.items() if found and found[0].engine
        }

    async def _engine_policy(self, policy: Policy, actor: Actor) -> EnginePolicy:
        if policy.name not in self._engine_policies:
            engine, model = policy.require_engine(), policy.require_model()
            capabilities, folder = await asyncio.to_thread(lambda: (engine.capabilities, os.path.abspath(model)))
            self._engine_policies[policy.name] = EnginePolicy(policy.name, Path(folder), capabilities, actor)
        return self._engine_policies[policy.name]


@dataclass(frozen=True)
class Holding:
    """The process that holds a run's finished sessions (`agentrl.train.driver.session_worker`).

    Attributes:
        workers: it, and those that take its place.
        store: the run's, which it writes and this process reads.
    """

    workers: WorkerPool
    store: Store


@asynccontextmanager
async def in_workers(
    config: RunConfig,
    rollouts: Rollouts,
    base: Path,
    rewards: RewardWorkers | None = None,
    gateways: WorkerPool | None = None,
    holding: Holding | None = None,
) -> AsyncIterator[Rollouts]:
    """Open rollouts played by `cluster.environments` workers; the given ones where there are none.

    They call the run's workers for rewards and gateways, and send finished sessions to the process that is `holding`
    them, which starts with them, or to this one.
    """
    count = config.cluster.environments
    if not count:
        yield rollouts
        return
    folder = await asyncio.to_thread(os.path.abspath, base)
    evaluated: dict[str, Policy] = {}
    async with AsyncExitStack() as stack:
        engines = serve_engines(rollouts.engines[0], lambda: evaluated | rollouts.policies)
        address, capabilities = await stack.enter_async_context(engines)
        shared = None if rewards is None else await stack.enter_async_context(rewards.shared())
        holder = None if holding is None else holding.workers
        pools = {"the run's gateway workers": gateways, "the run's session worker": holder}
        at, held = [
            None if pool is None else await stack.enter_async_context(shared_pool(pool, name))
            for name, pool in pools.items()
        ]
        role = Role(
            "environments",
            "agentrl.rollout.workers.environment_workers:EnvironmentRole",
            (config, Path(folder), address, capabilities, shared, at, tracing.destination(), held),
            name="environments",
            resources=Resources(cpus=CPUS),
        )
        limits = config.cluster
        workers = WorkerPool(role, count, limits.start_timeout, limits.max_restarts, limits.max_environments)
        processes.register_cleanup("containers of workers", sandboxes.remove_left)
        try:
            await asyncio.gather(*(pool.start() for pool in (workers, holder) if pool is not None))
            more = longest(config.cluster, config.rewards) + gateway_workers.longest(config.cluster)
            play = InWorkers(workers, rollouts.policy.name, evaluated, more, holding)
            yield replace(rollouts, elsewhere=play)
        finally:
            with contextlib.suppress(InfraError):
                await workers.close()
