"""Shared memory that a killed server leaves in `/dev/shm`: SGLang unlinks its own only when it ends in order.

A file there is a server's where a process of its group has it mapped. It is removed once the group has ended, unless
another process has it mapped, too, or another file has got its name.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator

FOLDER = "/dev/shm/"
Segment = tuple[str, int]
"""A file's path, and its inode."""


def mapped(group: int) -> set[Segment]:
    """The files of `/dev/shm` that processes of a group have mapped, where their mappings can be read (Linux)."""
    return {segment for pid, own in _processes() if own == group for segment in _mapped_by(pid)}


def remove(segments: Iterable[Segment], group: int) -> None:
    """Remove those of a killed group, whose last processes may still be ending, but for those that others use."""
    if not (left := {segment for segment in segments if os.path.exists(segment[0])}):
        return
    used = {segment for pid, own in _processes() if own != group for segment in _mapped_by(pid)}
    for path, inode in left - used:
        with contextlib.suppress(OSError):
            if os.stat(path).st_ino == inode:
                os.unlink(path)


def _processes() -> Iterator[tuple[int, int]]:
    """Each process and its group."""
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if name.isdigit():
                yield int(name), os.getpgid(int(name))


def _mapped_by(pid: int) -> Iterator[Segment]:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/maps", errors="surrogateescape") as lines:
        for line in lines:
            _, _, _, _, inode, *path = line.rstrip("\n").split(maxsplit=5)
            if path and path[0].startswith(FOLDER) and not path[0].endswith(" (deleted)"):
                yield path[0], int(inode)
