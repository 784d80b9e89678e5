"""One engine of a fleet: its open requests, its state, and how it is watched.

An engine is lost when it reports so, when it answers no probe, when it answers what is not valid, when it fails several
requests in a row, or when it has requests and no token comes for too long. Tokens are the surest sign: a server's
HTTP front answers for a while after the process behind it has hung, and its own health check generates a token,
which can't be while it is paused. What a probe wants of an idle or paused engine is therefore an answer from where the
model runs (`Receiver.ping`), and nothing at all while weights are being loaded: that has a deadline of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncGenerator, Iterator, Sequence, Set
from contextlib import aclosing
from dataclasses import replace
from enum import StrEnum

from agentrl.config import FleetConfig
from agentrl.errors import AgentRLError, DeadlineExceeded, EngineError, InvalidInput
from agentrl.rollout.engines.managed import as_managed
from agentrl.rollout.fleet.ticket import LeasedTicket, Ticket
from agentrl.sessions.tree.generation import aclose
from agentrl.types import Chunk, Engine, PauseMode, Placed, Sampling, Turn, begin_turn

CLOSE_SECONDS = 20.0
"""Seconds that an engine may take to close before it is left to itself."""
_starts = itertools.count()  # of all engines of this process


class MemberState(StrEnum):
    """A state of a fleet's engine: the calls that it takes."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"  # finishes what it has, takes nothing new
    OUTDATED = "outdated"  # runs, but waits for the next publication: there was nothing to bring it up to date
    LOST = "lost"  # being closed and started anew
    STOPPED = "stopped"  # removed, or given up


class Member:
    """An engine and its open requests.

    Args:
        name: what errors and `Fleet.engines` call it.
        engine: the engine, which this member closes.
        config: deadlines.

    Attributes:
        colocated: it is on the trainer's GPUs, and sleeps while the trainer computes.
        start: which engine it is of all that this process has started.
    """

    def __init__(self, name: str, engine: Engine, config: FleetConfig) -> None:
        self.name, self.config = name, config
        self.state, self.reason, self.served = MemberState.STARTING, "", False  # whether it ever came into use
        self.restarts = 0
        self.open: set[Ticket] = set()
        self.paused, self.updating, self.colocated = False, False, False
        self.progress = time.monotonic()
        self.set_engine(engine)

    def set_engine(self, engine: Engine) -> None:
        """Start anew with another engine."""
        self.engine, self.managed = engine, as_managed(engine)
        self.receiver = self.managed.receiver
        self.paused = self.updating = self.asleep = False
        self.failed_requests: set[bytes] = set()  # the requests that failed in a row
        self.failures, self.turns, self.start = 0, 0, next(_starts)
        self.progress = self.since = time.monotonic()
        self.versions: set[int] = set()  # which it has had, or is being given

    # -------------------------------------------------------------------------------------- generating

    async def generate(
        self,
        ticket: Ticket,
        input_ids: Sequence[int],
        sampling: Sampling,
        deadline: float | None,
        attached: Sequence[Placed] = (),
    ) -> AsyncGenerator[Chunk | Turn, None]:
        """Run a request here; what comes is checked, and `lose` ends it at once.

        Raises:
            EngineError: the member failed; what came before is in the ticket.
        """
        vocabulary = self.engine.capabilities.vocab_size
        with self.serving(ticket) as known:
            stream = begin_turn(self.engine, ticket.request_id, input_ids, sampling, deadline, attached)
            async with aclosing(ticket.stream(stream, self.progressed)) as items:
                async for item in items:
                    ticket.check(item, vocabulary, known)
                    if isinstance(item, Turn):
                        self.succeeded()
                        yield replace(item, engines=(self.name,))
                        return
                    ticket.take(item)
                    yield item

    @contextlib.contextmanager
    def serving(self, ticket: Ticket) -> Iterator[Set[int]]:
        """Hold a request, or a lease, open here; yields the versions that the engine has had, which grow."""
        if not self.open:
            self.progressed()
        known = self.versions  # a successor's are others
        known.add(self.engine.version())
        self.open.add(ticket)
        ticket.engine = self.name
        try:
            yield known
        finally:
            self.open.discard(ticket)

    def progressed(self) -> None:
        """Note that tokens came."""
        self.progress = time.monotonic()

    def succeeded(self, turns: int = 1) -> None:
        """Note that turns ended: what failed before does not count."""
        self.failed_requests.clear()
        self.failures, self.turns = 0, self.turns + turns

    # ---------------------------------------------------------------------------------------- watching

    async def find_fault(self) -> str:
        """Say what is wrong with the engine; '' where nothing is."""
        probed = time.monotonic()
        silent = probed - self.progress
        busy = bool(self.open) and not self.paused
        if busy and silent > self.config.stall_timeout:
            # whoever runs its leased requests does not tell of their tokens
            if self._list_leased() and (await self.generates() or self.paused):
                self.progressed()
                return ""
            return f"no token came for {silent:.0f} s, with {len(self.open)} requests open (fleet.stall_timeout)"
        try:
            async with asyncio.timeout(self.config.probe_timeout):
                health = await self.engine.health()
                if not health.ok:
                    return health.detail or "it reports that it is not healthy"
                if not busy and not self.updating:
                    await self.receiver.ping()
        except TimeoutError:
            if busy and self.progress >= probed:  # tokens came meanwhile: its machine is busy, and it lives
                return ""
            return f"it did not answer a probe within {self.config.probe_timeout:g} s (fleet.probe_timeout)"
        except Exception as error:  # whatever goes wrong in a probe is wrong with the engine
            return f"it failed a probe: {type(error).__name__}: {error}"
        return ""

    async def generates(self) -> bool:
        """Return whether the engine generates a token for a probe, after other requests have failed."""
        sampling = Sampling(max_new_tokens=1)
        deadline = time.monotonic() + self.config.probe_timeout
        stream = self.engine.generate(f"{self.name}/probe", [1], sampling, deadline)
        try:
            return any([isinstance(item, Turn) async for item in stream])
        except Exception:
            return False
        finally:
            await aclose(stream)

    async def checksum(self, timeout: float) -> str:
        """The engine's digest of its weights; '' where it gives none within `timeout` seconds."""
        with contextlib.suppress(TimeoutError, AgentRLError):
            async with asyncio.timeout(timeout):
                return await self.receiver.checksum()
        return ""

    def regain_restart(self) -> None:
        """Forget a restart for each `fleet.regain_restart_after` seconds of finished turns without a loss."""
        if self.restarts and self.turns and time.monotonic() - self.since >= self.config.regain_restart_after:
            self.restarts -= 1
            self.turns, self.since = 0, time.monotonic()

    def lose(self, reason: str) -> None:
        """Give it up: its requests end at once, with an `EngineError` that has the reason."""
        self.state, self.reason = MemberState.LOST, reason
        for ticket in list(self.open):
            ticket.end(EngineError(f"{self.name} was lost: {reason}"))

    async def close(self) -> None:
        """Close the engine; one that does not let itself be closed is left."""
        if self.state is MemberState.LOST:
            await asyncio.to_thread(self.managed.kill)  # a process that hangs would not end by itself
        with contextlib.suppress(TimeoutError, AgentRLError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self.engine.close()

    # ------------------------------------------------------------------------------ pausing and weights

    async def pause(self, mode: PauseMode) -> None:
        """Pause; from here on it gets no requests.

        The engine may not know of requests that other processes run: its server or process does. Leases end with the
        request under way, since the next one begins after the pause.
        """
        self.recall()
        if mode is PauseMode.DRAIN:
            await self._leases_over()
        await self.engine.pause(mode)
        self.paused = self.updating = True
        if mode is PauseMode.ABORT:
            for ticket in self._list_leased():
                ticket.abort()

    def _list_leased(self) -> list[LeasedTicket]:
        return [ticket for ticket in self.open if isinstance(ticket, LeasedTicket)]

    def recall(self) -> None:
        """Have other processes give back their leases, each after its request under way."""
        for ticket in self._list_leased():
            ticket.recall()

    async def _leases_over(self) -> None:
        for ticket in self._list_leased():
            await ticket.over.wait()

    async def resume(self, version: int | None) -> None:
        if version is not None:
            self.managed.set_version(version)
            for ticket in self._list_leased():
                ticket.set_version(version)
        await self.engine.resume()
        self.paused = self.updating = False
        self.progressed()

    async def sleep(self, mode: PauseMode, tags: Sequence[str]) -> None:
        """Pause, and give its accelerator memory back."""
        await self.pause(mode)
        for ticket in list(self.open):  # on its way to the engine while that paused
            ticket.abort()
        await self._leases_over()
        await self.receiver.flush()
        await self.receiver.sleep(tags)
        self.asleep = True

    async def wake(self, tags: Sequence[str]) -> None:
        """Take the memory again, if it sleeps; its weights come with the next publication."""
        if self.asleep:
            await self.receiver.wake(tags)
            self.asleep = False


class UpdateTarget:
    """A member's engine for the length of a publication of `version`.

    Should the member lose it meanwhile, every call fails: its successor has other weights, and is brought up to
    date by whoever starts it.
    """

    def __init__(self, member: Member, version: int) -> None:
        self.name, self.member = member.name, member
        self.engine, self.receiver = member.engine, member.receiver
        member.versions.add(version)

    @property
    def lost(self) -> bool:
        """True where the member has given this engine up."""
        return self.member.engine is not self.engine or self.member.state is MemberState.LOST

    async def pause(self, mode: PauseMode) -> None:
        self._check()
        await self.member.pause(mode)

    async def resume(self, version: int | None) -> None:
        self._check()
        await self.member.resume(version)

    def _check(self) -> None:
        if self.lost:
            raise EngineError(f"{self.name} was lost: {self.member.reason}")


def is_engine_fault(error: AgentRLError) -> bool:
    """Return whether a request's failure is the engine's (and not the caller's mistake, or a deadline's)."""
    return isinstance(error, EngineError) and not isinstance(error, InvalidInput | DeadlineExceeded)
