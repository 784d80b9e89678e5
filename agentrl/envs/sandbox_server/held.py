"""One sandbox that a client holds: the methods that it may call, and their limits."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import msgspec

from agentrl.envs.sandbox_server.config import SandboxServerConfig
from agentrl.errors import DeadlineExceeded, InvalidInput, SandboxError
from agentrl.tools.sandbox import archive
from agentrl.tools.sandbox.base import ExecResult, PathError, Sandbox, Snapshot
from agentrl.tools.sandbox.remote.wire import Report
from agentrl.tools.sandbox.spec import SandboxSpec

PROCESSES = 256
"""Background processes of a sandbox whose end was not asked for yet."""


class HeldSandbox:
    """A client's sandbox. Its public coroutines are the methods that a client may call, with their arguments.

    Attributes:
        sandbox: from the pool.
        spec: what it is made of.
        sent, received: bytes of answers and requests.
    """

    def __init__(self, sandbox: Sandbox, spec: SandboxSpec, config: SandboxServerConfig) -> None:
        self.sandbox, self.spec, self._config = sandbox, spec, config
        self.sent = self.received = 0
        self._processes: dict[int, Any] = {}
        self._numbers = itertools.count(1)

    def _within(self, name: str, value: float | None, most: float) -> None:
        if value is not None and value > most:
            raise InvalidInput(f"{name}={value:g} is more than this sandbox server's {most:g}")

    async def exec(
        self,
        command: str | list[str],
        timeout: float,
        cwd: str | None,
        env: dict[str, str],
        stdin: bytes,
        limit: int | None,
    ) -> ExecResult:
        self._within("timeout", timeout, self._config.seconds)
        self._within("limit", limit, self._config.file_bytes)
        return await self.sandbox.exec(command, timeout=timeout, cwd=cwd, env=env, stdin=stdin, limit=limit)

    async def start(
        self, command: str | list[str], cwd: str | None, env: dict[str, str], limit: int | None, interactive: bool
    ) -> int:
        """Start a background process; its number."""
        self._within("limit", limit, self._config.file_bytes)
        start: Any = getattr(self.sandbox, "connect", None) if interactive else self.sandbox.start
        if start is None or len(self._processes) >= PROCESSES:
            what = "a sandbox with a resident runner" if start is None else f"{PROCESSES} background processes to end"
            raise SandboxError(f"another process needs {what}")
        number = next(self._numbers)
        self._processes[number] = await start(command, cwd=cwd, env=env, limit=limit)
        return number

    async def wait(self, process: int, timeout: float) -> ExecResult | None:
        """The end of a process, which is forgotten then; None where it still runs."""
        if process not in self._processes:
            raise InvalidInput(f"there is no process {process}")
        try:
            result: ExecResult = await self._processes[process].wait(timeout)
        except DeadlineExceeded:
            return None
        self._processes.pop(process, None)
        return result

    async def stop(self, process: int, grace: float) -> None:
        self._within("grace", grace, self._config.seconds)
        if process in self._processes:
            await self._processes[process].stop(grace)

    async def signal(self, process: int, number: int) -> None:
        if process in self._processes:
            await self._processes[process].signal(number)

    async def report(self, process: int, data: bytes | None, mark: bytes, timeout: float) -> Report:
        """Write to a process, and wait for a report of it."""
        self._within("timeout", timeout, self._config.seconds)
        running = self._processes.get(process)
        if running is None:
            return None, False
        waiting = running.wait_for_report(mark, timeout) if data is None else running.request(data, mark, timeout)
        return await waiting, running.running

    async def read(self, path: str, offset: int, limit: int) -> bytes:
        self._within("limit", limit, self._config.file_bytes)
        return await self.sandbox.read(path, offset=offset, limit=limit)

    async def write(self, path: str, data: bytes, mode: int) -> None:
        if len(data) > self._config.file_bytes:
            raise PathError(f"{path}: the sandbox server takes {self._config.file_bytes} bytes, not {len(data)}")
        await self.sandbox.write(path, data, mode=mode)

    async def upload(self, data: bytes, path: str) -> None:
        await self.sandbox.upload(data, path)

    async def download(self, path: str) -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            await self.sandbox.download(path, Path(folder))
            return await asyncio.to_thread(archive.pack, Path(folder))

    async def snapshot(self, limit: int) -> Snapshot:
        return await self.sandbox.snapshot(min(limit, self._config.request_bytes))

    async def restore(self, snapshot: Snapshot) -> None:
        await self.sandbox.restore(snapshot)

    async def reset(self) -> None:
        await self.sandbox.reset()

    async def healthy(self) -> bool:
        return await self.sandbox.healthy()


def _arguments(method: Callable[..., Any]) -> type[msgspec.Struct]:
    hints = get_type_hints(method)
    names = list(inspect.signature(method).parameters)[1:]
    return msgspec.defstruct(method.__name__, [(name, hints[name]) for name in names], forbid_unknown_fields=True)


METHODS = {
    name: (method, _arguments(method))
    for name, method in vars(HeldSandbox).items()
    if inspect.iscoroutinefunction(method) and not name.startswith("_")
}
"""The methods that a client may call, and their arguments."""
