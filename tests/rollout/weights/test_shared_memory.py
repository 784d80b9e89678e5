"""Shared memory that engines compute with: written again by nobody as long as their parameters lie in it."""

from __future__ import annotations

import base64
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from agentrl.rollout.weights import group
from agentrl.rollout.weights.buckets import Bucket
from agentrl.rollout.weights.receiver import LoadCommit
from agentrl.rollout.weights.shared_memory import SharedBuffer
from agentrl.rollout.weights.transports import IpcTransport
from agentrl.rollout.weights.transports.ipc import FilledBuffer, serialise
from tests.rollout.weights.extension import EXTENSION, Loader, load_extension, make_updater, named_parts

__all__ = ["load_extension"]

ORDER = "first second one"


class ComputingEngine:
    """An engine with SGLang's extension, in this process."""

    atomic = False

    def __init__(self, module: Any) -> None:
        self.model = Loader("")
        self.updater = make_updater(module, self.model)

    async def begin(self) -> None: ...

    async def load_bucket(self, payloads: Sequence[str], commit: LoadCommit | None) -> None:
        assert self.updater.update_weights_from_tensor(pickle.loads(base64.b64decode(payloads[0])))[0]

    async def end(self) -> None:
        self.updater.end_weight_update()

    def holds(self, number: int) -> bool:
        """Return whether its parameters are those of a version."""
        _, named = named_parts(number, ORDER)
        first, second, one = (tensor for _, tensor in named)
        return torch.equal(self.model.both, torch.cat([first, second])) and torch.equal(self.model.one, one)

    def lies_in_shared_memory(self) -> bool:
        return all(parameter.is_shared() for parameter in self.model.parameters())


async def publish(transport: IpcTransport, engines: dict[str, ComputingEngine], number: int) -> None:
    await transport.stage(named_parts(number, ORDER)[1], number)
    assert not any((await transport.send(engines, LoadCommit(number, flush=True))).values())  # type: ignore[arg-type]


async def test_what_engines_compute_with_is_written_by_nobody_else_and_again_once_they_have_left_it(
    module: Any,
) -> None:
    """Two engines share it; one is left out of publications and serves on, another writes into its parameters."""
    transport = IpcTransport(4000, 1, 1 << 20)
    engines = {name: ComputingEngine(module) for name in "ab"}
    versions = dict.fromkeys("ab", 0)
    held = list[int]()
    for number in range(10):
        left = {"a": engines["a"]} if number in (4, 5, 6) else engines
        await publish(transport, left, number)
        versions |= dict.fromkeys(left, number)
        if number == 8:
            engines["a"].model.one.data.zero_()
            assert not engines["a"].model.one.any()
            assert engines["b"].holds(8)
        for name in engines if number != 8 else "b":
            assert engines[name].holds(versions[name]), (number, name)
            assert engines[name].lies_in_shared_memory() == (number > 0)
        held.append(sum(buffer.nbytes for buffer in transport._buffers))
    assert held[3] == held[2], "two sets take turns"
    assert held[9] == held[5] == held[2] * 3 // 2, "a third one while an engine keeps an old one"
    await transport.close()


async def test_memory_that_is_to_be_written_soon_is_copied_and_not_kept(module: Any) -> None:
    transport, engine = IpcTransport(2000, 1, 0), ComputingEngine(module)
    for number in range(3):
        await publish(transport, {"a": engine}, number)
        assert engine.holds(number)
        assert not engine.lies_in_shared_memory()
    assert len(transport._buffers) == 2
    await transport.close()


def test_a_servers_thread_opens_what_is_announced_by_its_name_where_both_see_the_same_files(module: Any) -> None:
    named = [("a", torch.arange(6.0)), ("b", torch.arange(3))]
    buffers = [SharedBuffer(), SharedBuffer()]
    store, keys = dist.HashStore(), dist.PrefixStore("group", dist.HashStore())
    told = group.Announcements(store, "group")
    for buffer, pair in zip(buffers, named, strict=True):
        buffer.fill(Bucket(("larger",), (torch.ones(100),)))
        buffer.fill(Bucket((pair[0],), (pair[1],)))
        buffer.unlock()
        told.announce(buffer.filled, buffer.name)
    told.end()
    arrivals = module.Arrivals(dist.PrefixStore("group", store), None)
    taken = arrivals.take("ab", ["float32", "int64"], [[2, 3], [3]])
    assert [tensor.flatten().tolist() for _, tensor in taken] == [tensor.tolist() for _, tensor in named]
    module.LOANS.give_back()
    assert [buffer.lock() for buffer in buffers] == [False, False]
    del taken[0]
    module.LOANS.give_back()
    assert [buffer.lock() for buffer in buffers] == [True, False]
    del taken
    module.LOANS.give_back()
    for rank, shown in ((1, module.identify_memory()), (2, "another machine's")):
        keys.set(f"shared/{rank}", shown)
        assert group.shares_memory(keys.underlying_store, "group", rank + 1) == (rank == 1)
    assert not group.shares_memory(keys.underlying_store, "group", 4), "one that does not say"
    for buffer in buffers:
        assert buffer.lock()
        buffer.close()


HOLDER = """
import base64, pickle, sys, torch
sys.path.insert(0, sys.argv[1])
from agentrl_sglang_loans import Loans
loans, given = Loans(), base64.b64decode(sys.stdin.readline())
for _ in range(60):
    try:
        pairs = pickle.loads(given)
        break
    except RuntimeError:  # torch gives its keeper of shared memory a second to answer
        continue
lent = loans.borrow([tensor for _, tensor in pairs])
print(float(lent[0][0]), flush=True)
sys.stdin.read()
"""
OWNER = """
import time, torch
from agentrl.rollout.weights.buckets import Bucket
from agentrl.rollout.weights.shared_memory import SharedBuffer
buffer = SharedBuffer()
buffer.fill(Bucket(("a",), (torch.ones(3),)))
print(buffer.name, flush=True)
time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks for files in /dev/shm")
def test_a_killed_engine_keeps_no_memory_and_a_killed_trainer_leaves_none_behind() -> None:
    buffer = SharedBuffer()
    filled = FilledBuffer(buffer.fill(Bucket(("a",), (torch.full((3,), 7.0),))), buffer, last=True)
    text = serialise([filled])
    buffer.unlock()
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(EXTENSION)], **pipes)
    owner = subprocess.Popen([sys.executable, "-c", OWNER], **pipes)
    try:
        holder.stdin.write(text + "\n")  # type: ignore[union-attr]
        holder.stdin.flush()  # type: ignore[union-attr]
        assert holder.stdout.readline() == "7.0\n"  # type: ignore[union-attr]
        left = Path("/dev/shm" + owner.stdout.readline().strip())  # type: ignore[union-attr]
        assert left.exists()
        assert not buffer.lock()
    finally:
        for process in (holder, owner):
            process.send_signal(signal.SIGKILL)
            process.communicate()
    assert buffer.lock()
    buffer.close()
    deadline = time.monotonic() + 60
    while left.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left.exists()
