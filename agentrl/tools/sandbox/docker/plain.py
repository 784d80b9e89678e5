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
import math
import posixpath
import shlex
import struct
import time
from collections.abc import Mapping
from typing import Any, Self

from agentrl.common import processes
from agentrl.common.concurrency import take_error
from agentrl.errors import SandboxError, ToolArguments
from agentrl.tools.sandbox.base import (
    BUSY,
    Command,
    ExecResult,
    Outcome,
    PathError,
    Process,
    Sandbox,
    SandboxDied,
    body_of,
)
from agentrl.tools.sandbox.docker.container import ContainerSandbox, create_container, remove
from agentrl.tools.sandbox.docker.daemon import Daemon, connect
from agentrl.tools.sandbox.runner.loop import on_loop, run_on_loop
from agentrl.tools.sandbox.runner.process import starved_error
from agentrl.tools.sandbox.runner.wire import encode
from agentrl.tools.sandbox.snapshot import ArchivedSandbox
from agentrl.tools.sandbox.spec import SandboxSpec

logger = logging.getLogger(__name__)
FILE_TIMEOUT = 120.0
LOOKS = 16
"""Times that the daemon is asked, within a command's limit, whether the command computes or waits for a processor."""
UNSUPPORTED = "plain exec has no {}: it needs the resident runner (runner='mount')"


class PlainSandbox(ContainerSandbox, ArchivedSandbox):
    """A sandbox over plain `docker exec`, made by `create_plain`; the module's docstring says what is missing."""

    def __init__(self, id: str, spec: SandboxSpec, daemon: Daemon) -> None:
        self.id = id
        self.spec = spec
        self.workdir = spec.workdir
        self.daemon = daemon
        self._closed = False
        self.waited = 0.0
        processes.register_sandbox(id, lambda: daemon.api.kill(id))

    @run_on_loop
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
        if self._closed:
            raise SandboxDied("the sandbox is closed")
        started, self.used = time.monotonic(), True
        api, call = self.daemon.api, self.daemon.call
        options: dict[str, Any] = {
            "workdir": self._path(cwd or self.workdir),
            "environment": {**self.spec.env, **(env or {})},
            "stdin": bool(data),
        }
        id = (await call(api.exec_create, self.id, argv, **options))["Id"]
        most = self.spec.output_bytes if limit is None else limit
        kept = (_HeadTail(most), _HeadTail(most))
        done = asyncio.ensure_future(asyncio.to_thread(_run_exec, api, id, data, kept))
        try:
            if not await self._in_time(done, timeout or self.spec.timeout):
                return _make_result(Outcome.TIMEOUT, 124, kept, started)
        except OSError as error:
            raise SandboxDied(f"the exec's stream failed: {error}") from None
        finally:
            done.add_done_callback(take_error)
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

    async def _in_time(self, done: asyncio.Future[None], limit: float) -> bool:
        """Return whether a command ends within its limit, counted as the runner's clock does; else all are killed.

        Raises:
            SandboxStarved: others left it no processor.
        """
        began = looked = time.monotonic()
        runnable, ran, waited, total, step = 0.0, 0.0, 0.0, 0.0, min(limit, max(limit / LOOKS, 1.0))
        while not (await asyncio.wait({done}, timeout=step))[0]:
            threads, computed = await self._look()
            now = time.monotonic()
            elapsed, looked = now - looked, now
            if total and threads:  # before the first look nothing is known
                runnable += elapsed
                ran += (computed - total) / min(threads, math.ceil(self.spec.cpus))
            total = computed
            waited, told = max(runnable - ran, 0.0), waited
            self.waited += max(waited - told, 0.0)
            left = limit - (now - began) + waited
            if left <= 0 or now - began > BUSY * limit:
                await self._kill_all()
                if left > 0:
                    raise starved_error(now - began)
                return False
            step = max(min(left, step), 0.05)
        done.result()
        return True

    async def _look(self) -> tuple[int, float]:
        """The threads that can run in the container, and the seconds that all of them have computed."""
        api, call = self.daemon.api, self.daemon.call
        states = await call(api.top, self.id, "-eLo pid,stat")
        used = await call(api.stats, self.id, stream=False, one_shot=True)
        threads = sum(state.startswith("R") for _, state in states["Processes"] or ())
        return threads, used["cpu_stats"]["cpu_usage"]["total_usage"] / 1e9

    @run_on_loop
    async def _kill_all(self) -> None:
        api, call = self.daemon.api, self.daemon.call
        id = (await call(api.exec_create, self.id, ["sh", "-c", "kill -9 -1"]))["Id"]
        await call(api.exec_start, id, timeout=20.0)

    async def start(self, command: Command, **options: Any) -> Process:
        raise SandboxError(UNSUPPORTED.format("background processes"))

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

    async def _unpack(self, path: str, body: bytes) -> None:
        where = shlex.quote(path)
        done = await self.exec(f"mkdir -p {where} && tar -xf - -C {where}", timeout=FILE_TIMEOUT, stdin=body)
        if not done.ok:
            raise PathError(f"{path}: {done.text()[:200]}")

    async def _pack(self, path: str, limit: int, file: Any = None) -> bytes:
        limit = min(limit, sum(self.spec.tmpfs_mb.values()) << 21)
        done = await self.exec(f"cd {shlex.quote(path)} && tar -cf - .", timeout=FILE_TIMEOUT, limit=2 * limit)
        if not done.ok or done.stdout_dropped:
            raise PathError(f"{path}: {done.stderr[:200].decode(errors='replace') or 'too large'}")
        if file is not None:
            file.write(done.stdout)
        return done.stdout

    async def _empty_trees(self) -> None:
        if self.used:
            await self._kill_all()
        for tree in map(shlex.quote, self.spec.trees):
            done = await self.exec(f"chmod -R u+rwX {tree}; find {tree} -mindepth 1 -delete", timeout=FILE_TIMEOUT)
            if not done.ok:
                raise SandboxError(f"{tree} could not be emptied: {done.text()[:200]}")

    async def _another(self) -> Sandbox:
        return await create_plain(self.spec, "its original is plain, too")

    def renewed(self) -> Self:
        return self

    async def reset(self) -> None:
        raise SandboxError(UNSUPPORTED.format("reset"))

    async def healthy(self) -> bool:
        try:
            state = await self.inspect()
        except SandboxError:
            return False
        return bool(state["State"]["Running"]) and not state["State"]["Paused"]

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            processes.forget_sandbox(self.id)
            await on_loop(remove(self.daemon, self.id))


@run_on_loop
async def create_plain(spec: SandboxSpec, why: str) -> Sandbox:
    """Start a container without a runner."""
    logger.warning("sandbox without its runner (%s): plain docker exec is used, with its limits", why)
    spec = spec.model_copy(update={"runner": "none"})
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
