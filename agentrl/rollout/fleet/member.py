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
import math
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from agentrl.config import FleetConfig
from agentrl.errors import AgentRLError, DeadlineExceeded, EngineError, InvalidInput
from agentrl.rollout.engines.managed import managed
from agentrl.sessions.generation import aclose
from agentrl.types import Chunk, Engine, FinishReason, PauseMode, Sampling, Turn, VersionSpan

CLOSE_SECONDS = 20.0
"""How long an engine may take to close before it is left to itself."""
_LEAVE_SECONDS = 5.0
_POSITIVE = 1e-3  # a log-probability may exceed 0 by rounding


class State(StrEnum):
    """Which calls an engine of the fleet takes."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"  # finishes what it has, takes nothing new
    OUTDATED = "outdated"  # runs, but waits for the next publication: there was nothing to bring it up to date
    LOST = "lost"  # being closed and started anew
    STOPPED = "stopped"  # removed, or given up


@dataclass(eq=False, slots=True)
class Ticket:
    """A request to a member, which is `engine`, and its tokens so far."""

    request_id: str
    inbox: asyncio.Queue[Chunk | Turn | AgentRLError] = field(default_factory=asyncio.Queue)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[VersionSpan] = field(default_factory=list)
    pump: asyncio.Task[None] | None = None
    engine: str = ""

    def take(self, chunk: Chunk) -> None:
        """Append a chunk."""
        start, end = len(self.token_ids), len(self.token_ids) + len(chunk.token_ids)
        self.token_ids += chunk.token_ids
        self.logprobs += chunk.logprobs
        if self.versions and self.versions[-1].version == chunk.version:
            start = self.versions.pop().start
        self.versions.append(VersionSpan(chunk.version, start, end))

    def aborted(self) -> Turn:
        """The tokens so far, as an aborted turn that its caller continues."""
        tokens = tuple(self.token_ids), tuple(self.logprobs), tuple(self.versions)
        return Turn(*tokens, FinishReason.ABORT, engines=(self.engine,))


class Member:
    """An engine and its open requests.

    Args:
        name: what errors and `Fleet.engines` call it.
        engine: the engine, which this member closes.
        config: deadlines.

    Attributes:
        colocated: it is on the trainer's GPUs, and sleeps while the trainer computes.
    """

    def __init__(self, name: str, engine: Engine, config: FleetConfig) -> None:
        self.name, self.config = name, config
        self.state, self.reason, self.served = State.STARTING, "", False  # whether it ever came into use
        self.restarts = self.starts = 0
        self.open: set[Ticket] = set()
        self.paused, self.updating, self.colocated = False, False, False
        self.progress = time.monotonic()
        self.set_engine(engine)

    def set_engine(self, engine: Engine) -> None:
        """Start anew with another engine."""
        self.engine, self.managed = engine, managed(engine)
        self.receiver = self.managed.receiver
        self.paused = self.updating = self.asleep = False
        self.failed_requests: set[bytes] = set()  # the requests that failed in a row
        self.failures, self.turns, self.starts = 0, 0, self.starts + 1
        self.progress = self.since = time.monotonic()
        self.versions: set[int] = set()  # which it has had, or is being given

    # -------------------------------------------------------------------------------------- generating

    async def generate(
        self, ticket: Ticket, input_ids: Sequence[int], sampling: Sampling, deadline: float | None
    ) -> AsyncIterator[Chunk | Turn]:
        """Run a request here; what comes is checked, and `lose` ends it at once.

        Raises:
            EngineError: the member failed; what came before is in the ticket.
        """
        if not self.open:
            self.progress = time.monotonic()
        known = self.versions  # a successor's are others
        known.add(self.engine.version())
        self.open.add(ticket)
        ticket.engine = self.name
        ticket.pump = asyncio.create_task(self._pump(ticket, input_ids, sampling, deadline))
        try:
            while True:
                item = await ticket.inbox.get()
                if isinstance(item, AgentRLError):
                    raise item
                self._check(item, ticket, known)
                if isinstance(item, Turn):
                    self.failed_requests.clear()
                    self.failures, self.turns = 0, self.turns + 1
                    yield replace(item, engines=(self.name,))
                    return
                ticket.take(item)
                yield item
        finally:
            self.open.discard(ticket)
            ticket.pump.cancel()
            if self.state is not State.LOST:
                await asyncio.wait([ticket.pump], timeout=_LEAVE_SECONDS)

    async def _pump(self, ticket: Ticket, input_ids: Sequence[int], sampling: Sampling, deadline: float | None) -> None:
        stream = self.engine.generate(ticket.request_id, input_ids, sampling, deadline)
        try:
            async for item in stream:
                self.progress = time.monotonic()
                ticket.inbox.put_nowait(item)
                if isinstance(item, Turn):
                    return
            ticket.inbox.put_nowait(EngineError(f"{self.name}: the stream ended without a turn"))
        except AgentRLError as error:
            ticket.inbox.put_nowait(error)
        except Exception as error:
            ticket.inbox.put_nowait(EngineError(f"{self.name}: {type(error).__name__}: {error}"))
        finally:
            await aclose(stream)

    def _check(self, item: Chunk | Turn, ticket: Ticket, known: set[int]) -> None:
        """Refuse output that can't be right."""
        ids, logprobs = item.token_ids, item.logprobs
        if len(ids) != len(logprobs):
            raise InvalidEngineOutput(f"{self.name} answered {len(ids)} tokens with {len(logprobs)} log-probabilities")
        vocab = self.engine.capabilities.vocab_size
        for token, logp in zip(ids, logprobs, strict=True):
            if not 0 <= token < vocab:
                raise InvalidEngineOutput(f"{self.name} answered token {token}, outside the vocabulary of {vocab}")
            if not math.isfinite(logp) or logp > _POSITIVE:
                raise InvalidEngineOutput(f"{self.name} answered log-probability {logp}")
        for version in {item.version} if isinstance(item, Chunk) else {span.version for span in item.versions}:
            if version not in known:
                raise InvalidEngineOutput(
                    f"{self.name} answered tokens of policy version {version}, which it never had"
                )
        if isinstance(item, Turn) and list(ids[: len(ticket.token_ids)]) != ticket.token_ids:
            raise InvalidEngineOutput(f"{self.name} answered a turn that is not what it streamed")

    # ---------------------------------------------------------------------------------------- watching

    async def find_fault(self) -> str:
        """What is wrong with it; '' where nothing is."""
        probed = time.monotonic()
        silent = probed - self.progress
        busy = bool(self.open) and not self.paused
        if busy and silent > self.config.stall_timeout:
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
        """Whether it generates a token for a probe, after other requests have failed."""
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
        self.state, self.reason = State.LOST, reason
        for ticket in list(self.open):
            ticket.inbox.put_nowait(EngineError(f"{self.name} was lost: {reason}"))

    async def close(self) -> None:
        """Close the engine; one that does not let itself be closed is left."""
        if self.state is State.LOST:
            await asyncio.to_thread(self.managed.kill)  # a process that hangs would not end by itself
        with contextlib.suppress(TimeoutError, AgentRLError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self.engine.close()

    # ------------------------------------------------------------------------------ pausing and weights

    async def pause(self, mode: PauseMode) -> None:
        """Pause; from here on it gets no requests."""
        await self.engine.pause(mode)
        self.paused = self.updating = True

    async def resume(self, version: int | None) -> None:
        """Generate again, as policy `version`; None is the one that it had."""
        if version is not None:
            self.managed.set_version(version)
        await self.engine.resume()
        self.paused = self.updating = False
        self.progress = time.monotonic()

    async def sleep(self, mode: PauseMode, tags: Sequence[str]) -> None:
        """Pause, and give its accelerator memory back."""
        await self.pause(mode)
        for ticket in list(self.open):  # on its way to the engine while that paused
            ticket.inbox.put_nowait(ticket.aborted())
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
        """Whether the member has given this engine up."""
        return self.member.engine is not self.engine or self.member.state is State.LOST

    async def pause(self, mode: PauseMode) -> None:
        """Pause the engine."""
        self._check()
        await self.member.pause(mode)

    async def resume(self, version: int | None) -> None:
        """Let the engine generate again."""
        self._check()
        await self.member.resume(version)

    def _check(self) -> None:
        if self.lost:
            raise EngineError(f"{self.name} was lost: {self.member.reason}")


class InvalidEngineOutput(EngineError):
    """What an engine answered can't be: it is started anew at once."""


def is_engine_fault(error: AgentRLError) -> bool:
    """Whether a request's failure is the engine's (and not the caller's mistake, or a deadline's)."""
    return isinstance(error, EngineError) and not isinstance(error, InvalidInput | DeadlineExceeded)
