"""A process under a resident runner, and its result.

How it ended comes from the runner's EXIT frame alone, which comes from wait(2), never from its output.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from agentrl.errors import AgentRLError, DeadlineExceeded, SandboxError
from agentrl.tools.sandbox.base import BUSY, ExecResult, Outcome, PathError, SandboxDied, SandboxStarved
from agentrl.tools.sandbox.runner.client import Channel
from agentrl.tools.sandbox.runner.loop import run_on_loop
from agentrl.tools.sandbox.runner.wire import Exit, How

T = TypeVar("T")
Explain = Callable[[SandboxDied], Awaitable[AgentRLError]]
"""Gives the error to raise when the runner is lost."""
GRACE = 15.0
"""Seconds past a command's timeout in which the runner must have killed its tree and reported it."""
MAX_FORGERIES = 64
"""Reports without the expected mark that are skipped: each resets the output's bounds."""
RESOURCES, CWD = 0, 1
"""Phases of a start: before the command is a process, and before its program is run."""


class ResidentProcess:
    """A process that a resident runner has started."""

    def __init__(self, channel: Channel, explain: Explain) -> None:
        self._channel = channel
        self._explain = explain

    @property
    def running(self) -> bool:
        return not self._channel.exit.done()

    def output(self) -> tuple[bytes, bytes]:
        """The process's standard output and error so far, up to their heads."""
        return bytes(self._channel.outputs[0]), bytes(self._channel.outputs[1])

    @run_on_loop
    async def wait(self, timeout: float) -> ExecResult:
        try:
            return result_of(self._channel, await asyncio.wait_for(asyncio.shield(self._channel.exit), timeout))
        except TimeoutError:
            raise DeadlineExceeded(f"the process still runs after {timeout:g} s") from None
        except SandboxDied as error:
            raise await self._explain(error) from None

    async def stop(self, grace: float = 0.0) -> ExecResult:
        if grace > 0 and self.running:
            await self.signal(signal.SIGTERM)
            try:
                return await self.wait(grace)
            except DeadlineExceeded:
                pass
        await self.signal(signal.SIGKILL)
        return await self.wait(GRACE)

    @run_on_loop
    async def signal(self, number: int) -> None:
        self._channel.signal(number)

    async def request(self, data: bytes, mark: bytes, timeout: float) -> tuple[bytes, ExecResult] | None:
        """Write to its input and wait for the report on descriptor 3 that begins with `mark`; others are ignored.

        Returns:
            The report and the output before it; None where the process ended or the timeout was reached, which counts
            its time as a command's (`Sandbox.exec`).

        Raises:
            SandboxStarved: others left it no processor.
        """

        async def send() -> tuple[bytes, ExecResult] | None:
            channel = self._channel
            while not channel.reports.empty():  # late reports are dropped
                channel.reports.get_nowait()
            for output in channel.outputs:
                output.clear()
            await channel.feed(data)
            return await self._report(mark)

        return await self._in_time(send(), timeout)

    async def wait_for_report(self, mark: bytes, timeout: float) -> tuple[bytes, ExecResult] | None:
        return await self._in_time(self._report(mark), timeout)

    @run_on_loop
    async def _in_time(self, work: Coroutine[Any, Any, T], timeout: float) -> T | None:
        working = asyncio.ensure_future(work)
        late = self._channel.limit(timeout)
        both: set[asyncio.Future[Any]] = {working, late}
        either = asyncio.ensure_future(asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED))
        try:
            await self._channel.wait_within(either, timeout, GRACE)
        except SandboxDied as error:
            raise await self._explain(error) from None
        finally:
            for waiting in (either, working):
                waiting.cancel()
            self._channel.limit(0.0)
        if not working.done() and late.result() is How.STARVED:
            raise starved_error(timeout * BUSY)
        return working.result() if working.done() else None

    async def _report(self, mark: bytes) -> tuple[bytes, ExecResult] | None:
        channel, dropped = self._channel, [0, 0]
        for _ in range(MAX_FORGERIES):
            if channel.exit.done() and channel.reports.empty():
                return None
            report = await channel.reports.get()
            if not report:
                return None
            dropped = [dropped[i] + int.from_bytes(report[8 * i : 8 * i + 8], "little") for i in (0, 1)]
            if report[16:].startswith(mark):
                out, err = (bytes(output) for output in channel.outputs)
                return report[16:], ExecResult(Outcome.EXITED, 0, out, err, dropped[0], dropped[1], channel.head)
        return None


def result_of(channel: Channel, end: Exit, cwd: str = "") -> ExecResult:
    """An ExecResult from the runner's EXIT frame; `cwd` is where the command was to run, for the detail."""
    outcome, code, detail = Outcome.EXITED, end.code, ""
    if end.how is How.TIMED_OUT:
        outcome, code = Outcome.TIMEOUT, 124
    elif end.how is How.SIGNALED:
        outcome, code = Outcome.SIGNALED, 128 + end.code
    elif end.how is How.STARVED:
        raise starved_error(end.seconds)
    elif end.how is How.NOT_STARTED:
        if end.code == errno.EBUSY:
            raise SandboxError("too many commands at once in one sandbox")
        outcome, code = Outcome.NOT_STARTED, 127 if end.code == errno.ENOENT and end.phase > CWD else 126
        folder = f"working directory {cwd}".strip()
        what = {RESOURCES: "no process could be started", CWD: folder}.get(end.phase, "command")
        detail = f"{what}: {os.strerror(end.code)}"
    if end.out_of_memory and code == 128 + signal.SIGKILL:
        outcome = Outcome.MEMORY
    out, err = (bytes(output) for output in channel.outputs)
    return ExecResult(
        outcome,
        code,
        out,
        err,
        end.stdout_dropped,
        end.stderr_dropped,
        channel.head,
        end.seconds,
        end.out_of_memory,
        detail,
    )


def starved_error(seconds: float) -> SandboxStarved:
    """The error for a command that others left no processor."""
    return SandboxStarved(
        f"in {seconds:.0f} s the command got too little processor time for a verdict: the machine is overloaded"
    )


def check_file(end: Exit, path: str) -> None:
    """Raise PathError where a file operation of the runner failed."""
    if end.how is How.EXITED and end.code == 0:
        return
    if end.how is How.EXITED:
        raise PathError(f"{path}: {os.strerror(end.code)}")
    if end.how is How.STARVED:
        raise starved_error(end.seconds)
    raise PathError(f"{path}: the operation was stopped ({end.how.name.lower()}, {end.code})")
