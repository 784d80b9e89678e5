"""A root that is excluded (`Session.excluded`) is for training as if it had never been, for every algorithm."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from agentrl.config import AlgoConfig
from agentrl.rollout.workers.held import digest_of, sizes_of
from agentrl.sessions.store.export import to_jsonl
from agentrl.sessions.store.store import Store
from agentrl.train.algorithms import ALGORITHMS, algorithm_settings, make_algorithm
from agentrl.train.algorithms.adaptive import Adaptive
from agentrl.train.algorithms.credit import Credit
from agentrl.train.algorithms.shaping import shaped_groups
from agentrl.train.algorithms.table import list_built_in
from agentrl.train.driver.lost_tokens import SAMPLED, TRAINED, Cause, account
from agentrl.train.forest.packing import pack_credited
from agentrl.types import GREEDY, Group, Message, Session
from agentrl.types.branches import alone, branch_nodes
from agentrl.types.session import COUNTERFACTUALS
from tests.sessions.exported import from_jsonl
from tests.train.forked import random_segment, session_of
from tests.train.trees import (
    as_group,
    environment_node,
    linear_session,
    random_session,
    sampled_node,
    with_counterfactuals,
)

EVERY = {name: make_algorithm(algorithm_settings({"name": name})) for name in list_built_in(ALGORITHMS, "agentrl.")}
NAMES = [name for name, algorithm in EVERY.items() if algorithm.needs.engine]
HELPER = 2
"""Nodes of a helper's tree."""


def with_helper(session: Session) -> Session:
    """The session behind a helper's tree: a title that was requested first."""
    made = replace(session, nodes=[], excluded=[0])
    environment_node(made, None, [30, 31])
    sampled_node(made, 0, [32, 33, 34])
    moved = {None: None} | {node.id: node.id + HELPER for node in session.nodes}
    made.nodes += [
        replace(n, id=n.id + HELPER, parent=moved[n.parent], copy_of=moved[n.copy_of], agent=f"{n.agent}-2")
        for n in session.nodes
    ]
    known = session.info.get(COUNTERFACTUALS, {})
    made.info = {COUNTERFACTUALS: {f"{agent}-2": each for agent, each in known.items()}}
    made.branches = [
        replace(b, head=moved[b.head], start=b.start and b.start + HELPER, end=b.end + HELPER) for b in session.branches
    ]
    return made


def trees(rng: random.Random, name: str) -> list[Group]:
    """Groups of random trees with step rewards; forked ones where the algorithm needs them."""
    needs = EVERY[name].needs
    groups = []
    for g in range(2):
        members = []
        for i in range(3):
            if needs.branches:
                made = session_of(f"{g}-{i}", random_segment(rng, 1, rewards=False), [8, 9, 10])
            else:
                made = random_session(rng, f"{g}-{i}", [8, 9], 4, 1 if needs.whole_sessions else 3)
                sampled_node(made, 0, [11, 12 + i])
                for node in made.nodes:
                    node.reward = rng.choice([None, None, 0.05]) if node.sampled else None
                made.reward = 0.5 * (made.reward or 0.0)
            made.rewards = {"one": made.reward or 0.0}
            with_counterfactuals(made)
            members.append(made)
        if needs.greedy:
            members[-1].phase = GREEDY
        groups.append(as_group(members, f"g{g}"))
    return groups


def shifted(credit: Credit) -> Credit:
    """Credit of nodes as they are behind a helper's tree; no helper's tree is in sessions that are only measured."""
    added = {session.id for group in credit.added for session in group.sessions}
    shares = {(s, node if s in added else node + HELPER): each for (s, node), each in credit.shares.items()}
    return replace(credit, shares=shares)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(3))
def test_every_algorithm_credits_and_packs_as_if_an_excluded_tree_had_never_been(name: str, seed: int) -> None:
    plain = trees(random.Random(seed), name)
    helped = [replace(group, sessions=[with_helper(session) for session in group.sessions]) for group in plain]
    found = []
    for groups, offset in ((plain, 0), (helped, HELPER)):
        algorithm = make_algorithm(
            algorithm_settings(
                {"name": name, "shaping": {"length_reward": 0.0 if EVERY[name].needs.reward_model else 0.1}}
            )
        )
        shaped = shaped_groups(groups, algorithm.config, Adaptive(1.0, 0.0))
        values = {(s.id, n.id): [0.3] * len(n.token_ids) for g in shaped for s in g.sessions for n in s.nodes}
        credit, forests = pack_credited(algorithm, shaped, values, 4096, 0)
        credit = credit if offset else shifted(credit)
        columns = [(f.token_ids.tolist(), f.end.tolist(), f.advantage.tolist(), f.weight.tolist()) for f in forests]
        scores = [session.score for group in shaped for session in group.sessions]
        found.append((credit.shares, credit.counts, credit.metrics, columns, scores))
    assert found[0] == found[1]
    assert found[0][0]


def test_an_excluded_trees_tokens_are_counted_as_lost_to_that() -> None:
    algorithm = make_algorithm(AlgoConfig(name="grpo"))
    group = as_group([with_helper(linear_session(n, [5], [[6, 7]], reward=r)) for n, r in (("a", 0.0), ("b", 1.0))])
    counts = account([group], algorithm.credit([group]), algorithm.config)
    assert {name: count for name, count in counts.items() if count} == {
        **{SAMPLED: 10, TRAINED: 4, Cause.EXCLUDED.metric: 6}
    }
    assert [sizes_of(session).trainable for session in group.sessions] == [2, 2]


def test_a_helper_that_came_first_does_not_make_the_tasks_agent_a_helper() -> None:
    session = with_helper(linear_session("a", [5], [[6, 7]], reward=1.0))
    assert session.main_agent == "agent-2"
    group = as_group([session, with_helper(linear_session("b", [5], [[6, 7]], reward=0.0))])
    algorithm = make_algorithm(AlgoConfig(name="grpo", helper_credit=0.0))
    credit, _ = pack_credited(algorithm, [group], None, 4096, 0)
    assert len(credit.shares) == 2


def test_an_answer_is_the_tasks_whatever_a_helper_said_later() -> None:
    session = linear_session("a", [5], [[6, 7]])
    session.nodes[1].message = Message(role="assistant", content="42")
    helper = environment_node(session, None, [30])
    sampled_node(session, helper.id, [31]).message = Message(role="assistant", content="A title")
    assert session.answer == "A title"
    session.excluded = [helper.id]
    assert session.answer == "42"
    assert len(session.messages) == 3


def test_a_reward_for_one_of_its_turns_makes_an_excluded_tree_count() -> None:
    session = with_helper(linear_session("a", [5], [[6, 7]], reward=1.0))
    assert session.excluded_nodes() == {0, 1}
    session.nodes[1].reward = 0.0
    assert session.excluded_nodes() == set()


def test_excluded_roots_are_stored_exported_and_part_of_what_training_sees(tmp_path: Path) -> None:
    session = with_helper(linear_session("a", [5], [[6, 7]], reward=1.0))
    with Store(tmp_path / "s.db") as store:
        store.save(session)
        assert store.load("a").excluded == [0]
    to_jsonl([session], tmp_path / "s.jsonl")
    (again,) = from_jsonl(tmp_path / "s.jsonl")
    assert again.excluded == [0]
    assert digest_of(again) == digest_of(session) != digest_of(replace(session, excluded=[]))


def test_the_parts_of_a_session_keep_what_is_excluded_in_them() -> None:
    session = with_helper(session_of("a", random_segment(random.Random(0), 1, rewards=False), [8, 9]))
    for branch in session.branches:
        nodes = branch_nodes(session, branch)
        assert alone(session, nodes).excluded == ([0] if nodes[0].id == 0 else [])
