"""Weights that arrive at SGLang's server while it generates, and are loaded when it is paused; on a CPU.

SGLang 0.5.23 receives a broadcast in the call that loads it, and that call waits until no request runs. In a group
whose name says so, each of the server's ranks has a thread here that receives what the trainer announces, and the call
takes what has arrived, or waits for it. The thread alone uses the group, so broadcasts keep their order.

Shared memory that torch's handles named stays mapped until the next publication: its pages would be new to each. A
trainer that has filled all of it names the files instead, and the call that loads them begins and ends the update too.

A load that did nothing but copy whole tensors to their places is not run again for the same names: `Placement` knows
the places. What a broadcast brought is not copied then either, its memory becomes the parameters'; and so does shared
memory that the trainer leaves alone as long as it is locked here (`Loans`).
"""

from __future__ import annotations

import datetime
import itertools
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed
from agentrl_sglang_loans import LOANS, count_users, identify_memory
from torch.utils._python_dispatch import TorchDispatchMode

dist: Any = torch.distributed

AHEAD = "-ahead"
"""The end of such a group's name (`agentrl.rollout.weights.group`)."""
FILES = "agentrl-files"
"""The load format of weights that lie in files of shared memory."""
ALIGNED = 64
"""Bytes of which an address is a multiple where a parameter may lie: a line of the processor's cache."""
CONSTANTS = (torch.ops.aten.fill_.Scalar, torch.ops.aten.zero_.default)
"""Operations of a loader beside copying that are allowed: rows that no tensor has keep what they were filled with."""
FOREVER = datetime.timedelta(days=1000)
"""The wait for an announcement, which the end of the trainer's store ends."""


class Arrivals:
    """Broadcasts of a group that were not loaded yet, in order; the trainer begins the next before one has arrived.

    What the trainer says lies in shared memory is not broadcast. Memory that nothing uses any more is received into
    again: new pages cost more than what is copied into them.

    Args:
        store: a connection of its own to the group's store.
        group: the process group.
    """

    def __init__(self, store: Any, group: Any) -> None:
        self._store, self._group = store, group
        self._arrived: queue.SimpleQueue[tuple[torch.Tensor, Any] | Exception] = queue.SimpleQueue()
        self._memory: list[torch.Tensor] = []
        self._thread = threading.Thread(target=self._receive, name="agentrl-weights", daemon=True)
        self._thread.start()

    def _receive(self) -> None:
        try:
            for number in itertools.count():
                self._store.wait([f"bucket/{number}"], FOREVER)
                told, _, name = self._store.get(f"bucket/{number}").decode().partition(" ")
                if (size := int(told)) < 0:
                    raise RuntimeError("the trainer has left it")
                if name:
                    self._arrived.put((self._open(name)[:size], None))
                    continue
                flat = self._find_memory(size)[:size]
                self._arrived.put((flat, dist.broadcast(flat, src=0, group=self._group, async_op=True)))
                del flat
        except Exception as error:  # the trainer has left the group, or died: whoever waits for weights is told
            self._arrived.put(error)

    def _open(self, name: str) -> torch.Tensor:
        memory: torch.Tensor | None = LOANS.lock(name)
        if memory is None:
            raise RuntimeError(f"the shared memory {name} can't be read")
        return memory

    def _find_memory(self, size: int) -> torch.Tensor:
        """Return the smallest unused piece that is large enough; a new one takes the place of the largest."""
        unused = sorted((memory for memory in self._memory if count_users(memory) == 1), key=len)
        for memory in unused:
            if len(memory) >= size:
                return memory
        self._memory = [memory for memory in self._memory if not unused or memory is not unused[-1]]
        del unused
        self._memory.append(torch.empty(size, dtype=torch.uint8, device="cpu"))
        return self._memory[-1]

    def wait_until_ended(self) -> None:
        """Wait for the thread, which ends when the trainer says that it leaves; one whose trainer died ends later."""
        self._thread.join(1.0)

    def take(
        self, names: Sequence[str], dtypes: Sequence[Any], shapes: Sequence[Sequence[int]]
    ) -> list[tuple[str, torch.Tensor]]:
        """Return tensors that lie in the next broadcasts.

        Raises:
            RuntimeError: the group broke, or other sizes arrived.
        """
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
        try:
            if isinstance(arrived, Exception):
                raise arrived
            if arrived[1] is not None:
                arrived[1].wait()
        except Exception as error:
            self._arrived.put(error)
            raise RuntimeError(f"the weights' group ended: {error}") from error
        return arrived[0]


class Copies(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records, while a model loads tensors, which of them are copied whole, and to which addresses.

    Attributes:
        made: address and the tensor's number; None once anything else was done with any tensor.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._numbers = {(tensor.data_ptr(), tensor.nbytes): number for number, tensor in enumerate(tensors)}
        self.made: list[tuple[int, int]] | None = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.copy_.default and self.made is not None:
            there, given = args[:2]
            number = self._numbers.get((given.data_ptr(), given.nbytes))
            alike = (there.dtype, there.shape, there.device) == (given.dtype, given.shape, given.device)
            plain = alike and there.is_contiguous() and given.is_contiguous()
            if plain and number is not None:
                self.made.append((there.data_ptr(), number))
            else:
                self.made = None
        elif not func.is_view and func not in CONSTANTS:
            self.made = None
        return func(*args, **(kwargs or {}))


class Placement:
    """The tensors that a model's parameters consist of, by their places in a list that is always the same.

    Args:
        model: it has just loaded them.
        tensors: the list.
        copies: how it did.

    Attributes:
        parts: each parameter's tensors from its beginning on; None where something else than copying was done.
    """

    def __init__(self, model: Any, tensors: Sequence[torch.Tensor], copies: Copies) -> None:
        self.parts: dict[str, list[int]] | None = {}
        self._shared = set[str]()  # parameters in whose memory something else lies
        made = dict(copies.made or ())
        for name, parameter in model.named_parameters():
            at, numbers, end = parameter.data_ptr(), list[int](), parameter.data_ptr() + parameter.nbytes
            while at < end and at in made and tensors[made[at]].nbytes:
                numbers.append(made.pop(at))
                at += tensors[numbers[-1]].nbytes
            if numbers:
                self.parts[name] = numbers
            if at > end or not parameter.is_contiguous():
                copies.made = None
            if count_users(parameter) > 1:
                self._shared.add(name)
        if made or not copies.made:
            self.parts = None

    def holds(self, model: Any, tensors: Sequence[torch.Tensor]) -> bool:
        """Return whether the model's parameters are these tensors now, so that nothing was made of them afterwards."""
        if self.parts is None:
            return False
        parameters = dict(model.named_parameters())
        if not all(name in parameters and parameters[name].is_contiguous() for name in self.parts):
            return False  # it was packed, or is kept in another form
        return all(
            has_bytes_of(place, tensor.view(-1))
            for name, numbers in self.parts.items()
            for place, tensor in split(parameters[name], [tensors[number] for number in numbers])
        )

    def load(self, model: Any, tensors: Sequence[torch.Tensor], *, adopt: bool) -> None:
        """Bring other values of the same tensors to the parameters.

        Args:
            model: that of which this is known.
            tensors: the values.
            adopt: let parameters lie where tensors do, where nothing else looks at a parameter's memory, and those of
                one follow each other.
        """
        parameters = dict(model.named_parameters())
        for name, numbers in (self.parts or {}).items():
            parameter, parts = parameters[name], [tensors[number] for number in numbers]
            if adopt and name not in self._shared and (whole := find_whole(parts, parameter)) is not None:
                parameter.data = whole
            else:
                for place, part in split(parameter, parts):
                    place.copy_(part.view(-1))


def split(parameter: torch.Tensor, parts: Sequence[torch.Tensor]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield the place of each part in a parameter, flat, and the part."""
    at = 0
    for part in parts:
        yield parameter.data.view(-1)[at : at + part.numel()], part
        at += part.numel()


def has_bytes_of(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two flat tensors of a size have the same bytes; eight at a time where they can be read so."""
    wide = all(each.nbytes % 8 == each.data_ptr() % 8 == 0 for each in (one, other))
    kind = torch.int64 if wide else torch.uint8
    return torch.equal(one.view(kind), other.view(kind))


def find_whole(parts: Sequence[torch.Tensor], like: torch.Tensor) -> torch.Tensor | None:
    """Return parts of one memory as one tensor like another; None where they do not follow each other, or are fewer."""
    first, at = parts[0], parts[0].data_ptr()
    storage = first.untyped_storage().data_ptr()
    for part in parts:
        if part.data_ptr() != at or part.untyped_storage().data_ptr() != storage:
            return None
        at += part.nbytes
    if first.data_ptr() % ALIGNED or at - first.data_ptr() != like.nbytes:
        return None
    return first.as_strided(like.shape, like.stride(), first.storage_offset())


def receive_ahead(updater: Any) -> None:
    """Have the server's ranks receive in a thread, in groups whose name says so."""
    join, leave = updater.init_weights_update_group, updater.destroy_weights_update_group
    receive = updater.receive_weights_from_distributed
    arrivals: dict[str, Arrivals] = {}

    def joined(self: Any, host: str, port: int, rank: int, world: int, group_name: str, backend: str = "nccl") -> Any:
        answer = join(self, host, port, rank, world, group_name, backend)
        if answer[0] and group_name.endswith(AHEAD):
            store = dist.PrefixStore(group_name, dist.TCPStore(host, port, is_master=False))
            if (free := free_memory()) is not None:
                store.set(f"free/{rank + self.tp_rank}", str(free))
            store.set(f"shared/{rank + self.tp_rank}", identify_memory())
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

    updater.init_weights_update_group = joined
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


def place_again(updater: Any) -> None:
    """Have the server's ranks load by `Placement` where they loaded the same names before."""
    broadcast, handed = updater.load_weights_from_distributed, updater.update_weights_from_tensor
    end = updater.end_weight_update
    known: dict[Any, Placement] = {}
    new: list[tuple[Any, Any, Placement, list[torch.Tensor]]] = []

    def load(self: Any, named: Any, usual: Callable[[], Any], borrow: Callable[[Any], Any]) -> Any:
        model, tensors = self.get_model(), [tensor for _, tensor in named]
        if not all(isinstance(tensor, torch.Tensor) and tensor.device.type == "cpu" for tensor in tensors):
            return usual()
        key = (id(model), *((name, tensor.dtype, tensor.shape) for name, tensor in named))
        if (placement := known.get(key)) is not None and placement.parts is not None:
            lent = None if self.get_model_runner().is_draft_worker else borrow(tensors)
            placement.load(model, lent or tensors, adopt=lent is not None)
            return True, "Succeeded to place the weights."
        if placement is not None:
            return usual()
        with Copies(tensors) as copies:
            answer = usual()
        if answer[0]:
            new.append((key, model, Placement(model, tensors, copies), tensors))
        return answer

    def from_broadcast(self: Any, named: Any) -> Any:
        return load(self, named, lambda: broadcast(self, named), lambda tensors: tensors)

    def from_hand(self: Any, named_tensors: Any, load_format: str | None = None) -> Any:
        if load_format == FILES:
            if isinstance(named := _open_files(named_tensors), str):
                return False, named
            return load(self, named, lambda: handed(self, named, None), lambda tensors: tensors)
        if load_format is not None or not isinstance(named_tensors, list):
            return handed(self, named_tensors, load_format)
        return load(self, named_tensors, lambda: handed(self, named_tensors, load_format), LOANS.borrow)

    def ended(self: Any, **given: Any) -> Any:
        answer = end(self, **given)
        for key, model, placement, tensors in new:
            if not placement.holds(model, tensors):
                placement.parts = None
            known[key] = placement
        new.clear()
        LOANS.give_back()
        return answer

    updater.load_weights_from_distributed = from_broadcast
    updater.update_weights_from_tensor = from_hand
    updater.end_weight_update = ended


def _open_files(files: Any) -> list[tuple[str, torch.Tensor]] | str:
    """Return the tensors that lie in files, or what is wrong with them; then none of them stays locked."""
    try:
        return LOANS.open(files)  # type: ignore[no-any-return]
    except (AttributeError, TypeError, ValueError) as error:
        wrong = f"these weights can't be read: {error}"
    LOANS.give_back()
    return wrong


def load_whole(manager: Any, begin: Callable[[], Any], end: Callable[[], Any]) -> None:
    """Have one call begin an update, load it from files, and end it; an update that was left open is taken over."""
    load = manager.update_weights_from_tensor

    def loaded(self: Any, request: Any) -> Any:
        if request.load_format != FILES:
            return load(self, request)
        if self._session is None:
            self.begin_weight_update(begin())
        answer = load(self, request)
        if answer.success:
            self.end_weight_update(end())
        return answer

    manager.update_weights_from_tensor = loaded
