"""Weights that arrive at SGLang's server while it generates, and are loaded when it is paused; on a CPU.

SGLang 0.5.23 receives a broadcast in the call that loads it, and that call waits until no request runs. In a group
whose name says so, each of the server's ranks has a thread here that receives what the trainer announces, and the call
takes what has arrived, or waits for it. The thread alone uses the group, so broadcasts keep their order.

Shared memory that weights came in stays mapped until the next publication: its pages would be new to each.
"""

from __future__ import annotations

import datetime
import importlib.abc
import importlib.util
import itertools
import queue
import sys
import threading
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed

dist: Any = torch.distributed

AHEAD = "-ahead"
"""The end of such a group's name (`agentrl.rollout.weights.group`)."""
UPDATER = "sglang.srt.model_executor.model_runner_components.weight_updater"
"""The module of the class that receives and loads weights in each rank."""
FOREVER = datetime.timedelta(days=1000)
"""The wait for an announcement, which the end of the trainer's store ends."""


class Arrivals:
    """Broadcasts of a group that were not loaded yet, in order.

    Memory that was loaded from is received into again: new pages cost more than what is copied into them.

    Args:
        store: a connection of its own to the group's store.
        group: the process group.
    """

    def __init__(self, store: Any, group: Any) -> None:
        self._store, self._group = store, group
        self._arrived: queue.SimpleQueue[tuple[torch.Tensor, int] | Exception] = queue.SimpleQueue()
        self._free: list[torch.Tensor] = []
        self._lent: list[torch.Tensor] = []
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._receive, name="agentrl-weights", daemon=True)
        self._thread.start()

    def _receive(self) -> None:
        try:
            for number in itertools.count():
                self._store.wait([f"bucket/{number}"], FOREVER)
                size = int(self._store.get(f"bucket/{number}"))
                if size < 0:
                    raise RuntimeError("the trainer has left it")
                memory = self._find_memory(size)
                dist.broadcast(memory[:size], src=0, group=self._group)
                self._arrived.put((memory, size))
        except Exception as error:  # the trainer has left the group, or died: whoever waits for weights is told
            self._arrived.put(error)

    def _find_memory(self, size: int) -> torch.Tensor:
        """Return the smallest free piece that is large enough; a new one takes the place of the largest."""
        with self._lock:
            free = sorted(self._free, key=len)
            found = next((memory for memory in free if len(memory) >= size), None)
            taken = found if found is not None else free[-1] if free else None
            self._free = [memory for memory in free if memory is not taken]
        return torch.empty(size, dtype=torch.uint8, device="cpu") if found is None else found

    def free_memory(self) -> None:
        """Receive into what was taken: it is loaded."""
        with self._lock:
            self._free += self._lent
            self._lent = []

    def wait_until_ended(self) -> None:
        """Wait for the thread, which ends when the trainer says that it leaves; one whose trainer died ends later."""
        self._thread.join(1.0)

    def take(
        self, names: Sequence[str], dtypes: Sequence[Any], shapes: Sequence[Sequence[int]]
    ) -> list[tuple[str, torch.Tensor]]:
        """Return tensors that lie in the next broadcasts, until `free_memory`.

        Raises:
            RuntimeError: the group broke, or other sizes arrived.
        """
        self.free_memory()
        found, at = [], 0
        flat = torch.empty(0, dtype=torch.uint8, device="cpu")
        for name, dtype, shape in zip(names, dtypes, shapes, strict=True):
            kind = dtype if isinstance(dtype, torch.dtype) else getattr(torch, dtype)
            size = torch.Size(shape).numel() * kind.itemsize
            while at + size > len(flat):
                flat, at = self._next(name, len(flat) - at), 0
            found.append((name, flat[at : at + size].view(kind).view(shape)))
            at += size
        if at != len(flat):
            raise RuntimeError(f"{len(flat) - at} bytes arrived behind {names[-1]}")
        return found

    def _next(self, name: str, left: int) -> torch.Tensor:
        if left:
            raise RuntimeError(f"{left} bytes arrived before {name}")
        arrived = self._arrived.get()
        if isinstance(arrived, Exception):
            self._arrived.put(arrived)
            raise RuntimeError(f"the weights' group ended: {arrived}")
        memory, size = arrived
        self._lent.append(memory)
        return memory[:size]


class ChangeLater(importlib.abc.MetaPathFinder):
    """Changes SGLang's updater where it is imported, which not all of its processes do: it takes seconds."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname != UPDATER:
            return None
        sys.meta_path.remove(self)
        spec: Any = importlib.util.find_spec(fullname)
        execute = spec.loader.exec_module

        def executed(module: Any) -> None:
            execute(module)
            receive_ahead(module.WeightUpdater)
            keep_mapped(module.WeightUpdater)

        spec.loader.exec_module = executed
        return spec


def receive_ahead(updater: Any) -> None:
    """Have the server's ranks receive in a thread, in groups whose name says so."""
    join, leave = updater.init_weights_update_group, updater.destroy_weights_update_group
    receive, end = updater.receive_weights_from_distributed, updater.end_weight_update
    arrivals: dict[str, Arrivals] = {}

    def joined(self: Any, host: str, port: int, rank: int, world: int, group_name: str, backend: str = "nccl") -> Any:
        answer = join(self, host, port, rank, world, group_name, backend)
        if answer[0] and group_name.endswith(AHEAD):
            store = dist.PrefixStore(group_name, dist.TCPStore(host, port, is_master=False))
            if (free := free_memory()) is not None:
                store.set(f"free/{rank + self.tp_rank}", str(free))
            arrivals[group_name] = Arrivals(store, self._model_update_group[group_name])
        return answer

    def left(self: Any, group_name: str) -> Any:
        if (ending := arrivals.pop(group_name, None)) is not None:
            ending.wait_until_ended()
        return leave(self, group_name)

    def received(self: Any, *, names: Any, dtypes: Any, shapes: Any, group_name: str, **more: Any) -> Any:
        if group_name not in arrivals:
            return receive(self, names=names, dtypes=dtypes, shapes=shapes, group_name=group_name, **more)
        return arrivals[group_name].take(names, dtypes, shapes)

    def ended(self: Any, **given: Any) -> Any:
        for each in arrivals.values():
            each.free_memory()
        return end(self, **given)

    updater.init_weights_update_group = joined
    updater.end_weight_update = ended
    updater.destroy_weights_update_group = left
    updater.receive_weights_from_distributed = received


def free_memory() -> int | None:
    """Return how many bytes of this machine's memory are free; None where the system does not say."""
    try:
        with open("/proc/meminfo") as file:
            lines = dict(line.split(":", 1) for line in file)
        return int(lines["MemAvailable"].split()[0]) << 10
    except (OSError, KeyError):
        return None


def keep_mapped(updater: Any) -> None:
    """Have the server's ranks keep the shared memory of a publication until they have loaded the next."""
    load, end = updater.update_weights_from_tensor, updater.end_weight_update
    kept: dict[int, Any] = {}
    used: dict[int, Any] = {}

    def loaded(self: Any, named_tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(named_tensors, list):
            tensors = [tensor for _, tensor in named_tensors if isinstance(tensor, torch.Tensor)]
            storages = [tensor.untyped_storage() for tensor in tensors if tensor.device.type == "cpu"]
            used.update((storage.data_ptr(), storage) for storage in storages)
        return load(self, named_tensors, *args, **kwargs)

    def ended(self: Any, **given: Any) -> Any:
        kept.clear()
        kept.update(used)
        used.clear()
        return end(self, **given)

    updater.update_weights_from_tensor = loaded
    updater.end_weight_update = ended
