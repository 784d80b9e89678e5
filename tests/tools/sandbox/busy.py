"""A sandbox whose commands have one core, together with processes that are always busy there."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator

from agentrl.tools.sandbox.local import SubprocessSandbox, create_subprocess
from agentrl.tools.sandbox.runner.transport import PipeStream
from agentrl.tools.sandbox.spec import SandboxSpec

LOOP = ["sh", "-c", "while :; do :; done"]
AT_MOST = "300"
"""Seconds after which a busy process ends, where the test could not end it."""


@contextlib.asynccontextmanager
async def beside(neighbours: int) -> AsyncIterator[SubprocessSandbox]:
    """Give a sandbox on one core, with so many busy processes on it."""
    core = min(os.sched_getaffinity(0))
    with _busy(core, neighbours):
        sandbox = await create_subprocess(SandboxSpec())
        assert isinstance(sandbox, SubprocessSandbox)
        runner = sandbox.client._stream
        assert isinstance(runner, PipeStream)
        try:
            os.sched_setaffinity(runner.pid, {core})  # what it starts from now on inherits that
            yield sandbox
        finally:
            await sandbox.close()


@contextlib.contextmanager
def _busy(core: int, number: int) -> Iterator[None]:
    before, started = os.sched_getaffinity(0), list[subprocess.Popen[bytes]]()
    try:
        os.sched_setaffinity(0, {core})
        command = ["timeout", AT_MOST, *LOOP]
        started += [subprocess.Popen(command, start_new_session=True) for _ in range(number)]
        os.sched_setaffinity(0, before)
        yield
    finally:
        os.sched_setaffinity(0, before)
        for process in started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
