"""Turns to which clients added text: sampled tokens are trained once, with what came of the paths through them.

The reference takes each stored path as a row of its own. The first tokens of a node that goes on from a turn are the
turn's own there; no row holds the end that was left behind, unless another path goes through it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from agentrl.config import AlgoConfig
from agentrl.sessions.tree import tree
from agentrl.train.algorithms.credit import Credit, NodeAdvantage
from agentrl.train.algorithms.returns import group_relative
from agentrl.train.forest.packing import pack, path_tokens
from agentrl.train.trainers.torch_trainer.settings import TorchConfig
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from agentrl.types import Message, Session
from tests.train.test_forest_reference import CLIP, clipped, compare
from tests.train.trees import (
    Row,
    add_extensions,
    as_group,
    environment_node,
    linear_session,
    path,
    random_session,
    reference_loss,
    sampled_node,
)

Token = tuple[str, int, int]
"""(session, turn, place)."""


def extended_sessions(seed: int) -> list[Session]:
    rng = random.Random(seed)
    sessions = []
    for name in "ab":
        session = random_session(rng, name, [8, 9], depth=4, branching=2)
        add_extensions(rng, session, chance=0.6)
        for node in session.nodes:
            node.reward = rng.choice((None, rng.uniform(-1, 1))) if node.copy_of is None else None
        sessions.append(session)
    return sessions


def rows(session: Session) -> Iterator[list[tuple[int, int]]]:
    """Each path that was gone on from to its end: for each of its tokens the node and the place that it belongs to."""
    gone_on = {n.parent for n in session.nodes} | {n.copy_of for n in session.nodes}
    for leaf in (node.id for node in session.nodes if node.id not in gone_on):
        row = []
        for node in path(session, leaf):
            taken = node.copied_tokens or 0
            assert node.copy_of is not None or not taken
            row += [(node.copy_of, i) for i in range(taken)]  # type: ignore[misc]
            row += [(node.id, i) for i in range(taken, len(node.token_ids))]
        yield row


def judged_rows(sessions: list[Session]) -> list[Row]:
    """REINFORCE by hand: a turn's advantage on a path is the final reward and the step rewards from it on."""
    found = []
    holders: dict[Token, int] = {}
    for session in sessions:
        for row in rows(session):
            for node, i in row:
                if session.nodes[node].trainable[i]:
                    holders[session.id, node, i] = holders.get((session.id, node, i), 0) + 1
    for session in sessions:
        trained = sum(key[0] == session.id for key in holders)
        for row in rows(session):
            ids = [session.nodes[node].token_ids[i] for node, i in row]
            turns = list(dict.fromkeys(node for node, _ in row))
            ahead = {n: sum(session.nodes[m].reward or 0.0 for m in turns[turns.index(n) :]) for n in turns}
            one = Row(ids, [], [], [], [])
            for node_id, i in row:
                node, key = session.nodes[node_id], (session.id, node_id, i)
                one.weight.append(1 / (len(sessions) * trained * holders[key]) if key in holders else 0.0)
                one.advantage.append((session.reward or 0.0) + ahead[node_id])
                one.old.append(node.logprobs[i])
                one.temperature.append(node.sampling.temperature if node.sampling else 1.0)
            found.append(one)
    return found


def reinforce(sessions: list[Session]) -> Credit:
    return group_relative([as_group(sessions)], AlgoConfig(), baseline="none", scale=False)


@pytest.mark.slow
@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(seed=st.integers(0, 10**6), budget=st.sampled_from((60, 10_000)))
def test_the_forests_loss_is_the_sum_over_paths_and_no_end_that_was_left_behind_is_in_it(
    seed: int, budget: int, models: tuple[TorchTrainer, torch.nn.Module]
) -> None:
    trainer, plain = models
    sessions = extended_sessions(seed)
    trainer.begin(CLIP, 1)
    if forests := pack([as_group(sessions)], reinforce(sessions), budget, merge="channels"):
        compare(trainer, plain, forests, reference_loss(plain, judged_rows(sessions), clipped))


@pytest.fixture(scope="module")
def models(tiny_llama: Path) -> tuple[TorchTrainer, torch.nn.Module]:
    plain: torch.nn.Module = AutoModelForCausalLM.from_pretrained(tiny_llama, attn_implementation="eager")
    return TorchTrainer(tiny_llama, TorchConfig(device="cpu"), CLIP), plain


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_every_sampled_token_on_a_path_is_trained_once_and_the_rest_never(seed: int) -> None:
    sessions = extended_sessions(seed)
    for session in sessions:
        tree.check(session)
    forests = pack([as_group(sessions)], reinforce(sessions), 10_000)
    on_paths = {(s.id, n, i) for s in sessions for row in rows(s) for n, i in row if s.nodes[n].trainable[i]}
    merged = {(tuple(ids), s, t) for ids, s, t in (told(sessions, key) for key in on_paths)}
    assert sum(forest.trained for forest in forests) == len(merged)
    total = math.fsum(forest.weight.double().sum().item() for forest in forests)
    assert total == pytest.approx(sum(any(key[0] == s.id for key in on_paths) for s in sessions) / 2)


def told(sessions: list[Session], key: Token) -> tuple[list[int], float, int]:
    """What a token is to the trainer: those of several sessions that are the same are one."""
    session = next(s for s in sessions if s.id == key[0])
    node = session.nodes[key[1]]
    assert node.sampling is not None
    version = next(span.version for span in node.versions if span.start <= key[2] < span.end)
    ids = [*tree.path_ids(session, node.parent), *node.token_ids[: key[2] + 1]]
    return ids, node.sampling.temperature, version


def extended_twice() -> tuple[Session, list[int]]:
    """Two turns that a client extended; returns also what the engine saw last, and drew."""
    session = linear_session("s", [8, 9], [], reward=1.0)
    seen, parent = [8, 9], 0
    for place, words in enumerate(([30, 31, 7], [32, 33, 34, 7])):
        turn = sampled_node(session, parent, words)
        again = environment_node(session, parent, [*turn.token_ids[:-1], 4, 5 + place])
        again.message, again.copy_of = Message(role="assistant", content="."), turn.id
        again.copied_tokens = len(words) + 1
        seen += again.token_ids
        parent = environment_node(session, again.id, [3]).id
        seen += [3]
    last = sampled_node(session, parent, [35])
    tree.check(session)
    return session, [*seen, *last.token_ids]


def test_an_extended_turn_lies_in_the_forest_once_and_its_end_not_at_all() -> None:
    session, seen = extended_twice()
    credit = reinforce([session])
    [forest] = pack([as_group([session])], credit, 1000)
    assert forest.token_ids.tolist() == seen
    assert forest.token_ids[forest.weight > 0].tolist() == [30, 31, 32, 33, 34, 35]
    assert forest.weight[forest.weight > 0].tolist() == pytest.approx([1 / 6] * 6)
    assert path_tokens([as_group([session])], credit) == len(seen)


def test_an_end_that_another_path_passes_through_is_credited_with_that_path_alone() -> None:
    session, _ = extended_twice()
    first = session.nodes[1]
    sampled_node(session, environment_node(session, first.id, [3]).id, [36], reward=4.0)
    [forest] = pack([as_group([session])], reinforce([session]), 1000)
    told = dict(zip(forest.token_ids.tolist(), forest.advantage.tolist(), strict=True))
    assert (told[30], told[31], told[7]) == pytest.approx((3.0, 3.0, 5.0))
    assert {i: told[i] for i in (32, 35, 36)} == pytest.approx({32: 1.0, 35: 1.0, 36: 5.0})


@pytest.mark.slow
def test_the_weights_do_not_depend_on_who_holds_the_tokens() -> None:
    session, _ = extended_twice()
    everything = Credit({(session.id, node.id): (NodeAdvantage(1.0, 1.0),) for node in session.nodes if node.sampled})
    [forest] = pack([as_group([session])], everything, 1000)
    assert set(forest.weight.tolist()) == {0.0, 1.0}
