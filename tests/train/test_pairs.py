"""Losses over pairs of sequences, held against the papers' formulas on rows; `tests.train.trl` has TRL's."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor
from torch.nn.functional import logsigmoid

from agentrl.config import AlgoConfig
from agentrl.errors import ConfigError, InvalidInput
from agentrl.train.algorithms import Needs, algorithm_settings, make_algorithm
from agentrl.train.algorithms.credit import Credit, NodeKey, Pair, SequenceKind
from agentrl.train.algorithms.objective import add_sums, empty_sums, objective
from agentrl.train.algorithms.pairs import pair_credit, pairs_of_groups, preference_group, sequence_keys
from agentrl.train.forest.forest import sequence_count
from agentrl.train.forest.packing import pack
from agentrl.train.trainers.torch_trainer.settings import TorchConfig
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from agentrl.types import Session
from agentrl.types.session import outcome
from tests.train import forked
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

BETA = 0.3


EPSILON = 0.2
LOSSES: dict[str, tuple[dict[str, float | bool], Callable[..., Tensor]]] = {
    "dpo": ({}, lambda w, r: -logsigmoid(BETA * (w.ratio - r.ratio))),
    "dpo smoothed": (
        {"label_smoothing": EPSILON},
        lambda w, r: (
            -(1 - EPSILON) * logsigmoid(BETA * (w.ratio - r.ratio)) - EPSILON * logsigmoid(BETA * (r.ratio - w.ratio))
        ),
    ),
    "dpo per token": ({"per_token": True}, lambda w, r: -logsigmoid(BETA * (w.ratio / w.n - r.ratio / r.n))),
    "dpo with likelihood": (
        {"nll_coef": 0.5},
        lambda w, r: -logsigmoid(BETA * (w.ratio - r.ratio)) - 0.5 * w.logp / w.n,
    ),
    "robust": (
        {"label_smoothing": EPSILON},
        lambda w, r: (
            (-(1 - EPSILON) * logsigmoid(BETA * (w.ratio - r.ratio)) + EPSILON * logsigmoid(BETA * (r.ratio - w.ratio)))
            / (1 - 2 * EPSILON)
        ),
    ),
    "ipo": ({}, lambda w, r: (w.ratio / w.n - r.ratio / r.n - 1 / (2 * BETA)) ** 2),
    "ipo of sums": ({"per_token": False}, lambda w, r: (w.ratio - r.ratio - 1 / (2 * BETA)) ** 2),
    "simpo": ({"gamma": 0.4}, lambda w, r: -logsigmoid(BETA * (w.logp / w.n - r.logp / r.n) - 0.4)),
    "cpo": ({}, lambda w, r: -logsigmoid(BETA * (w.logp - r.logp)) - w.logp / w.n),
    "orpo": ({}, lambda w, r: -w.logp / w.n - BETA * logsigmoid((w.odds / r.odds).log())),
}
"""Settings, and the formula of the chosen sequence w and the rejected one r."""


@dataclass
class Row:
    """A sequence: its log-probability, that under the reference, and its trained tokens."""

    logp: Tensor
    ref: Tensor
    n: int

    @property
    def ratio(self) -> Tensor:
        return self.logp - self.ref

    @property
    def odds(self) -> Tensor:
        p = (self.logp / self.n).exp()
        return p / (1 - p)


def dpo(**more: float) -> AlgoConfig:
    return algorithm_settings({"name": "dpo", "loss": {"name": "dpo", "beta": BETA}, **more})


def random_pairs(rng: random.Random, sessions: list[Session], kind: SequenceKind) -> list[Pair]:
    """Pairs of any two sequences; some are in several."""
    keys = [key for session in sessions for key in sequence_keys(session, kind)]
    return [Pair(*rng.sample(keys, 2), weight=rng.uniform(0.1, 1.0)) for _ in range(5)]


def row_logps(session: Session, last: int, kind: SequenceKind, table: Tensor) -> Tensor:
    """The log-probabilities of a sequence's trained tokens, its path a row of its own."""
    nodes = path(session, last)
    ids = torch.tensor([token for node in nodes for token in node.token_ids])
    trained = [(kind == "session" or node is nodes[-1]) and t for node in nodes for t in node.trainable]
    return table_logps(table, ids, torch.arange(len(ids)))[torch.tensor(trained)]


@pytest.mark.slow
@given(
    seed=st.integers(0, 10**6),
    budget=st.sampled_from((30, 70, 10_000)),
    kind=st.sampled_from(("turn", "session")),
    loss=st.sampled_from(sorted(LOSSES)),
)
@settings(deadline=None, max_examples=100)
def test_loss_and_gradient_over_pairs_are_those_of_rows_whatever_the_split(
    seed: int, budget: int, kind: SequenceKind, loss: str
) -> None:
    rng = random.Random(seed)
    sessions = [random_session(rng, f"s{i}", [8, 9, 10], depth=6, branching=3) for i in range(3)]
    for session in sessions[:2]:  # another root
        sampled_node(session, environment_node(session, None, [7, rng.randrange(9, 20)]).id, [9, 10])
    pairs = random_pairs(rng, sessions, kind)
    own, formula = LOSSES[loss]
    name = {"name": loss.partition(" ")[0], "beta": BETA, "sequence": kind}
    algorithm = make_algorithm(algorithm_settings({"name": "dpo", "loss": name | own}))
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

    def row(key: NodeKey) -> Row:
        each = [row_logps(by_id[key[0]], key[1], kind, weights) for weights in (table, reference)]
        return Row(each[0].sum(), each[1].sum(), len(each[0]))

    naive = [pair.weight * formula(row(pair.chosen), row(pair.rejected)) for pair in pairs]
    expected = torch.stack(naive).sum()
    (theirs,) = torch.autograd.grad(expected, table)
    assert found.item() == pytest.approx(expected.item(), rel=1e-6, abs=1e-6)
    assert float((ours - theirs).abs().max()) < 1e-6 * max(1.0, float(theirs.abs().max()))


@pytest.mark.slow
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
    assert rows[-1]["preference/accuracy"] == 1.0


@pytest.mark.slow
def test_a_step_on_pairs_that_lie_whole_in_forests_takes_no_pass_for_their_sums_and_is_the_same(
    tiny_llama: Path,
) -> None:
    """Small forests hold parts of sequences, large ones whole pairs."""
    rng = random.Random(11)
    sessions = [random_session(rng, f"s{i}", [8, 9, 10 + i], depth=5, branching=2) for i in range(4)]
    pairs = random_pairs(rng, sessions, "session")
    rows, passes = [], []
    for budget in (30, 10_000):
        trainer = TorchTrainer(tiny_llama, TorchConfig(device="cpu"), dpo(lr=0.01, epochs=2), total_steps=3)
        counted = CountedPasses(trainer)
        forests = pack([as_group(sessions)], pair_credit(sessions, pairs, "session"), budget, sequence="session")
        rows.append([trainer.step(forests) for _ in range(2)])
        passes.append(counted.sums)
    for split, whole in zip(*rows, strict=True):
        for name in ("loss", "grad_norm", "preference/margin", "preference/accuracy"):
            assert whole[name] == pytest.approx(split[name], rel=1e-4, abs=1e-6)
    assert passes == [4, 0]


class CountedPasses:
    """Counts the passes that a trainer takes for sums alone."""

    def __init__(self, trainer: TorchTrainer) -> None:
        self.sums, self.own = 0, trainer.sum_sequences
        trainer.sum_sequences = self.sum_sequences  # type: ignore[method-assign]

    def sum_sequences(self, *given: Any) -> None:
        self.sums += 1
        self.own(*given)


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
    for each in ("pairs", "labels"):
        with pytest.raises(InvalidInput, match=r"needs\.sequence"):
            Needs(**{each: True})
    with pytest.raises(ConfigError, match=r"algo=grpo gives advantages.*loss over pairs"):
        make_algorithm(algorithm_settings({"name": "grpo", "loss": {"name": "dpo"}}))
    with pytest.raises(ConfigError, match=r"algo=dpo gives pairs.*loss over labels"):
        make_algorithm(algorithm_settings({"name": "dpo", "loss": {"name": "kto"}}))
    with pytest.raises(ValidationError, match=r"less than 0\.5"):
        algorithm_settings({"name": "dpo", "loss": {"name": "robust", "label_smoothing": 0.5}})


def keyed(session: Session) -> NodeKey:
    return session.id, session.nodes[-1].id


@pytest.mark.slow
def test_pairs_of_a_group_are_the_best_against_the_worst_or_any_two_that_differ_enough() -> None:
    """A group's pairs weigh as much together as another's, and groups without one count in the denominator."""
    rewards = {"a": (0.2, 1.0, 0.0), "b": (0.5, 0.5), "c": (0.3, 0.31)}
    groups = {
        g: [linear_session(f"{g}{i}", [8], [[9]], reward=r) for i, r in enumerate(rs)] for g, rs in rewards.items()
    }
    low, high, none = map(keyed, groups["a"])
    close = Pair(keyed(groups["c"][1]), keyed(groups["c"][0]), 1 / 3)
    assert pairs_of_groups(groups, "session", "best_worst") == [Pair(high, none, 1 / 3), close]
    assert pairs_of_groups(groups, "session", "best_worst", 0.05) == [Pair(high, none, 1 / 3)]
    every = pairs_of_groups(groups, "session", "all")
    thirds = [Pair(*each, 1 / 9) for each in ((low, none), (high, low), (high, none))]
    assert sorted(every[:-1], key=str) == sorted(thirds, key=str)
    assert every[-1] == close


@pytest.mark.slow
def test_paths_of_one_forked_conversation_are_chosen_and_rejected_on_one_copy_of_what_they_share() -> None:
    session = forked.session_of("s", forked.random_segment(random.Random(5), 1, rewards=False), [8, 9, 10])
    outcomes = {path[-1].id: outcome(session, path[-1].id) for path in session.paths()}
    algorithm = make_algorithm(algorithm_settings({"name": "dpo", "pairing": "all"}))
    credit = algorithm.credit([as_group([session])])
    found = {(pair.chosen[1], pair.rejected[1]) for pair in credit.pairs or ()}
    assert found == {(a, b) for a in outcomes for b in outcomes if outcomes[a] > outcomes[b]}
    assert found
    [forest] = pack([as_group([session])], credit, 10_000, sequence="session")
    assert len(forest) <= sum(len(node.token_ids) for node in session.nodes)


@pytest.mark.slow
def test_a_pair_of_demonstrations_is_learned_from_with_its_prompt_computed_once(tiny_llama: Path) -> None:
    """From a file nothing was sampled: nothing is compared with an engine's log-probabilities."""
    sides = [linear_session(name, [8, 9, 7, 6], [[30 + i, 31]], demonstrated=True) for i, name in enumerate("wl")]
    before = [session.reward for session in sides]
    group = preference_group("pair", *sides)
    assert [session.reward for session in sides] == before
    trainer = TorchTrainer(tiny_llama, TorchConfig(device="cpu"), dpo(lr=0.01), total_steps=3)
    forests = pack([group], trainer.algorithm.credit([group]), 100, sequence="session")
    assert sum(map(len, forests)) == 4 + 2 + 2 * 2  # prompt, opening tokens, and what differs
    rows = [trainer.step(forests) for _ in range(3)]
    assert rows[0]["preference/margin"] == pytest.approx(0, abs=1e-6)
    assert rows[-1]["preference/margin"] > 0
    assert rows[0]["mismatch/share"] == 0
    empty = linear_session("e", [8], [])
    with pytest.raises(InvalidInput, match="rejected session has no token"):
        preference_group("pair", sides[0], empty)
