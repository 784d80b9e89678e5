"""The remote backend: sandboxes of `agentrl sandbox serve` on another machine.

Each call of a sandbox is one HTTP request. A process is one client of a server: it holds a lease there, which it
renews, and with which all its sandboxes end. Whatever happens to the connection or the server is an infrastructure
failure: a call whose answer is lost may have had its effect, so its sandbox is given up and never asked again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from agentrl.common import processes
from agentrl.common.concurrency import take_error
from agentrl.errors import ConfigError, DeadlineExceeded, SandboxError
from agentrl.tools.sandbox.base import (
    BUSY,
    SNAPSHOT_BYTES,
    Command,
    ExecResult,
    Process,
    Sandbox,
    SandboxDied,
    Snapshot,
    body_of,
)
from agentrl.tools.sandbox.remote.client import LONG_SECONDS, SECONDS, SandboxServerClient
from agentrl.tools.sandbox.remote.wire import Report
from agentrl.tools.sandbox.runner.loop import on_loop, run_on_loop, sandbox_loop
from agentrl.tools.sandbox.snapshot import ArchivedSandbox
from agentrl.tools.sandbox.spec import SandboxSpec
from agentrl.tools.threads import in_forked_child

GRACE = 60.0
"""Seconds past a command's longest time in which its result must come."""
POLL_SECONDS = 60.0
"""One request waits so long for a background process."""


class RemoteSandbox(ArchivedSandbox):
    """A sandbox on another machine. Make one with `create_remote`."""

    def __init__(self, id: str, spec: SandboxSpec, server: SandboxServerClient, workdir: str) -> None:
        self.id, self.spec, self.workdir = id, spec, workdir
        self._server = server
        self._lost: str | None = None
        loop = sandbox_loop()
        processes.register_sandbox(id, lambda: asyncio.run_coroutine_threadsafe(server.close(id), loop))

    def _require_held(self) -> None:
        super()._require_held()
        if self._lost:
            raise SandboxDied(self._lost)

    async def call(self, method: str, answer: Any, seconds: float = SECONDS, **arguments: Any) -> Any:
        """Make one call from any event loop; see `SandboxServerClient.call`."""
        self._require_held()
        try:
            return await on_loop(self._server.call(self.id, method, answer, seconds, arguments))
        except SandboxDied as error:
            self._lost = self._lost or str(error)
            raise

    async def exec(
        self,
        command: Command,
        *,
        timeout: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | str = b"",
        limit: int | None = None,
    ) -> ExecResult:
        within, data = timeout or self.spec.timeout, body_of(stdin, "stdin")
        given = {"command": command, "timeout": within, "cwd": cwd, "env": env or {}, "stdin": data, "limit": limit}
        result: ExecResult = await self.call("exec", ExecResult, BUSY * within + GRACE, **given)
        return result

    async def start(self, command: Command, **options: Any) -> Process:
        return await self.connect(command, **options, interactive=False)

    @run_on_loop
    async def connect(
        self,
        command: Command,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        limit: int | None = None,
        interactive: bool = True,
    ) -> RemoteProcess:
        given: dict[str, Any] = {"command": command, "cwd": cwd, "env": env or {}, "limit": limit}
        return RemoteProcess(self, await self.call("start", int, interactive=interactive, **given))

    async def read(self, path: str, *, offset: int = 0, limit: int = 16 << 20) -> bytes:
        content: bytes = await self.call("read", bytes, path=path, offset=offset, limit=limit)
        return content

    async def write(self, path: str, data: bytes | str, *, mode: int = 0o644) -> None:
        await self.call("write", None, path=path, data=body_of(data, "data"), mode=mode)

    async def _unpack(self, path: str, body: bytes) -> None:
        await self.call("upload", None, data=body, path=path)

    async def _pack(self, path: str, limit: int, file: Any = None) -> bytes:
        packed: bytes = await self.call("download", bytes, LONG_SECONDS, path=path)
        if file is not None:
            file.write(packed)
        return packed

    async def snapshot(self, limit: int = SNAPSHOT_BYTES) -> Snapshot:
        snapshot: Snapshot = await self.call("snapshot", Snapshot, LONG_SECONDS, limit=limit)
        return snapshot

    async def restore(self, snapshot: Snapshot) -> None:
        await self.call("restore", None, LONG_SECONDS, snapshot=snapshot)

    async def fork(self) -> Sandbox:
        self._require_held()
        return await on_loop(_open(self._server, self.spec, self.id))

    async def reset(self) -> None:
        await self.call("reset", None, LONG_SECONDS)

    async def healthy(self) -> bool:
        try:
            return bool(await self.call("healthy", bool, GRACE))
        except (SandboxError, ConfigError):
            return False

    async def close(self) -> None:
        if not self._given_back:
            self._lost = self._lost or "the sandbox is closed"
            processes.forget_sandbox(self.id)
            await on_loop(self._server.close(self.id))


class RemoteProcess:
    """A background process on another machine: a `Process`, and an `InteractiveProcess` where it was connected to."""

    def __init__(self, sandbox: RemoteSandbox, number: int) -> None:
        self._sandbox, self._number = sandbox, number
        self._end = asyncio.ensure_future(self._watch())
        self._end.add_done_callback(take_error)  # nobody may ask for it

    async def _watch(self) -> ExecResult:
        result: ExecResult | None = None
        while result is None:
            seconds = POLL_SECONDS + GRACE
            result = await self._call("wait", ExecResult | None, seconds, timeout=POLL_SECONDS)
        return result

    async def _call(self, method: str, answer: Any, seconds: float, **arguments: Any) -> Any:
        return await self._sandbox.call(method, answer, seconds, process=self._number, **arguments)

    @property
    def running(self) -> bool:
        return not self._end.done()

    @run_on_loop
    async def wait(self, timeout: float) -> ExecResult:
        done, _ = await asyncio.wait([self._end], timeout=timeout)
        if not done:
            raise DeadlineExceeded(f"the process still runs after {timeout:g} s")
        return self._end.result()

    async def stop(self, grace: float = 0.0) -> ExecResult:
        if self.running:
            await self._call("stop", None, grace + GRACE, grace=grace)
        return await self.wait(GRACE)

    async def signal(self, number: int) -> None:
        if self.running:
            await self._call("signal", None, SECONDS, number=number)

    async def request(self, data: bytes, mark: bytes, timeout: float) -> tuple[bytes, ExecResult] | None:
        return await self._report(data, mark, timeout)

    async def wait_for_report(self, mark: bytes, timeout: float) -> tuple[bytes, ExecResult] | None:
        return await self._report(None, mark, timeout)

    async def _report(self, data: bytes | None, mark: bytes, timeout: float) -> tuple[bytes, ExecResult] | None:
        given = {"data": data, "mark": mark, "timeout": timeout}
        answer, running = await self._call("report", Report, BUSY * timeout + GRACE, **given)
        if not running:
            await self.wait(GRACE)  # so that `running` is false here, too
        return answer  # type: ignore[no-any-return]


_servers: dict[tuple[str, str | None, str | None], SandboxServerClient] = {}
_address: tuple[str, str | None, str | None] | None = None
in_forked_child(_servers.clear)  # their connections and sandboxes are the parent's


def use(url: str | None, key_file: str | None = None, certificate: str | None = None) -> None:
    """Set where `create_remote` makes sandboxes from now on; see `SandboxServerClient`."""
    global _address
    _address = None if url is None else (url, key_file, certificate)


def server() -> SandboxServerClient:
    """The server that `use` named; a process is one client of it.

    Raises:
        ConfigError: none is named, or it can't be used.
    """
    if _address is None:
        raise ConfigError("sandbox=remote needs the address of a sandbox server: sandbox.url=http://HOST:PORT")
    if _address not in _servers:
        _servers[_address] = SandboxServerClient(*_address)
    return _servers[_address]


async def create_remote(spec: SandboxSpec) -> Sandbox:
    """Start one on the server that the settings name.

    Raises:
        ConfigError: no server is named, it refuses the key, or does not give such sandboxes.
        SandboxError: it can't be reached, or all its places are taken.
    """
    return await on_loop(_open(server(), spec))


async def _open(where: SandboxServerClient, spec: SandboxSpec, fork_of: str | None = None) -> RemoteSandbox:
    id, created = await where.open(spec, fork_of)
    return RemoteSandbox(id, spec, where, created.workdir)
