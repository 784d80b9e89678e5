"""Turns that a process generates by the run's engines directly; `engine_access` is the run's side.

A session asks for a lease with its first turn, and keeps it for those that follow, until it is over, or the run's
process recalls it: for a publication, or since its engine is drained, put to sleep or lost. So what the run's process
hears of a session does not grow with it, neither with its tokens nor with its turns. Of each engine it hears every few
seconds that tokens come. A turn that fails is reported; one whose engine is lost ends with its tokens so far, which are
here, and its caller goes on with it.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from agentrl.cluster import Connection
from agentrl.common.concurrency import hold_task
from agentrl.errors import AgentRLError, EngineError, InfraError
from agentrl.rollout.engines.reach import EngineAddress, EngineClient
from agentrl.rollout.fleet.failing_requests import digest
from agentrl.rollout.fleet.ticket import Ticket, versions_of
from agentrl.types import Chunk, PauseMode, Placed, Sampling, Turn, begin_turn

T = TypeVar("T")
ANSWER_SECONDS = 60.0
"""Seconds that the run's process may take to answer a question about a lease."""
REPORT_SECONDS = 5.0
"""Seconds between two reports that tokens came from an engine."""
GRACE = 1.0
"""Seconds in which a request that is to be aborted may end by itself, since its engine was told so first."""
KEPT_SECONDS = 60.0
"""Seconds that a lease is kept between two turns: a session whose tools take longer is no load to its engine."""
REMEMBERED = 4096
"""Turns that lost their engine; the oldest are forgotten first."""


class NotReachable(InfraError):
    """A policy's engine generates for other processes through the run's process alone."""


@dataclass(frozen=True, slots=True)
class EngineLease:
    """An engine that whoever asked for it generates by, one request at a time.

    Attributes:
        engine: its name, as turns have it.
        start: which engine it is of all that the run's process has started.
        version: the version of its weights.
        single: it is for one request, which has failed before.
    """

    engine: str
    start: int
    version: int
    single: bool


class Leases:
    """A process's turns by the run's engines.

    Args:
        connection: the one to the run's process, as it is now.
    """

    def __init__(self, connection: Callable[[], Connection]) -> None:
        self._connection = connection
        self._engines: dict[tuple[str, str], tuple[int, asyncio.Task[EngineClient]]] = {}
        self._kept: dict[str, dict[str, list[HeldLease]]] = {}  # by session, by policy
        self._started: OrderedDict[str, int] = OrderedDict()
        self._progressed: dict[int, tuple[HeldLease, int]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    async def generate(
        self,
        policy: str,
        request_id: str,
        input_ids: Sequence[int],
        sampling: Sampling,
        deadline: float | None,
        vocabulary: int,
        attached: Sequence[Placed] = (),
    ) -> AsyncGenerator[Chunk | Turn, None]:
        """Generate a turn by a leased engine of a policy, whose tokens are below `vocabulary`; see `Engine.generate`.

        Raises:
            NotReachable: nothing was generated, and can't be like this.
        """
        prompt, started = partial(digest, input_ids), self._started.pop(request_id, None)
        held = None if started is not None else self._take(policy, session_of(request_id))
        while True:
            ticket = Ticket(request_id)
            if held is None:
                seconds = None if deadline is None else max(0.0, deadline - time.monotonic())
                held = HeldLease(self._connection(), policy)
                held.following = hold_task(held.follow(request_id, prompt(), started, seconds), self._tasks)
            held.ticket = ticket
            try:
                await held.begun()
                try:
                    engine = await self._engine(held)
                    stream = begin_turn(engine, request_id, input_ids, sampling, deadline, attached)
                    async with aclosing(held.checked(ticket, stream, vocabulary, self._note)) as items:
                        async for item in items:
                            yield item
                    return
                except AgentRLError as error:
                    self._report()
                    asked = policy, held.lease.start, request_id, prompt(), error
                    await self._connection().call("failed", *asked, timeout=None)
            finally:
                self._end(held, request_id)
            if ticket.token_ids:
                self._started[request_id] = ticket.versions[-1].version
                if len(self._started) > REMEMBERED:
                    self._started.popitem(last=False)
                yield ticket.aborted()
                return
            held = None

    # ------------------------------------------------------------------------------- between two turns

    def _take(self, policy: str, session: str) -> HeldLease | None:
        """A lease that the session has kept, if it has one that it may use."""
        policies = self._kept.get(session, {})
        usable = [held for held in policies.pop(policy, []) if held.usable]
        if len(usable) > 1:
            policies[policy] = usable[:-1]
        if not policies:
            self._kept.pop(session, None)
        return usable[-1] if usable else None

    def _end(self, held: HeldLease, request_id: str) -> None:
        """Keep a lease whose turn has come, or give it back."""
        held.ticket = None
        if held.turn_came and held.lease.single:
            held.connection.tell("succeeded", held.policy, request_id)
        if not held.turn_came or held.lease.single or not held.usable:
            held.give_back()
            return
        session = session_of(request_id)
        self._kept.setdefault(session, {}).setdefault(held.policy, []).append(held)
        held.turn_came, held.turns = False, held.turns + 1
        asyncio.get_running_loop().call_later(KEPT_SECONDS, self._give_back_unused, session, held, held.turns)

    def _give_back_unused(self, session: str, held: HeldLease, turns: int) -> None:
        """Give back a lease by which nothing was generated since it was kept."""
        policies = self._kept.get(session, {})
        kept = policies.get(held.policy, [])
        if held in kept and held.turns == turns:
            held.give_back()
            kept.remove(held)
            if not kept:
                del policies[held.policy]
            if not policies:
                del self._kept[session]

    @contextmanager
    def session(self, session: str) -> Iterator[None]:
        """Hold a session; what it has kept is given back in the end."""
        try:
            yield
        finally:
            self.session_over(session)

    def session_over(self, session: str) -> None:
        """Give back what a session has kept."""
        for kept in self._kept.pop(session, {}).values():
            for held in kept:
                held.give_back()

    # ---------------------------------------------------------------------------------------- engines

    async def _engine(self, held: HeldLease) -> EngineClient:
        """The engine of a lease; the one that had its name before is closed."""
        name, lease = (held.policy, held.lease.engine), held.lease
        start, opening = self._engines.get(name, (-1, None))
        if start > lease.start:
            raise EngineError(f"{lease.engine} was started anew")
        if opening is None or start < lease.start:
            if opening is not None:
                hold_task(_close(opening), self._tasks)
            opening = hold_task(held.opened(), self._tasks)
            self._engines[name] = lease.start, opening
        try:
            held.engine = await asyncio.shield(opening)
        except AgentRLError:
            if self._engines.get(name) == (lease.start, opening):
                del self._engines[name]  # the next one tries again
            raise
        held.engine.set_version(held.version)
        return held.engine

    def _note(self, held: HeldLease, turns: int) -> None:
        """Tokens came, and so many turns ended: the run's process hears so of each engine once in a while."""
        if not self._progressed:
            asyncio.get_running_loop().call_later(REPORT_SECONDS, self._report)
        before = self._progressed.get(held.lease.start, (held, 0))[1]
        self._progressed[held.lease.start] = held, before + turns

    def _report(self) -> None:
        for start, (held, turns) in self._progressed.items():
            held.connection.tell("progressed", held.policy, start, turns)
        self._progressed.clear()

    async def close(self) -> None:
        """Close the connections to engines. Idempotent."""
        for session in list(self._kept):
            self.session_over(session)
        opened = [opening for _, opening in self._engines.values()]
        self._engines.clear()
        await asyncio.gather(*map(_close, opened))


class HeldLease:
    """A lease, from the question for it until it is given back.

    Attributes:
        following: the task that asks for it (`follow`), and ends it when cancelled.
        ticket: the request under way.
        engine: what generates; None before it is known.
        version: of the engine's weights, as far as is known here.
        turn_came: the request under way has come to its end.
        turns: how many have ended so.
    """

    following: asyncio.Task[None]

    def __init__(self, connection: Connection, policy: str) -> None:
        self.connection, self.policy = connection, policy
        self.ticket: Ticket | None = None
        self.engine: EngineClient | None = None
        self.version, self.turn_came, self.turns = 0, False, 0
        self._recalled = False
        self._error: AgentRLError | None = None
        self._given: asyncio.Future[EngineLease] = asyncio.get_running_loop().create_future()

    @property
    def lease(self) -> EngineLease:
        """The lease; known once `begun` has returned."""
        return self._given.result()

    @property
    def usable(self) -> bool:
        """True where another request may begin."""
        return not self._recalled and not self.following.done()

    async def follow(self, request_id: str, prompt: bytes, started: int | None, seconds: float | None) -> None:
        """Ask for the lease, and do what is told of it, until its engine is gone."""
        asked = self.policy, request_id, prompt, started, seconds
        error: AgentRLError = EngineError("the engine was lost")
        try:
            async with aclosing(self.connection.stream("lease", *asked, timeout=None)) as messages:
                async for message in messages:
                    self._receive(message)
        except AgentRLError as told:
            error = told
        self._error = error
        if self.ticket is not None:
            self.ticket.end(error)

    def _receive(self, message: EngineLease | int | PauseMode) -> None:
        if isinstance(message, EngineLease):
            self.version = message.version
            self._given.set_result(message)
        elif isinstance(message, PauseMode):
            self._recalled = True
            if self.ticket is None:
                self.give_back()
            elif message is PauseMode.ABORT:
                asyncio.get_running_loop().call_later(GRACE, self.ticket.abort)
        else:
            self.version = message
            if self.engine is not None:
                self.engine.set_version(message)

    def give_back(self) -> None:
        """End the lease; idempotent."""
        self.following.cancel()

    async def begun(self) -> None:
        """Wait until there is a lease.

        Raises:
            NotReachable: there can't be one.
            AgentRLError: see `Fleet.generate`.
        """
        either: list[asyncio.Future[Any]] = [self._given, self.following]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not self._given.done():
            raise self._error or EngineError("the lease was given back")

    async def opened(self) -> EngineClient:
        """The engine, reached anew; EngineError where it is gone."""
        asked = self.policy, self.lease.start
        reach: EngineAddress | None = await self.connection.call("reach", *asked, timeout=ANSWER_SECONDS)
        if reach is None:
            raise EngineError(f"{self.lease.engine} is gone")
        return await reach.open()

    async def checked(
        self,
        ticket: Ticket,
        stream: AsyncIterator[Chunk | Turn],
        vocabulary: int,
        note: Callable[[HeldLease, int], None],
    ) -> AsyncGenerator[Chunk | Turn, None]:
        """Yield the engine's stream, checked and kept in `ticket`; `note` gets it and the number of ended turns.

        Raises:
            AgentRLError: the engine failed, or is gone.
        """
        known, start, ticket.engine = {self.lease.version}, self.lease.start, self.lease.engine
        async with aclosing(ticket.stream(stream, lambda: note(self, 0))) as items:
            async for item in items:
                for version in versions_of(item) - known:
                    asked = self.policy, start, version
                    if await self.connection.call("knows", *asked, timeout=ANSWER_SECONDS):
                        known.add(version)
                ticket.check(item, vocabulary, known)
                if isinstance(item, Turn):
                    self.turn_came = True
                    note(self, 1)
                    yield replace(item, engines=(ticket.engine,))
                    return
                ticket.take(item)
                yield item


async def _close(opening: asyncio.Task[EngineClient]) -> None:
    """Close what was opened, if it was."""
    with suppress(AgentRLError):
        await (await opening).close()


def session_of(request_id: str) -> str:
    """The session that a request is of."""
    return request_id.partition("/")[0]
