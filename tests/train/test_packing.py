from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.errors import InvalidInput
from agentrl.train.algorithms.advantages.reinforce import Reinforce
from agentrl.train.algorithms.credit import Credit, NodeAdvantage
from agentrl.train.forest.forest import Forest
from agentrl.train.forest.packing import pack, path_tokens
from agentrl.types import Group, Session
from tests.train.trees import (
    as_group,
    environment_node,
    leaf_credit,
    linear_session,
    path,
    random_groups,
    random_session,
    sampled_node,
)

PROMPT = list(range(10, 30))


def credit_all(sessions: list[Session]) -> Credit:
    return Credit({(s.id, n.id): (NodeAdvantage(1.0, 0.5),) for s in sessions for n in s.nodes if n.sampled})


def tokens(forests: list[Forest]) -> int:
    return sum(map(len, forests))


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), budget=st.sampled_from((1, 20, 60, 300, 10_000)))
@pytest.mark.slow
def test_every_forest_keeps_its_invariants_and_every_trained_token_is_trained_once(seed: int, budget: int) -> None:
    rng = random.Random(seed)
    groups = random_groups(rng, 3, depth=6, branching=5)
    sessions = [s for group in groups for s in group.sessions]
    credit, _ = leaf_credit(rng, sessions)
    forests = pack(groups, credit, budget, seed=seed)
    expected = {
        (tuple(t for n in path(s, node.id) for t in n.token_ids), s.id, node.id): sum(sh.weight for sh in shares)
        for s in sessions
        for node in s.nodes
        if (shares := credit.shares.get((s.id, node.id)))
    }
    count = sum(sum(s.nodes[node].trainable) for _, s_id, node in expected for s in sessions if s.id == s_id)
    total = sum(
        weight * sum(s.nodes[node].trainable)
        for (_, s_id, node), weight in expected.items()
        for s in sessions
        if s.id == s_id
    )
    for forest in forests:
        forest.check()
    assert sum(f.trained for f in forests) == count
    assert sum(f.weight.double().sum().item() for f in forests) == pytest.approx(total, rel=1e-5)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), budget=st.sampled_from((40, 90, 200)))
def test_only_a_single_path_may_exceed_the_budget(seed: int, budget: int) -> None:
    rng = random.Random(seed)
    sessions = [random_session(rng, f"s{i}", [8, 9], depth=6, branching=4) for i in range(4)]
    for forest in pack([as_group(sessions)], credit_all(sessions), budget):
        is_leaf = forest.end == torch.arange(1, len(forest) + 1)
        assert len(forest) <= budget or int(is_leaf.sum()) == 1


def test_a_prompt_shared_by_a_group_is_computed_once() -> None:
    sessions = [linear_session(f"s{i}", PROMPT, [[30 + i, 31, 32]]) for i in range(8)]
    forests = pack([as_group(sessions)], credit_all(sessions), 1000)
    opening = 2  # the generation prompt's tokens are the same for all, too
    assert tokens(forests) == len(PROMPT) + opening + 8 * 3
    assert path_tokens([as_group(sessions)], credit_all(sessions)) == 8 * (len(PROMPT) + opening + 3)


def test_groups_never_share_tokens() -> None:
    groups = [as_group([linear_session(f"s{i}", PROMPT, [[30]])], f"g{i}") for i in range(2)]
    credit = credit_all([s for g in groups for s in g.sessions])
    assert tokens(pack(groups, credit, 1000)) == 2 * (len(PROMPT) + 3)


def test_two_groups_of_one_id_are_one_group() -> None:
    groups = [as_group([linear_session(f"s{i}", PROMPT, [[30]])], "same") for i in range(2)]
    credit = credit_all([s for g in groups for s in g.sessions])
    assert tokens(pack(groups, credit, 1000)) == len(PROMPT) + 3


def test_sampled_tokens_of_different_policies_or_temperatures_are_not_merged() -> None:
    def one(name: str, **how: float) -> Session:
        session = linear_session(name, PROMPT, [])
        sampled_node(session, 0, [30, 31], temperature=how.get("t", 1.0), version=int(how.get("v", 0)))
        return session

    base = len(PROMPT) + 2 + 2
    for other, extra in (({}, 0), ({"t": 0.5}, 2), ({"v": 1}, 2)):
        sessions = [one("a"), one("b", **other)]
        assert tokens(pack([as_group(sessions)], credit_all(sessions), 1000)) == base + extra


def test_untrained_tokens_behind_the_last_trained_one_are_dropped_on_each_branch() -> None:
    session = linear_session("s", PROMPT, [[30, 31]])
    environment_node(session, len(session.nodes) - 1, [5] * 50)
    environment_node(session, 0, [6] * 50)
    [forest] = pack([as_group([session])], credit_all([session]), 1000)
    assert len(forest) == len(PROMPT) + 2 + 2
    assert forest.weight[-1] > 0


def test_a_session_with_several_roots_becomes_several_trees() -> None:
    session = linear_session("s", PROMPT, [[30]])
    root = environment_node(session, None, [7, 8])
    sampled_node(session, root.id, [33])
    [forest] = pack([as_group([session])], credit_all([session]), 1000)
    forest.check()
    assert int((forest.position == 0).sum()) == 2


def test_a_root_s_first_token_is_never_trained_because_nothing_predicts_it() -> None:
    session = Session("s", as_group([]).task)
    sampled_node(session, None, [30, 31, 32], opening=())
    [forest] = pack([as_group([session])], credit_all([session]), 100)
    forest.check()
    assert forest.weight.tolist() == [0.0, 0.5, 0.5]


def test_advantages_may_differ_from_token_to_token() -> None:
    session = linear_session("s", PROMPT, [[30, 31, 32]])
    credit = Credit({("s", 1): (NodeAdvantage([9.0, 9.0, 1.0, -2.0, 3.0], 0.5),)})
    [forest] = pack([as_group([session])], credit, 100)
    assert forest.advantage[forest.weight > 0].tolist() == [1.0, -2.0, 3.0]
    [split] = pack([as_group([session])], credit, 100, merge="channels")
    assert split.advantage_minus is not None
    assert split.advantage[split.weight > 0].tolist() == [1.0, 0.0, 3.0]
    assert split.advantage_minus[split.weight > 0].tolist() == [0.0, -2.0, 0.0]


def test_the_seed_decides_the_order_and_nothing_else_does() -> None:
    sessions = [linear_session(f"s{i}", [8 + i], [[30, 31]]) for i in range(12)]
    groups = [as_group([s], s.id) for s in sessions]
    credit = credit_all(sessions)

    def order(seed: int) -> list[list[int]]:
        return [f.token_ids.tolist() for f in pack(groups, credit, 12, seed=seed)]

    assert order(1) == order(1)
    assert order(1) != order(2)
    assert sorted(t for f in order(1) for t in f) == sorted(t for f in order(2) for t in f)


def test_what_the_engine_recorded_stands_at_the_token_it_belongs_to() -> None:
    session = linear_session("s", PROMPT, [])
    sampled_node(session, 0, [30, 31], logprobs=[-1.5, -2.5], temperature=0.5, version=7)
    [forest] = pack([as_group([session])], credit_all([session]), 100)
    assert forest.behaviour_logp[-2:].tolist() == [-1.5, -2.5]
    assert forest.temperature[-3:].tolist() == [1.0, 0.5, 0.5]
    assert forest.version[-3:].tolist() == [-1, 7, 7]
    assert forest.node_id[-1] == 1


def test_without_credit_there_are_no_forests() -> None:
    session = linear_session("s", PROMPT, [[30]])
    assert pack([as_group([session])], Credit(), 100) == []
    assert path_tokens([as_group([session])], Credit()) == 0


@pytest.mark.slow
def test_a_conversation_of_two_thousand_turns_packs_without_recursion() -> None:
    session = linear_session("s", PROMPT, [[30 + i % 8] for i in range(2000)], reward=1.0)
    credit = Reinforce().credit([as_group([session])])
    [forest] = pack([as_group([session])], credit, 100)
    assert len(forest) == len(PROMPT) + 2000 * 4 - 1


@pytest.mark.parametrize("budget", [0, -5])
def test_a_budget_below_one_token_is_refused(budget: int) -> None:
    with pytest.raises(InvalidInput, match="token_budget"):
        pack([], Credit(), budget)


@pytest.mark.slow
def test_two_sessions_of_one_id_are_refused() -> None:
    session = linear_session("s", PROMPT, [[30]])
    with pytest.raises(InvalidInput, match="unique"):
        pack([Group("a", session.task, [session]), Group("b", session.task, [session])], Credit(), 10)
