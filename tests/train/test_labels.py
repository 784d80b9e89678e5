"""Losses over single sequences with a verdict (KTO), and the mismatched completions that they measure."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from agentrl.config import AlgoConfig
from agentrl.train.algorithms import algorithm_settings, make_algorithm
from agentrl.train.algorithms.credit import Credit, NodeKey, SequenceKind
from agentrl.train.algorithms.objective import Meter, add_sums, empty_sums, objective
from agentrl.train.forest.forest import sequence_count
from agentrl.train.forest.packing import pack, pack_credited
from agentrl.train.trainers.torch_trainer.settings import TorchConfig
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from agentrl.types import Group
from tests.train.test_pairs import row_logps
from tests.train.test_sequences import table_logps
from tests.train.trees import VOCABULARY, as_group, linear_session, random_session

BETA, WEIGHTS = 0.3, {True: 1.3, False: 0.7}


def kto(kind: SequenceKind = "session", **more: object) -> AlgoConfig:
    loss = {"name": "kto", "beta": BETA, "sequence": kind}
    loss |= {"desirable_weight": WEIGHTS[True], "undesirable_weight": WEIGHTS[False]}
    return algorithm_settings({"name": "kto", "loss": loss, **more})


def random_prompts(rng: random.Random, count: int) -> list[Group]:
    """Groups of one to three trees, each with a prompt of its own but the last one, which has the first one's."""
    groups = []
    for place in range(count):
        name = f"g{place}"
        prompt = [8, 9, 10 + place % (count - 1)]
        members = [random_session(rng, f"{name}{i}", prompt, depth=4, branching=2) for i in range(rng.randint(1, 3))]
        groups.append(as_group([s for s in members if any(node.sampled for node in s.nodes)], name))
    return groups


def naive_loss(
    groups: list[Group], credit: Credit, kind: SequenceKind, table: Tensor, reference: Tensor
) -> tuple[Tensor, float]:
    """The loss of all rows, one for each sequence, and its baseline; a mismatched completion is a row as well."""
    sessions = {s.id: s for group in (*groups, *credit.added) for s in group.sessions}

    def ratio(key: NodeKey) -> Tensor:
        each = [row_logps(sessions[key[0]], key[1], kind, weights).sum() for weights in (table, reference)]
        return each[0] - each[1]

    labels = credit.labels or ()
    measured = [ratio(label.sequence).detach() for label in labels if not label.verdict]
    baseline = torch.stack(measured).mean().clamp(min=0)
    judged = [label for label in labels if label.verdict]
    losses = []
    for label in judged:
        desirable = (sessions[label.sequence[0]].reward or 0.0) > 0.5
        margin = ratio(label.sequence) - baseline
        losses.append(WEIGHTS[desirable] * (1 - torch.sigmoid(BETA * (margin if desirable else -margin))))
    return torch.stack(losses).mean(), float(baseline)


@pytest.mark.slow
@given(seed=st.integers(0, 10**6), budget=st.sampled_from((30, 70, 10_000)), kind=st.sampled_from(("turn", "session")))
@settings(deadline=None, max_examples=40)
def test_loss_gradient_and_baseline_of_kto_are_those_of_rows_whatever_the_split(
    seed: int, budget: int, kind: SequenceKind
) -> None:
    groups = random_prompts(random.Random(seed), 4)
    algorithm = make_algorithm(kto(kind))
    credit = algorithm.credit(groups)
    generator = torch.Generator().manual_seed(seed)
    table, reference = (0.2 * torch.randn(2, VOCABULARY, generator=generator, dtype=torch.float64)).unbind()
    table.requires_grad_()
    if not any(group.sessions for group in groups):
        return
    forests = pack(groups, credit, budget, seed=seed, sequence=kind)
    sums, found, meter = empty_sums(algorithm, sequence_count(forests)), torch.zeros((), dtype=torch.float64), Meter()
    for last in (False, True):
        for forest in forests:
            rows = forest.rows()
            place = forest.position[rows.target]
            logp, rows.ref_logp = (table_logps(each, rows.token_ids, place) for each in (table, reference))
            if last:
                loss, tokens = objective(algorithm, logp, torch.zeros_like(logp), rows, sums=sums)
                found = found + loss
                meter.add(tokens, rows, engine=True, first=True)
            else:
                add_sums(algorithm, sums, logp, rows, 0)
    (ours,) = torch.autograd.grad(found, table)
    if not credit.added:  # a single prompt
        return
    expected, baseline = naive_loss(groups, credit, kind, table, reference)
    (theirs,) = torch.autograd.grad(expected, table)
    assert found.item() == pytest.approx(expected.item(), rel=1e-6, abs=1e-6)
    assert float((ours - theirs).abs().max()) < 1e-6 * max(1.0, float(theirs.abs().max()))
    assert meter.metrics()["preference/baseline"] == pytest.approx(baseline, rel=1e-5, abs=1e-6)


@pytest.mark.slow
def test_each_completion_is_measured_once_below_a_prompt_of_another_and_computed_on_its_tree() -> None:
    groups = [
        as_group([linear_session(f"{g}{i}", [8, 9, 20 + g], [[30 + 3 * g + i, 31]]) for i in range(2)], f"g{g}")
        for g in range(4)
    ]
    for group in groups:
        for place, session in enumerate(group.sessions):
            session.reward = float(place)
    credits = {seed: make_algorithm(kto(mismatch_seed=seed)).credit(groups) for seed in range(6)}
    own = {tuple(s.nodes[1].token_ids): tuple(s.nodes[0].token_ids) for group in groups for s in group.sessions}
    hosts = set()
    for credit in credits.values():
        added = [session for group in credit.added for session in group.sessions]
        below = {tuple(s.nodes[1].token_ids): tuple(s.nodes[0].token_ids) for s in added}
        assert below.keys() == own.keys()
        assert len(added) == len(own)
        assert all(below[completion] != prompt for completion, prompt in own.items())
        hosts.add(tuple(sorted(below.items())))
    assert len(hosts) > 1  # the seed chooses
    forests = pack(groups, credits[0], 10_000, sequence="session")
    assert sum(map(len, forests)) == 4 * (3 + 2) + 16 * 2  # prompts with what opens a turn, and completions twice
    assert not make_algorithm(kto()).credit(groups[:1]).added


@pytest.mark.slow
@pytest.mark.parametrize("minibatches", [1, 2])
def test_steps_of_kto_raise_desirable_sessions_and_only_these_count_in_metrics(
    minibatches: int, tiny_llama: Path
) -> None:
    groups = [
        as_group(
            [linear_session(f"{g}{i}", [8, 9, 20 + g], [[30 + i, 31 + i]], reward=float(i)) for i in range(2)], f"g{g}"
        )
        for g in range(3)
    ]
    algo = kto(lr=0.01, minibatches=minibatches)
    trainer = TorchTrainer(tiny_llama, TorchConfig(device="cpu"), algo, total_steps=4)
    _, forests = pack_credited(trainer.algorithm, groups, None, 40, 0)
    rows = [trainer.step(forests) for _ in range(4)]
    assert rows[0]["preference/baseline"] == pytest.approx(0, abs=1e-5) or minibatches > 1
    assert rows[-1]["preference/margin"] > 0
    assert rows[-1]["preference/accuracy"] == 1.0
    assert rows[0]["mismatch/share"] == 1.0
