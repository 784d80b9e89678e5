"""Joint turns of a team: returns and advantages on trees against brute force and MAGRPO's figures, and on sessions."""

from __future__ import annotations

import random
from itertools import product
from statistics import fmean
from typing import Any

import pytest

from agentrl.train.algorithms import algorithm_settings, make_algorithm
from agentrl.train.algorithms.joint_turns import (
    JointTurn,
    completion_advantages,
    joint_advantages,
    joint_returns,
)
from tests.train.forked import Segment, Turn, random_segment, reference_advantages, session_of
from tests.train.trees import as_group, environment_node, linear_session, sampled_node


def test_the_tree_of_the_paper_has_its_returns_and_advantages() -> None:
    bad, good = JointTurn(0, [JointTurn(0), JointTurn(0.5)]), JointTurn(1, [JointTurn(1), JointTurn(1)])
    root = JointTurn(0, [bad, good])
    returns, advantages = joint_returns(root, 0.9), joint_advantages(root, 0.9)
    assert [returns[bad], returns[good]] == pytest.approx([0.225, 1.9])
    assert [advantages[bad], advantages[good]] == pytest.approx([-0.8375, 0.8375])
    assert [advantages[turn] for turn in (*bad.children, *good.children)] == [-0.25, 0.25, 0, 0]


def test_completions_that_meet_in_every_combination_have_the_sum_over_these() -> None:
    crossed = {(0, 0): 0.0, (0, 1): 1.0, (1, 0): 2.0, (1, 1): 3.0}
    assert [completion_advantages(crossed, agent) for agent in range(2)] == [{0: -2, 1: 2}, {0: -1, 1: 1}]
    aligned = {(0, 0): 0.0, (1, 1): 1.0}
    assert [completion_advantages(aligned, agent) for agent in range(2)] == [{0: -0.5, 1: 0.5}] * 2


def random_tree(rng: random.Random, depth: int) -> JointTurn:
    count = rng.randint(2, 3) if depth and rng.random() < 0.8 else 0
    return JointTurn(rng.choice((0.0, 0.5, rng.random())), [random_tree(rng, depth - 1) for _ in range(count)])


@pytest.mark.slow
def test_trees_are_equal_to_brute_force() -> None:
    """The definition, term by term: a return by recursion, a baseline over a node's own children."""

    def value(turn: JointTurn, gamma: float) -> float:
        return turn.reward + (gamma * fmean(value(child, gamma) for child in turn.children) if turn.children else 0)

    for seed in range(500):
        rng = random.Random(seed)
        root, gamma = random_tree(rng, 4), rng.choice((0.0, 0.9, 1.0))
        for baseline in ("mean", "max", "leave_one_out"):
            found = joint_advantages(root, gamma, baseline)  # type: ignore[arg-type]
            assert len(found) == len(root.tree()) - 1
            for node in root.tree():
                values = [value(child, gamma) for child in node.children]
                for place, child in enumerate(node.children):
                    others = values[:place] + values[place + 1 :]
                    usual = {"mean": fmean(values), "max": max(values), "leave_one_out": fmean(others)}[baseline]
                    assert found[child] == pytest.approx(values[place] - usual, abs=1e-9)


def test_combinations_are_equal_to_brute_force() -> None:
    for seed in range(100):
        rng = random.Random(seed)
        agents, samples = rng.randint(1, 3), rng.randint(2, 3)
        returns = {joint: rng.random() for joint in product(range(samples), repeat=agents)}
        mean = fmean(returns.values())
        expected = [
            [sum(value - mean for joint, value in returns.items() if joint[agent] == k) for k in range(samples)]
            for agent in range(agents)
        ]
        found = [completion_advantages(returns, agent) for agent in range(agents)]
        assert [row[k] for row in found for k in range(samples)] == pytest.approx([x for row in expected for x in row])


def algorithm(**fields: Any) -> Any:
    return make_algorithm(algorithm_settings({"name": "magrpo", **fields}))


def test_histories_of_a_group_are_compared_turn_by_turn_among_those_that_go_on() -> None:
    """Equation 3 of the paper, with three histories of which one ends early."""
    first, second, short = (
        linear_session(name, [8, 9], [[30, 31]] * turns, reward=reward)
        for name, turns, reward in (("a", 2, 1.0), ("b", 2, 0.0), ("c", 1, 0.5))
    )
    first.nodes[1].reward = 0.2
    shares = algorithm(gamma=0.5).credit([as_group([first, second, short])]).shares
    opening = [0.2 + 0.5 * 1.0, 0.0, 0.5]
    expected = [value - fmean(opening) for value in opening]
    assert [shares[name, 1][0].advantage for name in "abc"] == pytest.approx(expected)
    assert [shares[name, 3][0].advantage for name in "ab"] == pytest.approx([0.5, -0.5])
    assert {share.weight for (share,) in shares.values()} == {1 / 3}, "a sum over tokens, a mean over completions"


def test_the_last_token_is_trained_unless_the_papers_code_is_to_be_repeated() -> None:
    sessions = [linear_session(name, [8], [[30, 31, 32]], reward=reward) for name, reward in (("a", 1.0), ("b", 0.0))]
    whole, theirs = (
        algorithm(last_token=last).credit([as_group(sessions)]).shares["a", 1][0] for last in (True, False)
    )
    assert (whole.advantage, theirs.advantage) == (0.5, [0.5] * 4 + [0.0])
    assert whole.weight == theirs.weight


@pytest.mark.slow
def test_forks_of_sessions_are_the_trees_alternatives() -> None:
    """Without a discount, equal to the reference of forked sessions where all alternatives are of one length."""

    def even(segment: Segment) -> Segment:
        segment.turns = (segment.turns * 2)[:1] + random_segment(rng, 0, rewards=True).turns[:1]
        segment.below = [even(below) for below in segment.below]
        return segment

    for seed in range(30):
        rng = random.Random(seed)
        segments = [even(random_segment(rng, 2, rewards=True)) for _ in range(3)]
        sessions = [session_of(f"s{place}", segment, [8, 9, 10]) for place, segment in enumerate(segments)]
        for baseline, others in (("mean", False), ("leave_one_out", True)):
            shares = algorithm(gamma=1.0, baseline=baseline, entropy_coef=0.1).credit([as_group(sessions)]).shares
            expected = reference_advantages(segments, others)
            for session, segment in zip(sessions, segments, strict=True):
                for turn in every_turn(segment):
                    assert shares[session.id, turn.node][0].advantage == pytest.approx(expected[id(turn)], abs=1e-9)


def every_turn(segment: Segment) -> list[Turn]:
    return [*segment.turns, *(turn for below in segment.below for turn in every_turn(below))]


def test_a_conversation_begun_anew_is_no_alternative_to_what_was_before() -> None:
    session = linear_session("a", [8, 9], [[30]], reward=1.0)
    sampled_node(session, environment_node(session, None, [9, 9]).id, [33])
    other = linear_session("b", [8, 9], [[31]], reward=0.0)
    shares = algorithm().credit([as_group([session, other])]).shares
    assert [shares["a", node.id][0].advantage for node in session.nodes if node.sampled] == [0.5, 0.5]
