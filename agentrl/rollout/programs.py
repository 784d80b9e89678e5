"""Sessions of a user's agent program: the environment gives the task and the reward, the program acts.

Unlike in `episode`, there are no calls of `step`: the program runs its own loop and tools, and uses the gateway like
any model provider. The gateway records its messages in the session's tree. Rewards that the program posted are kept;
otherwise the environment's, and those of the run (`rewards.*`), are computed. Each process that plays sessions has a
gateway of its own: the run's, or each environment worker.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from agentrl import cluster
from agentrl.config import GatewayConfig, RolloutConfig
from agentrl.config.gateway import NODE
from agentrl.envs import calls
from agentrl.envs.base import Env
from agentrl.envs.deadlines import within
from agentrl.envs.results import failed, give_rewards
from agentrl.errors import AgentRLError, DeadlineExceeded
from agentrl.rollout import agents
from agentrl.rollout.policies import Policy
from agentrl.sessions.gateway.schedule import Schedule
from agentrl.sessions.store import Store
from agentrl.types import Session, Status, Task

if TYPE_CHECKING:
    from agentrl.sessions.gateway.gateway import Gateway
    from agentrl.sessions.gateway.tls import Tls

T = TypeVar("T")
PATIENCE = 600.0
"""Seconds that a program which is run again has until its next request, beside ten times what its recorded session
took."""


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
        """The same, for one session that is run again."""
        return replace(self, recorded=recorded)


@dataclass(frozen=True, kw_only=True)
class ServedProgram(Program):
    """An agent program and the gateway that it uses.

    Attributes:
        gateway: it.
        url: where the program reaches it.
        user_agent: the program.
    """

    gateway: Gateway
    url: str
    user_agent: agents.UserAgent

    async def play(self, env: Env, session: Session, limits: RolloutConfig) -> Session:
        """Let the program work on the session's task, and reward what it did.

        Raises:
            AgentRLError: a failure that the user must fix.
            Departed: it is run again, and a recorded request does not come.
        """
        if self.recorded is None:
            return await self._play(env, session, limits)
        departed: asyncio.Future[Session] = asyncio.get_running_loop().create_future()

        def fail(error: BaseException) -> None:
            if not departed.done():
                departed.set_exception(error)

        took = (self.recorded.ended or 0.0) - (self.recorded.started or 0.0)
        self.gateway.schedules[session.id] = Schedule(self.recorded, fail, PATIENCE + 10 * took)
        return await _first(self._play(env, session, limits), departed)

    async def _play(self, env: Env, session: Session, limits: RolloutConfig) -> Session:
        began = time.monotonic()
        try:
            try:
                task = await _begun(env, session, limits.timeout)
                left = max(limits.timeout - (time.monotonic() - began), 0.0)
                await agents.play(self.gateway, self.url, session, self.user_agent, left, task)
            except AgentRLError as error:
                failed(session, error)
            if session.status is not Status.INFRA_ERROR and session.reward is None:
                await give_rewards(env, session)
        finally:
            await calls.close(env)
        return session


async def _begun(env: Env, session: Session, seconds: float) -> Task:
    """Begin the session's episode; what the program is given of its task.

    Raises:
        DeadlineExceeded: that took longer than so many seconds.
    """

    async def begin() -> Task:
        await calls.reset(env, session.task, seed=session.seed)
        return await calls.brief(env, session.task)

    try:
        return await within(seconds, begin())
    except AgentRLError:
        raise
    except TimeoutError:
        where = f"{type(env.unwrapped).__name__}.reset"
        raise DeadlineExceeded(f"{where} took longer than rollout.timeout={seconds:g} s") from None


async def _first(*work: Awaitable[T]) -> T:
    """What is done first; the others are cancelled and awaited."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return next(task for task in tasks if task.done()).result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def listening_place(where: GatewayConfig) -> tuple[str, str, Tls | None]:
    """Of a gateway of this process: the address that it binds to, the name that programs use, and its certificate.

    Raises:
        ConfigError: the certificate can't be used.
    """
    from agentrl.sessions.gateway.server import ALL_INTERFACES
    from agentrl.sessions.gateway.tls import Tls

    node = cluster.current().host
    host = node if where.host == NODE else where.host
    name = where.name or (node if host in ALL_INTERFACES else host)
    return host, name, Tls.of(where.tls_certificate, where.tls_key, "gateway.")


@asynccontextmanager
async def serving(
    agent: str, policy: Policy, store: Store, limits: RolloutConfig, where: GatewayConfig | None = None
) -> AsyncIterator[ServedProgram]:
    """A gateway of this process's own, on a free port, for this agent; nobody else opens sessions there.

    Args:
        agent: path/to/file.py:function or a command line.
        policy: generates the turns.
        store: where the gateway stores its sessions.
        limits: the run's budgets and deadlines.
        where: which address it listens on, and whether it serves HTTPS; None: as by default.

    Raises:
        ConfigError: the certificate or the agent can't be used.
        InfraError: nothing can listen there.
    """
    from agentrl.sessions.gateway import Limits, create_app, running

    assert policy.engine is not None
    bounds = Limits(
        turn_tokens=limits.turn_tokens,
        temperature=limits.temperature,
        turn_timeout=limits.turn_timeout,
        session_timeout=2 * limits.timeout,
        in_flight=4 * limits.concurrency,
        strict_fields=limits.strict_fields,
    )
    app = create_app(
        policy.engine,
        policy.renderer,
        store,
        limits=bounds,
        session_tokens=limits.session_tokens,
        context_tokens=limits.context_tokens,
        retry_detection=limits.retry_detection,
        strip_reasoning=policy.strip_reasoning,
        admin_key=secrets.token_urlsafe(24),
    )
    host, name, tls = listening_place(where or GatewayConfig())
    async with running(app, host=host, tls=tls, name=name) as url:
        user_agent = agents.load_agent(agent, tls.trusted() if tls else None)
        yield ServedProgram(agent, gateway=app.state.gateway, url=url, user_agent=user_agent)
