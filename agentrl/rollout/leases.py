"""Turns that a process generates by the run's engines directly; `engine_access` is the run's side.

Of a turn the run's process hears its request's id, a digest of its prompt and how it ended, and every few seconds from
which engines tokens came: some hundred bytes, however long prompt and turn are. A turn whose engine is lost ends with
its tokens so far, which are here, and its caller goes on with it.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from agentrl.cluster import Connection
from agentrl.errors import AgentRLError, EngineError, InfraError
from agentrl.rollout.engines.reach import Reach, Reached
from agentrl.rollout.fleet.failing_requests import digest
from agentrl.rollout.fleet.ticket import Ticket, versions_of
from agentrl.types import Chunk, PauseMode, Sampling, Turn

T = TypeVar("T")
ANSWER_SECONDS = 60.0
"""How long the run's process may take to answer a question about a lease."""
REPORT_SECONDS = 5.0
"""Between two reports that tokens came from an engine."""
GRACE = 1.0
"""Seconds in which a request that is to be aborted may end by itself, since its engine was told so first."""
REMEMBERED = 4096
"""Turns that lost their engine; the oldest are forgotten first."""


class NotReachable(InfraError):
    """A policy's engine generates for other processes through the run's process alone."""


@dataclass(frozen=True, slots=True)
class Lease:
    """One attempt at a request, by an engine that whoever asked for it generates with.

    Attributes:
        number: what it is called until it is over.
        engine: the engine's name, as turns have it.
        start: which engine it is of all that the run's process has started.
        version: the version of its weights.
    """

    number: int
    engine: str
    start: int
    version: int


class Leases:
    """A process's turns by the run's engines.

    Args:
        connection: the one to the run's process, as it is now.
    """

    def __init__(self, connection: Callable[[], Connection]) -> None:
        self._connection = connection
        self._engines: dict[tuple[str, str], tuple[int, asyncio.Task[Reached]]] = {}
        self._started: OrderedDict[str, int] = OrderedDict()
        self._progressed: dict[int, LeasedRequest] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    async def generate(
        self,
        policy: str,
        request_id: str,
        input_ids: Sequence[int],
        sampling: Sampling,
        deadline: float | None,
        vocabulary: int,
    ) -> AsyncGenerator[Chunk | Turn, None]:
        """See `Fleet.generate`.

        Args:
            policy: whose engine.
            request_id: see `Engine.generate`.
            input_ids: likewise.
            sampling: likewise.
            deadline: likewise.
            vocabulary: the engine's tokens are below it.

        Raises:
            NotReachable: nothing was generated, and can't be like this.
        """
        prompt, started = digest(input_ids), self._started.pop(request_id, None)
        while True:
            seconds = None if deadline is None else max(0.0, deadline - time.monotonic())
            leased = LeasedRequest(self._connection(), policy, request_id)
            following = self._spawn(leased.follow(prompt, started, seconds))
            try:
                await leased.begun(following)
                try:
                    engine = await self._engine(leased)
                    stream = engine.generate(request_id, input_ids, sampling, deadline)
                    async with aclosing(leased.checked(stream, vocabulary, self._note)) as items:
                        async for item in items:
                            yield item
                    return
                except AgentRLError as error:
                    await leased.failed(error, following)
            finally:
                if not leased.reported:
                    following.cancel()
            if leased.ticket.token_ids:
                self._started[request_id] = leased.ticket.versions[-1].version
                if len(self._started) > REMEMBERED:
                    self._started.popitem(last=False)
                yield leased.ticket.aborted()
                return

    async def _engine(self, leased: LeasedRequest) -> Reached:
        """The engine of a lease; the one that had its name before is closed.

        Raises:
            EngineError: it is gone.
        """
        name, lease = (leased.policy, leased.lease.engine), leased.lease
        start, opening = self._engines.get(name, (-1, None))
        if start > lease.start:
            raise EngineError(f"{lease.engine} was started anew")
        if opening is None or start < lease.start:
            if opening is not None:
                self._spawn(_closed(opening))
            opening = self._spawn(leased.opened())
            self._engines[name] = lease.start, opening
        try:
            leased.engine = await asyncio.shield(opening)
        except AgentRLError:
            if self._engines.get(name) == (lease.start, opening):
                del self._engines[name]  # the next one tries again
            raise
        leased.engine.set_version(leased.version)
        return leased.engine

    def _note(self, leased: LeasedRequest) -> None:
        """Tokens came: the run's process hears so of each engine once in a while."""
        if not self._progressed:
            asyncio.get_running_loop().call_later(REPORT_SECONDS, self._report)
        self._progressed[leased.lease.start] = leased

    def _report(self) -> None:
        for leased in self._progressed.values():
            leased.tell("progressed")
        self._progressed.clear()

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Close the connections to engines. Idempotent."""
        opened = [opening for _, opening in self._engines.values()]
        self._engines.clear()
        await asyncio.gather(*map(_closed, opened))


class LeasedRequest:
    """A lease, from the question for it to the end of its request.

    Args:
        connection: to the run's process.
        policy: whose engine is asked for.
        request_id: see `Engine.generate`.

    Attributes:
        ticket: the request's tokens so far.
        engine: what generates; None before it is known.
        version: of the engine's weights, as far as is known here.
        reported: the run's process was told how the request ended.
    """

    def __init__(self, connection: Connection, policy: str, request_id: str) -> None:
        self.policy, self.ticket = policy, Ticket(request_id)
        self.engine: Reached | None = None
        self.version, self.reported = 0, False
        self._connection = connection
        self._given: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()

    @property
    def lease(self) -> Lease:
        """The lease; known once `begun` has returned."""
        return self._given.result()

    async def follow(self, prompt: bytes, started: int | None, seconds: float | None) -> AgentRLError | None:
        """Ask for the lease, and do what is told of it until it is over; returns the error that ends the request.

        Cancelling it gives the lease back.
        """
        asked = self.policy, self.ticket.request_id, prompt, started, seconds
        try:
            async with aclosing(self._connection.stream("lease", *asked, timeout=None)) as messages:
                async for message in messages:
                    self._told(message)
        except AgentRLError as error:
            self.ticket.end(error)
            return error
        self.ticket.end(EngineError(f"{self.ticket.engine} was lost"))
        return None

    def _told(self, message: Lease | int | PauseMode) -> None:
        if isinstance(message, PauseMode):
            asyncio.get_running_loop().call_later(GRACE, self.ticket.abort)
        elif isinstance(message, Lease):
            self.version, self.ticket.engine = message.version, message.engine
            self._given.set_result(message)
        else:
            self.version = message
            if self.engine is not None:
                self.engine.set_version(message)

    async def begun(self, following: asyncio.Task[AgentRLError | None]) -> None:
        """Wait until a member has taken the request.

        Raises:
            NotReachable: it can't be leased.
            AgentRLError: see `Fleet.generate`.
        """
        either: list[asyncio.Future[Any]] = [self._given, following]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not self._given.done():
            raise following.result() or EngineError(f"request {self.ticket.request_id!r} was not admitted")

    async def opened(self) -> Reached:
        """The engine, reached anew.

        Raises:
            EngineError: it is gone.
        """
        asked = self.policy, self.lease.start
        reach: Reach | None = await self._connection.call("reach", *asked, timeout=ANSWER_SECONDS)
        if reach is None:
            raise EngineError(f"{self.lease.engine} is gone")
        return await reach.open()

    async def checked(
        self, stream: AsyncIterator[Chunk | Turn], vocabulary: int, note: Callable[[LeasedRequest], None]
    ) -> AsyncGenerator[Chunk | Turn, None]:
        """What the engine streams, checked and kept; `note` is called with this where tokens come.

        Raises:
            AgentRLError: the engine failed, or the request was ended by the run's process.
        """
        known = {self.lease.version}
        async with aclosing(self.ticket.stream(stream, lambda: note(self))) as items:
            async for item in items:
                for version in versions_of(item) - known:
                    asked = self.lease.number, version
                    if await self._connection.call("knows", *asked, timeout=ANSWER_SECONDS):
                        known.add(version)
                self.ticket.check(item, vocabulary, known)
                if isinstance(item, Turn):
                    self._report(None)
                    yield replace(item, engines=(self.lease.engine,))
                    return
                self.ticket.take(item)
                yield item

    async def failed(self, error: AgentRLError, following: asyncio.Task[AgentRLError | None]) -> None:
        """Have the run's process decide what follows from an error; returns where another attempt may.

        Raises:
            AgentRLError: none may.
        """
        self._report(error)
        final = await following
        if final is not None:
            raise final

    def _report(self, error: AgentRLError | None) -> None:
        self.reported = True
        self.tell("ended", error)

    def tell(self, method: str, *arguments: Any) -> None:
        """Tell the run's process something of the lease."""
        self._connection.tell(method, self.lease.number, *arguments)


async def _closed(opening: asyncio.Task[Reached]) -> None:
    """Close what was opened, if it was."""
    with suppress(AgentRLError):
        await (await opening).close()
