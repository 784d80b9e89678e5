"""The meaning of a forest on Megatron: the sum over its root-to-leaf paths, each a row of its own."""

from __future__ import annotations

import itertools
import pickle
import random
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from agentrl.train.forest.packing import pack
from agentrl.train.trainers.megatron.table import END, HELD, POSITION, block_size, deal, padded_tokens, table
from agentrl.train.trainers.ranks.balance import Division, assign, cost, trees
from agentrl.train.trainers.ranks.joined import per_token
from tests.train.backends.megatron import zoo
from tests.train.backends.megatron.batches import distances, published, random_forests, run
from tests.train.backends.megatron.world import World
from tests.train.trees import as_group, leaf_credit, random_session, reference_loss, rows_of


def clipped(logp: Tensor, old: Tensor, advantage: Tensor) -> Tensor:
    ratio = (logp - old).exp()
    return -torch.min(ratio * advantage, ratio.clamp(0.8, 1.3) * advantage)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["smollm2", "deepseek_v3"])
def test_a_forest_is_the_sum_over_its_paths(case: str, world: World, tmp_path: Path) -> None:
    """Depth up to 6, branching up to 5, several trees in one pack; dropless, and without auxiliary losses."""
    folder = zoo.write(case, tmp_path / case)
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    for seed in range(3):
        rng = random.Random(seed)
        sessions = [random_session(rng, f"s{i}", [9, 10, 11], depth=6, branching=5) for i in range(3)]
        credit, advantages = leaf_credit(rng, sessions)
        forests = pack([as_group(sessions)], credit, 10_000, seed=seed, merge="channels")
        assert len(forests) == 1
        forests[0].old_logp = forests[0].behaviour_logp
        found = run(world, "gradients", folder, forests, distributed_optimizer=False)
        plain.zero_grad()
        expected = reference_loss(plain, rows_of(sessions, credit, advantages), clipped)
        expected.backward()
        assert found["loss"] == pytest.approx(expected.item(), rel=1e-4, abs=1e-5)
        theirs = published({name: p.grad for name, p in plain.named_parameters() if p.grad is not None})
        far = distances({name: found["gradients"][name] for name in theirs}, theirs)
        assert {name: d for name, d in far.items() if not d < 1e-4} == {}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("context", "tensor"), [(1, 1), (2, 1), (2, 2), (3, 2), (4, 1)])
def test_every_token_is_held_by_one_rank_and_costs_are_shared(seed: int, context: int, tensor: int) -> None:
    [forest] = random_forests(seed, trees=3, budget=10_000)
    block = block_size(len(forest), context)
    padded = forest.padded(padded_tokens(len(forest), context, tensor, block))
    shares = [deal(padded, context, rank, block) for rank in range(context)]
    held = torch.cat([share.mine for share in shares])
    assert torch.equal(held.sort().values, torch.arange(len(padded)))
    assert all(share.length * context == len(padded) and share.length % tensor == 0 for share in shares)
    loads = [float((padded.position[share.mine] + 1).sum()) for share in shares]
    dearest = float((padded.position + 1).view(-1, block).sum(1).max()) if context > 1 else 0.0
    assert max(loads) - min(loads) <= dearest
    for share in shares:
        facts = table(padded, share)
        assert torch.equal(facts[END], padded.end)
        assert torch.equal(facts[HELD], held)
        assert torch.equal(facts[POSITION, : share.length], padded.position[share.mine])


@pytest.mark.parametrize("copies", [1, 2, 3])
@pytest.mark.parametrize("multiple", [1, 4])
@pytest.mark.slow
def test_work_is_shared_by_cost_and_none_is_lost_or_doubled(copies: int, multiple: int) -> None:
    forests = random_forests(4, trees=8, budget=150)
    plan = assign(forests, copies, width=4, multiple=multiple)
    assert {len(rank) for rank in plan} == {len(plan[0])}
    assert len(plan[0]) % multiple == 0
    covered: dict[int, list[tuple[int, int]]] = {}
    for work in (work for rank in plan for work in rank if work.origin >= 0):
        work.forest.check()
        covered.setdefault(work.origin, []).append((work.offset, work.offset + len(work.forest)))
    for index, forest in enumerate(forests):
        spans = sorted(covered[index])
        assert spans[0][0] == 0
        assert spans[-1][1] == len(forest)
        assert all(one[1] == other[0] for one, other in itertools.pairwise(spans))
    loads = [sum(cost(work.forest, 4) for work in rank) for rank in plan]
    assert max(loads) <= 1.5 * sum(loads) / copies


@pytest.mark.slow
def test_one_forest_is_cut_between_its_trees_so_that_no_rank_is_idle() -> None:
    [forest] = random_forests(2, trees=4, budget=10_000)
    plan = assign([forest], 2, width=8)
    assert all(any(work.origin == 0 for work in rank) for rank in plan)
    works = sorted((work for rank in plan for work in rank if work.origin == 0), key=lambda work: work.offset)
    assert torch.equal(torch.cat([work.forest.token_ids for work in works]), forest.token_ids)
    assert sum(work.forest.trained for work in works) == forest.trained


@pytest.mark.parametrize("copies", [2, 4])
@pytest.mark.slow
def test_a_rank_is_sent_its_share_of_a_batch_and_nothing_of_the_others(copies: int) -> None:
    """A part of a forest was sent with all of the forest that it is a part of, as views of a tensor are pickled."""
    forests = random_forests(3, trees=48, budget=2000)
    shares = Division(tuple(rank % copies for rank in range(2 * copies)), width=64).shares(forests)
    assert all(shares[rank] is shares[rank % copies] for rank in range(2 * copies))
    sent = [len(pickle.dumps(share)) for share in shares[:copies]]
    assert max(sent) <= 1.25 * len(pickle.dumps(forests)) / copies
    assert [[len(work.forest) for work in share.works] for share in shares[:copies]] == shares[0].lengths
    everything = [work for share in shares[:copies] for work in share.works]
    whole = per_token(
        forests,
        ((work.origin, torch.arange(len(work.forest)) + work.offset, work.forest.weight) for work in everything),
    )
    assert all(torch.equal(one, forest.weight) for one, forest in zip(whole, forests, strict=True))


@pytest.mark.slow
def test_a_batch_without_forests_gives_no_rank_a_micro_batch() -> None:
    assert [share.works for share in Division((0, 1), width=8).shares([])] == [[], []]


@pytest.mark.slow
def test_a_part_of_a_forest_says_of_its_trees_what_the_whole_says() -> None:
    [forest] = random_forests(3, trees=3, budget=10_000)
    roots = torch.nonzero(forest.position == 0).flatten().tolist()
    part = trees(forest, roots[1], len(forest))
    part.check()
    whole, some = forest.rows(), part.rows()
    kept = whole.target >= roots[1]
    assert torch.equal(whole.target[kept], some.target + roots[1])
    assert torch.equal(whole.advantage[kept], some.advantage)
