"""A torch process group for weights alone: the trainer is rank 0, the engines' workers are the others.

Created beside the trainer's other groups, by the same steps as SGLang's `init_custom_process_group`, since both ends
must use the same keys of the store: a TCP rendezvous, the group's name as a prefix, then torch's own helper with no
ranks of the default group.

The rendezvous listens on one address, not on all as torch's does, and its keys begin with the group's name, which is a
secret: whoever reaches the port and was not given it finds no key to read, and none that a rank would read.
"""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from agentrl.rollout.weights.shared_memory import identify_memory

AHEAD = "-ahead"
"""The end of the name of a group whose broadcasts engines receive while they generate."""


def meeting_at(host: str) -> Any:
    """A store that listens on one address of this machine, at its attribute `port`; it ends with its last reference."""
    address = (host, 0)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    server = socket.create_server(address, family=family)
    port = server.getsockname()[1]
    made = dist.TCPStore  # type: ignore[attr-defined]
    return made(host, port, is_master=True, wait_for_workers=False, master_listen_fd=server.detach())


def store_at(host: str, port: int) -> Any:
    """The store that another process keeps there (`meeting_at`)."""
    return dist.TCPStore(host, port, is_master=False)  # type: ignore[attr-defined]


def join(store: Any, rank: int, world: int, name: str, backend: str, timeout: float) -> Any:
    """Join the group that meets at a store and return it; blocks until all ranks have joined.

    Raises:
        RuntimeError: not all of them joined within `timeout` seconds (torch's own errors).
    """
    from torch.distributed import distributed_c10d as c10d

    limit = timedelta(seconds=timeout)
    store.set_timeout(limit)
    group, _ = c10d._new_process_group_helper(
        world,
        rank,
        [],
        c10d.Backend(backend),
        c10d.PrefixStore(name, store),
        group_name=c10d.GroupName(name),
        timeout=limit,
    )
    c10d._world.pg_group_ranks[group] = {member: member for member in range(world)}
    return group


def send(group: Any, tensor: Tensor, timeout: float) -> None:
    """Broadcast from rank 0; blocks until this end is done.

    Raises:
        RuntimeError: a receiver was lost, or did not receive it within `timeout` seconds.
    """
    finish_send(begin_send(group, tensor), tensor, timeout)


def begin_send(group: Any, tensor: Tensor) -> Any:
    """Begin a broadcast from rank 0 and return what `finish_send` waits for, in the same order."""
    return dist.broadcast(tensor, src=0, group=group, async_op=True)


def finish_send(work: Any, tensor: Tensor, timeout: float) -> None:
    """Wait until this end is done; raises as `send` does."""
    if work is not None:
        work.wait(timedelta(seconds=timeout))
    if tensor.is_cuda:
        torch.cuda.current_stream(tensor.device).synchronize()


class Announcements:
    """The sizes of broadcasts, one by one, for receivers whose thread waits for the next (`AHEAD`).

    Args:
        store: a connection to the group's store.
        name: the group's.
    """

    def __init__(self, store: Any, name: str) -> None:
        from torch.distributed import distributed_c10d as c10d

        self._store = c10d.PrefixStore(name, store)
        self._number = 0

    def announce(self, nbytes: int, address: str = "") -> None:
        """Say that so many bytes are about to be broadcast, or lie in shared memory (`SharedBuffer.address`)."""
        self._store.set(f"bucket/{self._number}", f"{nbytes} {address}")
        self._number += 1

    def end(self) -> None:
        """Say that nothing more comes."""
        self.announce(-1)


def free_memory(store: Any, name: str, world: int) -> int:
    """Return how many bytes each receiver may hold ahead, by the least that one finds free.

    They may all be on one machine, and take half of it at most. Those that do not say are taken to have enough.
    """
    from torch.distributed import distributed_c10d as c10d

    keys = [f"free/{rank}" for rank in range(1, world)]
    told = c10d.PrefixStore(name, store)
    free = [int(told.get(key)) for key in keys if told.check([key])]
    return min(free, default=1 << 62) // (2 * max(1, world - 1))


def shares_memory(store: Any, name: str, world: int) -> bool:
    """Return whether all receivers told that they may open this process's shared memory."""
    from torch.distributed import distributed_c10d as c10d

    own, told = identify_memory(), c10d.PrefixStore(name, store)
    keys = [f"shared/{rank}" for rank in range(1, world)]
    return bool(own) and all(told.check([key]) and told.get(key).decode() == own for key in keys)


def leave(group: Any) -> None:
    """Destroy the group, also a broken one: NCCL would wait for lost ranks forever, so it is aborted."""
    if dist.get_backend(group) == "nccl":
        group.abort()
    dist.destroy_process_group(group)
