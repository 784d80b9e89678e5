"""A request to an engine of a fleet, and its tokens so far.

Whoever streams from the engine checks what comes: the fleet's process, or the process that has a lease of the request
(`agentrl.rollout.workers.leases`). Anyone else ends the request through its inbox: a member that is lost, or put to
sleep.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Set
from dataclasses import dataclass, field

from agentrl.errors import AgentRLError, EngineError
from agentrl.sessions.tree.generation import aclose
from agentrl.types import Chunk, FinishReason, PauseMode, TopLogprobs, Turn, VersionSpan

_LEAVE_SECONDS = 5.0
_POSITIVE = 1e-3  # a log-probability may exceed 0 by rounding


class InvalidEngineOutput(EngineError):
    """An engine's answer that can't be: the engine is started anew at once."""


@dataclass(eq=False, slots=True)
class Ticket:
    """A request to `engine`, a member by name, and its tokens so far; `lost`: the member was given up."""

    request_id: str
    engine: str = ""
    inbox: asyncio.Queue[Chunk | Turn | AgentRLError] = field(default_factory=asyncio.Queue)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[TopLogprobs] = field(default_factory=list)
    versions: list[VersionSpan] = field(default_factory=list)
    lost: bool = False

    async def stream(
        self, items: AsyncIterator[Chunk | Turn], tokens_came: Callable[[], None]
    ) -> AsyncGenerator[Chunk | Turn, None]:
        """Stream from an engine, up to its turn or what ends the request before.

        Raises:
            AgentRLError: the engine's failure, or the error that `end` was called with.
        """
        pump = asyncio.create_task(self._pump(items, tokens_came))
        try:
            while True:
                item = await self.inbox.get()
                if isinstance(item, AgentRLError):
                    raise item
                yield item
                if isinstance(item, Turn):
                    return
        finally:
            if not pump.done():
                pump.cancel()
                if not self.lost:
                    await asyncio.wait([pump], timeout=_LEAVE_SECONDS)

    async def _pump(self, items: AsyncIterator[Chunk | Turn], tokens_came: Callable[[], None]) -> None:
        try:
            async for item in items:
                tokens_came()
                self.inbox.put_nowait(item)
                if isinstance(item, Turn):
                    return
            self.inbox.put_nowait(EngineError(f"{self.engine}: the stream ended without a turn"))
        except AgentRLError as error:
            self.inbox.put_nowait(error)
        except Exception as error:
            self.inbox.put_nowait(EngineError(f"{self.engine}: {type(error).__name__}: {error}"))
        finally:
            await aclose(items)

    def end(self, error: AgentRLError) -> None:
        """End it with an error; its engine is gone."""
        self.lost = True
        self.inbox.put_nowait(error)

    def abort(self) -> None:
        """End it with the tokens so far."""
        self.inbox.put_nowait(self.aborted())

    def check(self, item: Chunk | Turn, vocabulary: int, known: Set[int]) -> None:
        """Refuse output that can't be right.

        Args:
            item: what came.
            vocabulary: the engine's tokens are below it.
            known: the policy versions that the engine has had, or is being given.

        Raises:
            InvalidEngineOutput: says what is wrong.
        """
        name, ids, logprobs = self.engine, item.token_ids, item.logprobs
        if len(ids) != len(logprobs):
            raise InvalidEngineOutput(f"{name} answered {len(ids)} tokens with {len(logprobs)} log-probabilities")
        if item.top_logprobs and len(item.top_logprobs) != len(ids):
            raise InvalidEngineOutput(f"{name} answered {len(ids)} tokens with {len(item.top_logprobs)} top_logprobs")
        if ids and not 0 <= min(ids) <= max(ids) < vocabulary:
            token = next(token for token in ids if not 0 <= token < vocabulary)
            raise InvalidEngineOutput(f"{name} answered token {token}, outside the vocabulary of {vocabulary}")
        if not all(map(math.isfinite, logprobs)) or max(logprobs, default=0.0) > _POSITIVE:
            logp = next(logp for logp in logprobs if not math.isfinite(logp) or logp > _POSITIVE)
            raise InvalidEngineOutput(f"{name} answered log-probability {logp}")
        for version in versions_of(item) - known:
            raise InvalidEngineOutput(f"{name} answered tokens of policy version {version}, which it never had")
        if isinstance(item, Turn) and list(ids[: len(self.token_ids)]) != self.token_ids:
            raise InvalidEngineOutput(f"{name} answered a turn that is not what it streamed")

    def take(self, chunk: Chunk) -> None:
        start, end = len(self.token_ids), len(self.token_ids) + len(chunk.token_ids)
        self.token_ids += chunk.token_ids
        self.logprobs += chunk.logprobs
        self.top_logprobs += chunk.top_logprobs
        if self.versions and self.versions[-1].version == chunk.version:
            start = self.versions.pop().start
        self.versions.append(VersionSpan(chunk.version, start, end))

    def aborted(self) -> Turn:
        """The tokens so far, as an aborted turn that its caller continues."""
        tokens = tuple(self.token_ids), tuple(self.logprobs), tuple(self.versions)
        best = tuple(self.top_logprobs)
        return Turn(*tokens, FinishReason.ABORT, engines=(self.engine,), top_logprobs=best)


@dataclass(eq=False, slots=True)
class LeasedTicket(Ticket):
    """A session's requests that another process runs, one at a time; `request_id` is the first. Their tokens are there.

    Attributes:
        single: it is for the first request alone.
        over: set once the other process has given it back.
    """

    single: bool = False
    over: asyncio.Event = field(default_factory=asyncio.Event)
    told: asyncio.Queue[int | PauseMode | AgentRLError] = field(default_factory=asyncio.Queue)

    async def notices(self) -> AsyncIterator[int | PauseMode]:
        """Yield notices for the lease's process, until it leaves.

        It is a version that the engine has from now on; `PauseMode.DRAIN`: give it back after the request under way;
        or `PauseMode.ABORT`: do so at once, with the request's tokens so far.

        Raises:
            AgentRLError: its engine is gone.
        """
        while not isinstance(item := await self.told.get(), AgentRLError):
            yield item
        raise item

    def end(self, error: AgentRLError) -> None:
        self.told.put_nowait(error)

    def recall(self) -> None:
        """Have the lease given back after the request under way."""
        self.told.put_nowait(PauseMode.DRAIN)

    def abort(self) -> None:
        """Have the lease given back with the tokens so far of the request under way."""
        self.told.put_nowait(PauseMode.ABORT)

    def set_version(self, version: int) -> None:
        """Tell which version its engine has from now on."""
        self.told.put_nowait(version)


def versions_of(item: Chunk | Turn) -> set[int]:
    """The policy versions of its tokens."""
    return {item.version} if isinstance(item, Chunk) else {span.version for span in item.versions}
