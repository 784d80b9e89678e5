"""The group over which weights are broadcast: where it meets, and who finds it."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest
import torch

from agentrl.rollout.weights import group


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
