"""Publications to engines that fail: rolled forward or taken out, and no token from mixed weights.

The engines here are small interpreters of what a server does with weights: they load tensor by tensor, can fail
in the middle, refuse calls that come at the wrong time, and notice when they would generate from a mixture.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gc
import os
import pickle
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.multiprocessing import reductions

from agentrl.common.processes import descendants
from agentrl.errors import EngineError
from agentrl.models import tiny
from agentrl.rollout.weights.buckets import Bucket, Convert, Named, Shapes, Weights
from agentrl.rollout.weights.publisher import Publisher, PublishOutcome
from agentrl.rollout.weights.quantize import convert_weights
from agentrl.rollout.weights.receiver import LoadCommit
from agentrl.rollout.weights.shared_memory import SharedBuffer
from agentrl.rollout.weights.snapshot import read_snapshot, save_snapshot
from agentrl.rollout.weights.transports import DiskTransport, IpcTransport
from agentrl.types import PauseMode

DTYPES = (torch.float32, torch.bfloat16, torch.int64)


class FakeEngine:
    """An engine that can be published to by folder.

    `faults`: what happens at each load in turn: "" goes well, "half" breaks off in the middle, "hang" never ends,
    "rot" loads and gets a tensor wrong without noticing.
    """

    atomic = False

    def __init__(self, name: str, faults: Sequence[str] = ()) -> None:
        self.name, self.faults = name, list(faults)
        self.tensors: dict[str, float] = {}
        self.version, self.paused, self.cached, self.calls = 0, False, True, list[str]()
        self.receiver = self

    async def pause(self, mode: PauseMode) -> None:
        self.calls.append(f"pause {mode}")
        self.paused = True

    async def resume(self, version: int | None) -> None:
        assert self.paused
        self.calls.append(f"resume {version}")
        self.paused = False
        assert len(set(self.tensors.values())) <= 1, "a forward pass would run on mixed weights"
        if version is not None:
            self.version = version
            assert not self.cached or "pause in_place" in self.calls, "what the old weights computed is still used"

    async def load_folder(self, folder: Path, commit: LoadCommit) -> None:
        assert self.paused, "weights changed under running requests"
        fault = self.faults.pop(0) if self.faults else ""
        self.calls.append("load")
        self.cached = True
        for number, (name, tensor) in enumerate(read_snapshot(folder)):
            if fault and number == 2:
                if fault == "half":
                    raise EngineError(f"{self.name} lost its breath")
                if fault == "hang":
                    await asyncio.sleep(3600)
            self.tensors[name] = float(tensor.flatten()[0])
        if fault == "rot":
            self.tensors = {name: value * 2 for name, value in self.tensors.items()}
        self.cached = not commit.flush

    async def checksum(self) -> str:
        return str(sorted(self.tensors.items()))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = tiny.TinyShape(vocab=263, layers=1, width=16, heads=2, kv_heads=1, mlp=16)
    return tiny.build(tmp_path_factory.mktemp("models") / "base", ["a b c"], shape=shape)


def weights(base: Path, value: float) -> list[Named]:
    return [(name, torch.full_like(tensor, value)) for name, tensor in read_snapshot(base)]


async def publish(
    base: Path, engines: Sequence[FakeEngine], version: int = 1, publisher: Publisher | None = None, **settings: Any
) -> PublishOutcome:
    made = publisher or Publisher(DiskTransport(base, None, 1 << 20), base, **{"timeout": 30.0, **settings})
    try:
        await made.stage(weights(base, version), version)
        return await made.send({engine.name: engine for engine in engines}, version)  # type: ignore[misc]
    finally:
        if publisher is None:
            await made.close()


async def test_all_pause_before_any_loads_and_all_have_loaded_before_any_resumes(base: Path) -> None:
    order: list[str] = []
    engines = [FakeEngine(f"e{n}") for n in range(3)]
    for engine in engines:
        engine.calls = order
    await publish(base, engines)
    assert order == ["pause drain"] * 3 + ["load"] * 3 + ["resume 1"] * 3


async def test_in_place_flushes_nothing_since_frozen_requests_hold_their_caches(base: Path) -> None:
    kept, flushed = FakeEngine("kept"), FakeEngine("flushed")
    await publish(base, [kept], mode=PauseMode.IN_PLACE)
    await publish(base, [flushed], mode=PauseMode.RETRACT)
    assert kept.cached
    assert not flushed.cached


async def test_a_half_done_update_is_rolled_forward(base: Path) -> None:
    engines = [FakeEngine("a", ["half"]), FakeEngine("b")]
    outcome = await publish(base, engines)
    assert not outcome.broken
    assert [engine.version for engine in engines] == [1, 1]
    assert engines[0].tensors == engines[1].tensors


async def test_an_engine_that_stays_half_updated_is_never_resumed(base: Path) -> None:
    engines = [FakeEngine("a", ["half", "half"]), FakeEngine("b")]
    outcome = await publish(base, engines)
    assert set(outcome.broken) == {"a"}
    assert engines[0].paused
    assert engines[1].version == 1


@pytest.mark.slow
async def test_a_load_that_never_ends_takes_the_engine_out(base: Path) -> None:
    engines = [FakeEngine("a", ["hang", "hang"])]
    outcome = await publish(base, engines, timeout=0.5)
    assert set(outcome.broken) == {"a"}
    assert engines[0].paused


@pytest.mark.parametrize("faults", [["rot"], ["rot", "rot"]])
async def test_engines_that_hold_other_weights_than_the_others_are_sent_them_again_or_taken_out(
    base: Path, faults: list[str]
) -> None:
    engines = [FakeEngine("a"), FakeEngine("b", faults), FakeEngine("c")]
    outcome = await publish(base, engines)
    assert set(outcome.broken) == ({"b"} if len(faults) == 2 else set())
    assert outcome.broken.keys() == {engine.name for engine in engines if engine.paused}


async def test_of_two_engines_that_disagree_both_are_sent_the_weights_again(base: Path) -> None:
    engines = [FakeEngine("a", ["rot"]), FakeEngine("b")]
    assert not (await publish(base, engines)).broken
    assert engines[0].tensors == engines[1].tensors
    assert engines[1].calls.count("load") == 2


async def test_weights_that_do_not_fit_the_model_reach_no_engine(base: Path) -> None:
    engine = FakeEngine("a")
    publisher = Publisher(DiskTransport(base, None, 1 << 20), base)
    try:
        with pytest.raises(EngineError, match="lack"):
            await publisher.stage(weights(base, 1)[1:], 1)
        with pytest.raises(EngineError, match="more"):
            await publisher.stage([*weights(base, 1), ("more", torch.zeros(1))], 1)
    finally:
        await publisher.close()
    assert engine.calls == []


@settings(deadline=None, max_examples=25, derandomize=True)
@given(st.lists(st.lists(st.sampled_from(["", "half", "rot"]), max_size=4), min_size=1, max_size=5), st.data())
@pytest.mark.slow
def test_whatever_fails_who_generates_holds_one_whole_version(
    base: Path, faults: list[list[str]], data: st.DataObject
) -> None:
    """Over three publications; who is broken is replaced by a new engine, as a fleet does."""

    async def run() -> None:
        engines = [FakeEngine(f"e{n}", each) for n, each in enumerate(faults)]
        publisher = Publisher(DiskTransport(base, None, 1 << 20), base, timeout=60.0)
        try:
            for version in (1, 2, 3):
                outcome = await publish(base, engines, version, publisher)
                for engine in engines:
                    assert engine.paused == (engine.name in outcome.broken)
                    assert engine.paused or engine.version == version
                sums = {await engine.checksum() for engine in engines if not engine.paused}
                assert len(sums) <= 1
                engines = [FakeEngine(engine.name) if engine.paused else engine for engine in engines]
        finally:
            await publisher.close()

    asyncio.run(run())


async def test_weights_that_were_staged_and_never_published_are_given_to_no_restarted_engine(base: Path) -> None:
    publisher = Publisher(DiskTransport(base, None, 1 << 20), base, timeout=30.0)
    try:
        await publish(base, [FakeEngine("a")], 1, publisher)
        assert await publisher.folder() is not None
        await publish(base, [FakeEngine("a", ["half", "half"])], 2, publisher)
        assert await publisher.folder() is None
        await publish(base, [FakeEngine("a")], 3, publisher)
        assert await publisher.folder() is not None
    finally:
        await publisher.close()


async def test_what_lies_on_no_disk_is_kept_for_engines_that_start_anew(base: Path) -> None:
    class Nowhere:
        stages_weights = True

        async def stage(self, weights: Any, version: int) -> None:
            for _ in weights:
                pass

        async def send(self, receivers: Any, commit: LoadCommit) -> dict[str, None]:
            for engine in receivers.values():
                engine.cached = not commit.flush
            return dict.fromkeys(receivers)

        def folder(self) -> None:
            return None

        async def close(self) -> None: ...

    for keep in (True, False):
        publisher = Publisher(Nowhere(), base, keep=keep)
        await publish(base, [FakeEngine("a")], 5, publisher)
        folder = await publisher.folder()
        assert (folder is not None) == keep
        if folder is not None:
            assert all(float(tensor.flatten()[0]) == 5 for _, tensor in read_snapshot(folder))
        await publisher.close()


async def test_of_older_snapshots_only_the_last_lies_on_the_disk_while_the_next_is_written(
    base: Path, tmp_path: Path
) -> None:
    transport = DiskTransport(base, tmp_path, 1 << 20)
    there: list[list[str]] = []

    def written(version: int) -> Iterator[Named]:
        there.append(sorted(path.name for path in tmp_path.glob("version-*")))
        yield from weights(base, version)

    for version in (1, 2, 3):
        await transport.stage(written(version), version)
    assert there == [[], ["version-00000001"], ["version-00000002"]]
    assert transport.folder() == tmp_path / "version-00000003"
    await transport.close()


@pytest.mark.slow
async def test_a_trainer_elsewhere_writes_what_engines_load_and_its_tensors_are_checked_by_name_and_shape(
    base: Path,
) -> None:
    held = weights(base, 3.0)

    def save(folder: Path, base: Path, limit: int, convert: Convert | None = None) -> Shapes:
        return save_snapshot(convert(held) if convert else held, folder, base, limit)

    def here() -> list[Named]:
        raise AssertionError("its weights came here")

    engine = FakeEngine("e")
    publisher = Publisher(
        DiskTransport(base, None, 1 << 20),
        base,
        transform=partial(convert_weights, dtype=torch.bfloat16, blocks=None),
        timeout=30.0,
    )
    await publisher.stage(Weights(here, save), 1)
    outcome = await publisher.send({"e": engine}, 1)
    assert outcome.done == ("e",)
    assert set(engine.tensors.values()) == {3.0}
    folder = await publisher.folder()
    assert folder is not None
    assert {tensor.dtype for _, tensor in read_snapshot(folder)} == {torch.bfloat16}
    held.pop()
    with pytest.raises(EngineError, match="weights lack"):
        await publisher.stage(Weights(here, save), 2)
    await publisher.transport.close()


class HandleReader:
    """An engine that opens what it is sent by handle, as another process does: not by what this one has open."""

    atomic = False

    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self.handles: set[bytes] = set()
        self.calls = 0

    async def begin(self) -> None:
        self.tensors.clear()

    async def end(self) -> None: ...

    async def load_bucket(self, payloads: Sequence[str], commit: LoadCommit | None) -> None:
        self.calls += 1
        for text in payloads:
            reductions.shared_cache.clear()
            for name, tensor in pickle.loads(base64.b64decode(text)):
                self.tensors[name] = tensor.clone()
            self.handles |= set(reductions.shared_cache)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_what_keeps_shared_memory_does_not_keep_the_errors_of_this_process_open() -> None:
    """`agentrl train 2>&1 | tee log` waited for a server's end, since torch's process lives as long as its readers."""
    SharedBuffer().fill(Bucket(("a",), (torch.ones(3),)))

    def name(process: int) -> str:
        with contextlib.suppress(OSError):  # it has ended meanwhile
            return Path(f"/proc/{process}/comm").read_text()
        return ""

    keepers = [each for each in descendants(os.getpid()) if "shm" in name(each)]
    assert keepers
    ours = {os.readlink(f"/proc/self/fd/{number}") for number in (1, 2)}
    assert not {os.readlink(f"/proc/{each}/fd/{number}") for each in keepers for number in (1, 2)} & ours


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [0, 9000, 1 << 20], ids=["nothing ahead", "some of it", "all of it"])
async def test_shared_memory_is_kept_from_one_publication_to_the_next_however_many_read_it(ahead: int) -> None:
    """Whoever closes torch's shared memory last removes it: four readers of each bucket would have been the last."""
    transport, engines = IpcTransport(4000, 2, ahead), {name: HandleReader() for name in "ab"}
    for version in range(6):
        sent = [(f"w{i}", torch.full((30, i + 1), version + i / 8).to(DTYPES[i % 3])) for i in range(20)]
        await transport.stage(sent, version)
        if version == 3:  # one that is never sent
            continue
        for _ in range(1 + (version == 4)):  # and one that is sent again
            assert await transport.send(engines, LoadCommit(version, flush=True)) == dict.fromkeys("ab")  # type: ignore[arg-type]
            for engine in engines.values():
                assert [*engine.tensors] == [name for name, _ in sent]
                assert all(torch.equal(engine.tensors[name], tensor) for name, tensor in sent)
        if version == 0:
            for engine in engines.values():
                engine.handles.clear()  # buffers grow in the first publication
    assert engines["a"].handles == engines["b"].handles
    shared = [len(Path(f"/dev/shm{handle.decode()}").read_bytes()) for handle in engines["a"].handles]  # noqa: ASYNC240
    assert sum(shared) <= ahead + 2 * 8000
    await transport.close()
    reductions.shared_cache.clear()
    gc.collect()
    assert not any(os.path.exists(f"/dev/shm{handle.decode()}") for handle in engines["a"].handles)  # noqa: ASYNC240


async def test_what_is_copied_ahead_is_sent_in_one_call_and_the_rest_bucket_by_bucket() -> None:
    calls = list[int]()
    for ahead in (0, 9000, 1 << 20):
        transport, engine = IpcTransport(4000, 1, ahead), HandleReader()
        sent = [(f"w{i}", torch.full((1000,), i / 8)) for i in range(6)]
        await transport.stage(sent, 1)
        for _, tensor in sent[: min(2, ahead)]:
            tensor.zero_()  # the copy does not see it
        await transport.send({"a": engine}, LoadCommit(1, flush=True))  # type: ignore[dict-item]
        assert [float(engine.tensors[f"w{i}"][0]) for i in range(6)] == [i / 8 for i in range(6)]
        calls.append(engine.calls)
        await transport.close()
    assert calls == [6, 5, 1]
