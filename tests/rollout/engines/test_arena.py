"""Rows and the prefix store, against what they mean."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from agentrl.rollout.engines.local.arena import BLOCK, Arena, Prefix, Prefixes, bucket, chain, common

IDS = st.lists(st.integers(0, 1), max_size=70)


def arena(rows: int = 4, budget: int = 1 << 20) -> Arena:
    shape = {"layers": 2, "heads": 1, "width": 4}
    return Arena(**shape, rows=rows, budget_bytes=budget, dtype=torch.float32, device=torch.device("cpu"))


@given(IDS, IDS)
def test_common_is_the_longest_common_prefix(a: list[int], b: list[int]) -> None:
    length = common(a, b)
    assert a[:length] == b[:length]
    assert length in (len(a), len(b)) or a[length] != b[length]


@given(st.lists(IDS, max_size=6), IDS)
def test_the_store_finds_the_longest_prefix_that_spans_a_block(known: list[list[int]], ids: list[int]) -> None:
    store = Prefixes(capacity=10_000)
    for index, path in enumerate(known):
        store.add(Prefix(str(index), path, len(path), chain(path), kv=torch.zeros(1)))
    best = max((common(ids, path) for path in known), default=0)
    found, length = store.find(ids, chain(ids))
    assert length == (best if best >= BLOCK else 0)
    assert (found is None) == (length == 0)


@given(st.lists(st.integers(1, 60), max_size=20), st.integers(60, 200))
def test_the_store_forgets_the_least_recently_used_and_keeps_to_its_capacity(lengths: list[int], capacity: int) -> None:
    store = Prefixes(capacity)
    for index, length in enumerate(lengths):
        path = [index] * length
        store.add(Prefix(str(index), path, length, chain(path), kv=torch.zeros(1)))
        assert store.tokens == sum(prefix.computed for prefix in store.stored.values()) <= capacity
    kept = [prefix.owner for prefix in store.stored.values()]
    assert kept == [str(index) for index in range(len(lengths) - len(kept), len(lengths))]
    for prefix in list(store.stored.values()):
        store.remove(prefix)
    assert (store.tokens, store.find([0] * 60, chain([0] * 60))) == (0, (None, 0))


def test_a_longer_path_makes_all_rows_longer_and_keeps_what_they_hold() -> None:
    rows = arena()
    held = torch.randn(2, 2, 1, 100, 4)
    rows.copy_in(1, held, Prefix("", (), 100, ()), 100)
    rows.reserve(1000)
    assert rows.length >= 1000
    assert torch.equal(rows.copy_out(1, 100), held)
    rows.move(1, 3, 50)
    assert torch.equal(rows.copy_out(3, 50), held[:, :, :, :50])


def test_the_budget_bounds_rows_times_length() -> None:
    rows = arena(rows=64, budget=64 << 10)
    for length in (256, 500, 900):
        rows.reserve(length)
        assert rows.length >= length
        assert rows.kv.nbytes <= 64 << 10 or rows.rows == 1


@given(st.integers(1, 10_000))
def test_buckets_hold_their_length_and_waste_little(length: int) -> None:
    assert length <= bucket(length) < length + max(32, length // 2)
    assert bucket(length) % 32 == 0
