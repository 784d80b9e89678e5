"""Admission to a fleet: the member that takes a request, when, and what follows a failure; also for other processes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any, Protocol, runtime_checkable

from agentrl.config import FleetConfig
from agentrl.errors import AgentRLError, DeadlineExceeded, EngineError
from agentrl.rollout.fleet.failing_requests import FailingRequests, Prompt
from agentrl.rollout.fleet.member import Member, MemberState, is_engine_fault
from agentrl.rollout.fleet.roster import Roster
from agentrl.rollout.fleet.ticket import LeasedTicket

REMEMBERED = 65_536
"""Sessions whose engine is remembered; the longest unseen are forgotten first."""


class Affinity:
    """The engine that each session uses: the one with its prefix, unless it is far busier than another.

    A turn's prompt is all of its session so far, and an engine that made the last turn has its keys and values. So a
    session stays on its engine, and a new one goes to the engine with the fewest requests. Only where its engine has
    `max_imbalance` requests more than the idlest does a session move: computing a prefix anew costs less than that
    wait.

    Args:
        max_imbalance: by how many requests a session's engine may be busier than the idlest.
    """

    def __init__(self, max_imbalance: int) -> None:
        self.max_imbalance = max_imbalance
        self._engines: OrderedDict[str, str] = OrderedDict()

    def choose(self, session: str, loads: Mapping[str, int]) -> str:
        """The engine for a session's next request.

        Args:
            session: its affinity key.
            loads: each usable engine's open requests; not empty.
        """
        idlest = min(loads, key=lambda name: (loads[name], name))
        engine = self._engines.pop(session, None)
        if engine is None or engine not in loads or loads[engine] - loads[idlest] > self.max_imbalance:
            engine = idlest
        self._engines[session] = engine
        if len(self._engines) > REMEMBERED:
            self._engines.popitem(last=False)
        return engine

    def forget(self, engine: str) -> None:
        """An engine has lost its cache: no session is bound to it any more."""
        for session in [session for session, name in self._engines.items() if name == engine]:
            del self._engines[session]


logger = logging.getLogger(__name__)


@runtime_checkable
class SharedEngine(Protocol):
    """An engine over several: other processes may lease one of them, and a publication may abort what they generate."""

    @property
    def admission(self) -> Admission:
        """The choice of the engine that takes a request."""


class Admission:
    """Requests' ways to members.

    Args:
        roster: the members.
        affinity: which session uses which.
        config: limits.
        one_version: whether a turn is of one policy version now (`weights.mode=drain`).
        version: the policy version that generates at first.

    Attributes:
        version: the one that generates now.
        paused: nothing is admitted.
    """

    def __init__(
        self, roster: Roster, affinity: Affinity, config: FleetConfig, one_version: Callable[[], bool], version: int
    ) -> None:
        self.version, self.paused = version, False
        self._roster, self._affinity, self._one_version = roster, affinity, one_version
        self._failing = FailingRequests(config.max_attempts)

    @asynccontextmanager
    async def attempt(
        self, request_id: str, prompt: Prompt, deadline: float | None, started: int | None
    ) -> AsyncIterator[Member]:
        """Make one attempt at a request, by the member that takes it.

        An engine's failure ends the block, without an error where another attempt may follow. Arguments are those of
        `leased`.
        """
        async with self._admit(request_id, prompt, deadline, started) as (member, _):
            start = member.start
            try:
                yield member
            except AgentRLError as error:
                await self.failed(start, request_id, prompt, error)
            else:
                self.succeeded(request_id)

    @asynccontextmanager
    async def leased(
        self, request_id: str, prompt: Prompt, deadline: float | None, started: int | None
    ) -> AsyncIterator[tuple[Member, LeasedTicket]]:
        """A member for a request that another process makes, and what that process is to be told.

        While the block lasts it may make further requests of the session to the member. What follows where one of them
        fails is decided by `failed`.

        Args:
            request_id: see `Engine.generate`.
            prompt: returns its digest (`failing_requests.digest`).
            deadline: see `Engine.generate`.
            started: the version under which the turn lost an engine before; None where it has not.
        """
        async with self._admit(request_id, prompt, deadline, started) as (member, alone):
            ticket = LeasedTicket(request_id, single=alone or self._failing.has_failed(request_id))
            try:
                with member.serving(ticket):
                    yield member, ticket
            finally:
                ticket.over.set()

    @asynccontextmanager
    async def _admit(
        self, request_id: str, prompt: Prompt, deadline: float | None, started: int | None
    ) -> AsyncIterator[tuple[Member, bool]]:
        """The member that takes a request, and whether it is a last attempt, which is made alone."""
        failing = self._failing
        failing.check(request_id, prompt)
        alone = failing.is_last_attempt(request_id, prompt)
        if alone:
            await self._wait_until(deadline, failing.begin_last_attempt(), request_id)
        try:
            try:
                member = await self.admit(request_id, deadline, started)
            except AgentRLError:
                failing.forget(request_id, succeeded=False)
                raise
            yield member, alone
        finally:
            if alone:
                failing.end_last_attempt()
            await self._roster.request_ended()

    def succeeded(self, request_id: str) -> None:
        """A request's turn has come; whatever it did before is forgotten."""
        self._failing.forget(request_id, succeeded=True)

    async def failed(self, start: int, request_id: str, prompt: Prompt, error: AgentRLError) -> None:
        """Note a request's failure, and the engine's if it is; returns where another attempt may follow.

        Raises:
            AgentRLError: none may.
        """
        failing = self._failing
        if not is_engine_fault(error) or self._roster.closed:
            failing.forget(request_id, succeeded=False)
            raise error
        member = self.started_as(start)
        if member is not None:
            await self._roster.report_failure(member, error, failing.key(request_id, prompt))
        died = member is None or member.start != start or member.state in (MemberState.LOST, MemberState.STOPPED)
        await failing.failed(request_id, prompt, start, died, str(error))
        logger.info("request %s goes on elsewhere: %s", request_id, error)

    def started_as(self, start: int) -> Member | None:
        """The member whose engine is the one of that number (`Member.start`); None: it is gone."""
        return next((member for member in self._roster.members.values() if member.start == start), None)

    async def admit(self, request_id: str, deadline: float | None, started: int | None = None) -> Member:
        """Wait for a member that takes a request, whose turn has lost an engine under version `started`."""
        self._roster.begin()
        if not self._admitting():
            async with self._roster.changed:
                await self._wait_until(deadline, self._roster.changed.wait_for(self._admitting), request_id)
            self._roster.begin()
        if started not in (None, self.version) and self._one_version():
            raise EngineError(
                f"request {request_id!r} lost its engine under version {started}, and version {self.version} is used "
                "now: with weights.mode=drain a turn is of one version, so it can't go on"
            )
        ready, failed_on = self._roster.in_state(MemberState.READY), self._failing.failed_on(request_id)
        others = [name for name, member in ready.items() if member.start not in failed_on]
        loads = {name: len(ready[name].open) for name in others or ready}
        return ready[self._affinity.choose(request_id.partition("/")[0], loads)]

    @staticmethod
    async def _wait_until(deadline: float | None, waiting: Coroutine[Any, Any, Any], request_id: str) -> None:
        try:
            async with asyncio.timeout(None if deadline is None else max(0.0, deadline - time.monotonic())):
                await waiting
        except TimeoutError:
            raise DeadlineExceeded(f"request {request_id!r} was not admitted before its deadline") from None

    def _admitting(self) -> bool:
        roster = self._roster
        return roster.closed or (roster.require_any() and not self.paused and bool(roster.in_state(MemberState.READY)))
