"""The group over which weights are broadcast: where it meets, and who finds it."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
from datetime import timedelta

import pytest
import torch

from agentrl.errors import EngineError
from agentrl.rollout.weights import group
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
