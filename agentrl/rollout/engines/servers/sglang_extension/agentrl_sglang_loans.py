"""Shared memory of a trainer's on the same machine, in which a server's parameters may lie."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Sequence
from typing import Any

import torch

HEADER = 64
"""Bytes that torch keeps for itself at the beginning of a file of shared memory."""
SHARED = "/dev/shm"


def count_users(tensor: torch.Tensor) -> int:
    """Return how many tensors lie in the memory of one, itself included."""
    return int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)) - 1


class Loans:
    """Shared memory of a trainer's that parameters lie in, locked here: the trainer writes none that somebody locked.

    It is mapped anew for each publication, and privately: whatever is written to a parameter in its place, by a load
    from a disk for instance, no other server sees. The system lets go of the locks of a process that dies.
    """

    def __init__(self) -> None:
        self._held: list[tuple[int, torch.Tensor]] = []
        self._turn = threading.Lock()

    def lock(self, name: str) -> torch.Tensor | None:
        """Return what lies in a file of shared memory, uint8, locked; None where the trainer is about to write it."""
        path = SHARED + name
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            memory: Any = torch.UntypedStorage.from_file(path, False, os.fstat(file).st_size)
        except OSError:
            os.close(file)
            return None
        with self._turn:
            self._held.append((file, torch.empty(0, dtype=torch.uint8, device="cpu").set_(memory)))
            return self._held[-1][1][HEADER:]

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
        """Unlock what nothing lies in any more."""
        with self._turn:
            unused = [each for each in self._held if count_users(each[1]) == 1]
            self._held = [each for each in self._held if count_users(each[1]) > 1]
        for file, _ in unused:
            os.close(file)


LOANS = Loans()
"""Those of this process."""


def identify_memory() -> str:
    """Return what is the same for two processes that may open each other's shared memory; '' where it is not known."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()} {os.stat(SHARED).st_dev} {os.getuid()}"
    except OSError:
        return ""
