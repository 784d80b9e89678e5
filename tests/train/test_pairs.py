"""Losses over pairs of sequences, held against a naive DPO on rows (arXiv:2305.18290, equation 7, written out here)."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import logsigmoid

from agentrl.config import AlgoConfig
from agentrl.errors import InvalidInput
from agentrl.train.algorithms import Needs, algorithm_settings, make_algorithm
from agentrl.train.algorithms.credit import Credit, NodeKey, Pair, SequenceKind
from agentrl.train.algorithms.objective import add_sums, empty_sums, objective
from agentrl.train.algorithms.pairs import pair_credit, sequence_keys
from agentrl.train.forest.forest import sequence_count
from agentrl.train.forest.packing import pack
from agentrl.train.trainers.torch_trainer.settings import TorchConfig
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from agentrl.types import Session
from tests.train.test_sequences import table_logps
from tests.train.trees import (
    VOCABULARY,
    as_group,
    environment_node,
    linear_session,
    path,
    random_session,
    sampled_node,
)

DPO = Path(__file__).parents[2] / "examples" / "plugins" / "dpo.py"
BETA = 0.3


def dpo(**more: float) -> AlgoConfig:
    return algorithm_settings({"name": f"{DPO}:Dpo", "beta": BETA, **more})


def random_pairs(rng: random.Random, sessions: list[Session], kind: SequenceKind) -> list[Pair]:
    """Pairs of any two sequences; some are in several."""
    keys = [key for session in sessions for key in sequence_keys(session, kind)]
    return [Pair(*rng.sample(keys, 2), weight=rng.uniform(0.1, 1.0)) for _ in range(5)]


def row_sum(session: Session, last: int, kind: SequenceKind, table: Tensor) -> Tensor:
    """The log-probability of a sequence, its path a row of its own."""
    nodes = path(session, last)
    ids = torch.tensor([token for node in nodes for token in node.token_ids])
    trained = [(kind == "session" or node is nodes[-1]) and t for node in nodes for t in node.trainable]
    return table_logps(table, ids, torch.arange(len(ids)))[torch.tensor(trained)].sum()


@pytest.mark.slow
@given(seed=st.integers(0, 10**6), budget=st.sampled_from((30, 70, 10_000)), kind=st.sampled_from(("turn", "session")))
@settings(deadline=None, max_examples=60)
def test_loss_and_gradient_of_dpo_are_those_of_rows_whatever_the_split(
    seed: int, budget: int, kind: SequenceKind
) -> None:
    rng = random.Random(seed)
    sessions = [random_session(rng, f"s{i}", [8, 9, 10], depth=6, branching=3) for i in range(3)]
    for session in sessions[:2]:  # another root
        sampled_node(session, environment_node(session, None, [7, rng.randrange(9, 20)]).id, [9, 10])
    pairs = random_pairs(rng, sessions, kind)
    algorithm = make_algorithm(dpo())
    generator = torch.Generator().manual_seed(seed)
    table, reference = (0.2 * torch.randn(2, VOCABULARY, generator=generator, dtype=torch.float64)).unbind()
    table.requires_grad_()
    forests = pack([as_group(sessions)], pair_credit(sessions, pairs, kind), budget, seed=seed, sequence=kind)

    sums = empty_sums(algorithm, sequence_count(forests))
    found = torch.zeros((), dtype=torch.float64)
    for last in (False, True):
        for forest in forests:
            rows = forest.rows()
            place = forest.position[rows.target]
            logp, rows.ref_logp = (table_logps(each, rows.token_ids, place) for each in (table, reference))
            if last:
                found = found + objective(algorithm, logp, torch.zeros_like(logp), rows, sums=sums)[0]
            else:
                add_sums(algorithm, sums, logp, rows, 0)
    (ours,) = torch.autograd.grad(found, table)

    by_id = {session.id: session for session in sessions}

    def margin(key: NodeKey) -> Tensor:
        return row_sum(by_id[key[0]], key[1], kind, table) - row_sum(by_id[key[0]], key[1], kind, reference)

    naive = [-pair.weight * logsigmoid(BETA * (margin(pair.chosen) - margin(pair.rejected))) for pair in pairs]
    expected = torch.stack(naive).sum()
    (theirs,) = torch.autograd.grad(expected, table)
    assert found.item() == pytest.approx(expected.item(), rel=1e-6, abs=1e-6)
    assert float((ours - theirs).abs().max()) < 1e-6 * max(1.0, float(theirs.abs().max()))


def test_updates_of_dpo_prefer_the_best_session_of_each_group_to_the_worst(tiny_llama: Path) -> None:
    """The first loss is log 2, as policy and reference are one."""
    rewards = (0.2, 1.0, 0.0)
    sessions = [linear_session(f"s{i}", [8, 9], [[30 + i, 31], [32, 33 + i]], reward=r) for i, r in enumerate(rewards)]
    ties = [linear_session(f"t{i}", [8, 9], [[20 + i]], reward=0.5) for i in range(2)]
    groups = [as_group(sessions), as_group(ties, "ties")]
    trainer = TorchTrainer(tiny_llama, TorchConfig(device="cpu"), dpo(lr=0.01), total_steps=4)
    credit = trainer.algorithm.credit(groups)
    assert {session for session, _ in credit.shares} == {"s1", "s2"}
    rows = [trainer.step(pack(groups, credit, 8, sequence="session")) for _ in range(4)]
    assert rows[0]["loss"] == pytest.approx(torch.log(torch.tensor(2.0)).item() / 2)  # over both groups
    assert rows[-1]["loss"] < rows[0]["loss"]
    assert rows[-1]["policy/pair_accuracy"] == 1.0


@pytest.mark.slow
def test_pairs_that_do_not_fit_are_refused_by_name() -> None:
    session = linear_session("s", [8, 9], [[30, 31]])
    (key,) = sequence_keys(session, "session")
    with pytest.raises(InvalidInput, match="node 0 of session 's'"):
        pair_credit([session], [Pair(key, ("s", 0), 1.0)], "session")
    credit = pair_credit([session], [Pair(key, key, 1.0)], "session")
    for pair, problem in ((Pair(key, ("x", 3), 1.0), "node 3 of session 'x'"), (Pair(key, key, 0.0), "above 0")):
        with pytest.raises(InvalidInput, match=problem):
            pack([as_group([session])], Credit(credit.shares, pairs=[pair]), 100, sequence="session")
    with pytest.raises(InvalidInput, match=r"needs\.sequence"):
        Needs(pairs=True)
