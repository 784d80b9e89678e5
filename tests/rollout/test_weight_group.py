"""The group over which weights are broadcast: where it meets, and who finds it."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from agentrl.errors import EngineError
from agentrl.rollout.weights import group
from agentrl.rollout.weights.buckets import Bucket, Named
from agentrl.rollout.weights.receiver import EngineReceiver, LoadCommit
from agentrl.rollout.weights.transports.distributed import DistributedTransport
from tests.rollout.weights.extension import Loader, load_extension, make_updater, named_parts

__all__ = ["load_extension"]


def test_the_rendezvous_listens_on_the_one_address_that_it_was_given() -> None:
    """torch's own rendezvous listens on every address of the machine."""
    store = group.meeting_at("127.0.0.1")
    with socket.create_connection(("127.0.0.1", store.port), timeout=5):
        pass
    with socket.socket() as other:
        other.settimeout(5)
        assert other.connect_ex(("127.0.0.2", store.port)) != 0


RECEIVER = """
import sys, torch
from agentrl.rollout.weights import group
joined = group.join(group.store_at("127.0.0.1", int(sys.argv[1])), 1, 2, sys.argv[2], "gloo", 120)
held = torch.empty(3)
torch.distributed.broadcast(held, src=0, group=joined)
print(held.tolist())
"""


@pytest.mark.slow
def test_a_rank_that_knows_the_groups_name_receives_and_a_stranger_finds_nothing() -> None:
    store = group.meeting_at("127.0.0.1")
    command = [sys.executable, "-c", RECEIVER, str(store.port), "a secret"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as receiver:
        joined = group.join(store, 0, 2, "a secret", "gloo", 120)
        group.send(joined, torch.tensor([1.0, 2.0, 3.0]), 120)
        assert receiver.communicate(timeout=120)[0] == "[1.0, 2.0, 3.0]\n"
    reached = group.store_at("127.0.0.1", store.port)
    assert not reached.check(["agentrl/0", "0"])
    group.leave(joined)


class Joining(EngineReceiver):
    """Waits for a group in a thread, or dies as soon as `other` waits."""

    atomic = False

    def __init__(self, other: Joining | None = None) -> None:
        self.other, self.waits, self.error = other, threading.Event(), ""

    async def ping(self) -> None:
        if self.other is not None and self.other.waits.is_set():
            raise EngineError("gone")

    async def join(self, host: str, port: int, rank: int, world: int, backend: str, name: str) -> None:
        if self.other is not None:
            await asyncio.to_thread(self.other.waits.wait)
            raise EngineError("it died")
        await asyncio.to_thread(self.wait, host, port)

    def wait(self, host: str, port: int) -> None:
        """Wait as a rank does for another one's key."""
        store = group.store_at(host, port)
        store.set_timeout(timedelta(hours=1))
        self.waits.set()
        try:
            store.get("of a rank that never comes")
        except RuntimeError as error:
            self.error = str(error)


@pytest.mark.slow
async def test_a_receiver_that_dies_while_a_group_forms_ends_the_wait_of_all_others() -> None:
    """A server whose scheduler waits for a rank that never comes takes no other call meanwhile."""
    alive = Joining()
    dead = Joining(alive)
    transport = DistributedTransport(1 << 20, "gloo", timeout=3600)
    await transport.stage([("weight", torch.ones(3))], 1)
    with pytest.raises(EngineError, match="could not be created: it died"):
        await transport.send({"alive": alive, "dead": dead}, LoadCommit(1, flush=True))
    async with asyncio.timeout(600):
        while not alive.error:  # noqa: ASYNC110 - a thread of its own
            await asyncio.sleep(0.01)
    await transport.close()


class Wire:
    """A group's broadcasts within this process, in the place of `rollout.weights.group`'s functions."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ends: list[Arriving] = []
        self.loans: Any = None  # what is announced by its name is read by them
        self.broken, self.lost, self.free = False, False, 1 << 30
        fakes = {
            "meeting_at": lambda host: SimpleNamespace(port=1),
            "store_at": lambda host, port: None,
            "join": lambda *given: self,
            "begin_send": self.begin_send,
            "finish_send": self.finish_send,
            "leave": lambda joined: None,
            "free_memory": lambda store, name, world: self.free,
            "shares_memory": lambda store, name, world: self.loans is not None,
            "Announcements": lambda store, name: SimpleNamespace(announce=self.announce, end=lambda: None),
        }
        for name, fake in fakes.items():
            monkeypatch.setattr(group, name, fake)

    def announce(self, nbytes: int, name: str = "") -> None:
        if self.broken:
            raise RuntimeError("the store is gone")
        for end in self.ends if name else ():
            end.arrived.append(self.loans.lock(name)[:nbytes])

    def begin_send(self, joined: Any, tensor: torch.Tensor) -> None:
        if self.broken:
            raise RuntimeError("the wire is broken")
        for end in self.ends:
            end.arrived.append(tensor.clone())

    def finish_send(self, work: None, tensor: torch.Tensor, timeout: float) -> None:
        if self.lost:
            raise RuntimeError("a receiver was lost on the way")


class Arriving(EngineReceiver):
    """An engine that has what is broadcast as soon as it is, and loads it when it is told to."""

    atomic, receives_ahead = False, True

    def __init__(self, wire: Wire) -> None:
        self.wire, self.arrived, self.tensors = wire, list[torch.Tensor](), dict[str, torch.Tensor]()
        self.loads, self.version, self.refuses = 0, -1, False
        self.turn = asyncio.Lock()  # calls are handled one after the other

    async def ping(self) -> None: ...

    async def join(self, host: str, port: int, rank: int, world: int, backend: str, name: str) -> None:
        assert name.endswith(group.AHEAD)
        self.arrived = []
        self.wire.ends.append(self)

    async def leave(self) -> None:
        self.wire.ends.remove(self)

    async def receive(self, bucket: Bucket, commit: LoadCommit | None) -> None:
        self.loads += 1
        async with self.turn:
            flat, at = await self.take(bucket.nbytes), 0
        if self.refuses:
            self.refuses = False
            raise EngineError("refused")
        for name, tensor in zip(bucket.names, bucket.tensors, strict=True):
            self.tensors[name] = flat[at : at + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            at += tensor.nbytes
        self.version = self.version if commit is None else commit.version

    async def take(self, size: int) -> torch.Tensor:
        """Wait for so many bytes, in whole broadcasts."""
        pieces = list[torch.Tensor]()
        while (left := size - sum(map(len, pieces))) > 0:
            while not self.arrived:  # noqa: ASYNC110 - another thread's
                await asyncio.sleep(0.001)
            pieces.append(self.arrived.pop(0))
        assert not left, "what arrived is not what is to be loaded"
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


def version_of(number: int) -> list[Named]:
    return [(f"w{i}", torch.full((i + 1, 100), number + i / 8)) for i in range(8)]


@pytest.mark.parametrize(
    ("ahead", "free", "able", "shared", "loads"),
    [
        (0, 1 << 30, True, False, 6),
        (6000, 1 << 30, True, False, 5),
        (1 << 20, 6000, True, False, 5),
        (1 << 20, 1 << 30, True, False, 1),
        (1 << 20, 1 << 30, False, False, 6),
        (6000, 1 << 30, True, True, 5),
        (1 << 20, 1 << 30, True, True, 1),
    ],
    ids=[
        *("nothing ahead", "some of it", "as much as is free", "all of it", "a receiver without that attribute"),
        *("some of it shared", "all of it shared"),
    ],
)
async def test_what_arrives_ahead_is_what_is_loaded_whatever_fails_on_the_way(
    ahead: int, free: int, able: bool, shared: bool, loads: int, module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version that is staged and not sent, a wire that breaks, an engine that refuses, one more engine."""
    monkeypatch.setattr(group, "AHEAD", group.AHEAD if ahead and able else "")
    monkeypatch.setattr(Arriving, "receives_ahead", bool(ahead))
    if not able:
        for receiver in (Arriving, EngineReceiver):
            monkeypatch.delattr(receiver, "receives_ahead")
    wire = Wire(monkeypatch)
    wire.free, wire.loans = free, module.LOANS if shared else None
    transport = DistributedTransport(3000, "gloo", ahead=ahead)
    ends = {"a": Arriving(wire), "b": Arriving(wire)}
    for number in range(9):
        if number == 7:
            ends["c"] = Arriving(wire)
        wire.broken, wire.lost = number == 4, number == 6
        await transport.stage(version_of(number), number)
        wire.broken = wire.lost = False
        if number == 2:
            continue
        ends["b"].refuses = number == 5
        for end in ends.values():
            end.loads = 0
        sent = await transport.send(ends, LoadCommit(number, flush=True))
        if number == 5:
            sent = await transport.send(ends, LoadCommit(number, flush=True))
        assert not any(sent.values()), (number, sent)
        for end in ends.values():
            assert end.version == number
            assert all(torch.equal(end.tensors[name], tensor) for name, tensor in version_of(number))
            assert not end.arrived
        module.LOANS.give_back()
        if number in (1, 8):
            assert ends["a"].loads == loads
    await transport.close()


def test_all_receivers_together_hold_half_of_the_memory_that_the_fullest_machine_has_free() -> None:
    store = dist.HashStore()
    told = dist.PrefixStore("group", store)
    assert group.free_memory(store, "group", 4) > 1 << 50
    told.set("free/1", "8000")
    told.set("free/2", "6000")
    assert group.free_memory(store, "group", 4) == 1000


def test_a_server_takes_tensors_out_of_the_broadcasts_that_its_thread_received(
    module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is used again, and the end of the group ends the wait for weights."""
    assert module.AHEAD == group.AHEAD
    assert module.free_memory() > 1 << 20
    sent = {f"bucket/{i}": torch.arange(size, dtype=torch.uint8) + i for i, size in enumerate([24, 8, 24, 8, 16])}
    loaded, memory = threading.Semaphore(2), set[int]()

    class Store:
        def wait(self, keys: list[str], limit: timedelta) -> None:
            loaded.acquire()
            if keys[0] not in sent:
                raise RuntimeError("the trainer has left")
            self.key = keys[0]

        def get(self, key: str) -> bytes:
            return str(len(sent[key])).encode()

    def broadcast(there: torch.Tensor, src: int, group: Any, async_op: bool) -> Any:
        memory.add(there.data_ptr())
        return SimpleNamespace(wait=lambda there=there, key=store.key: there.copy_(sent[key]))

    monkeypatch.setattr(module.dist, "broadcast", broadcast)
    store = Store()
    arrivals = module.Arrivals(store, None)
    for first in (0, 2):
        (one, two, three) = arrivals.take("abc", ["float32", "uint8", torch.int64], [[2, 2], [8], [1]])
        flat = torch.cat([tensor.view(-1).view(torch.uint8) for _, tensor in (one, two, three)])
        assert torch.equal(flat, torch.cat([sent[f"bucket/{first}"], sent[f"bucket/{first + 1}"]]))
        del one, two, three
        loaded.release(2)
    assert len(memory) == 2
    with pytest.raises(RuntimeError, match="8 bytes arrived behind d"):
        arrivals.take("d", ["uint8"], [[8]])
    for _ in range(2):
        with pytest.raises(RuntimeError, match="the weights' group ended: the trainer has left"):
            arrivals.take("e", ["uint8"], [[8]])


@pytest.mark.parametrize("way", ["load_weights_from_distributed", "update_weights_from_tensor"])
@pytest.mark.parametrize(
    ("habit", "order", "loads", "adopted"),
    [
        ("", "first second one", 1, {"both", "one"}),
        ("", "one second first", 1, {"one"}),
        ("view", "first second one", 1, {"both"}),
        ("pad", "first second one", 1, {"both"}),
        ("double", "first second one", 4, set()),
        ("sum", "first second one", 4, set()),
        ("scale", "first second one", 4, set()),
        ("pack", "first second one", 4, set()),
    ],
)
def test_a_server_that_only_copies_weights_lets_its_parameters_lie_where_the_next_arrive(
    module: Any, way: str, habit: str, order: str, loads: int, adopted: set[str]
) -> None:
    """One whose loader makes something of them, or that does so afterwards, loads them by it each time."""
    model = Loader(habit)
    updater = make_updater(module, model)
    for number in range(4):
        flat, named = named_parts(number, order)
        given = {name: tensor.clone() for name, tensor in named}
        assert getattr(updater, way)(named)[0]
        updater.end_weight_update()
        both = torch.cat([given["first"], given["second"]]) * (2 if habit == "double" else 1)
        assert torch.equal(model.both, both)
        assert torch.equal(model.one[:32], given["one"] * {"double": 2, "scale": 3}.get(habit, 1))
        assert not model.one[32:].any()
        assert model.seen is None or torch.equal(model.seen.t(), given["one"])
        assert habit != "sum" or torch.equal(model.total, both.sum())
        users = module.count_users(flat) - 1
        del named
        lies = {
            name
            for name, parameter in model.named_parameters()
            if parameter.untyped_storage().data_ptr() == flat.untyped_storage().data_ptr()
        }
        assert lies == (adopted if number and "distributed" in way else set())
        assert users >= len(lies) == module.count_users(flat) - 1, "memory is free once nothing lies in it"
    assert model.loads == loads
