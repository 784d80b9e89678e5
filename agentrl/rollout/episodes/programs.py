"""Sessions of a user's agent program: the environment gives the task and the reward, the program acts.

Unlike in `episode`, there are no calls of `step`: the program runs its own loop and tools, and uses the gateway like
any model provider. The gateway records its messages in the session's tree. Rewards that the program posted are kept;
otherwise the environment's, and those of the run (`rewards.*`), are computed. A program runs in the process that plays
its session, which has a gateway of its own (`gateways`) or uses one of the run's workers (`gateway_workers`).
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Set
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from agentrl.common.deadline import Deadline
from agentrl.config import GatewayConfig, RolloutConfig
from agentrl.envs import calls
from agentrl.envs.base import Env
from agentrl.envs.results import give_rewards, record_failure, within
from agentrl.envs.turns import Actor
from agentrl.errors import AgentRLError, ConfigError, DeadlineExceeded
from agentrl.rollout.episodes import agents
from agentrl.rollout.episodes.policies import Partners, Policy, sampling_of
from agentrl.rollout.workers.gateways import own_gateway
from agentrl.sessions.store.store import Store
from agentrl.types import Session, Status, Task

_Rollouts = TypeVar("_Rollouts", contravariant=True)
"""The player of sessions (`groups.Rollouts`)."""


@dataclass(frozen=True)
class Program:
    """An agent program; the process that plays its sessions serves it (`serving`).

    Attributes:
        agent: path/to/file.py:function or a command line.
        recorded: the session that is run again, in whose order its requests are taken; None elsewhere.
    """

    agent: str
    recorded: Session | None = None

    def again(self, recorded: Session) -> Program:
        """Return the program for one session that is run again."""
        return replace(self, recorded=recorded)


class RemoteSessionRunner(Protocol[_Rollouts]):
    """Plays sessions in other processes (`rollout.workers.environment_workers`).

    Attributes:
        records: whether it also stores them.
    """

    records: bool

    async def play(
        self, rollouts: _Rollouts, session: Session, actor: Actor | Program, deadline: Deadline | None
    ) -> Session:
        """Play one attempt at a session, as `rollouts` would; where its process dies it is an INFRA_ERROR."""


@dataclass(frozen=True, kw_only=True)
class ServedProgram(Program):
    """An agent program and the gateway that it uses."""

    gateway: agents.SessionGateway
    user_agent: agents.UserAgent
    learners: frozenset[str] = frozenset()

    async def play(self, env: Env, session: Session, limits: RolloutConfig) -> Session:
        """Let the program work on the session's task, reward what it did, and return the session as recorded.

        Raises:
            AgentRLError: a failure that the user must fix.
            Diverged: it is run again, and a recorded request does not come.
        """
        began = time.monotonic()
        try:
            try:
                task = await _begin(env, session, limits.timeout)
                left = max(limits.timeout - (time.monotonic() - began), 0.0)
                session = await agents.play(
                    self.gateway, session, self.user_agent, left, sampling_of(limits), task, self.recorded
                )
            except AgentRLError as error:
                record_failure(session, error)
            if session.overlong and session.status in (Status.COMPLETED, Status.AGENT_ERROR):
                session.status = Status.TRUNCATED
            if session.overlong and limits.overlong == "refuse":
                raise ConfigError(f"task {session.task.id!r}: its prompt leaves no room for a turn (rollout.overlong)")
            left_out = session.overlong and limits.overlong == "skip"
            if session.status is not Status.INFRA_ERROR and session.reward is None and not left_out:
                await give_rewards(env, session, seconds=limits.timeout)
            if self.learners:
                share_reward(session, self.learners)
        finally:
            await calls.close(env)
        return session


def share_reward(session: Session, learners: Set[str]) -> None:
    """Give each agent that spoke in a session its reward: a program's agents are a team.

    Args:
        session: with a reward, or without one, where nobody has one.
        learners: the policies that are not frozen; others' agents are partners.
    """
    spoke = {node.agent: node.policy in learners for node in session.nodes if node.sampled}
    if session.reward is not None:
        session.agent_rewards = {agent: session.reward for agent, learns in spoke.items() if learns}
        session.partner_rewards = {agent: session.reward for agent, learns in spoke.items() if not learns}


async def _begin(env: Env, session: Session, seconds: float) -> Task:
    """Begin the session's episode; what the program is given of its task."""

    async def begin() -> Task:
        own = session.task.model_copy(deep=True)  # the group's other sessions have the same object
        await calls.reset(env, own, seed=session.seed)
        return await calls.brief(env, own)

    try:
        return await within(seconds, begin())
    except AgentRLError:
        raise
    except TimeoutError:
        where = f"{type(env.unwrapped).__name__}.reset"
        raise DeadlineExceeded(f"{where} took longer than rollout.timeout={seconds:g} s") from None


def load_agent(agent: str, where: GatewayConfig) -> agents.UserAgent:
    """A program that trusts the certificate of its gateway.

    Raises:
        ConfigError: the certificate or the agent can't be used.
    """
    from agentrl.sessions.gateway.http.tls import Tls

    tls = Tls.of(where.tls_certificate, where.tls_key, "gateway.")
    return agents.load_agent(agent, tls.trusted() if tls else None)


@asynccontextmanager
async def serving(
    agent: str,
    policy: Policy,
    store: Store,
    limits: RolloutConfig,
    where: GatewayConfig | None = None,
    policies: Mapping[str, str] | None = None,
    partners: Partners | None = None,
    *,
    keeps: bool = True,
) -> AsyncIterator[ServedProgram]:
    """An agent program (path/to/file.py:function, or a command line) with a gateway of this process's own.

    The gateway is `own_gateway`'s, whose `agents` are `policies`; this raises as it and `load_agent` do.
    """
    where = where or GatewayConfig()
    user_agent = load_agent(agent, where)
    playing = [policy, *(other for partner in (partners or {}).values() for other in partner.policies)]
    learners = frozenset(each.name for each in playing if policies and not each.frozen)
    async with own_gateway(policy, store, limits, where, keeps=keeps, agents=policies, partners=partners) as gateway:
        yield ServedProgram(agent, gateway=gateway, user_agent=user_agent, learners=learners)
