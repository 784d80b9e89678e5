"""A sandbox over a resident runner: what all backends with a runner share.

The runner enforces a command's timeout, by the time that counts (`sandboxes/runner/clock.c`). The deadline here is for
a runner that does not answer (its daemon hangs, its container is frozen): then the sandbox is abandoned.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import signal
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.errors import AgentRLError, SandboxError, ToolArguments
from agentrl.tools.sandbox.base import (
    Command,
    ExecResult,
    Outcome,
    PathError,
    Process,
    SandboxDied,
    SandboxMemory,
    body_of,
)
from agentrl.tools.sandbox.egress import proxy_env
from agentrl.tools.sandbox.runner.client import Channel, RunnerClient
from agentrl.tools.sandbox.runner.loop import on_loop, run_on_loop
from agentrl.tools.sandbox.runner.process import CWD, GRACE, ResidentProcess, check_file, result_of, starved_error
from agentrl.tools.sandbox.runner.wire import CommandKind, Exit, Flags, How
from agentrl.tools.sandbox.snapshot import ArchivedSandbox
from agentrl.tools.sandbox.spec import SandboxSpec, below

FILE_TIMEOUT = 120.0
DESCRIPTION_BYTES = 64 << 10
MODE = re.compile(r"^(/.*): mode (\d+), ", re.MULTILINE)
"""The writable directories in a description, and their modes."""
PAUSES = (0.01, 0.02, 0.05, 0.1, 0.2, None)
"""Seconds between checks of an emptied sandbox: the kernel takes a moment to close what processes held."""
INFRA_ERRNOS = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO})
"""Errors of writing into a writable tree before any command has run: these are not the file's fault."""
OUT_OF_MEMORY = "the whole sandbox ran out of memory and ended; nothing more can be run in it"


class ResidentSandbox(ArchivedSandbox):
    """A sandbox over a resident runner. Backends open the runner's stream and add how to start, fork and remove."""

    shared_trees: tuple[str, ...] = ()
    """Writable directories besides the specification's, emptied by `reset` too."""
    grace = GRACE
    """Seconds for the runner's answer beyond a command's own time limit."""

    def __init__(self, id: str, spec: SandboxSpec, client: RunnerClient) -> None:
        self.id = id
        self.spec = spec
        self.workdir = spec.workdir
        self.client = client
        self._shell = spec.shell
        self._out_of_memory = False
        self._empty: str | None = None  # the runner's description of it before the first command
        self._env = {**(proxy_env() if spec.egress else {}), **spec.env}
        self._end = asyncio.get_running_loop().call_later(spec.lifetime, client.fail, "the sandbox's lifetime is over")

    @property
    def waited(self) -> float:
        """Seconds that commands waited for a processor."""
        return self.client.waited

    # -- commands

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
        data, seconds = body_of(stdin, "stdin"), timeout or self.spec.timeout
        try:
            channel = await self._run(command, cwd, env, limit, seconds, Flags.STDIN if data else Flags.NONE)
            end = await self._finish(channel, seconds, data)
        except SandboxMemory as error:
            return ExecResult(Outcome.MEMORY, 137, out_of_memory=True, detail=str(error))
        if end.how is How.NOT_STARTED and end.code == errno.ENOENT and end.phase > CWD and self._fall_back(command):
            return await self.exec(command, timeout=timeout, cwd=cwd, env=env, stdin=data, limit=limit)
        return result_of(channel, end, self._path(cwd or self.workdir))

    def _fall_back(self, command: Command) -> bool:
        """Switch to `sh` where the image lacks the shell; whether the command is to be repeated."""
        if not isinstance(command, str) or self._shell[0] == "sh":
            return False
        self._shell = ("sh", "-c")
        return True

    async def _run(
        self,
        command: Command,
        cwd: str | None,
        env: Mapping[str, str] | None,
        limit: int | None,
        timeout: float,
        flags: Flags,
    ) -> Channel:
        self.used = True
        argv = [*self._shell, command] if isinstance(command, str) else list(command)
        if not argv or (isinstance(command, str) and not command.strip()):
            raise ToolArguments("command is empty")
        return await self._open(
            argv,
            cwd=self._path(cwd or self.workdir),
            env={**self._env, **(env or {})},
            timeout=timeout,
            limit=self.spec.output_bytes if limit is None else limit,
            flags=flags,
        )

    async def _open(self, argv: Sequence[str | bytes], **options: Any) -> Channel:
        self._require_held()
        try:
            return self.client.run(argv, **options)
        except SandboxDied as error:
            raise await self._explain(error) from None
        except ValueError as error:  # a NUL, a lone surrogate, or too long: the caller's fault
            raise PathError(str(error)) from None

    async def _finish(self, channel: Channel, seconds: float, stdin: bytes | None = None) -> Exit:
        """Wait for a command's end at its limit or before; a cancellation kills it."""
        feeding = asyncio.ensure_future(self._feed(channel, stdin)) if stdin else None
        try:
            return await channel.wait_within(channel.exit, seconds, self.grace)
        except SandboxDied as error:
            raise await self._explain(error) from None
        except asyncio.CancelledError:
            channel.signal(signal.SIGKILL)
            raise
        finally:
            if feeding:
                feeding.cancel()

    @staticmethod
    async def _feed(channel: Channel, stdin: bytes) -> None:
        await channel.feed(stdin)
        channel.end_input()

    async def _explain(self, error: SandboxDied) -> AgentRLError:
        """The error for a lost runner: the agent's fault (memory), or an infrastructure failure with its cause."""
        self._out_of_memory = self._out_of_memory or await self._ran_out_of_memory(self.client.last_frame)
        return SandboxMemory(OUT_OF_MEMORY) if self._out_of_memory else SandboxDied(await self._diagnose(str(error)))

    async def _ran_out_of_memory(self, since: float) -> bool:
        """True if the sandbox ended because its commands used up its memory: no infrastructure failure."""
        return False

    async def _diagnose(self, reason: str) -> str:
        """The reason why the runner was lost, with details where the backend has any."""
        return reason

    async def start(self, command: Command, **options: Any) -> Process:
        return await self.connect(command, **options, flags=Flags.NONE)

    @run_on_loop
    async def connect(
        self,
        command: Command,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        limit: int | None = None,
        flags: Flags = Flags.STDIN | Flags.REPORT,
    ) -> ResidentProcess:
        """A background process that can be written to, and that may mark points in its output on descriptor 3."""
        return ResidentProcess(await self._run(command, cwd, env, limit, 0.0, flags), self._explain)

    # -- files

    async def read(self, path: str, *, offset: int = 0, limit: int = 16 << 20) -> bytes:
        return await self._read_stream(CommandKind.READ_FILE, [self._path(path), str(offset), str(limit)], limit)

    async def write(self, path: str, data: bytes | str, *, mode: int = 0o644) -> None:
        await self._write_stream(CommandKind.WRITE_FILE, self._path(path), body_of(data, "data"), mode)

    async def _pack(self, path: str, limit: int, file: Any = None) -> bytes:
        return await self._read_stream(CommandKind.TAR_OUT, [path], limit, file)

    async def _unpack(self, path: str, body: bytes) -> None:
        await self._write_stream(CommandKind.TAR_IN, path, body)

    @run_on_loop
    async def _write_stream(self, kind: CommandKind, path: str, body: bytes, mode: int = 0) -> None:
        channel = await self._open([path], kind=kind, flags=Flags.STDIN, timeout=FILE_TIMEOUT, mode=mode)
        if not body:
            channel.end_input()
        end = await self._finish(channel, FILE_TIMEOUT, body)
        try:
            check_file(end, path)
        except PathError as error:
            if (
                not self.used
                and _is_infra_failure(end)
                and any(below(path, self._tree(tree)) for tree in self.spec.trees)
            ):
                raise SandboxError(f"in a sandbox where no command has run: {error}") from None
            raise

    @run_on_loop
    async def _read_stream(self, kind: CommandKind, argv: list[str], most: int, file: Any = None) -> bytes:
        channel = await self._open(argv, kind=kind, flags=Flags.STREAM, timeout=FILE_TIMEOUT)
        body, size = bytearray(), 0
        try:
            async with asyncio.timeout(FILE_TIMEOUT + self.grace):
                async for chunk in channel.chunks():
                    size += len(chunk)
                    if size > most + (1 << 20):
                        raise PathError(f"{argv[0]}: more than {most} bytes")
                    if file is None:
                        body += chunk
                    else:
                        file.write(chunk)
        except TimeoutError:
            channel.signal(signal.SIGKILL)
            await self._finish(channel, 0.0)  # it raises the reason where the sandbox is lost
            raise starved_error(FILE_TIMEOUT + self.grace) from None
        finally:
            channel.signal(signal.SIGKILL)  # where it has not ended
        check_file(await self._finish(channel, 0.0), argv[0])
        return bytes(body[:most]) if kind is CommandKind.READ_FILE else bytes(body)

    # -- snapshots, reset, end

    @run_on_loop
    async def _empty_trees(self) -> None:
        self._require_held()
        await self.client.kill_all(self.grace)
        await self._describe(CommandKind.WIPE)

    async def ready(self) -> None:
        """Describe the sandbox before its first command; `reset` compares with that."""
        self._empty = await self._describe(CommandKind.DESCRIBE)

    @run_on_loop
    async def reset(self) -> None:
        if self.spec.loosened:
            raise SandboxError(f"with {', '.join(self.spec.loosened)}, it can't be verified to be empty: close it")
        self._require_held()
        await self.client.kill_all(self.grace)
        for pause in PAUSES:
            found = await self._describe(CommandKind.WIPE)
            if found == self._empty and "\nwritable " not in found:
                self.used = False
                return
            if pause is not None:
                await asyncio.sleep(pause)
        before = set((self._empty or "").splitlines())
        changed = [line for line in found.splitlines() if line not in before or line.startswith("writable ")]
        raise SandboxError(f"the sandbox is not as it was before its first command: {'; '.join(changed)[:500]}")

    async def _describe(self, kind: CommandKind) -> str:
        trees = [self._tree(tree) for tree in (*self.spec.trees, *self.shared_trees)]
        modes = dict(MODE.findall(self._empty or ""))
        channel = await self._open(trees, kind=kind, timeout=FILE_TIMEOUT, limit=DESCRIPTION_BYTES, env=modes)
        end = await self._finish(channel, FILE_TIMEOUT)
        if end.how is not How.EXITED or end.code:
            raise SandboxError(f"the sandbox could not be emptied or described ({os.strerror(end.code)})")
        return channel.outputs[0].decode(errors="replace")

    async def healthy(self) -> bool:
        return not self._given_back and await on_loop(self.client.ping(self.grace))

    async def close(self) -> None:
        if not self._given_back:
            await on_loop(self._close())

    async def _close(self) -> None:
        self._end.cancel()
        self.client.close()


def _is_infra_failure(end: Exit) -> bool:
    """True if a file operation in an untouched sandbox failed for a reason other than the file."""
    if end.how is How.EXITED:
        return end.code in INFRA_ERRNOS
    return not end.out_of_memory
