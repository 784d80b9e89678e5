"""Rows that begin alike are read once, and no number tells."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.models import tiny
from agentrl.rollout.engines.local.arena import Arena, chain
from agentrl.rollout.engines.local.flat import BLOCK, StepLayout, decode
from agentrl.rollout.engines.local.parts import Shared, parts
from agentrl.rollout.engines.local.request import Request, shared_beginnings
from agentrl.rollout.engines.local.runner import ModelRunner
from agentrl.rollout.engines.local.scheduler import Scheduler
from agentrl.types import Sampling, Turn
from tests.rollout.engines.conftest import TEXTS


def request(ids: list[int], seed: int = 0, row: int = -1) -> Request:
    made = Request(f"s{seed}/0", list(ids), Sampling(max_new_tokens=12), seed, 12, row=row)
    made.prompt, made.hashes = len(ids), chain(ids)
    return made


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 1), max_size=3), st.integers(0, 200)), min_size=1, max_size=8),
)
@pytest.mark.slow
def test_each_row_shares_the_longest_run_of_blocks_that_it_has_in_common_with_another(
    shapes: list[tuple[list[int], int]],
) -> None:
    prompts = [[token for kind in kinds for token in [kind] * BLOCK] + [7] * tail for kinds, tail in shapes]
    found = shared_beginnings([request(ids, row=row) for row, ids in enumerate(prompts)])
    rows = [row for one in found for row in one.rows]
    assert len(rows) == len(set(rows))
    for one in found:
        assert len(one.rows) > 1
        assert one.length > 0
        assert one.length % BLOCK == 0
        assert len({tuple(prompts[row][: one.length]) for row in one.rows}) == 1
        assert all(len(prompts[row]) >= one.length for row in one.rows)
    lengths = {row: one.length for one in found for row in one.rows}
    for row, ids in enumerate(prompts):
        for other, others in enumerate(prompts):
            blocks = BLOCK * (min(len(ids), len(others)) // BLOCK)
            alike = next(n for n in range(blocks, -1, -BLOCK) if ids[:n] == others[:n])
            if other != row and alike:
                assert max(lengths.get(row, 0), lengths.get(other, 0)) >= alike


@pytest.mark.slow
@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from([0, 1, 2]), st.booleans()), min_size=1, max_size=12),
    st.sampled_from([1, 2, 3, 8]),
    st.randoms(use_true_random=False),
)
def test_attention_over_packed_groups_of_any_rows_is_attention_of_each_row_alone(
    seating: list[tuple[int, int, bool]], group: int, dice: random.Random
) -> None:
    torch.manual_seed(dice.getrandbits(32))
    rows, kv_heads, width, reach = len(seating), 2, 16, 320
    keys, values = torch.randn(2, rows, kv_heads, reach, width)
    decoding = [row for row, (_, _, decodes) in enumerate(seating) if decodes]
    companies: dict[tuple[int, int], list[int]] = {}
    for row in decoding:
        companies.setdefault(seating[row][:2], []).append(row)
    shared = [Shared(tuple(mine), n * BLOCK) for (_, n), mine in companies.items() if n and len(mine) > 1]
    for one in shared:
        for kv in (keys, values):
            kv[list(one.rows), :, : one.length] = kv[one.rows[0], :, : one.length].clone()
    query = torch.randn(kv_heads * group, rows, width)
    position = torch.tensor([dice.randrange(2 * BLOCK, reach) for _ in range(rows)])

    def attend(shared: list[Shared]) -> torch.Tensor:
        arena = cast(Arena, SimpleNamespace(kv=keys))
        layout = StepLayout(arena, torch.arange(rows), position, rows=rows, decode_keys=reach)
        layout.decode_parts = parts(decoding, group, reach, shared, torch.device("cpu"))
        return decode(query, keys, values, layout)[decoding]

    assert torch.equal(attend(shared), attend([]))


@pytest.mark.slow
@pytest.mark.parametrize("prompt", [150, 300, 520])
def test_samples_of_a_long_prompt_are_what_each_would_be_alone(tmp_path: Path, prompt: int) -> None:
    shape = tiny.TinyShape(vocab=288, layers=2, width=32, mlp=32, context=1024)
    runner = ModelRunner(tiny.build(tmp_path / "model", TEXTS, shape=shape), "cpu", "float32", 12, 1 << 26)

    def turns(requests: list[Request]) -> list[Turn]:
        scheduler = Scheduler(runner, store_tokens=10_000, prefill_tokens=256, score_tokens=256, decode=None)
        runner.arena.clear()
        for one in requests:
            scheduler.submit(one)
        ended = {}
        shared = 0
        while scheduler.waiting or scheduler.running:
            ended |= {done.request.id: done.result for done in scheduler.step()}
            shared = max(shared, *(len(one.rows) for one in scheduler._alike), 0)
        assert shared == (len(requests) if len(requests) > 1 else 0)
        results = [ended[one.id] for one in requests]
        assert all(isinstance(result, Turn) for result in results)
        return [result for result in results if isinstance(result, Turn)]

    ids = [3 + at * at % 250 for at in range(prompt)]
    together = turns([request(ids, seed) for seed in range(6)])
    for seed, turn in enumerate(together):
        [alone] = turns([request(ids, seed)])
        assert (turn.token_ids, turn.logprobs) == (alone.token_ids, alone.logprobs)
    assert len({turn.token_ids for turn in together}) > 1
