"""The group over which weights are broadcast: where it meets, and who finds it."""

from __future__ import annotations

import asyncio
import importlib.util
import socket
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

import agentrl
from agentrl.errors import EngineError
from agentrl.rollout.weights import group
from agentrl.rollout.weights.buckets import Bucket, Named
from agentrl.rollout.weights.receiver import EngineReceiver, LoadCommit
from agentrl.rollout.weights.transports.distributed import DistributedTransport


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
        self.broken, self.free = False, 1 << 30
        fakes = {
            "meeting_at": lambda host: SimpleNamespace(port=1),
            "store_at": lambda host, port: None,
            "join": lambda *given: self,
            "send": self.send,
            "leave": lambda joined: None,
            "free_memory": lambda store, name, world: self.free,
            "Announcements": lambda store, name: SimpleNamespace(announce=lambda nbytes: None, end=lambda: None),
        }
        for name, fake in fakes.items():
            monkeypatch.setattr(group, name, fake)

    def send(self, joined: Any, tensor: torch.Tensor, timeout: float) -> None:
        if self.broken:
            raise RuntimeError("the wire is broken")
        for end in self.ends:
            end.arrived.append(tensor.clone())


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
        return torch.cat(pieces)


def version_of(number: int) -> list[Named]:
    return [(f"w{i}", torch.full((i + 1, 100), number + i / 8)) for i in range(8)]


@pytest.mark.parametrize(
    ("ahead", "free", "able", "loads"),
    [
        (0, 1 << 30, True, 6),
        (6000, 1 << 30, True, 5),
        (1 << 20, 6000, True, 5),
        (1 << 20, 1 << 30, True, 1),
        (1 << 20, 1 << 30, False, 6),
    ],
    ids=["nothing ahead", "some of it", "as much as is free", "all of it", "a receiver without that attribute"],
)
async def test_what_arrives_ahead_is_what_is_loaded_whatever_fails_on_the_way(
    ahead: int, free: int, able: bool, loads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version that is staged and not sent, a wire that breaks, an engine that refuses, one more engine."""
    monkeypatch.setattr(group, "AHEAD", group.AHEAD if ahead and able else "")
    monkeypatch.setattr(Arriving, "receives_ahead", bool(ahead))
    if not able:
        for receiver in (Arriving, EngineReceiver):
            monkeypatch.delattr(receiver, "receives_ahead")
    wire = Wire(monkeypatch)
    wire.free = free
    transport = DistributedTransport(3000, "gloo", ahead=ahead)
    ends = {"a": Arriving(wire), "b": Arriving(wire)}
    for number in range(9):
        if number == 7:
            ends["c"] = Arriving(wire)
        wire.broken = number == 4
        await transport.stage(version_of(number), number)
        wire.broken = False
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


def test_a_server_takes_tensors_out_of_the_broadcasts_that_its_thread_received(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is used again, and the end of the group ends the wait for weights."""
    path = Path(agentrl.__file__).parent / "rollout/engines/servers/sglang_extension/agentrl_sglang_weights.py"
    spec: Any = importlib.util.spec_from_file_location("agentrl_sglang_weights", path)
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
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

    def broadcast(there: torch.Tensor, src: int, group: Any) -> None:
        memory.add(there.data_ptr())
        there.copy_(sent[store.key])

    monkeypatch.setattr(module.dist, "broadcast", broadcast)
    store = Store()
    arrivals = module.Arrivals(store, None)
    for first in (0, 2):
        (one, two, three) = arrivals.take("abc", ["float32", "uint8", torch.int64], [[2, 2], [8], [1]])
        flat = torch.cat([tensor.view(-1).view(torch.uint8) for _, tensor in (one, two, three)])
        assert torch.equal(flat, torch.cat([sent[f"bucket/{first}"], sent[f"bucket/{first + 1}"]]))
        arrivals.free_memory()
        loaded.release(2)
    assert len(memory) == 2
    with pytest.raises(RuntimeError, match="8 bytes arrived behind d"):
        arrivals.take("d", ["uint8"], [[8]])
    for _ in range(2):
        with pytest.raises(RuntimeError, match="the weights' group ended: the trainer has left"):
            arrivals.take("e", ["uint8"], [[8]])
