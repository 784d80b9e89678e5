"""Deltas: what they bring about, how small they are, and that no crash leaves a replica in between."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.errors import EngineError
from agentrl.rollout.weights import delta as delta_module
from agentrl.rollout.weights.delta import BLOCK, REDO, Replica, TensorChange, compare, patch
from agentrl.rollout.weights.snapshot import read_snapshot, write_snapshot
from agentrl.rollout.weights.transports import DeltaTransport

WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


@settings(deadline=None, max_examples=60, derandomize=True)
@given(st.sampled_from([1, 2, 4, 8]), st.integers(1, 3 * BLOCK), st.floats(0, 1), st.integers(0, 2**31))
def test_patching_with_a_comparison_gives_the_new_words(word: int, count: int, share: float, seed: int) -> None:
    dice = np.random.default_rng(seed)
    old = dice.integers(0, 256, count * word, dtype=np.uint8).view(WORDS[word])
    new = old.copy()
    places = dice.choice(count, int(share * count), replace=False)
    new[places] ^= dice.integers(1, 127, len(places)).astype(WORDS[word])
    change = compare(old, new, "file", "name", 0)
    assert (change is None) == (not len(places))
    if change is not None:
        assert len(change.payload) <= len(places) * (word + 2)
        assert len(change.payload) <= new.nbytes
        for _ in range(2):  # a redo log may be replayed
            patch(old, change)
            assert (old == new).all()


def model(seed: int, dtype: torch.dtype = torch.bfloat16) -> dict[str, torch.Tensor]:
    dice = torch.Generator().manual_seed(seed)
    shapes = {"embed.weight": (300, 64), "layer.weight": (700, 300), "norm.weight": (64,), "empty": (0, 4)}
    return {name: torch.randn(shape, generator=dice).to(dtype) for name, shape in shapes.items()}


def nudged(weights: dict[str, torch.Tensor], share: float, seed: int = 0) -> dict[str, torch.Tensor]:
    """A share of all elements changed, anywhere."""
    dice = torch.Generator().manual_seed(seed)
    return {
        name: torch.where(torch.rand(tensor.shape, generator=dice) < share, tensor + 1, tensor)
        for name, tensor in weights.items()
    }


@pytest.fixture
def replica(tmp_path: Path) -> Replica:
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "config.json").write_text("{}")
    write_snapshot(model(1).items(), tmp_path / "replica", tmp_path / "base", 200_000)
    return Replica(tmp_path / "replica", "first")


def holds(folder: Path, weights: dict[str, torch.Tensor]) -> bool:
    found = dict(read_snapshot(folder))
    return found.keys() == weights.keys() and all(torch.equal(found[name], weights[name]) for name in weights)


def test_a_change_of_one_percent_travels_in_a_tenth_of_the_bytes(replica: Replica, tmp_path: Path) -> None:
    new = nudged(model(1), 0.01)
    replica.encode(new.items(), tmp_path / "d")
    whole = sum(tensor.nbytes for tensor in new.values())
    assert (tmp_path / "d").stat().st_size * 10 < whole


def test_a_chain_of_deltas_leads_where_the_weights_went(replica: Replica, tmp_path: Path) -> None:
    weights = model(1)
    for step, share in enumerate([0.01, 1.0, 0.0, 0.3]):
        weights = nudged(weights, share, step)
        identity = replica.encode(weights.items(), tmp_path / "d")
        replica.apply(tmp_path / "d")
        assert replica.identity == identity
        assert holds(replica.folder, weights)
        assert Replica(replica.folder).identity == identity


def test_a_delta_for_another_parent_is_refused_and_changes_nothing(replica: Replica, tmp_path: Path) -> None:
    shutil.copytree(replica.folder, tmp_path / "other")
    other = Replica(tmp_path / "other")
    first = nudged(model(1), 0.1)
    other.encode(first.items(), tmp_path / "d1")
    other.apply(tmp_path / "d1")
    other.encode(nudged(first, 0.1, 7).items(), tmp_path / "d2")
    with pytest.raises(EngineError, match="parent"):
        replica.apply(tmp_path / "d2")
    assert holds(replica.folder, model(1))


@settings(deadline=None, max_examples=40, derandomize=True)
@given(at=st.floats(0, 1), flip=st.integers(1, 255), cut=st.booleans())
@pytest.mark.slow
def test_a_damaged_delta_is_refused_and_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, at: float, flip: int, cut: bool
) -> None:
    path = tmp_path_factory.mktemp("damaged")
    (path / "base").mkdir()
    write_snapshot(model(1).items(), path / "replica", path / "base", 1 << 20)
    replica = Replica(path / "replica", "first")
    replica.encode(nudged(model(1), 0.02).items(), path / "d")
    data = bytearray((path / "d").read_bytes())
    place = min(int(at * len(data)), len(data) - 1)
    if cut:
        del data[place:]
    else:
        data[place] ^= flip
    (path / "d").write_bytes(data)
    with pytest.raises((EngineError, ValueError)):
        replica.apply(path / "d")
    assert holds(replica.folder, model(1))
    assert Replica(replica.folder).identity == "first"


def test_a_delta_whose_frame_names_exabytes_is_refused_before_memory_is_allocated(tmp_path: Path) -> None:
    """A flipped bit in a frame's size once ended in a MemoryError."""
    (tmp_path / "base").mkdir()
    write_snapshot(model(1).items(), tmp_path / "replica", tmp_path / "base", 1 << 20)
    replica = Replica(tmp_path / "replica", "first")
    replica.encode(nudged(model(1), 0.02).items(), tmp_path / "d")
    data = bytearray((tmp_path / "d").read_bytes())
    data[data.index(b"\n") + 8] ^= 0x10  # the highest byte of the first frame's size
    (tmp_path / "d").write_bytes(data)
    with pytest.raises(EngineError, match="more bytes than it has"):
        replica.apply(tmp_path / "d")


@pytest.mark.parametrize("hosts", [0, 2])
async def test_a_delta_arrives_where_engines_load_it_and_no_more_copies_are_kept_than_hosts_need(
    tmp_path: Path, hosts: int
) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "config.json").write_text("{}")
    named = [tmp_path / f"host{number}" for number in range(hosts)]
    transport = DeltaTransport(tmp_path / "base", tmp_path / "weights", 1 << 20, named)
    for weights in (model(1), nudged(model(1), 0.02), nudged(model(1), 0.02, seed=1)):
        await transport.stage(weights.items(), 1)
        for folder in named or [tmp_path / "weights" / "mirror"]:
            assert holds(folder, weights)
        assert transport.folder() == (named or [tmp_path / "weights" / "mirror"])[0]
    assert [path.name for path in (tmp_path / "weights").iterdir()] == ["mirror"]
    await transport.close()


class Crash(BaseException):
    """The process is gone."""


@pytest.mark.parametrize("after", range(4))
def test_a_replica_that_was_killed_while_patching_is_whole_once_opened(
    replica: Replica, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """Killed after so many tensors: opening it again finishes the job, and nothing else does."""
    new = nudged(model(1), 0.2)
    identity = replica.encode(new.items(), tmp_path / "d")
    done = 0

    def dying(words: Any, change: TensorChange) -> None:
        nonlocal done
        before = words.copy()
        patch(words, change)
        if done == after:
            words[len(words) // 2 :] = before[len(words) // 2 :]  # half a tensor was written
            raise Crash
        done += 1

    monkeypatch.setattr(delta_module, "patch", dying)
    try:
        replica.apply(tmp_path / "d")
    except Crash:
        assert (replica.folder / REDO).exists()
    monkeypatch.undo()
    opened = Replica(replica.folder)
    assert opened.identity == identity
    assert holds(replica.folder, new)
    assert not (replica.folder / REDO).exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (lambda w: {k: v for k, v in w.items() if k != "norm.weight"}, "norm.weight"),
        (lambda w: {**w, "more": torch.zeros(1)}, "more"),
        (lambda w: {**w, "norm.weight": torch.zeros(63, dtype=torch.bfloat16)}, "norm.weight"),
        (lambda w: {**w, "norm.weight": torch.zeros(64)}, "F32"),
    ],
)
def test_weights_that_do_not_fit_are_refused_by_name(replica: Replica, tmp_path: Path, wrong: Any, named: str) -> None:
    with pytest.raises(EngineError, match=named):
        replica.encode(wrong(model(1)).items(), tmp_path / "d")
    assert not (tmp_path / "d").exists()
    assert holds(replica.folder, model(1))
