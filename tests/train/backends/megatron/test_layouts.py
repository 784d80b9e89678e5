"""How parameters are cut: every element of every Hugging Face tensor lands in exactly one shard."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.errors import InvalidInput
from agentrl.train.trainers.megatron.models.layouts import (
    Gated,
    Grouped,
    Halves,
    InputCut,
    Joint,
    ModelSizes,
    OutputCut,
    ParameterLayout,
    Piece,
    Stacked,
    Whole,
    whole_shapes,
)

NO_SIZES = ModelSizes(heads=1, groups=1, head_dim=1, vocabulary=1)


def covered(shards: list[list[Piece]], name: str) -> list[int]:
    """The places of a tensor along its cut dimension that the shards name, each as often as it is named."""
    return sorted(i for pieces in shards for p in pieces if p.name == name for i in range(p.start, p.stop))


@pytest.mark.slow
@given(count=st.sampled_from([1, 2, 4, 8]), size=st.integers(1, 9), other=st.integers(1, 5))
@settings(derandomize=True, deadline=None)
@pytest.mark.parametrize("layout", [OutputCut("a"), InputCut("a"), Gated("a", "b"), Halves("a")], ids=repr)
def test_every_place_of_every_tensor_is_in_exactly_one_shard(
    layout: ParameterLayout, count: int, size: int, other: int
) -> None:
    local = (other, 2 * size) if isinstance(layout, InputCut) else (2 * size, other)
    shards = layout.shards(local, count, NO_SIZES)
    shapes = whole_shapes(shards, local)
    assert len(shards) == count
    assert set(shapes) == set(layout.names())
    for name, shape in shapes.items():
        dim = 1 if isinstance(layout, InputCut) else 0
        assert covered(shards, name) == list(range(shape[dim]))
        assert shape[1 - dim] == other
    for pieces in shards:
        assert sum(map(len, pieces)) == 2 * size, "a shard is filled by its pieces"


@given(
    groups=st.sampled_from([1, 2, 4, 8]),
    per_group=st.integers(1, 4),
    head_dim=st.integers(1, 6),
    count=st.sampled_from([1, 2, 4, 8]),
)
@settings(derandomize=True, deadline=None)
@pytest.mark.slow
def test_query_key_and_value_are_covered_whatever_the_number_of_ranks_and_groups(
    groups: int, per_group: int, head_dim: int, count: int
) -> None:
    rows = groups * (per_group + 2) * head_dim
    sizes = ModelSizes(heads=groups * per_group, groups=groups, head_dim=head_dim, vocabulary=1)
    layout = Grouped("q", "k", "v")
    if rows % count:
        with pytest.raises(InvalidInput, match="rows"):
            layout.shards((rows // count, 3), count, sizes)
        return
    shards = layout.shards((rows // count, 3), count, sizes)
    assert [sum(map(len, pieces)) for pieces in shards] == [rows // count] * count
    assert covered(shards, "q") == list(range(groups * per_group * head_dim))
    assert covered(shards, "k") == covered(shards, "v") == list(range(groups * head_dim))
    joint = Joint("qkv").shards((rows // count, 3), count, sizes)
    assert [sum(map(len, pieces)) for pieces in joint] == [rows // count] * count
    assert covered(joint, "qkv") == list(range(rows))
    assert whole_shapes(joint, (rows // count, 3)) == {"qkv": (rows, 3)}


@pytest.mark.slow
def test_a_group_is_its_queries_its_key_and_its_value() -> None:
    sizes = ModelSizes(heads=4, groups=2, head_dim=3, vocabulary=1)
    first, second = Grouped("q", "k", "v").shards((12, 5), 2, sizes)
    assert first == [Piece("q", 0, 0, 6), Piece("k", 0, 0, 3), Piece("v", 0, 0, 3)]
    assert second == [Piece("q", 0, 6, 12), Piece("k", 0, 3, 6), Piece("v", 0, 3, 6)]


@pytest.mark.slow
def test_more_ranks_than_groups_cut_within_a_group() -> None:
    sizes = ModelSizes(heads=4, groups=1, head_dim=3, vocabulary=1)
    shards = Grouped("q", "k", "v").shards((9, 5), 2, sizes)
    assert shards == [
        [Piece("q", 0, 0, 9)],
        [Piece("q", 0, 9, 12), Piece("k", 0, 0, 3), Piece("v", 0, 0, 3)],
    ]


@pytest.mark.slow
def test_gate_and_up_are_joined_rank_by_rank() -> None:
    assert Gated("g", "u").shards((4, 3), 2, NO_SIZES)[1] == [Piece("g", 0, 2, 4), Piece("u", 0, 2, 4)]
    assert Halves("gu").shards((4, 3), 2, NO_SIZES)[1] == [Piece("gu", 0, 2, 4), Piece("gu", 0, 6, 8)]


@pytest.mark.parametrize("by_turns", [False, True])
@pytest.mark.slow
def test_an_expert_is_a_layer_of_one_tensor_that_has_inputs_before_outputs(by_turns: bool) -> None:
    layout = Stacked("e", by_turns=by_turns)
    weight, bias = torch.arange(12).view(4, 3), torch.arange(4)
    assert layout.outward(weight).shape == layout.filed((4, 3)) == (1, 3, 4)
    assert layout.outward(bias).shape == layout.filed((4,)) == (1, 4)
    assert layout.outward(bias)[0].tolist() == ([0, 2, 1, 3] if by_turns else [0, 1, 2, 3])
    for shard in (weight, bias):
        assert torch.equal(layout.inward(layout.outward(shard)), shard)
    shards = layout.shards((1, 3, 4), 5, NO_SIZES)
    assert shards == [[Piece("e", 0, i, i + 1)] for i in range(5)]
    assert whole_shapes(shards, (1, 3, 4)) == {"e": (5, 3, 4)}


@given(vocabulary=st.integers(1, 40), count=st.sampled_from([1, 2, 4, 8]))
@settings(derandomize=True, deadline=None)
@pytest.mark.slow
def test_a_padded_vocabulary_has_the_real_rows_and_padding_behind_them(vocabulary: int, count: int) -> None:
    size = -(-vocabulary // count)
    sizes = ModelSizes(heads=1, groups=1, head_dim=1, vocabulary=vocabulary)
    shards = OutputCut("e", vocabulary=True).shards((size, 3), count, sizes)
    assert covered(shards, "e") == list(range(vocabulary))
    assert sum(len(p) for pieces in shards for p in pieces if not p.name) == size * count - vocabulary
    assert [sum(map(len, pieces)) for pieces in shards] == [size] * count
    assert whole_shapes(shards, (size, 3)) == {"e": (vocabulary, 3)}


@pytest.mark.slow
def test_what_is_the_same_everywhere_is_cut_nowhere() -> None:
    assert Whole("n").shards((7,), 3, NO_SIZES) == [[Piece("n", 0, 0, 7)]] * 3


@pytest.mark.parametrize(
    ("layout", "names"),
    [(Whole("a", precise=True), ("a",)), (Gated("g", "u"), ("g", "u")), (Grouped("q", "k", "v"), ("q", "k", "v"))],
)
@pytest.mark.slow
def test_a_layout_names_its_tensors(layout: Any, names: tuple[str, ...]) -> None:
    assert layout.names() == names
