"""The gateway of agent programs in this process, with what a run needs of it beside HTTP (`agents.SessionGateway`).

A run opens its sessions by a call: over HTTP that needs a key which nobody is told.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from agentrl import cluster
from agentrl.config import GatewayConfig, RolloutConfig
from agentrl.config.gateway import NODE
from agentrl.rollout.episodes.functions import SessionUrls
from agentrl.rollout.episodes.policies import ModelActor, Partners, Policy
from agentrl.sessions.gateway.schedule import RecordedOrder
from agentrl.sessions.store.store import Store
from agentrl.types import AGENT, RewardState, Sampling, Session, Status

if TYPE_CHECKING:
    from agentrl.sessions.gateway.entries import Speaker
    from agentrl.sessions.gateway.gateway import Gateway
    from agentrl.sessions.gateway.http.tls import Tls
    from agentrl.sessions.gateway.limits import Limits

PATIENCE = 600.0
"""Seconds that a program which is run again has until its next request, beside ten times what its recorded session
took."""


class LocalGateway:
    """`agents.SessionGateway` over a gateway of this process.

    Args:
        gateway: it.
        url: where programs reach it.
        keeps: whether its store keeps sessions that have ended.
        agents: the policies of agents that requests name as their model; where it is empty one policy answers all.
        partners: the policies besides the gateway's own, by the agents that they play.
    """

    def __init__(
        self,
        gateway: Gateway,
        url: str,
        *,
        keeps: bool = True,
        agents: Mapping[str, str] | None = None,
        partners: Partners | None = None,
    ) -> None:
        self.gateway, self.url, self._keeps = gateway, url, keeps
        self._agents, self._partners = agents or {}, partners or {}

    @asynccontextmanager
    async def opened(
        self, session: Session, sampling: Sampling, recorded: Session | None = None
    ) -> AsyncIterator[LocalSession]:
        """Open a session; what is recorded is in the given session at once."""
        opened = LocalSession(self, session)
        if recorded is not None:
            took = (recorded.ended or 0.0) - (recorded.started or 0.0)
            self.gateway.schedules[session.id] = RecordedOrder(session, recorded, opened.fail, PATIENCE + 10 * took)
        limits = _with_sampling(self.gateway.parts.limits, sampling)
        access = await self.gateway.open(session, limits, self._speakers(session, sampling))
        opened.address = SessionUrls.of(self.url, access.id, access.api_key)
        try:
            yield opened
        finally:
            if not opened.finished:
                await opened.end(Status.ABORTED, "the run was cancelled")

    def _speakers(self, session: Session, sampling: Sampling) -> dict[str, Speaker]:
        """The answering policies of a session, by the agents' names, and by those of policies that play just one."""
        if not self._agents:
            return {}
        found = {agent: self._speaker(agent, session, sampling) for agent in (AGENT, *self._agents)}
        playing = Counter(self._agents.values())
        alone = {policy: agent for agent, policy in self._agents.items() if playing[policy] == 1}
        return {policy: found[agent] for policy, agent in alone.items()} | found

    def _speaker(self, agent: str, session: Session, sampling: Sampling) -> Speaker:
        from agentrl.sessions.gateway.entries import Speaker

        parts, partner = self.gateway.parts, self._partners.get(agent)
        played = partner.plays(session) if partner is not None else None
        if played is None:
            return Speaker(parts, _with_sampling(parts.limits, sampling), agent)
        policy, actor = played
        assert isinstance(actor, ModelActor)
        limits = _with_sampling(parts.limits, actor.sampling).of_model(policy.renderer.tokenizer)
        generator = replace(
            parts.generator,
            renderer=policy.renderer,
            engine=policy.engine,
            strip_reasoning=policy.strip_reasoning,
            policy=policy.name,
            trained=not policy.frozen,
        )
        return Speaker(replace(parts, generator=generator, limits=limits), limits, agent)

    async def end(self, session: Session, status: Status, error: str | None) -> None:
        """Close and seal a session, unless its client has; it is stored before this returns."""
        from agentrl.sessions.gateway.rewards import CloseBody

        if session.reward_state is not RewardState.SEALED:
            await self.gateway.finish(session.id, CloseBody(status=status, error=error))
        if not self._keeps:
            await self.gateway.write(lambda: self.gateway.store.delete(session.id))


def _with_sampling(limits: Limits, sampling: Sampling) -> Limits:
    """The limits of requests whose turns are drawn so where these do not say."""
    return replace(
        limits,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty,
        turn_tokens=sampling.max_new_tokens,
    )


class LocalSession:
    """An open session of this process (`agents.OpenSession`)."""

    address: SessionUrls

    def __init__(self, gateway: LocalGateway, session: Session) -> None:
        self._gateway, self._session, self.finished = gateway, session, False
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def fail(self, error: BaseException) -> None:
        """Have `broken` raise an error."""
        if not self._failed.done():
            self._failed.set_exception(error)

    async def broken(self) -> None:
        await asyncio.shield(self._failed)

    async def finish(self, status: Status, error: str | None) -> Session:
        await self.end(status, error)
        if self._failed.done():  # the program's failed request may have ended it first
            self._failed.result()
        return self._session

    async def end(self, status: Status, error: str | None) -> None:
        """End the session where nobody waits for the result."""
        self.finished = True
        if status is Status.AGENT_ERROR and self._session.counters.get("gateway/failures"):
            status = Status.INFRA_ERROR
        await asyncio.shield(self._gateway.end(self._session, status, error))


def listening_place(where: GatewayConfig) -> tuple[str, str, Tls | None]:
    """Return a gateway's address to bind to, the name that programs use, and its certificate.

    Raises:
        ConfigError: the certificate can't be used.
    """
    from agentrl.sessions.gateway.http.server import ALL_INTERFACES
    from agentrl.sessions.gateway.http.tls import Tls

    node = cluster.current().host
    host = node if where.host == NODE else where.host
    name = where.name or (node if host in ALL_INTERFACES else host)
    return host, name, Tls.of(where.tls_certificate, where.tls_key, "gateway.")


@asynccontextmanager
async def own_gateway(
    policy: Policy,
    store: Store,
    limits: RolloutConfig,
    where: GatewayConfig,
    *,
    keeps: bool = True,
    bound: socket.socket | None = None,
    agents: Mapping[str, str] | None = None,
    partners: Partners | None = None,
) -> AsyncIterator[LocalGateway]:
    """A gateway of this process.

    Args:
        policy: generates the turns.
        store: where it stores its sessions.
        limits: the run's budgets and deadlines.
        where: which address it listens on, and whether it serves HTTPS.
        keeps: whether the store keeps sessions that have ended.
        bound: a socket that listens where it is to; the caller closes it. None: on a free port.
        agents: the policies of agents that requests name as their model; see `LocalGateway`.
        partners: what plays such agents in the place of `policy`.

    Raises:
        ConfigError: the certificate can't be used.
        InfraError: nothing can listen there.
    """
    from agentrl.sessions.gateway import Limits, create_app, running
    from agentrl.sessions.gateway.http.image_urls import image_limits

    bounds = Limits(
        sampling="run" if where.sampling == "run" else "mixed",
        turn_timeout=limits.turn_timeout,
        session_timeout=2 * limits.timeout,
        in_flight=4 * limits.concurrency,
        strict_fields=limits.strict_fields,
        images=image_limits(where.image_urls),
    )
    app = create_app(
        policy.require_engine(),
        policy.renderer,
        store,
        limits=bounds,
        session_tokens=limits.session_tokens,
        context_tokens=limits.context_tokens,
        retry_detection=limits.retry_detection,
        strip_reasoning=policy.strip_reasoning,
        strict_calls=limits.strict_calls,
        exclude=where.exclude,
        forward=where.forward,
        admin_key=secrets.token_urlsafe(24),
    )
    host, name, tls = listening_place(where)
    async with running(app, host=host, bound=bound, tls=tls, name=name) as url:
        yield LocalGateway(app.state.gateway, url, keeps=keeps, agents=agents, partners=partners)
