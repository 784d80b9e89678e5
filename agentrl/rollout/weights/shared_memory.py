"""Shared memory that a trainer writes and engines on the same machine read, or compute with."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from agentrl.rollout.weights.buckets import Bucket, Named

STRATEGY = threading.Lock()
"""Held while torch's way of sharing memory, or this process's errors, are others for a moment."""
_SHARED = Path("/dev/shm")
_KEEPER_SECONDS = 60.0
"""Seconds in which torch's keeper of shared memory is asked again; torch itself waits for one."""
_PIECE = 1 << 22
"""Bytes that a thread copies at a time."""
_COPIERS = 8
"""Threads that copy at once, at most: a machine's memory is no faster for more."""


class SharedBuffer:
    """Shared memory that buckets are copied into, one after the other; it grows to the largest.

    Attributes:
        filled: bytes of the last one.
    """

    def __init__(self) -> None:
        self._bytes, self.filled = torch.empty(0, dtype=torch.uint8), 0
        self._file: int | None = None  # None as well where the system shows no file of it, which then nobody locks

    @property
    def nbytes(self) -> int:
        """Bytes of shared memory."""
        return len(self._bytes)

    @property
    def name(self) -> str:
        """The name of its file, with a slash before it."""
        found: bytes = self._bytes.untyped_storage()._share_filename_cpu_()[1]
        return found.decode()

    @property
    def address(self) -> str:
        """Its file's name and number, which another file of that name has not; '' where the system shows no file."""
        return "" if self._file is None else f"{self.name}#{os.fstat(self._file).st_ino}"

    def fill(self, bucket: Bucket) -> list[Named]:
        """Copy a bucket's tensors into the memory, and return them as they lie there; those on a GPU stay.

        It must be locked.
        """
        pairs, at = list[Named](), 0
        size = sum(tensor.nbytes for tensor in bucket.tensors if not tensor.is_cuda)
        if len(self._bytes) < max(1, size):
            self.close()
            with STRATEGY:
                _start_manager()
            self._bytes.set_(_make_shared(max(1, size)))
            with contextlib.suppress(OSError):
                self._file = os.open(f"{_SHARED}{self.name}", os.O_RDONLY | os.O_CLOEXEC)
            self.lock()
        copies = list[tuple[Tensor, Tensor]]()
        for name, tensor in zip(bucket.names, bucket.tensors, strict=True):
            if tensor.is_cuda:
                pairs.append((name, tensor.contiguous()))
                continue
            there = self._bytes[at : at + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            pairs.append((name, there))
            copies.append((there, tensor))
            at += tensor.nbytes
        copy_all(copies)
        self.filled = at
        return pairs

    def lock(self) -> bool:
        """Take it for writing; False while an engine keeps it."""
        try:
            if self._file is not None:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def unlock(self) -> None:
        """Let engines keep what lies in it."""
        if self._file is not None:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Release the memory; who keeps it has it still."""
        self._bytes = torch.empty(0, dtype=torch.uint8)
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def expect_readers(self, count: int) -> None:
        """Let more than one process open what was pickled: each counts itself out, and the last would remove it."""
        for _ in range(count - 1):
            self._bytes.untyped_storage()._shared_incref()  # type: ignore[no-untyped-call]


def copy_all(copies: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Copy each second tensor into the first, which has its dtype and shape and no gaps, both on a CPU.

    As many threads as torch has take pieces of bytes, whichever is next. torch's own threads wait for each other at the
    end of every tensor, and where somebody else has the cores they spin: 343 tensors took a hundred times as long.
    """
    pieces = deque[tuple[int, int, int]]()
    for there, tensor in copies:
        if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg() or tensor.device != there.device:
            there.copy_(tensor)
            continue
        to, given = there.data_ptr(), tensor.data_ptr()
        starts = range(0, tensor.nbytes, _PIECE)
        pieces.extend((to + at, given + at, min(_PIECE, tensor.nbytes - at)) for at in starts)

    def work() -> None:
        with contextlib.suppress(IndexError):  # none is left
            while True:
                ctypes.memmove(*pieces.popleft())

    count = min(torch.get_num_threads(), _COPIERS, len(pieces))
    others = [threading.Thread(target=work, name="agentrl-copy") for _ in range(count - 1)]
    for thread in others:
        thread.start()
    work()
    for thread in others:
        thread.join()


def _make_shared(size: int) -> torch.UntypedStorage:
    """Return new shared memory; on a busy machine torch's keeper of it answers later than torch waits."""
    deadline = time.monotonic() + _KEEPER_SECONDS
    while True:
        try:
            return torch.UntypedStorage._new_using_filename_cpu(size)
        except RuntimeError as error:
            if "manager" not in str(error) or time.monotonic() > deadline:
                raise


@cache
def _start_manager() -> None:
    """Have torch start the process that keeps shared memory, with a file in place of this process's errors.

    It lives as long as anybody has the memory open, also a server that goes on after the run, and two seconds longer.
    Whoever reads this process's errors to their end would wait for it. What others write meanwhile is passed on.
    """
    with tempfile.TemporaryFile() as file:
        own = os.dup(2)
        try:
            os.dup2(file.fileno(), 2)
            _make_shared(1)
        finally:
            os.dup2(own, 2)
            os.close(own)
        file.seek(0)
        while piece := file.read(1 << 16):
            os.write(2, piece)


def shared_room(held: int) -> int:
    """Return how many bytes of shared memory buffers may have, `held` of which they have: half of what they find."""
    try:
        found = os.statvfs(_SHARED)
    except OSError:
        return held
    return (found.f_bavail * found.f_frsize + held) // 2


def identify_memory() -> str:
    """Return what is the same for two processes that may open each other's shared memory; '' where it is not known."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {_SHARED.stat().st_dev} {os.getuid()}"
    except OSError:
        return ""
