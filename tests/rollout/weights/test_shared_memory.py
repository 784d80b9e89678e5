"""Shared memory that engines compute with: written again by nobody as long as their parameters lie in it."""

from __future__ import annotations

import base64
import fcntl
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from agentrl.common.processes import descendants
from agentrl.errors import EngineError
from agentrl.rollout.weights import group, shared_memory
from agentrl.rollout.weights.buckets import Bucket, buckets
from agentrl.rollout.weights.receiver import LoadCommit
from agentrl.rollout.weights.shared_memory import SharedBuffer
from agentrl.rollout.weights.transports import IpcTransport
from agentrl.rollout.weights.transports.ipc import FilledBuffer, describe
from tests.rollout.weights.extension import EXTENSION, Loader, load_extension, make_updater, named_parts

__all__ = ["load_extension"]

ORDER = "first second one"


class ComputingEngine:
    """An engine with SGLang's extension, in this process.

    Args:
        module: the extension.
        reads_files: it is told files, and not given torch's handles.
    """

    atomic = False

    def __init__(self, module: Any, reads_files: bool = False) -> None:
        self.model, self.reads_files = Loader(""), reads_files
        self.form, self.loans = module.FILES, module.LOANS
        self.updater = make_updater(module, self.model)

    async def load_shared(self, payloads: Sequence[str], commit: LoadCommit) -> None:
        loaded, message = self.updater.update_weights_from_tensor(
            pickle.loads(base64.b64decode(payloads[0])), self.form
        )
        if not loaded:
            raise EngineError(message)
        await self.end()

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
        lent = {loan.memory.untyped_storage().data_ptr() for loan in self.loans._held}
        return all(parameter.untyped_storage().data_ptr() in lent for parameter in self.model.parameters())


async def publish(transport: IpcTransport, engines: dict[str, ComputingEngine], number: int) -> None:
    await transport.stage(named_parts(number, ORDER)[1], number)
    assert not any((await transport.send(engines, LoadCommit(number, flush=True))).values())  # type: ignore[arg-type]


async def test_what_engines_compute_with_is_written_by_nobody_else_and_again_once_they_have_left_it(
    module: Any,
) -> None:
    """Two engines share it, told of it in two ways; one is left out of publications, another writes into parameters."""
    transport = IpcTransport(4000, 1, 1 << 20)
    engines = {name: ComputingEngine(module, reads_files=name == "a") for name in "ab"}
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


async def test_an_engine_that_could_not_read_the_files_is_sent_handles_of_others_the_second_time(module: Any) -> None:
    transport, engine = IpcTransport(4000, 1, 1 << 20), ComputingEngine(module, reads_files=True)
    await transport.stage(named_parts(1, ORDER)[1], 1)
    files = [os.open(f"/dev/shm{buffer.name}", os.O_RDONLY) for buffer in transport._buffers if buffer.filled]
    for file in files:
        fcntl.flock(file, fcntl.LOCK_EX)
    sending: Any = ({"a": engine}, LoadCommit(1, flush=True))
    assert "can't be read" in str((await transport.send(*sending))["a"])
    assert await transport.send(*sending) == {"a": None}
    assert engine.holds(1)
    for file in files:
        os.close(file)
    await transport.close()


async def test_whatever_engines_keep_the_memory_is_little_more_than_two_sets_of_weights() -> None:
    """Buckets of all sizes find buffers of theirs: were they to take any, all buffers would grow to the largest."""
    weights = [(f"w{number}", torch.zeros(rows, 4)) for number, rows in enumerate((250, 18, 156, 243, 6, 187))]
    draw, transport, kept = random.Random(0), IpcTransport(4000, 1, 1 << 20), list[int]()
    for number in range(20):
        await transport.stage(weights, number)
        used = [each.buffer.name for each in transport._staged]
        assert transport._staged[-1].last
        await transport._drop_staged()
        for file in kept:
            os.close(file)
        kept = [os.open(f"/dev/shm{name}", os.O_RDONLY) for name in used if draw.random() < 0.7]
        for file in kept:
            fcntl.flock(file, fcntl.LOCK_SH)
    held, whole = sum(buffer.nbytes for buffer in transport._buffers), sum(tensor.nbytes for _, tensor in weights)
    assert held <= 2.1 * whole
    for file in kept:
        os.close(file)
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
        told.announce(buffer.filled, buffer.address)
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


@pytest.mark.skipif(sys.platform != "linux", reason="makes files in /dev/shm")
def test_shared_memory_that_is_not_the_trainers_is_refused_and_nothing_stays_locked(module: Any) -> None:
    buffer, loans, shared = SharedBuffer(), type(module.LOANS)(), Path("/dev/shm")
    buffer.fill(Bucket(("a",), (torch.arange(6.0),)))
    buffer.unlock()
    own, plain = ("a", "float32", [6]), shared / f"agentrl-test-{uuid.uuid4().hex}"
    ((name, tensor),) = loans.open([(buffer.address, [own])])
    assert (name, tensor.tolist()) == ("a", [0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    del tensor
    loans.give_back()
    plain.write_bytes(bytes(99))
    link, pipe = Path(f"{plain}-link"), Path(f"{plain}-pipe")
    link.symlink_to(shared / buffer.name[1:])
    os.mkfifo(pipe)
    try:
        for address in ("", "/", "/..", "/../../etc/passwd", buffer.name[1:], f"/{link.name}", f"/{pipe.name}"):
            with pytest.raises(ValueError, match="can't be read"):
                loans.open([(address, [own])])
        unlinked = f"/{plain.name}#{plain.stat().st_ino}"
        os.rename(shutil.copy(plain, f"{plain}-anew"), plain)
        with pytest.raises(ValueError, match="can't be read"):
            loans.open([(unlinked, [("a", "uint8", [9])])])
    finally:
        for path in (plain, link, pipe):
            path.unlink()
    for kind, shape in (("float32", [7]), ("float32", [-6]), ("float32", [True]), ("Tensor", [6]), ("int8", [1 << 70])):
        with pytest.raises(ValueError, match="a"):
            loans.open([(buffer.address, [("a", kind, shape)])])
    with pytest.raises(ValueError, match="from 1 on"):
        loans.open([(buffer.address, [("a", "uint8", [1]), ("b", "float32", [1])])])
    loans.give_back()
    updater = ComputingEngine(module).updater
    for wrong in (None, 7, [7], [(buffer.address, [7])], [(buffer.address, [own, ([], "int8", [1])])], [(7, [own])]):
        loaded, message = updater.update_weights_from_tensor(wrong, module.FILES)
        assert not loaded
        assert message.startswith("these weights can't be read: ")
    assert buffer.lock()
    buffer.close()


def test_copies_are_bit_for_bit_whatever_the_tensors_sizes_and_strides() -> None:
    sizes = (0, 1, 7, 4096, shared_memory._PIECE - 1, 2 * shared_memory._PIECE + 3)
    given = [torch.randint(256, (size,), dtype=torch.uint8) for size in sizes]
    given += [torch.randn(33, 65).t(), torch.randn(5, 4)[:, ::2], torch.full((3,), torch.nan, dtype=torch.bfloat16)]
    buffer = SharedBuffer()
    for bucket in buckets([(str(number), tensor) for number, tensor in enumerate(given)], 1 << 30):
        for (_, there), tensor in zip(buffer.fill(bucket), bucket.tensors, strict=True):
            assert torch.equal(there.view(torch.uint8), tensor.contiguous().view(torch.uint8))
    buffer.close()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_keeper_of_shared_memory_that_answers_late_fails_no_publication(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch waits one second for it, which on a busy machine was too short."""
    SharedBuffer().fill(Bucket(("a",), (torch.ones(3),)))
    keepers = [each for each in descendants(os.getpid()) if "shm" in Path(f"/proc/{each}/comm").read_text()]
    make, failures = torch.UntypedStorage._new_using_filename_cpu, list[str]()

    def watched(size: int) -> torch.UntypedStorage:
        try:
            return make(size)
        except RuntimeError as error:
            failures.append(str(error))
            for keeper in keepers:
                os.kill(keeper, signal.SIGCONT)
            raise

    monkeypatch.setattr(torch.UntypedStorage, "_new_using_filename_cpu", watched)
    buffer = SharedBuffer()
    for keeper in keepers:
        os.kill(keeper, signal.SIGSTOP)
    ((_, there),) = buffer.fill(Bucket(("a",), (torch.arange(3),)))
    assert there.tolist() == [0, 1, 2]
    assert failures, "it was not late"
    name = buffer.name
    del there
    buffer.close()
    assert not Path(f"/dev/shm{name}").exists()


HOLDER = """
import base64, pickle, sys
sys.path.insert(0, sys.argv[1])
from agentrl_sglang_loans import Loans
((name, lent),) = Loans().open(pickle.loads(base64.b64decode(sys.stdin.readline())))
print(name, float(lent[0]), flush=True)
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
    text = describe([filled])
    assert text is not None
    buffer.unlock()
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(EXTENSION)], **pipes)
    owner = subprocess.Popen([sys.executable, "-c", OWNER], **pipes)
    try:
        holder.stdin.write(text + "\n")  # type: ignore[union-attr]
        holder.stdin.flush()  # type: ignore[union-attr]
        assert holder.stdout.readline() == "a 7.0\n"  # type: ignore[union-attr]
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
