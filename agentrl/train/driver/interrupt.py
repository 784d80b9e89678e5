"""Ctrl-C, SIGTERM and SIGHUP end a run, in order where that is quick, and within seconds in any case.

The first signal cancels the work: sessions end, engines and trainers are closed. Some of that can take long (a thread
in the middle of an optimizer step can't be cancelled at all), so a thread of its own informs the user at once how to go
on, and after `GRACE` seconds ends this process's descendants, removes what outlives processes (sandboxes' containers;
`processes.register_cleanup`), and ends this process. Nothing is lost by that: what is stored survives a kill at any
byte. A second signal ends it at once, and leaves the containers to the next run.

SIGTERM, by which schedulers end a job, and SIGHUP, which a terminal sends that is closed, first let the work leave by
itself where it can (`leave`): a training run saves what its last step has learned. It has as many seconds as it said;
after those all goes as above. What `nohup` started goes on. A pipe that nothing reads any more (`| head -1`) does as
SIGTERM, but not by the signal SIGPIPE, which a broken connection sends as well: who writes finds out (`end_as`).

That is for a process of ours, the command line's. In a script or a notebook an interrupt cancels the work, waits
until that has ended, and raises `KeyboardInterrupt`.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from types import FrameType
from typing import Any, Generic, NoReturn, TypeVar

from agentrl.common.concurrency import current_task
from agentrl.common.processes import clean_up, descendants, kill
from agentrl.common.terminal import write_nowhere
from agentrl.errors import AgentRLError
from agentrl.tools.threads import loop_is_running

T = TypeVar("T")
GRACE = 1.0
"""Seconds that the work has to end in order."""
CLEANUP = 10.0
"""Seconds at most for what outlives this process; 0.5 are usual."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_owners: list[Callable[[int], object]] = []  # ends the run that owns this process, where one does
_cleaning = threading.Lock()  # held to the end by the thread that cleans up: another one that is done first ended it


class CancellableWork(Generic[T]):
    """A coroutine that other threads and signal handlers can cancel."""

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work, self._cancelled = work, False
        self._cancel: Callable[[], object] = lambda: None

    async def __call__(self) -> T:
        loop, task = asyncio.get_running_loop(), current_task()
        self._cancel = lambda: loop.call_soon_threadsafe(task.cancel)
        if self._cancelled:  # before there was anything to cancel
            task.cancel()
        return await self._work

    def cancel(self) -> None:
        """Ask the work to end."""
        self._cancelled = True
        with contextlib.suppress(RuntimeError):  # the loop is closed: it has ended
            self._cancel()


def run(
    work: Coroutine[Any, Any, T],
    on_interrupt: Callable[[], object],
    *,
    owns_process: bool = False,
    leave: Callable[[], float] = lambda: 0.0,
) -> T:
    """Run to the end, also where an event loop runs already (a notebook): in a thread of its own then.

    Args:
        work: what to run.
        on_interrupt: called at once when it is interrupted; prints how to resume. It may be called from another thread.
        owns_process: end the process when it is interrupted, with 128 plus the signal's number.
        leave: called on SIGTERM and SIGHUP in a process of ours: asks the work to end by itself, and returns how many
            seconds it may take for that; 0 where it can't.

    Raises:
        KeyboardInterrupt: it was interrupted; the work has ended.
    """
    if owns_process:
        return _run_in_own_process(CancellableWork(work), on_interrupt, leave)
    try:
        return (
            _run_in_thread(CancellableWork(work), on_interrupt) if loop_is_running() else _run_here(work, on_interrupt)
        )
    finally:
        gc.collect()  # engine and trainer are in cycles: each call of a process that goes on would leave their tensors


def _run_here(work: Coroutine[Any, Any, T], on_interrupt: Callable[[], object]) -> T:
    try:
        return asyncio.run(work)
    except KeyboardInterrupt:
        on_interrupt()
        raise


def _run_in_own_process(work: CancellableWork[T], on_interrupt: Callable[[], object], leave: Callable[[], float]) -> T:
    sent: list[int] = []
    said, over = threading.Event(), threading.Event()
    terminals = [number for number in (1, 2) if os.isatty(number)]

    def watch() -> None:
        if sent[0] != signal.SIGINT and not over.wait(leave()):
            work.cancel()
        with contextlib.suppress(OSError):  # nobody reads it any more
            on_interrupt()
        said.set()
        time.sleep(GRACE)
        end_process(128 + sent[0])

    def handle(number: int, frame: FrameType | None = None) -> None:
        if sent and number in (signal.SIGHUP, signal.SIGPIPE):  # a shell and the kernel both send it
            return
        sent.append(number)
        if len(sent) > 1:
            end_process(128 + sent[0], cleanup=0)
        if number == signal.SIGHUP:
            write_nowhere(*terminals)
        threading.Thread(target=watch, name="agentrl-ending", daemon=True).start()
        if number == signal.SIGINT:
            work.cancel()

    ignored = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else set()  # by nohup
    before = {number: signal.signal(number, handle) for number in SIGNALS if number not in ignored}
    _owners.append(handle)
    try:
        return asyncio.run(work())
    finally:
        _owners.remove(handle)
        if sent:  # whatever else went wrong while it ended; taking the interpreter down would need seconds more
            over.set()
            said.wait(GRACE)
            end_process(128 + sent[0])
        for number, handler in before.items():
            signal.signal(number, handler)


def end_as(number: int) -> bool:
    """End the run that owns this process as that signal would, unless it is ending; False where none owns it."""
    for end in _owners:
        end(number)
    return bool(_owners)


def _run_in_thread(work: CancellableWork[T], on_interrupt: Callable[[], object]) -> T:
    ended: Future[T] = Future()

    def target() -> None:
        if not ended.set_running_or_notify_cancel():
            return
        try:
            ended.set_result(asyncio.run(work()))
        except BaseException as error:
            ended.set_exception(error)

    thread = threading.Thread(target=target, name="agentrl", daemon=True)
    try:
        thread.start()  # which can be interrupted when the work has begun
        return ended.result()  # not `thread.join`: one that was interrupted takes the thread for ended (Python 3.11)
    except KeyboardInterrupt:
        begun = not ended.cancel()
        work.cancel()
        on_interrupt()
        if begun:
            wait([ended])  # a second interrupt leaves it to itself
        raise


def end_process(code: int, *, cleanup: float = CLEANUP) -> NoReturn:
    """End every process that descends from this one, clean up, and end this one, without its exit handlers.

    Where the kernel lists no processes, engines' guards and trainers' ranks notice by their pipes that we are gone, a
    few seconds later.

    Args:
        code: the exit status.
        cleanup: seconds that removing what outlives processes may take.
    """
    kill(descendants(os.getpid()))
    if cleanup:
        _cleaning.acquire()
        gone = time.monotonic() + GRACE
        while descendants(os.getpid()) and time.monotonic() < gone:
            time.sleep(0.01)  # what they owned has an owner until they have ended
        clean_up(cleanup)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


class Stopped(AgentRLError):
    """The run was asked to stop, and has saved a checkpoint."""


async def run_unless_stopped(stop_requested: asyncio.Event, work: Coroutine[Any, Any, T]) -> T:
    """The work's result.

    Raises:
        Stopped: `stop_requested` is set already, and the work does not begin; or it is set before the work is done,
            which is cancelled then. Work that is done is never lost.
    """
    if stop_requested.is_set():
        work.close()
        raise Stopped("the run was asked to stop")
    doing, waiting = asyncio.create_task(work), asyncio.create_task(stop_requested.wait())
    try:
        await asyncio.wait((doing, waiting), return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise Stopped("the run was asked to stop")
        return await doing
    finally:
        for task in (doing, waiting):
            task.cancel()
        await asyncio.gather(doing, waiting, return_exceptions=True)
