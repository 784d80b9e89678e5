"""The local engine's thread: an inbox of calls, and a step whenever there is something to compute.

Event loops post calls and get tokens back through `asyncio.Queue`s, in batches: one wake-up of a loop for all
of its requests, every few tens of milliseconds or when something ended. A failure of the thread ends every
request with an `EngineError`, and so does everything that is posted later.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import torch

from agentrl.common import cores
from agentrl.errors import AgentRLError, EngineError
from agentrl.rollout.engines.local.request import Finished, Request
from agentrl.rollout.engines.local.scheduler import Scheduler
from agentrl.types import Chunk, PauseMode, Turn

Item = Chunk | Turn | list[float] | AgentRLError
"""An item of a request's queue: chunks, then the end."""

_FLUSH_SECONDS = 0.03  # seldom enough that wake-ups cost nothing, often enough that a reader sees it stream
_STALL_SECONDS = 0.02  # wait before waiting requests are tried again for which no row was free
_START_SECONDS = 60.0


class SchedulerThread:
    """The thread that owns the scheduler.

    Attributes:
        error: why it has ended; None while it lives.
    """

    def __init__(self, scheduler: Scheduler, threads: int | None) -> None:
        self.error: EngineError | None = None
        self._scheduler = scheduler
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._fronts: dict[Request, _Front] = {}
        self._draining: list[Future[None]] = []
        self._flushed = 0.0
        self._lock = threading.Lock()
        self._threads = threads
        self._thread = threading.Thread(target=self._main, name="agentrl-local-engine", daemon=True)
        own = torch.get_num_threads()
        started = threading.Event()
        self._inbox.put(started.set)
        self._thread.start()
        started.wait(_START_SECONDS)
        torch.set_num_threads(own)  # threads of others keep their number: torch remembers the last one set

    # --- called from event loops ---

    def submit(self, request: Request, loop: asyncio.AbstractEventLoop, inbox: asyncio.Queue[Item]) -> None:
        """Take a request on; what becomes of it is put into `inbox`, on `loop`."""

        def admit() -> None:
            self._fronts[request] = _Front(loop, inbox)
            self._scheduler.submit(request)

        self._post(admit)

    def cancel(self, request: Request) -> None:
        """Forget a request; its row is free from the next step on."""

        def forget() -> None:
            if self._fronts.pop(request, None) is not None:
                self._scheduler.cancel(request)

        if self.error is None:
            self._inbox.put(forget)

    async def call(self, work: Callable[[], None]) -> None:
        """Run something between two steps, and wait for it."""
        future = _future()
        self._post(lambda: _complete(future, work))
        await asyncio.wrap_future(future)

    async def pause(self, mode: PauseMode) -> None:
        """Pause in that way; returns when nothing is generated any more."""
        future = _future()

        def begin() -> None:
            self._scheduler.admitting = False
            if mode is PauseMode.ABORT:
                self._deliver(self._scheduler.abort_running())
            self._scheduler.frozen = mode in (PauseMode.RETRACT, PauseMode.IN_PLACE)
            self._draining.append(future)

        self._post(begin)
        await asyncio.wrap_future(future)

    async def resume(self) -> None:
        def go_on() -> None:
            self._scheduler.admitting, self._scheduler.frozen = True, False

        await self.call(go_on)

    def close(self) -> None:
        """End the thread, and with an error whatever is under way."""
        with self._lock:
            if self.error is None:
                self.error = EngineError("the engine is closed")
                self._inbox.put(None)
        self._thread.join(timeout=60)

    def _post(self, work: Callable[[], None]) -> None:
        with self._lock:
            if self.error is not None:
                raise self.error.with_traceback(None)  # many may raise it, and each would add its own
            self._inbox.put(work)

    # --- the thread ---

    def _main(self) -> None:
        try:
            if self._threads is not None:
                cores.settle_threads(self._threads)
            while self._take_calls():
                self._deliver(self._scheduler.step())
                if time.monotonic() - self._flushed > _FLUSH_SECONDS:
                    self._flush()
                self._settle_pauses()
        except Exception as error:
            failure = EngineError(f"the local engine's worker failed: {type(error).__name__}: {error}")
            failure.__cause__ = error
            with self._lock:
                self.error = self.error or failure
        self._end_all()

    def _take_calls(self) -> bool:
        """Run what was posted; wait for it where there is nothing to compute. False ends the thread."""
        patience = 0.0 if self._scheduler.progress else _STALL_SECONDS if self._scheduler.ready else None
        while True:
            try:
                work = self._inbox.get(timeout=patience) if patience != 0 else self._inbox.get_nowait()
            except queue.Empty:
                return True
            if work is None:
                return False
            work()
            patience = 0.0

    def _settle_pauses(self) -> None:
        if self._draining and (self._scheduler.frozen or not self._scheduler.generating):
            self._flush()
            for future in self._draining:
                future.set_result(None)
            self._draining.clear()

    def _flush(self) -> None:
        self._flushed = time.monotonic()
        batch: list[tuple[_Front, Item]] = []
        for request in self._scheduler.generating:
            front = self._fronts.get(request)
            if front is not None:
                batch.extend((front, chunk) for chunk in front.chunks(request))
        _send(batch)

    def _deliver(self, ended: list[Finished]) -> None:
        batch: list[tuple[_Front, Item]] = []
        for done in ended:
            front = self._fronts.pop(done.request, None)
            if front is not None:
                batch.extend((front, chunk) for chunk in front.chunks(done.request))
                batch.append((front, done.result))
        _send(batch)

    def _end_all(self) -> None:
        error = self.error or EngineError("the engine is closed")
        _send([(front, error) for front in self._fronts.values()])
        self._fronts.clear()
        for future in self._draining:
            future.set_exception(error)
        while not self._inbox.empty():
            work = self._inbox.get()
            if work is not None:
                work()
        _send([(front, error) for front in self._fronts.values()])


class _Front:
    """The queue of a request's tokens, and how many went there."""

    def __init__(self, loop: asyncio.AbstractEventLoop, inbox: asyncio.Queue[Item]) -> None:
        self.loop, self.inbox, self.sent = loop, inbox, 0

    def chunks(self, request: Request) -> list[Chunk]:
        """Return what was generated since the last call, one chunk for each policy version."""
        found: list[Chunk] = []
        total = len(request.logprobs) if request.sampling is not None else 0
        if total == self.sent:
            return found
        for span in request.versions:
            start, end = max(span.start, self.sent), span.end
            if start < end:
                ids = request.ids[request.prompt + start : request.prompt + end]
                logprobs, best = request.logprobs[start:end], request.top_logprobs[start:end]
                found.append(Chunk(tuple(ids), tuple(logprobs), span.version, tuple(best)))
        self.sent = total
        return found


def _send(batch: Sequence[tuple[_Front, Item]]) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Front, Item]]] = {}
    for front, item in batch:
        by_loop.setdefault(front.loop, []).append((front, item))
    for loop, items in by_loop.items():
        try:
            loop.call_soon_threadsafe(_put_all, items)
        except RuntimeError:  # the loop is closed: nothing waits there any more
            continue


def _put_all(items: Sequence[tuple[_Front, Item]]) -> None:
    for front, item in items:
        front.inbox.put_nowait(item)


def _future() -> Future[None]:
    """A future that the thread sets when the work is done, also where whoever waited was cancelled meanwhile."""
    future: Future[None] = Future()
    future.set_running_or_notify_cancel()
    return future


def _complete(future: Future[None], work: Callable[[], None]) -> None:
    try:
        work()
    except Exception as error:
        future.set_exception(error)
    else:
        future.set_result(None)
