"""Buckets are bounded, whole and aligned; gathering runs ahead and stops when the consumer does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from agentrl.errors import EngineError
from agentrl.rollout.weights.buckets import Convert, Shapes, Weights, buckets, cast, prefetch
from agentrl.rollout.weights.snapshot import read_snapshot, save_snapshot, write_snapshot

DTYPES = [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.uint8]
named = st.lists(st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 9), max_size=3)), max_size=20)


@settings(deadline=None, derandomize=True)
@given(named, st.integers(1, 2000))
@pytest.mark.slow
def test_buckets_hold_everything_in_order_within_the_limit_and_aligned(
    shapes: list[tuple[torch.dtype, list[int]]], limit: int
) -> None:
    weights = [(f"t{i}", (torch.rand(shape) * 9).to(dtype)) for i, (dtype, shape) in enumerate(shapes)]
    found = list(buckets(weights, limit))
    assert [name for bucket in found for name in bucket.names] == [name for name, _ in weights]
    for bucket in found:
        assert bucket.nbytes <= limit or len([t for t in bucket.tensors if t.nbytes]) == 1
        flat, at = bucket.flat(), 0
        for tensor, dtype, shape in zip(bucket.tensors, bucket.dtypes, bucket.shapes, strict=True):
            assert at % tensor.element_size() == 0
            piece = flat[at : at + tensor.nbytes]
            assert piece.view(getattr(torch, dtype)).view(shape).dtype == tensor.dtype
            assert torch.equal(piece, tensor.contiguous().view(-1).view(torch.uint8))
            at += tensor.nbytes
        assert at == len(flat)
        if len(bucket.tensors) == 1 and len(flat):
            assert flat.data_ptr() == bucket.tensors[0].data_ptr(), "a single tensor is not copied"


def test_gathering_is_one_thread_that_runs_ahead_no_further_than_its_limit() -> None:
    threads, drawn, more = set(), [], threading.Semaphore(0)

    def source() -> Iterator[int]:
        for item in range(100):
            threads.add(threading.get_ident())
            drawn.append(item)
            more.release()
            yield item

    items = prefetch(source(), depth=2)
    assert next(items) == 0
    for _ in range(4):  # one taken, two in the box, one in hand
        assert more.acquire(timeout=60)
    assert not more.acquire(timeout=0.2)
    items.close()  # type: ignore[attr-defined]
    assert len(drawn) <= 5
    assert len(threads) == 1
    assert threads.isdisjoint({threading.get_ident()})


def test_a_source_that_fails_fails_its_reader() -> None:
    def source() -> Iterator[int]:
        yield 1
        raise EngineError("gone")

    items = prefetch(source())
    assert next(items) == 1
    with pytest.raises(EngineError, match="gone"):
        next(items)


def test_weights_can_be_gone_through_again() -> None:
    weights = Weights(lambda: iter([("a", torch.ones(1))]))
    assert [name for name, _ in weights] == [name for name, _ in weights] == ["a"]


def test_a_snapshot_is_a_folder_that_the_library_reads_and_is_replaced_as_a_whole(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    (base / "config.json").write_text("{}")
    (base / "model.safetensors").write_bytes(b"old weights")
    weights = [(f"w{i}", torch.randn(40, 50).to(dtype)) for i, dtype in enumerate([torch.float32, torch.bfloat16] * 3)]
    for scale in (1, 2):
        new = [(name, tensor * scale) for name, tensor in weights]
        folder = write_snapshot(new, tmp_path / "out", base, 20_000)
        found = {name: t for file in folder.glob("*.safetensors") for name, t in load_file(file).items()}
        assert found.keys() == dict(new).keys()
        assert all(torch.equal(found[name], tensor) for name, tensor in new)
        assert all(torch.equal(tensor, dict(new)[name]) for name, tensor in read_snapshot(folder))
    assert {path.name for path in tmp_path.iterdir()} == {"base", "out"}
    assert (folder / "config.json").exists()
    assert len(list(folder.glob("*.safetensors"))) > 1


def test_a_name_given_twice_is_refused_and_the_old_snapshot_stays(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    write_snapshot([("a", torch.ones(2))], tmp_path / "out", tmp_path / "base", 8)
    with pytest.raises(EngineError, match="'a'"):
        write_snapshot([("a", torch.ones(2)), ("a", torch.ones(2))], tmp_path / "out", tmp_path / "base", 8)
    assert [name for name, _ in read_snapshot(tmp_path / "out")] == ["a"]


def test_weights_of_another_process_are_written_there_and_never_come_here(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    held = [("a", torch.ones(2)), ("b", torch.ones(3, 4))]

    def source() -> Iterator[tuple[str, torch.Tensor]]:
        raise AssertionError("they were asked for here")
        yield

    def save(folder: Path, base: Path, limit: int, convert: Convert | None = None) -> Shapes:
        return save_snapshot(convert(held) if convert else held, folder, base, limit)

    write_snapshot(Weights(source, save), tmp_path / "out", tmp_path / "base", 8)
    found = dict(read_snapshot(tmp_path / "out"))
    assert found.keys() == {"a", "b"}
    assert all(torch.equal(found[name], tensor) for name, tensor in held)
    assert save(tmp_path / "out", tmp_path / "base", 8) == {"a": (2,), "b": (3, 4)}


@pytest.mark.slow
def test_only_floating_point_weights_are_cast() -> None:
    weights = [
        ("a", torch.ones(2)),
        ("b", torch.ones(2, dtype=torch.int64)),
        ("c", torch.ones(2).to(torch.float8_e4m3fn)),
    ]
    assert [t.dtype for _, t in cast(weights, torch.bfloat16)] == [torch.bfloat16, torch.int64, torch.float8_e4m3fn]
