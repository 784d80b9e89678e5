"""The common part of engines in other processes: their server, admission, and open requests.

Subclasses implement how a server is started and called. This class has what must not differ between them:
when requests are admitted, what a pause does to those that run, how a deadline, a client that left, a dead
server and `close` end them. Each request is pumped by a task of its own into a queue, because that is the one
place from which all of these can end it.

A server needs a minute to load; constructing the engine only starts it, and whatever comes first waits
(`start`). So a trainer can load its own weights meanwhile, and a fleet starts all its servers at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any

from agentrl.cluster.server import ServerProcess, probe_until
from agentrl.common import custom_code
from agentrl.common.concurrency import hold_task
from agentrl.errors import AgentRLError, ConfigError, DeadlineExceeded, EngineError, InvalidInput
from agentrl.rollout.engines.checks import check_ids, check_sampling, check_temperature, end_by, readable
from agentrl.rollout.engines.folder import ModelFacts, write_model
from agentrl.rollout.engines.managed import ManagedEngine
from agentrl.rollout.engines.servers.http import PROBE_SECONDS
from agentrl.rollout.engines.servers.images import ServedVision, place_images
from agentrl.rollout.engines.servers.open_request import OpenRequest
from agentrl.rollout.engines.servers.placed_server import PlacedServer
from agentrl.rollout.engines.servers.server_settings import ServerConfig
from agentrl.types import Capabilities, Chunk, FinishReason, Health, PauseMode, Placed, Sampling, Turn

logger = logging.getLogger(__name__)
_DEAD_SECONDS = 2.0  # between a broken connection and the process's end


class RemoteEngine(ManagedEngine, ABC):
    """`agentrl.types.Engine` over a server in another process.

    Args:
        path: the model's Hugging Face folder.
        config: the engine's section.

    Attributes:
        facts, vision: what the folder says about the model, and about its images where servers take them.
        server: the process, where it is ours.
        last_progress: when tokens last came, in seconds of `time.monotonic()`.
        attach_seconds: what a server that runs already may take to answer.
        abort_seconds: what aborted requests may take to come back by themselves.
    """

    attach_seconds, abort_seconds = 60.0, 5.0

    def __init__(self, path: Path, config: ServerConfig) -> None:
        self.path, self.config, self.facts = Path(path), config, ModelFacts.read(Path(path))
        if config.routed_experts and self.facts.experts is None:
            raise ConfigError(f"engine.routed_experts=true: model={str(path)!r} has no experts to record")
        self.vision = ServedVision.read(self.path)
        self.server: ServerProcess | PlacedServer | None = None
        self.last_progress = time.monotonic()
        self._capabilities: Capabilities
        self._version = 0
        self._open: set[OpenRequest] = set()
        self._gate, self._waiting, self._aborts = asyncio.Event(), 0, set[asyncio.Task[None]]()
        self._gate.set()
        self._paused: PauseMode | None = None
        self._starting, self._started, self._closed = asyncio.Lock(), False, False

    # ----------------------------------------------------------------------------- for subclasses

    @abstractmethod
    async def _probe(self) -> bool:
        """Return whether the server is ready."""

    @abstractmethod
    async def _check_server(self) -> None:
        """Refuse a server that does not fit, once it is ready."""

    @abstractmethod
    async def _pump(self, request: OpenRequest) -> Turn:
        """Let the server generate, `take` what comes, and return the turn."""

    @abstractmethod
    async def _abort(self, request: OpenRequest) -> None:
        """Abort a request at the server."""

    @abstractmethod
    async def _pause(self, mode: PauseMode) -> None:
        """Pause the server; after DRAIN nothing of ours runs there any more."""

    @abstractmethod
    async def _resume(self) -> None:
        """Let the server go on."""

    @abstractmethod
    async def _alive(self) -> bool:
        """Return whether the server answers, without waiting on generation."""

    @abstractmethod
    async def _close_client(self) -> None:
        """Close the connections."""

    @abstractmethod
    async def _load(self, folder: Path, version: int) -> None:
        """Let the paused server load its weights from a folder, and number them."""

    @abstractmethod
    async def _score_tokens(self, ids: list[int], temperature: float) -> list[float]:
        """Log-probability of each token but the first; EngineError where one is not finite."""

    def _no_images(self) -> str:
        """Return why the server takes no images with a prompt, of no model; '' where it takes them."""
        return ""

    async def load_folder(self, folder: Path, version: int) -> None:
        """Let the paused server load what a folder brings."""
        await self._load(folder, version)

    def _adapter(self) -> str | None:
        """The server's name of the adapter that requests have from now on; None for none."""
        return None

    # ---------------------------------------------------------------------------------------- starting

    @property
    def attached(self) -> bool:  # type: ignore[override]
        """True where the server was running before."""
        return self.server is None

    def kill(self) -> None:
        if self.server is not None:
            self.server.kill()

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    async def start(self) -> None:
        """Wait until the server is ready; the first request calls it, so it need not be called.

        Raises:
            EngineError: it died or took longer than `engine.start_timeout`; the log's tail is in the message.
            ConfigError: it is a version that is not supported.
        """
        async with self._starting:
            if self._closed:
                raise EngineError(f"engine={self.capabilities.name} is closed")
            if self._started:
                return
            if self.server is not None:
                try:
                    await self.server.wait_ready(self._probe, self.config.start_timeout)
                except EngineError as error:
                    if refused := custom_code.refusal(self.path):
                        error.add_note(f"model={str(self.path)!r}: {refused}")
                    raise
            else:
                await self._attach()
            with readable():
                await self._check_server()
            self._started = True

    async def _attach(self) -> None:
        """Wait until a server that was running before is ready; it may just be very busy."""
        if not await probe_until(self._probe, lambda: None, time.monotonic() + self.attach_seconds):
            raise EngineError(f"engine.url={self.config.url!r}: no server answers there, or it is not ready")

    # -------------------------------------------------------------------------------------- generating

    async def generate(
        self,
        request_id: str,
        input_ids: Sequence[int],
        sampling: Sampling,
        deadline: float | None = None,
        attached: Sequence[Placed] = (),
    ) -> AsyncIterator[Chunk | Turn]:
        limits = self.capabilities
        self._check(sampling)
        ids = check_ids(input_ids, limits.vocab_size, limits.max_context)
        seen = place_images(self.vision, limits, ids, attached, self._no_images())
        if deadline is not None and deadline <= time.monotonic():
            raise DeadlineExceeded(f"request {request_id!r} came after its deadline")
        if not self._admits:
            await self._admit_before(deadline, request_id)
        limit = min(sampling.max_new_tokens, limits.max_context - len(ids))
        request = OpenRequest(request_id, ids, sampling, limit, self._version, self._adapter(), seen)
        self._open.add(request)
        request.task = asyncio.create_task(self._run(request))
        ended = False
        try:
            with end_by(deadline, request.inbox, request_id):
                while not ended:
                    item = await request.inbox.get()
                    ended = not isinstance(item, Chunk | DeadlineExceeded)
                    if isinstance(item, AgentRLError):
                        raise item
                    yield item
        finally:
            if not ended:
                self._cut(request)

    def _check(self, sampling: Sampling) -> None:
        check_sampling(sampling, self.capabilities.vocab_size)
        if sampling.lark is not None and not self.capabilities.lark:
            raise InvalidInput(
                f"sampling.lark: this server of engine={self.capabilities.name} is not known to have llguidance's "
                "grammars; engine=local and servers that agentrl starts do (docs/engines.md#supports)"
            )

    async def score(self, input_ids: Sequence[int], temperature: float = 1.0) -> list[float]:
        """Log-probability of each token given those before it, at `temperature`; the first one's is 0.0.

        At temperatures other than 1 it costs a short request for each token.
        """
        check_temperature(temperature)
        ids = check_ids(input_ids, self.capabilities.vocab_size, self.capabilities.max_context, free=0)
        await self._admit()
        try:
            with readable():
                return [0.0, *await self._score_tokens(ids, temperature)]
        except AgentRLError as error:
            raise await self._server_error(error) from error

    @property
    def _admits(self) -> bool:
        return self._started and not self._closed and self._gate.is_set()

    async def _admit_before(self, deadline: float | None, request_id: str) -> None:
        """`_admit`; DeadlineExceeded where that takes too long."""
        try:
            async with asyncio.timeout(None if deadline is None else deadline - time.monotonic()):
                await self._admit()
        except TimeoutError as error:
            if isinstance(error, AgentRLError):
                raise
            raise DeadlineExceeded(f"request {request_id!r} was not admitted before its deadline") from None

    async def _admit(self) -> None:
        """Wait until the server runs and is not paused."""
        if not self._started or self._closed:
            await self.start()
        self._waiting += 1
        try:
            while not self._gate.is_set():
                await self._gate.wait()
        finally:
            self._waiting -= 1
        if self._closed:
            raise EngineError(f"engine={self.capabilities.name} is closed")

    async def _run(self, request: OpenRequest) -> None:
        """A request's own task: whatever happens, its inbox gets exactly one end."""
        end: Turn | AgentRLError
        try:
            end = await self._pump(request)
        except AgentRLError as error:
            end = await self._server_error(error)
        except Exception as error:
            end = EngineError(f"request {request.id!r} failed: {type(error).__name__}: {error}")
        self._open.discard(request)
        request.inbox.put_nowait(end)

    async def _server_error(self, error: AgentRLError) -> AgentRLError:
        """The server's own error, where it died; else `error`."""
        end, lost = time.monotonic() + _DEAD_SECONDS, isinstance(error, EngineError)
        while lost and self.server is not None and not self._closed and time.monotonic() < end:
            if self.server.exit_status is not None:
                return self.server.exit_error()
            with contextlib.suppress(TimeoutError):
                if await asyncio.wait_for(self._alive(), PROBE_SECONDS):
                    break
            await asyncio.sleep(0.1)
        return error

    def progress(self) -> None:
        """Note that tokens came just now."""
        self.last_progress = time.monotonic()

    def _cut(self, request: OpenRequest) -> None:
        """Leave a request; the engine counts it as running until the server has answered."""
        if request.task is not None:
            request.task.cancel()
        hold_task(self._leave(request), self._aborts)

    # ------------------------------------------------------------------------------- pausing and weights

    async def pause(self, mode: PauseMode = PauseMode.DRAIN) -> None:
        """Stop generating; returns when nothing is generated any more."""
        self._gate.clear()
        await self.start()
        if mode is PauseMode.DRAIN:
            await self._idle(None)
        await self._pause(mode)
        self._paused = mode
        if mode is PauseMode.ABORT and not await self._idle(self.abort_seconds):
            for request in list(self._open):  # those that reached the server after it had stopped looking
                request.inbox.put_nowait(request.turn(FinishReason.ABORT))
                self._cut(request)
            await self._idle(self.abort_seconds)

    async def _idle(self, seconds: float | None) -> bool:
        """Wait until no request is open; False where that took too long."""
        end = None if seconds is None else time.monotonic() + seconds
        while self._open:
            if end is not None and time.monotonic() > end:
                return False
            busy = [r.task for r in self._open if r.task is not None and not r.task.done()] + list(self._aborts)
            if busy:
                await asyncio.wait(busy, timeout=0.1, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(0)  # those that ended leave
        return True

    async def resume(self) -> None:
        await self.start()
        await self._resume()
        self._paused = None
        self._gate.set()

    async def publish(self, weights: Iterable[tuple[str, Any]], version: int) -> None:
        """Load (Hugging Face name, tensor) pairs through a folder on disk and call the result policy `version`.

        Raises:
            EngineError: a name is unknown or missing, or a shape differs (nothing was changed); or the server refused.
        """
        with write_model(self.facts, weights) as folder:
            await self._bring(folder, version)

    async def _bring(self, folder: Path, version: int) -> None:
        await self.start()
        ours = self._paused is None
        if ours:
            await self.pause(PauseMode.RETRACT)
        try:
            await self.load_folder(folder, version)
        finally:
            if ours:
                await self.resume()

    # ------------------------------------------------------------------------------------------ its state

    def version(self) -> int:
        return self._version

    def set_version(self, version: int) -> None:
        self._version = version

    async def health(self) -> Health:
        """Return whether the server answers, and its requests in progress; never waits on generation."""
        detail = ""
        if self._closed:
            detail = "closed"
        elif self.server is not None and self.server.exit_status is not None:
            detail = str(self.server.exit_error())
        elif not self._started:
            detail = "starting"
        elif not await self._alive():
            detail = "the server does not answer"
        return Health(ok=not detail, running=len(self._open), waiting=self._waiting, detail=detail)

    async def close(self) -> None:
        """End open requests with an EngineError, and a server of ours with everything it started. Idempotent."""
        if self._closed:
            return
        self._closed = True
        for request in list(self._open):
            if request.task is not None:
                request.task.cancel()
            request.inbox.put_nowait(EngineError(f"engine={self.capabilities.name} was closed"))
        if self.server is None and self._open and self._started:
            leaving = [asyncio.create_task(self._leave(request)) for request in list(self._open)]
            await asyncio.wait(leaving, timeout=self.abort_seconds)
        self._open.clear()
        self._gate.set()
        if self.server is not None:
            await self.server.close()
        await self._close_client()

    async def _leave(self, request: OpenRequest) -> None:
        """Abort at the server, and stop counting the request as running."""
        try:
            await self._abort(request)
        except AgentRLError as error:
            logger.debug("aborting %s: %s", request.id, error)
        finally:
            self._open.discard(request)
