"""Plain `docker exec` as a backend where the runner can't run: remote daemons, other architectures, no compiler.

A warning is logged when one is made. Same container, same hardening, but: a command costs an exec through the daemon; a
timeout kills *every* process of the sandbox (the daemon has no call that ends one exec, so `kill -9 -1` runs as the
container's user; the first process is immune); what a command leaves running is not killed at its end; files go through
`cat` and `tar`, which the image must have, and `find` where a snapshot is restored; there are no background processes
and there is no `reset`.
"""

from __future__ import annotations

import asyncio
import io
import logging
import posixpath
import shlex
import struct
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrl.common import processes
from agentrl.errors import InvalidInput, SandboxError, ToolArguments
from agentrl.tools.sandbox import archive
from agentrl.tools.sandbox.base import (
    SNAPSHOT_BYTES,
    Command,
    ExecResult,
    Outcome,
    PathError,
    Process,
    Sandbox,
    SandboxDied,
    Snapshot,
    SnapshotRefused,
    body_of,
)
from agentrl.tools.sandbox.docker.container import create_container, remove
from agentrl.tools.sandbox.docker.daemon import Daemon, connect
from agentrl.tools.sandbox.docker.layer import read_layer, write_layer
from agentrl.tools.sandbox.runner.loop import on_loop
from agentrl.tools.sandbox.runner.wire import encode
from agentrl.tools.sandbox.snapshot import canonical, check_trees, within
from agentrl.tools.sandbox.spec import SandboxSpec

logger = logging.getLogger(__name__)
FILE_TIMEOUT = 120.0
UNSUPPORTED = "plain exec has no {}: it needs the resident runner (runner='mount')"


class PlainSandbox:
    """A sandbox over plain `docker exec`, made by `create_plain`; the module's docstring says what is missing."""

    def __init__(self, id: str, spec: SandboxSpec, daemon: Daemon) -> None:
        self.id = id
        self.spec = spec
        self.workdir = spec.workdir
        self.daemon = daemon
        self._closed = self._used = False
        processes.register_sandbox(id, lambda: daemon.api.kill(id))

    async def inspect(self) -> dict[str, Any]:
        """The daemon's inspection of the container."""
        return await on_loop(self.daemon.call(self.daemon.api.inspect_container, self.id))

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
        argv = ["sh", "-c", command] if isinstance(command, str) else list(command)
        if not argv or (isinstance(command, str) and not command.strip()):
            raise ToolArguments("command is empty")
        try:
            for text in (*argv, cwd or "", *(f"{name}={value}" for name, value in (env or {}).items())):
                encode(text)
        except ValueError as error:
            raise PathError(str(error)) from None
        data = body_of(stdin, "stdin")
        most = self.spec.output_bytes if limit is None else limit
        seconds = timeout or self.spec.timeout
        return await on_loop(self._exec(argv, seconds, self._path(cwd or self.workdir), dict(env or {}), data, most))

    async def _exec(
        self, argv: list[str], timeout: float, cwd: str, env: dict[str, str], stdin: bytes, limit: int
    ) -> ExecResult:
        if self._closed:
            raise SandboxDied("the sandbox is closed")
        started, self._used = time.monotonic(), True
        api, call = self.daemon.api, self.daemon.call
        options: dict[str, Any] = {
            "workdir": cwd,
            "environment": {**self.spec.env, **env},
            "stdin": bool(stdin),
        }
        id = (await call(api.exec_create, self.id, argv, **options))["Id"]
        kept = (_HeadTail(limit), _HeadTail(limit))
        done = asyncio.ensure_future(asyncio.to_thread(_run_exec, api, id, stdin, kept))
        try:
            await asyncio.wait_for(asyncio.shield(done), timeout)
        except TimeoutError:
            await self._kill_all()
            return _make_result(Outcome.TIMEOUT, 124, kept, started)
        except OSError as error:
            raise SandboxDied(f"the exec's stream failed: {error}") from None
        finally:
            done.add_done_callback(lambda f: f.cancelled() or f.exception())
        state = await call(api.exec_inspect, id)
        code = state.get("ExitCode")
        if code is None or (code == 137 and not await self.healthy()):
            raise SandboxDied("the container ended while its command ran")
        if (
            code == 126
            and bytes(kept[0].head).startswith(b"OCI runtime exec failed")
            and b"no such file" in kept[0].head
        ):
            code = 127  # as in a shell
        outcome = Outcome.SIGNALED if code > 128 else Outcome.NOT_STARTED if code in (126, 127) else Outcome.EXITED
        return _make_result(outcome, code, kept, started)

    async def _kill_all(self) -> None:
        api, call = self.daemon.api, self.daemon.call
        id = (await call(api.exec_create, self.id, ["sh", "-c", "kill -9 -1"]))["Id"]
        await call(api.exec_start, id, timeout=20.0)

    async def start(
        self,
        command: Command,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        limit: int | None = None,
    ) -> Process:
        raise SandboxError(UNSUPPORTED.format("background processes"))

    def _path(self, path: str) -> str:
        return posixpath.normpath(posixpath.join(self.workdir, path))

    async def read(self, path: str, *, offset: int = 0, limit: int = 16 << 20) -> bytes:
        where = shlex.quote(self._path(path))
        line = f"[ -f {where} ] && tail -c +{offset + 1} {where} | head -c {limit}"
        done = await self.exec(line, timeout=FILE_TIMEOUT, limit=2 * limit)
        if not done.ok:
            raise PathError(f"{path}: no such file, or it can't be read ({done.text()[:200]})")
        return done.stdout

    async def write(self, path: str, data: bytes | str, *, mode: int = 0o644) -> None:
        where, data = self._path(path), body_of(data, "data")
        quoted, above = shlex.quote(where), shlex.quote(posixpath.dirname(where))
        line = (
            f"mkdir -p {above} && cat > {quoted}.part~ && chmod {mode:o} {quoted}.part~ && mv {quoted}.part~ {quoted}"
        )
        done = await self.exec(line, timeout=FILE_TIMEOUT, stdin=data or b"\0")
        if done.ok and not data:
            done = await self.exec(f": > {quoted}")
        if not done.ok:
            raise PathError(f"{path}: {done.text()[:200]}")

    async def upload(self, source: Path | bytes, path: str) -> None:
        body = source if isinstance(source, bytes) else await asyncio.to_thread(archive.pack, source)
        where = shlex.quote(self._path(path))
        done = await self.exec(f"mkdir -p {where} && tar -xf - -C {where}", timeout=FILE_TIMEOUT, stdin=body)
        if not done.ok:
            raise PathError(f"{path}: {done.text()[:200]}")

    async def download(self, path: str, destination: Path) -> None:
        with tempfile.TemporaryFile() as file:
            file.write(await self._tar(path, sum(self.spec.tmpfs_mb.values()) << 21))
            file.seek(0)
            await asyncio.to_thread(archive.unpack, file, destination)

    async def _tar(self, path: str, limit: int) -> bytes:
        where = shlex.quote(self._path(path))
        done = await self.exec(f"cd {where} && tar -cf - .", timeout=FILE_TIMEOUT, limit=2 * limit)
        if not done.ok or done.stdout_dropped:
            raise PathError(f"{path}: {done.stderr[:200].decode(errors='replace') or 'too large'}")
        return done.stdout

    async def snapshot(self, limit: int = SNAPSHOT_BYTES) -> Snapshot:
        trees: dict[str, bytes] = {}
        for tree in self.spec.trees:
            try:
                archived = await self._tar(tree, limit)
            except PathError as error:
                raise SnapshotRefused(f"the writable tree {error}") from None
            trees[tree] = await asyncio.to_thread(canonical, archived, limit)
        layer, removed = b"", list[str]()
        if self.spec.writable_root:
            layer, removed = await read_layer(self.daemon, self.id, self.spec.trees, limit)
        within(limit, [*trees.values(), layer])
        return Snapshot(trees, layer, tuple(removed))

    async def restore(self, snapshot: Snapshot) -> None:
        check_trees(snapshot, self.spec)
        if self._used:
            if self.spec.writable_root:
                raise InvalidInput("a snapshot of a writable root is restored in a sandbox where no command has run")
            await on_loop(self._kill_all())
        for tree, archived in snapshot.trees.items():
            where = shlex.quote(tree)
            done = await self.exec(f"chmod -R u+rwX {where}; find {where} -mindepth 1 -delete", timeout=FILE_TIMEOUT)
            if not done.ok:
                raise SandboxError(f"{tree} could not be emptied: {done.text()[:200]}")
            await self.upload(archived, tree)
        if snapshot.layer or snapshot.removed:
            await write_layer(self.daemon, self.id, self, snapshot.layer, snapshot.removed)

    async def fork(self) -> Sandbox:
        snapshot = await self.snapshot()
        other = await create_plain(self.spec, "its original is plain, too")
        try:
            await other.restore(snapshot)
        except BaseException:
            await other.close()
            raise
        return other

    def renewed(self) -> Sandbox:
        return self

    async def reset(self) -> None:
        raise SandboxError(UNSUPPORTED.format("reset"))

    async def healthy(self) -> bool:
        try:
            state = await on_loop(self.daemon.call(self.daemon.api.inspect_container, self.id))
        except SandboxError:
            return False
        return bool(state["State"]["Running"]) and not state["State"]["Paused"]

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            processes.forget_sandbox(self.id)
            await on_loop(remove(self.daemon, self.id))


async def create_plain(spec: SandboxSpec, why: str) -> Sandbox:
    """Start a container without a runner."""
    logger.warning("sandbox without its runner (%s): plain docker exec is used, with its limits", why)
    return await on_loop(_create(spec.model_copy(update={"runner": "none"})))


async def _create(spec: SandboxSpec) -> Sandbox:
    daemon = await connect(spec.daemon)
    container = await create_container(daemon, spec)
    try:
        await daemon.call(daemon.api.start, container, timeout=spec.start_timeout)
    except BaseException:
        await asyncio.shield(remove(daemon, container))
        raise
    return PlainSandbox(container, spec, daemon)


class _HeadTail:
    """The first and the last bytes of a stream."""

    def __init__(self, limit: int) -> None:
        self.head_limit, self.tail_limit = limit - limit // 2, limit // 2
        self.head, self.tail, self.dropped = bytearray(), bytearray(), 0

    def add(self, data: bytes) -> None:
        free = self.head_limit - len(self.head)
        self.head += data[:free] if free > 0 else b""
        self.tail += data[max(free, 0) :]
        over = len(self.tail) - self.tail_limit
        if over > 0:
            del self.tail[:over]
            self.dropped += over


def _make_result(outcome: Outcome, code: int, kept: tuple[_HeadTail, _HeadTail], started: float) -> ExecResult:
    out, err = kept
    return ExecResult(
        outcome,
        code,
        bytes(out.head + out.tail),
        bytes(err.head + err.tail),
        out.dropped,
        err.dropped,
        out.head_limit,
        time.monotonic() - started,
    )


def _run_exec(api: Any, id: str, stdin: bytes, kept: tuple[_HeadTail, _HeadTail]) -> None:
    """Run an exec on its socket, in a thread: write all input, read both outputs."""
    import threading

    wrapped = api.exec_start(id, socket=True)
    sock = getattr(wrapped, "_sock", wrapped)
    sock.settimeout(None)
    try:
        if stdin:
            threading.Thread(target=_send, args=(sock, stdin), daemon=True).start()
        reader = io.BufferedReader(wrapped, 1 << 16) if isinstance(wrapped, io.RawIOBase) else sock.makefile("rb")
        while len(header := reader.read(8)) == 8:
            stream, length = struct.unpack(">BxxxI", header)
            kept[stream == 2].add(reader.read(length))
    finally:
        sock.close()


def _send(sock: Any, data: bytes) -> None:
    import contextlib
    import socket

    with contextlib.suppress(OSError):
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
