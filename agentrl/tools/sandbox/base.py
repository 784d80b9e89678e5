"""The protocol of all sandbox backends: sandboxes, results of commands, errors.

Two kinds of failure are kept apart. A command's failure is a value: an `ExecResult` with an `Outcome`, which the model
reads. A failure of the infrastructure is a `SandboxError`: the work is retried or the session ends as INFRA_ERROR, and
it never becomes a reward. Two exceptions are the agent's fault: `PathError` (there is no such file to read), and
`SandboxMemory` where no command runs that could have an outcome.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from agentrl.errors import SandboxError, ToolArguments, ToolError

DEFAULT_IMAGE = "agentrl/base:latest"
"""The image of a sandbox whose specification names none."""

Command = str | Sequence[str]
"""A line for the sandbox's shell, or an argument vector that no shell sees."""


BUSY = 60
"""A command that waits for processors has so many times its limit by the clock; then SandboxStarved is raised."""
SNAPSHOT_BYTES = 256 << 20
"""The largest snapshot, unless the caller sets another limit."""


class Outcome(StrEnum):
    """The way in which a command ended. None of these is a failure of the infrastructure."""

    EXITED = "exited"
    SIGNALED = "signaled"  # a signal ended it: its own crash, or a kill from inside the sandbox
    TIMEOUT = "timeout"  # its time was up, and its whole process tree was killed
    MEMORY = "memory"  # the kernel killed it at the sandbox's memory limit
    NOT_STARTED = "not_started"  # no such program or directory, or the sandbox's process limit is used up


@dataclass(frozen=True, slots=True)
class ExecResult:
    """A finished command.

    `stdout` and `stderr` are bytes as they came, cut to head and tail: `*_dropped` bytes are missing after the
    first `head` ones. `exit_code` follows the shell's convention (128 + signal; 124 for a timeout, 126 and 127 for a
    command that could not start), and comes from the kernel, never from what the command printed.
    """

    outcome: Outcome
    exit_code: int
    stdout: bytes = b""
    stderr: bytes = b""
    stdout_dropped: int = 0
    stderr_dropped: int = 0
    head: int = 0
    seconds: float = 0.0
    out_of_memory: bool = False
    detail: str = ""

    @property
    def ok(self) -> bool:
        """True if the command ran to its end and returned 0."""
        return self.outcome is Outcome.EXITED and self.exit_code == 0

    @property
    def truncated(self) -> bool:
        """True if some of the output is missing."""
        return bool(self.stdout_dropped or self.stderr_dropped)

    def text(self) -> str:
        """Standard output, then standard error, as text for a model; a note marks the missing part."""
        parts = [self._show(self.stdout, self.stdout_dropped), self._show(self.stderr, self.stderr_dropped)]
        return "\n".join(part.rstrip("\n") for part in parts if part)

    def _show(self, data: bytes, dropped: int) -> str:
        if not dropped:
            return data.decode(errors="replace")
        head, tail = data[: self.head].decode(errors="replace"), data[self.head :].decode(errors="replace")
        return f"{head}\n[... {dropped} bytes left out ...]\n{tail}"


class SandboxStarved(SandboxError):
    """A command waited for processors that others had, for so long that its limit says nothing about it."""


class SandboxDied(SandboxError):
    """The sandbox, its runner or its connection ended; its content is lost."""


class DaemonError(SandboxError):
    """The daemon refused, failed, or did not answer in time."""


class SandboxMemory(ToolError, MemoryError):
    """The commands used up the sandbox's whole memory, and it ended; nothing more can be run in it."""


class PathError(ToolError, OSError):
    """A path inside the sandbox is missing, is of the wrong kind, or can't be read or written."""


class SnapshotRefused(PathError):
    """The sandbox's files can't be kept in a snapshot: too many, too large, or not readable."""


def body_of(data: bytes | str, what: str) -> bytes:
    """Content for a sandbox, as bytes.

    Raises:
        ToolArguments: it is text with a lone surrogate, which no encoding writes.
    """
    if isinstance(data, bytes):
        return data
    try:
        return data.encode()
    except UnicodeEncodeError as error:
        raise ToolArguments(
            f"{what} holds a lone surrogate (U+{ord(data[error.start]):04X}), which is no text"
        ) from None


@runtime_checkable
class Process(Protocol):
    """A background process. Its output is bounded like a command's."""

    @property
    def running(self) -> bool:
        """True while the process has not ended."""

    async def wait(self, timeout: float) -> ExecResult:
        """Wait for the process's end, and return its result.

        Raises:
            DeadlineExceeded: it still runs after `timeout` seconds.
        """

    async def stop(self, grace: float = 0.0) -> ExecResult:
        """End the process and all that it started: SIGTERM first where there is a grace period, then SIGKILL."""


@runtime_checkable
class Sandbox(Protocol):
    """An isolated environment for model-written commands. All backends pass one conformance suite (`conformance`).

    Its methods can be called from any event loop. Paths are absolute, or relative to `workdir`. A backend may have an
    attribute `waited`, the seconds that commands have waited for a processor: deadlines of tool calls move on by it.
    """

    id: str
    workdir: str

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
        """Run a command to its end; processes that it leaves running are killed.

        Args:
            command: a line for the shell, or an argument vector.
            timeout: seconds that it may compute, sleep, or wait for anything but a processor (`BUSY`), before its whole
                process tree is killed; None: the specification's.
            cwd: where it runs; None: `workdir`.
            env: variables besides the sandbox's own.
            stdin: what it may read.
            limit: bytes kept of each of its two outputs (half head, half tail); None: the specification's.

        Raises:
            SandboxError: the sandbox failed, not the command; SandboxStarved where others left it no processor.
        """

    async def start(
        self,
        command: Command,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        limit: int | None = None,
    ) -> Process:
        """Start a background process; it ends with `stop`, by itself, or with the sandbox."""

    async def read(self, path: str, *, offset: int = 0, limit: int = 16 << 20) -> bytes:
        """At most `limit` bytes of a regular file; PathError where there is no such file, or it can't be read."""

    async def write(self, path: str, data: bytes | str, *, mode: int = 0o644) -> None:
        """Write a file whole (beside it, then renamed), making the directories above it.

        Raises:
            PathError: it can't be written.
        """

    async def upload(self, source: Path | bytes, path: str) -> None:
        """Unpack a local directory, or a tar archive's bytes, into the directory `path`."""

    async def download(self, path: str, destination: Path) -> None:
        """Copy a tree into the local directory `destination`; its archive is not trusted (`archive`)."""

    async def snapshot(self, limit: int = SNAPSHOT_BYTES) -> Snapshot:
        """The files that commands have written; call it while none runs. See `Snapshot` for what is lost.

        Args:
            limit: bytes that the snapshot may have.

        Raises:
            SnapshotRefused: there is too much, or it can't be read.
        """

    async def restore(self, snapshot: Snapshot) -> None:
        """Kill all processes, and replace all files by the snapshot's.

        Where the image's root can be written to (`writable_root`), no command may have run here before.

        Raises:
            InvalidInput: the snapshot is one of another kind of sandbox, or a command has run here.
        """

    async def fork(self) -> Sandbox:
        """A new sandbox of the same specification with the same files; the caller closes it."""

    async def reset(self) -> None:
        """Kill all processes, empty every writable tree, and verify that it is as it was before the first command.

        Raises:
            SandboxError: it is not, or that can't be verified: it must be closed.
        """

    def renewed(self) -> Sandbox:
        """The same sandbox for its next user; called before `reset`.

        This object is given back with it: whatever still holds it gets SandboxDied from every method but `close`, which
        does nothing. A backend whose `reset` is not supported may return the object itself.
        """

    async def healthy(self) -> bool:
        """Return whether the sandbox answers within a second."""

    async def close(self) -> None:
        """Release all resources; idempotent, and never raises for a sandbox that has ended already."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A sandbox's files at one moment. Any number of sandboxes can be restored from one.

    Equal files give equal bytes. Lost are processes and what they hold in memory, connections, sockets, fifos, devices,
    System V objects and shared memory, owners in the writable trees, extended attributes, hard links (they become
    copies), parts of a second in times, the order of directory entries, and modes of the writable trees themselves.

    Attributes:
        trees: a tar archive of each writable tree.
        layer: a tar archive of the image's files that were added or changed, where the root can be written to.
        removed: the image's paths that were removed.
    """

    trees: Mapping[str, bytes]
    layer: bytes = b""
    removed: tuple[str, ...] = ()

    def plain(self) -> dict[str, Any]:
        """Plain data (text, bytes, lists, mappings), from which `of` makes the snapshot again."""
        return {"trees": dict(self.trees), "layer": self.layer, "removed": list(self.removed)}

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Snapshot:
        """The snapshot that `plain` gave."""
        return cls(dict(plain["trees"]), plain["layer"], tuple(plain["removed"]))
