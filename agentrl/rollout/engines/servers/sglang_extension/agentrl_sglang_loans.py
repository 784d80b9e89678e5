"""Shared memory of a trainer's on the same machine, in which a server's parameters may lie."""

from __future__ import annotations

import fcntl
import math
import mmap
import os
import re
import stat
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

HEADER = 64
"""Bytes that torch keeps for itself at the beginning of a file of shared memory."""
SHARED = "/dev/shm"
NAME = re.compile(r"/[\w.-]+")
"""A file's name in that folder, with a slash before it."""


def count_users(tensor: torch.Tensor) -> int:
    """Return how many tensors lie in the memory of one, itself included."""
    return int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)) - 1


class Loan(NamedTuple):
    """A file that is locked, its mapping, and all of that as a tensor."""

    file: int
    mapping: mmap.mmap
    memory: torch.Tensor


class Loans:
    """Shared memory of a trainer's that parameters lie in, locked here: the trainer writes none that somebody locked.

    It is mapped anew for each publication, and privately: whatever is written to a parameter in its place, by a load
    from a disk for instance, no other server sees. The system lets go of the locks of a process that dies.
    """

    def __init__(self) -> None:
        self._held: list[Loan] = []
        self._turn = threading.Lock()

    def lock(self, address: str) -> torch.Tensor | None:
        """Return what lies in a file of shared memory, uint8, locked; None where the trainer is about to write it.

        Args:
            address: the file's name; behind a `#` its number, where that is known: another file of the name is None.
        """
        name, _, number = address.partition("#")
        if not NAME.fullmatch(name):
            return None
        try:
            file = os.open(SHARED + name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return None
        try:
            found = os.fstat(file)
            whose = stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid()
            if not whose or found.st_size <= HEADER or number not in ("", str(found.st_ino)):
                raise OSError("it is no file of this trainer's")
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            mapping = mmap.mmap(file, found.st_size, mmap.MAP_PRIVATE)
        except OSError:
            os.close(file)
            return None
        memory = torch.frombuffer(mapping, dtype=torch.uint8)
        with self._turn:
            self._held.append(Loan(file, mapping, memory))
        return memory[HEADER:]

    def open(self, files: Any) -> list[tuple[str, torch.Tensor]]:
        """Return the named tensors that a trainer says lie in files, in order and without gaps.

        Args:
            files: for each its address, and of each tensor in it the name, the dtype and the shape.

        Raises:
            ValueError: it is not of that form, or files are not there, or smaller.
        """
        found = list[tuple[str, torch.Tensor]]()
        for address, tensors in files:
            if (memory := self.lock(address)) is None:
                raise ValueError(f"the shared memory {address} can't be read")
            at = 0
            for name, kind, shape in tensors:
                dtype = getattr(torch, kind, None)
                plain = isinstance(name, str) and all(type(side) is int and side >= 0 for side in shape)
                if not isinstance(dtype, torch.dtype) or not plain:
                    raise ValueError(f"{name!r} has the dtype {kind!r} and the shape {shape}")
                size = math.prod(shape) * dtype.itemsize
                if size > len(memory) - at or at % dtype.itemsize:
                    raise ValueError(f"{name}, {size} bytes from {at} on, is not in {len(memory)} bytes of {address}")
                found.append((name, memory[at : at + size].view(dtype).view(shape)))
                at += size
        return found

    def borrow(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor] | None:
        """Return the same values where parameters may lie; None where the trainer is about to write some of them."""
        memories: dict[int, torch.Tensor] = {}
        found = list[torch.Tensor]()
        for tensor in tensors:
            given = tensor.untyped_storage()
            if given.data_ptr() not in memories:
                memory = self.lock(given._share_filename_cpu_()[1].decode()) if given.is_shared() else None
                if memory is None or len(memory) != given.nbytes():
                    return None
                memories[given.data_ptr()] = memory
            place = torch.empty(0, dtype=tensor.dtype, device="cpu")
            at = tensor.storage_offset() + HEADER // tensor.element_size()
            lent = memories[given.data_ptr()].untyped_storage()
            found.append(place.set_(lent, at, tensor.shape, tensor.stride()))
        return found

    def give_back(self) -> None:
        """Unlock what nothing lies in any more, and have it unmapped.

        A thread does that: the pages of 2 GB take 0.1 s, and three times that where parameters were written to.
        """
        with self._turn:
            unused = [each for each in self._held if count_users(each.memory) == 1]
            self._held = [each for each in self._held if count_users(each.memory) > 1]
        for file in [each.file for each in unused]:
            fcntl.flock(file, fcntl.LOCK_UN)  # closing would not do: the mapping has a duplicate
            os.close(file)
        if unused:
            threading.Thread(target=_unmap, args=(unused,), name="agentrl-unmap", daemon=True).start()


def _unmap(loans: list[Loan]) -> None:
    while loans:
        _, mapping, memory = loans.pop()
        del memory
        mapping.close()


LOANS = Loans()
"""Those of this process."""


def identify_memory() -> str:
    """Return what is the same for two processes that may open each other's shared memory; '' where it is not known."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()} {os.stat(SHARED).st_dev} {os.getuid()}"
    except OSError:
        return ""
