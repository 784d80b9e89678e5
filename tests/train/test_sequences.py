"""Losses over turns and sessions, held against every sequence as a row of its own."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import AutoModelForCausalLM

from agentrl.config import AlgoConfig
from agentrl.sessions.tree import tree
from agentrl.train.algorithms import algorithm_settings, make_algorithm
from agentrl.train.algorithms.credit import Credit, NodeAdvantage, SequenceKind
from agentrl.train.algorithms.objective import add_sums, empty_sums, known_sums, objective
from agentrl.train.algorithms.policy_losses import LossConfig
from agentrl.train.forest.forest import Forest, sequence_count
from agentrl.train.forest.packing import pack
from agentrl.train.trainers.ranks.balance import idle_forest
from agentrl.train.trainers.torch_trainer.settings import TorchConfig
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from agentrl.types import Message, Session
from tests.train.loss_references import REFERENCES, SETTINGS
from tests.train.trees import (
    VOCABULARY,
    Row,
    as_group,
    environment_node,
    leaf_credit,
    linear_session,
    path,
    random_session,
    rows_of,
    sampled_node,
)

SEQUENCE_LOSSES = ("gspo", "gspo_token", "gmpo", "topr", "vespo")


def gspo(kind: SequenceKind, **more: float) -> AlgoConfig:
    return over_sequences("gspo", kind, **more)


def over_sequences(name: str, kind: SequenceKind, **more: float) -> AlgoConfig:
    loss = {"name": name, "sequence": kind, **SETTINGS.get(name, [{}])[0]}
    return algorithm_settings({"name": "grpo", "loss": loss, **more})


def sequences(sessions: Sequence[Session], credit: Credit, kind: SequenceKind, judged: dict) -> Iterator[Row]:  # type: ignore[type-arg]
    """Every sequence as a row: its whole path, weights at its own tokens only."""
    if kind == "session":
        yield from (row for row in rows_of(sessions, credit, judged) if any(row.weight))
        return
    for session in sessions:
        for node in session.nodes:
            if shares := credit.shares.get((session.id, node.id)):
                row, total = Row([], [], [], [], []), sum(share.weight for share in shares)
                mean = sum(share.weight * share.advantage for share in shares) / total  # type: ignore[operator]
                for each in path(session, node.id):
                    row.ids += each.token_ids
                    row.weight += [total * (each is node and t) for t in each.trainable]
                    row.advantage += [mean] * len(each.token_ids)
                    row.old += each.logprobs
                    row.temperature += [1.0] * len(each.token_ids)
                yield row


def naive(row: Row, logp: Tensor, loss: LossConfig) -> Tensor:
    """A row's loss from the log-probability of each of its tokens."""
    weight, old = (torch.tensor(values, dtype=logp.dtype) for values in (row.weight, row.old))
    trained = weight > 0
    advantage = float((weight * torch.tensor(row.advantage)).sum() / weight.sum())
    return (weight[trained] * REFERENCES[loss.name](logp[trained], old[trained], advantage, loss)).sum()


def table_logps(table: Tensor, ids: Tensor, position: Tensor) -> Tensor:
    """Stands for a model, in float64: a log-probability by token and depth."""
    return table[ids] * (1 + 0.05 * position) - 3.9


@given(seed=st.integers(0, 10**6), budget=st.sampled_from((30, 70, 10_000)), kind=st.sampled_from(("turn", "session")))
@settings(deadline=None, max_examples=6)
@pytest.mark.parametrize("loss", SEQUENCE_LOSSES)
@pytest.mark.slow
def test_loss_and_gradient_are_those_of_every_sequence_as_a_row_whatever_the_split(
    loss: str, seed: int, budget: int, kind: SequenceKind
) -> None:
    rng = random.Random(seed)
    prompt = [rng.randrange(8, 48) for _ in range(rng.randint(1, 6))]
    sessions = [random_session(rng, f"s{i}", prompt, depth=6, branching=4) for i in range(3)]
    for session in sessions[:2]:  # another root
        sampled_node(session, environment_node(session, None, [7, rng.randrange(9, 20)]).id, [9, 10])
    credit, judged = leaf_credit(rng, sessions)
    algorithm = make_algorithm(over_sequences(loss, kind))
    generator = torch.Generator().manual_seed(seed)
    table = (0.2 * torch.randn(VOCABULARY, generator=generator, dtype=torch.float64)).requires_grad_()
    forests = pack([as_group(sessions)], credit, budget, seed=seed, sequence=kind)

    sums = empty_sums(algorithm, sequence_count(forests))
    found = torch.zeros((), dtype=torch.float64)
    for last in (False, True):
        for forest in forests:
            forest.old_logp = forest.behaviour_logp
            rows = forest.rows()
            logp = table_logps(table, rows.token_ids, forest.position[rows.target])
            if last:
                found = found + objective(algorithm, logp, torch.zeros_like(logp), rows, sums=sums)[0]
            else:
                add_sums(algorithm, sums, logp, rows, 0)
    (ours,) = torch.autograd.grad(found, table)

    own = algorithm.config.loss  # type: ignore[attr-defined]
    whole = list(sequences(sessions, credit, kind, judged))
    assert len(whole) == len({n for f in forests if f.sequences for n in f.sequences.sequence.tolist()})
    expected = sum(naive(r, table_logps(table, torch.tensor(r.ids), torch.arange(len(r.ids))), own) for r in whole)
    assert isinstance(expected, Tensor)
    (theirs,) = torch.autograd.grad(expected, table)
    assert found.item() == pytest.approx(expected.item(), rel=1e-6, abs=5e-6)  # A log π of float32 parts cancels
    assert float((ours - theirs).abs().max()) < 1e-6 * max(1.0, float(theirs.abs().max()))


def test_tokens_have_their_own_advantages_and_a_path_has_no_more_of_a_turn_than_it_goes_through() -> None:
    """Two sessions that begin alike; in the first a client replaces the turn's end, and goes on from both."""
    turns = {"a": [30, 31, 32, 33], "b": [30, 31, 34]}
    first, second = (linear_session(name, [8, 9], [ids]) for name, ids in turns.items())
    again = environment_node(first, 0, [*first.nodes[1].token_ids[:4], 7])
    again.message, again.copy_of, again.copied_tokens = Message(role="assistant", content="."), 1, 4
    last = sampled_node(first, again.id, [35])
    tree.check(first)
    credit = Credit(
        {
            ("a", 1): (NodeAdvantage([9.0, 9.0, 1.0, 2.0, 3.0, 4.0], 0.5),),
            ("a", last.id): (NodeAdvantage(5.0, 0.5),),
            ("b", 1): (NodeAdvantage([9.0, 9.0, 6.0, 7.0, 8.0], 0.5),),
        }
    )
    [forest] = pack([as_group([first, second])], credit, 100, sequence="session")
    pairs = forest.sequences
    assert pairs is not None
    paths: dict[int, list[tuple[int, float]]] = {}
    tokens = forest.token_ids[pairs.token].tolist()
    for number, token, advantage in zip(pairs.sequence.tolist(), tokens, pairs.advantage.tolist(), strict=True):
        paths.setdefault(number, []).append((token, advantage))
    assert sorted(map(sorted, paths.values())) == [
        [(30, 1.0), (31, 2.0), (32, 3.0), (33, 4.0)],
        [(30, 1.0), (31, 2.0), (35, 5.0)],
        [(30, 6.0), (31, 7.0), (34, 8.0)],
    ]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["turn", "session"])
def test_the_trainers_two_passes_give_the_gradient_of_rows(kind: SequenceKind, tiny_llama: Path) -> None:
    rng = random.Random(4)
    sessions = [random_session(rng, f"s{i}", [8, 9], depth=5, branching=3) for i in range(2)]
    for node in (node for session in sessions for node in session.nodes if node.sampling):
        node.sampling = type(node.sampling)(temperature=1.0)
    credit, judged = leaf_credit(rng, sessions)
    trainer = TorchTrainer(tiny_llama, TorchConfig(device="cpu"), gspo(kind))
    forests: list[Forest] = pack([as_group(sessions)], credit, 40, sequence=kind)
    for forest in forests:
        forest.old_logp = forest.behaviour_logp
    batches = [trainer.prepare(forest) for forest in forests]
    trainer.sums = empty_sums(trainer.algorithm, sequence_count(forests))
    trainer.sum_sequences(batches, trainer.sums)
    loss = sum(map(trainer.backward, batches))

    plain = AutoModelForCausalLM.from_pretrained(tiny_llama, attn_implementation="eager")
    expected = torch.zeros(())
    for row in sequences(sessions, credit, kind, judged):
        ids = torch.tensor(row.ids)
        logps = torch.log_softmax(plain(input_ids=ids[None]).logits[0, :-1], -1).gather(1, ids[1:, None]).squeeze(1)
        expected = expected + naive(row, torch.cat((torch.zeros(1), logps)), trainer.algorithm.config.loss)
    expected.backward()  # type: ignore[no-untyped-call]
    assert loss == pytest.approx(expected.item(), rel=1e-4)
    theirs = dict(plain.named_parameters())
    for name, parameter in trainer.model.named_parameters():
        assert parameter.grad is not None
        assert float((parameter.grad - theirs[name].grad).norm() / theirs[name].grad.norm().clamp(min=1e-8)) < 2e-4


def test_log_ratios_are_0_before_the_first_update_unless_tokens_are_of_an_older_version(tiny_llama: Path) -> None:
    """So the first of a step's passes without gradient is left out."""
    groups = [as_group([linear_session(name, [8, 9], [[30, 31], [32]], reward=float(name == "a")) for name in "ab"])]
    trainer = TorchTrainer(tiny_llama, TorchConfig(device="cpu"), gspo("turn"))
    forests = pack(groups, trainer.algorithm.credit(groups), 100, sequence="turn")
    for version in (0, 1):
        trainer.version = version
        sums = empty_sums(trainer.algorithm, sequence_count(forests))
        trainer.sum_sequences([trainer.prepare(forest) for forest in forests], sums)
        assert known_sums(trainer.algorithm, [forest.rows() for forest in forests], version) == (version == 0)
        assert bool((sums == 0).all()) == (version == 0)


def test_tokens_of_an_older_version_are_in_the_sums_before_the_first_update(tiny_llama: Path) -> None:
    """A stale session whose ratio is far off is clipped as a whole: it moves nothing, with one epoch too."""
    session = linear_session("s", [8, 9], [[30, 31], [32, 33]], reward=1.0)
    other = linear_session("o", [8, 9], [[34, 35]], reward=0.0)
    groups, algo = [as_group([session, other])], gspo("session", lr=0.1)
    trainer = TorchTrainer(tiny_llama, TorchConfig(device="cpu"), algo)
    forests = pack(groups, trainer.algorithm.credit(groups), 100, sequence="session")
    trainer.version = 1
    for forest in forests:
        forest.behaviour_logp.fill_(-9.0)  # every ratio is far above 1
        forest.behaviour_logp[forest.advantage < 0] = -0.1  # and far below it
    metrics = trainer.step(forests)
    assert metrics["policy/clip_fraction"] == 1.0
    assert metrics["staleness/share"] == 1.0
    assert metrics["grad_norm"] == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("name", SEQUENCE_LOSSES)
def test_a_forest_that_keeps_a_rank_busy_goes_backward_and_adds_nothing(name: str) -> None:
    """Backward as the others do, since ranks that share a model reduce its gradients together."""
    algorithm, rows = make_algorithm(over_sequences(name, "session")), idle_forest().rows()
    weight = torch.ones(3, requires_grad=True)
    logp, sums = weight[:0].log(), empty_sums(algorithm, 4)
    add_sums(algorithm, sums, logp, rows, 1)
    loss, _ = objective(algorithm, logp, logp.detach(), rows, version=1, sums=sums)
    loss.backward()  # type: ignore[no-untyped-call]
    assert float(loss.detach()) == 0
    assert not sums.any()
    assert weight.grad is not None
    assert not weight.grad.any()
