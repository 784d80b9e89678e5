from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from agentrl.attachments.images import ImageInputs
from agentrl.errors import InvalidInput
from agentrl.models.reach import Reach
from agentrl.models.vision_trials import RandomImages
from agentrl.train.forest.forest import Forest
from agentrl.train.forest.packing import pack
from agentrl.train.forest.pictures import last_seen
from agentrl.train.trainers import reference
from agentrl.train.trainers.attention import BlockPlan, causal_rows, forest_attention
from agentrl.train.trainers.flex import FLEX_BLOCK, FlexPlan, flex_mask
from agentrl.train.trainers.torch_trainer.batch import padded_length
from tests.train.trees import VOCABULARY, as_group, leaf_credit, linear_session, random_session


def random_forest(seed: int, trees: int = 4) -> Forest:
    rng = random.Random(seed)
    while True:
        sessions = [random_session(rng, f"s{i}", [i, 9, 10, 11], depth=6, branching=5) for i in range(trees)]
        credit, _ = leaf_credit(rng, sessions)
        if forests := pack([as_group(sessions)], credit, 100_000):
            return forests[0]


def seeing_forest(seed: int) -> Forest:
    """Trees with images of 3 and 9 tokens, which see each other both ways."""

    class Images(RandomImages):
        def __init__(self) -> None:
            self.token = 47

        def draw(self, rng: random.Random) -> ImageInputs:
            frames = [np.full((3, 2, 2), rng.random(), dtype=np.float32) for _ in range(2)]
            return ImageInputs(47, b"s" * 16, tuple(frames), ((1, 3), (3, 3)), both=True)

    forest = reference.random_forest(random.Random(seed), VOCABULARY, (2, 3, 0, 1), seen=Images())
    forest.check()
    return forest


def dense(forest: Forest) -> Tensor:
    index = torch.arange(len(forest))
    return forest.visible(index[:, None], index[None, :])


def reaches(*tokens: int) -> list[Reach | None]:
    """All of the path, windows, chunks."""
    return [None, *(Reach(number, chunked) for number in tokens for chunked in (False, True))]


def within(forest: Forest, reach: Reach | None) -> Tensor:
    """What is visible under a window, or in a chunk: the reference, by depths along the path."""
    query, key = forest.position[:, None], forest.position[None, :]
    if reach is None:
        return dense(forest)
    return dense(forest) & (
        query // reach.tokens == key // reach.tokens if reach.chunked else query - key < reach.tokens
    )


def heads(tokens: int, kv: int, generator: torch.Generator, dim: int = 16) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (torch.randn(1, h, tokens, dim, generator=generator, requires_grad=True) for h in (4, kv, kv))
    return q, k, v


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), block=st.sampled_from((1, 3, 16, 64, 10_000)), kv=st.sampled_from((1, 2, 4)))
@pytest.mark.slow
def test_blocks_of_queries_equal_the_dense_square_forward_and_backward(seed: int, block: int, kv: int) -> None:
    forest = random_forest(seed)
    q, k, v = heads(len(forest), kv, torch.Generator().manual_seed(seed))
    weigh = torch.randn(1, len(forest), 4, 16)
    ours = BlockPlan(forest, block)(q, k, v, 0.25)
    theirs = F.scaled_dot_product_attention(q, k, v, attn_mask=dense(forest), scale=0.25, enable_gqa=True)
    assert torch.allclose(ours, theirs.transpose(1, 2), atol=1e-5)
    found = torch.autograd.grad((ours * weigh).sum(), (q, k, v))
    expected = torch.autograd.grad((theirs.transpose(1, 2) * weigh).sum(), (q, k, v))
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, atol=1e-4)


@settings(max_examples=6, deadline=None)
@given(lengths=st.lists(st.sampled_from((260, 290, 400)), min_size=1, max_size=3), kv=st.sampled_from((1, 4)))
def test_rows_without_branches_attend_causally_as_blocks_with_masks_do(lengths: list[int], kv: int) -> None:
    prompts = [[number, *range(10, 10 + length)] for number, length in enumerate(lengths)]
    sessions = [linear_session(str(number), prompt, [[5]], reward=1.0) for number, prompt in enumerate(prompts)]
    credit, _ = leaf_credit(random.Random(0), sessions)
    (forest,) = pack([as_group([session], session.id) for session in sessions], credit, 100_000)
    plan = BlockPlan(forest)
    assert sum(count * length for _, count, length in plan.rows) == len(forest)
    assert not plan.buckets
    q, k, v = heads(len(forest), kv, torch.Generator().manual_seed(0))
    weigh = torch.randn(1, len(forest), 4, 16)
    found = [plan(q, k, v, 0.25), BlockPlan(forest, 64)(q, k, v, 0.25)]
    assert torch.allclose(*found, atol=1e-5)
    for one, other in zip(*(torch.autograd.grad((each * weigh).sum(), (q, k, v)) for each in found), strict=True):
        assert torch.allclose(one, other, atol=1e-4)
    sinks = torch.randn(4)
    capped = [each(q, k, v, 0.25, 2.0, sinks) for each in (plan, BlockPlan(forest, 64))]
    assert torch.allclose(*capped, atol=1e-5)


@settings(max_examples=6, deadline=None)
@given(prompts=st.lists(st.sampled_from((4, 256, 300)), min_size=1, max_size=4), branches=st.integers(1, 90))
def test_trees_attend_causally_up_to_where_they_branch_as_blocks_with_masks_do(
    prompts: list[int], branches: int
) -> None:
    groups = [
        as_group([linear_session(f"{i}.{n}", [i] * size, [[20 + n, 5]], reward=1.0) for n in range(branches)], str(i))
        for i, size in enumerate(prompts)
    ]
    credit, _ = leaf_credit(random.Random(0), [session for group in groups for session in group.sessions])
    (forest,) = pack(groups, credit, 100_000)
    plan = BlockPlan(forest)
    q, k, v = heads(len(forest), 2, torch.Generator().manual_seed(0))
    weigh = torch.randn(1, len(forest), 4, 16)
    found = [each(q, k, v, 0.25) for each in (plan, BlockPlan(forest, 64))]
    assert torch.allclose(*found, atol=1e-5)
    for one, other in zip(*(torch.autograd.grad((each * weigh).sum(), (q, k, v)) for each in found), strict=True):
        assert torch.allclose(one, other, atol=1e-4)
    for reach, cap in ((Reach(100), None), (None, 2.0)):
        narrow = [each.within(reach)(q, k, v, 0.25, cap) for each in (plan, BlockPlan(forest, 64))]
        assert torch.allclose(*narrow, atol=1e-5)


def test_rows_of_a_call_each_are_long_or_all_of_a_forest() -> None:
    assert BlockPlan(random_forest(3)).rows == []
    assert causal_rows(np.repeat([140, 280], 140)) == [(0, 2, 140)]
    assert causal_rows(np.repeat([140, 281], [140, 141])) == [], "a call each would cost more than a block of both"
    branching = np.array([600] * 300 + [400] * 100 + [600] * 200 + [800] * 200 + [1100] * 300)
    assert causal_rows(branching) == [(0, 1, 300), (800, 1, 300)]


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    block=st.sampled_from((8, 32, 128)),
    reach=st.sampled_from(reaches(1, 5, 12)),
    seeing=st.booleans(),
)
def test_the_block_mask_of_flex_attention_is_the_visibility_rule(
    seed: int, block: int, reach: Reach | None, seeing: bool
) -> None:
    """Written out from its parts: whole blocks see everything, partial ones what the mask function says."""
    assume(not (seeing and reach and reach.chunked))
    forest = seeing_forest(seed) if seeing else random_forest(seed)
    forest = forest.padded(-(-len(forest) // block) * block)
    mask = flex_mask(forest.end, forest.position, block, reach=reach, last=last_seen(forest.fields))
    seen = within(forest, reach)
    count = len(forest) // block
    written = torch.zeros_like(seen)
    zero = torch.tensor(0)
    for row in range(count):
        queries = slice(row * block, (row + 1) * block)
        for column in mask.kv_indices[0, 0, row, : mask.kv_num_blocks[0, 0, row]].tolist():
            keys = torch.arange(column * block, (column + 1) * block)
            written[queries, keys[0] : keys[-1] + 1] = mask.mask_mod(
                zero, zero, torch.arange(queries.start, queries.stop)[:, None], keys[None, :]
            )
        assert mask.full_kv_num_blocks is not None
        assert mask.full_kv_indices is not None
        for column in mask.full_kv_indices[0, 0, row, : mask.full_kv_num_blocks[0, 0, row]].tolist():
            written[queries, column * block : (column + 1) * block] = True
    assert torch.equal(written, seen)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("kv", [2, 4])
@pytest.mark.slow
def test_flex_attention_equals_the_dense_square_on_a_cpu_too(kv: int) -> None:
    forest = random_forest(3)
    padded = forest.padded(padded_length(len(forest)))
    q, k, v = (x.detach() for x in heads(len(padded), kv, torch.Generator().manual_seed(0)))
    ours = FlexPlan(padded, compiled=False)(q, k, v, 0.25)
    theirs = F.scaled_dot_product_attention(q, k, v, attn_mask=dense(padded), scale=0.25, enable_gqa=True)
    assert torch.allclose(ours, theirs.transpose(1, 2), atol=1e-5)


def test_flex_attention_wants_whole_blocks() -> None:
    padded = random_forest(3).padded(FLEX_BLOCK * 10 + 1)
    with pytest.raises(InvalidInput, match="pad the forest"):
        flex_mask(padded.end, padded.position)


@given(st.integers(1, 10**6))
def test_lengths_are_padded_to_few_and_never_by_much(tokens: int) -> None:
    length = padded_length(tokens)
    assert length >= tokens
    assert length % FLEX_BLOCK == 0
    assert length - tokens < max(FLEX_BLOCK, tokens // 4 + 1)


def test_there_are_few_padded_lengths() -> None:
    assert len({padded_length(t) for t in range(1, 65_537)}) <= 40


def eager(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, softcap: float | None, sinks: Tensor | None) -> Tensor:
    """Gemma 2's and GPT-OSS's attention, written out over the whole square."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    score = q @ k.transpose(-1, -2) * 0.25
    if softcap is not None:
        score = softcap * torch.tanh(score / softcap)
    score = score.masked_fill(~seen, -torch.inf)
    if sinks is not None:
        score = torch.cat((score, sinks[None, :, None, None].expand(1, -1, len(seen), 1)), -1)
    return (torch.softmax(score, -1)[..., : len(seen)] @ v).transpose(1, 2)


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    block=st.sampled_from((1, 5, 16, 64, 10_000)),
    reach=st.sampled_from(reaches(1, 2, 7, 12, 10_000)),
    softcap=st.sampled_from((None, 0.5)),
    sinks=st.booleans(),
    seeing=st.booleans(),
)
@pytest.mark.slow
def test_windows_caps_sinks_and_images_equal_the_dense_square_forward_and_backward(
    seed: int, block: int, reach: Reach | None, softcap: float | None, sinks: bool, seeing: bool
) -> None:
    assume(not (seeing and reach and reach.chunked))
    forest = seeing_forest(seed) if seeing else random_forest(seed)
    inputs = [*heads(len(forest), 2, torch.Generator().manual_seed(seed))]
    if sinks:
        inputs.append(torch.randn(4, requires_grad=True))
    q, k, v, *rest = inputs
    sink = rest[0] if rest else None
    weigh = torch.randn(1, len(forest), 4, 16)
    ours = BlockPlan(forest, block).within(reach)(q, k, v, 0.25, softcap, sink)
    theirs = eager(q, k, v, within(forest, reach), softcap, sink)
    assert torch.allclose(ours, theirs, atol=1e-5)
    found = torch.autograd.grad((ours * weigh).sum(), inputs)
    expected = torch.autograd.grad((theirs * weigh).sum(), inputs)
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, atol=1e-4)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("reach", reaches(3, 12))
@pytest.mark.slow
def test_flex_attention_has_windows_caps_and_sinks_too(reach: Reach | None) -> None:
    forest = random_forest(3)
    padded = forest.padded(padded_length(len(forest)))
    q, k, v = (x.detach() for x in heads(len(padded), 2, torch.Generator().manual_seed(0)))
    sinks = torch.randn(4)
    plan = FlexPlan(padded, compiled=False).within(reach)
    for softcap, sink in ((None, None), (0.5, None), (None, sinks), (0.5, sinks)):
        ours = plan(q, k, v, 0.25, softcap, sink)
        assert torch.allclose(ours, eager(q, k, v, within(padded, reach), softcap, sink), atol=1e-5)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("reach", reaches(3, 40))
@pytest.mark.slow
def test_a_part_of_the_queries_sees_what_it_sees_among_all(reach: Reach | None) -> None:
    """As context-parallel ranks ask: some blocks of the row, for keys of the whole row."""
    forest = random_forest(3).padded(3 * FLEX_BLOCK)
    q, k, v = (x.detach() for x in heads(len(forest), 2, torch.Generator().manual_seed(0)))
    asked = torch.cat((torch.arange(FLEX_BLOCK), torch.arange(2 * FLEX_BLOCK, 3 * FLEX_BLOCK)))
    blocks, flex = BlockPlan.__new__(BlockPlan), FlexPlan.__new__(FlexPlan)
    blocks.begin(forest.end.numpy(), forest.position.numpy(), FLEX_BLOCK, asked.numpy())
    flex.begin(forest.end, forest.position, asked, compiled=False)
    want = eager(q, k, v, within(forest, reach), None, None)[:, asked]
    for plan in (blocks, flex):
        assert torch.allclose(plan.within(reach)(q[:, :, asked], k, v, 0.25), want, atol=1e-5)


def test_a_plan_is_narrowed_once_for_all_layers_and_not_where_no_path_reaches_the_window() -> None:
    forest = random_forest(3)
    longest = int(forest.position.max()) + 1
    padded = forest.padded(padded_length(len(forest)))
    for plan in (BlockPlan(forest), FlexPlan(padded, compiled=False)):
        assert plan.within(Reach(longest)) is plan.within(None) is plan
        assert plan.within(Reach(longest - 1)) is plan.within(Reach(longest - 1)) is not plan


def test_a_layer_that_keeps_its_window_to_itself_has_it_all_the_same() -> None:
    forest = random_forest(3)
    plan = BlockPlan(forest)
    q, k, v = heads(len(forest), 4, torch.Generator().manual_seed(0))
    layer = nn.Identity()
    layer.sliding_window = 3
    passed = forest_attention(nn.Identity(), q, k, v, None, forest_plan=plan, sliding_window=3)[0]
    assert torch.equal(forest_attention(layer, q, k, v, None, forest_plan=plan)[0], passed)
    assert not torch.equal(forest_attention(nn.Identity(), q, k, v, None, forest_plan=plan)[0], passed)


def test_queries_that_llama_4_scales_by_their_place_are_scaled_by_their_place_along_the_path() -> None:
    """Its layers take a token's place in the row for it, which in a forest is another."""
    forest = random_forest(3)
    q, k, v = heads(len(forest), 4, torch.Generator().manual_seed(0))
    layer: Any = nn.Identity()
    layer.attn_temperature_tuning, layer.use_rope, layer.floor_scale, layer.attn_scale = True, False, 4, 0.1
    by_row, by_path = (
        1 + 0.1 * torch.log1p(torch.floor((place + 1.0) / 4)) for place in (torch.arange(len(forest)), forest.position)
    )
    ours = forest_attention(layer, q * by_row[:, None], k, v, None, forest_plan=BlockPlan(forest))[0]
    want = forest_attention(nn.Identity(), q * by_path[:, None], k, v, None, forest_plan=BlockPlan(forest))[0]
    assert torch.allclose(ours, want, atol=1e-6)
    assert not torch.equal(by_row, by_path)
