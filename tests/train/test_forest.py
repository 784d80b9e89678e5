from __future__ import annotations

import dataclasses
import pickle
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.errors import InvalidInput
from agentrl.train.forest.forest import Forest
from agentrl.train.forest.packing import pack
from tests.train.trees import as_group, leaf_credit, random_session

seeds = st.integers(0, 10**6)


def random_forest(seed: int) -> Forest:
    rng = random.Random(seed)
    while True:
        sessions = [random_session(rng, f"s{i}", [9, 10, 11], depth=6, branching=5) for i in range(3)]
        credit, _ = leaf_credit(rng, sessions)
        if forests := pack([as_group(sessions)], credit, 10_000, merge="channels"):
            return forests[0]


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(seed=seeds)
def test_a_query_sees_exactly_its_ancestors_and_itself(seed: int) -> None:
    forest = random_forest(seed)
    index = torch.arange(len(forest))
    seen = forest.visible(index[:, None], index[None, :])
    parents = forest.parents().tolist()
    for query in range(len(forest)):
        ancestors, at = set(), query
        while at >= 0:
            ancestors.add(at)
            at = parents[at]
        assert set(torch.nonzero(seen[query]).flatten().tolist()) == ancestors


@settings(max_examples=40, deadline=None)
@given(seed=seeds)
@pytest.mark.slow
def test_path_sums_equal_a_walk_to_the_root(seed: int) -> None:
    forest = random_forest(seed)
    values = torch.randn(len(forest), dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    sums = forest.path_sum(values)
    for token, parent in enumerate(forest.parents().tolist()):
        above = sums[parent] if parent >= 0 else 0.0
        assert float(sums[token]) == pytest.approx(float(above + values[token]), abs=1e-9)


@settings(max_examples=20, deadline=None)
@given(seed=seeds, extra=st.integers(0, 100))
@pytest.mark.slow
def test_padding_adds_untrained_trees_that_no_token_attends_to(seed: int, extra: int) -> None:
    forest = random_forest(seed)
    padded = forest.padded(len(forest) + extra)
    padded.check()
    assert len(padded) == len(forest) + extra
    assert padded.trained == forest.trained
    index = torch.arange(len(padded))
    seen = padded.visible(index[:, None], index[None, :])
    assert not seen[: len(forest), len(forest) :].any()
    assert torch.equal(seen[len(forest) :].sum(1), torch.ones(extra, dtype=torch.int64))


@pytest.mark.parametrize(
    ("field", "index", "value", "says"),
    [
        ("end", 0, 0, "end"),
        ("end", 3, 10**6, "end"),
        ("position", 5, 99, "position"),
        ("weight", 0, 1.0, "weight"),
        ("weight", 4, -1.0, "weight"),
        ("advantage", 4, float("nan"), "advantage"),
        ("predictor", 0, 10**3, "predictor"),
    ],
)
def test_check_names_the_field_that_breaks_its_rule(field: str, index: int, value: float, says: str) -> None:
    forest = random_forest(5)
    forest.check()
    tensor = getattr(forest, field).clone()
    tensor[index] = value
    with pytest.raises(InvalidInput, match=says):
        dataclasses.replace(forest, **{field: tensor}).check()


def test_check_notices_a_missing_pair_and_a_short_array() -> None:
    forest = random_forest(5)
    with pytest.raises(InvalidInput, match="target"):
        dataclasses.replace(forest, predictor=forest.predictor[:-1], target=forest.target[:-1]).check()
    with pytest.raises(InvalidInput, match="old_logp"):
        dataclasses.replace(forest, old_logp=torch.zeros(3)).check()


def test_rows_are_the_trained_pairs_by_predictor() -> None:
    forest = random_forest(8)
    rows = forest.rows()
    assert len(rows) == forest.trained
    assert bool((rows.predictor.diff() >= 0).all())
    assert torch.equal(forest.parents()[rows.target], rows.predictor)
    assert torch.equal(rows.turn, forest.node_id[rows.target])
    assert torch.equal(rows.take(torch.arange(2, 5)).version, forest.version[rows.target[2:5]])


@pytest.mark.slow
def test_a_forest_survives_pickling() -> None:
    forest = random_forest(1)
    again = pickle.loads(pickle.dumps(forest))
    again.check()
    assert torch.equal(again.token_ids, forest.token_ids)
    assert again.sessions == forest.sessions
