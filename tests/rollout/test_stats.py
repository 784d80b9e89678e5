from __future__ import annotations

import math
import random
from itertools import combinations
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.rollout.stats import after_switch, evaluate_groups, idle, interval, pass_at_k, rollout_metrics, staleness
from agentrl.types import Group, Message, Node, Session, Status, Task, VersionSpan

TASK = Task(id="t")


def group(name: str, *scores: float | None, status: Status = Status.COMPLETED) -> Group:
    sessions = [Session(f"{name}-{i}", TASK, group=name, status=status, reward=s) for i, s in enumerate(scores)]
    return Group(name, TASK, sessions)


@given(st.lists(st.booleans(), min_size=1, max_size=7), st.data())
def test_pass_at_k_is_the_share_of_k_subsets_that_hold_a_solution(solved: list[bool], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(solved)))
    subsets = list(combinations(solved, k))
    assert pass_at_k(len(solved), sum(solved), k) == pytest.approx(fmean(any(s) for s in subsets))


def test_a_session_that_failed_for_our_reasons_is_in_no_mean_and_is_counted() -> None:
    groups = [group("a", 1.0, 0.0), group("b", 1.0)]
    spoiled = Session("a-x", TASK, group="a", status=Status.INFRA_ERROR, reward=0.0)
    groups[0].sessions.append(spoiled)
    result = evaluate_groups(groups, solved_at=1.0)
    assert (result.mean, result.sessions, result.infra_errors) == (0.75, 3, 1)
    assert rollout_metrics(groups)["reward/mean"] == pytest.approx(2 / 3)


def test_a_session_without_reward_is_not_a_zero() -> None:
    assert evaluate_groups([group("a", 1.0, None)], solved_at=1.0).mean == 1.0


def test_each_task_weighs_the_same_however_many_sessions_it_has() -> None:
    assert evaluate_groups([group("a", 1.0, 1.0, 1.0), group("b", 0.0)], solved_at=1.0).mean == 0.5


def test_nothing_played_gives_no_number_rather_than_a_zero() -> None:
    assert math.isnan(evaluate_groups([], solved_at=1.0).mean)


@pytest.mark.parametrize("chance", [0.1, 0.5, 0.95])
def test_the_interval_covers_the_true_mean_about_as_often_as_it_says(chance: float) -> None:
    rng = random.Random(7)
    covered = 0
    for _ in range(2000):
        low, high = interval([float(rng.random() < chance) for _ in range(50)])
        covered += low <= chance <= high
    assert 0.92 < covered / 2000 < 0.985


def test_the_interval_is_not_empty_when_every_task_was_solved() -> None:
    low, high = interval([1.0] * 20)
    assert low < 0.9
    assert high == 1.0


def test_one_task_has_an_interval_where_its_reward_is_bounded_and_none_is_printed_elsewhere() -> None:
    assert interval([1.0]) == pytest.approx((0.2065, 1.0), abs=1e-3)
    assert all(map(math.isnan, interval([5.0])))
    assert all(map(math.isnan, interval([])))
    for reward in (1.0, 5.0):
        found = evaluate_groups([group("a", reward)], solved_at=1.0)
        assert "nan" not in f"{found} {found.summary}"


def test_unbounded_rewards_get_the_normal_interval() -> None:
    low, high = interval([-3.0, 5.0, 4.0])
    assert low < 2.0 < high
    assert high - 2.0 == pytest.approx(2.0 - low)


def test_tokens_sampled_after_a_switch_of_policies_within_a_turn_are_counted() -> None:
    def node(*spans: tuple[int, int, int]) -> Node:
        return Node(0, None, Message(role="assistant"), [], [], [], versions=[VersionSpan(*span) for span in spans])

    assert after_switch(node()) == 0
    assert after_switch(node((3, 1, 9))) == 0
    assert after_switch(node((3, 1, 9), (4, 9, 12), (5, 12, 13))) == 4


def test_staleness_is_given_as_a_mean_a_maximum_and_the_share_of_tokens_at_each_distance() -> None:
    spans = [VersionSpan(3, 0, 6), VersionSpan(5, 6, 8), VersionSpan(4, 8, 8)]
    node = Node(0, None, Message(role="assistant"), [], [], [], versions=spans)
    several = group("t", 1.0)
    several.sessions[0].nodes.append(node)
    shares = {"staleness/share_0": 0.25, "staleness/share_2": 0.75}
    assert staleness([several], 5) == {"staleness/mean": 1.5, "staleness/max": 2.0} | shares
    node.versions = [VersionSpan(5, 0, 6)]
    assert staleness([several], 5) == {"staleness/mean": 0.0, "staleness/max": 0.0}


def test_engine_and_trainer_are_idle_for_the_rest_of_a_steps_time() -> None:
    row = {"time/step": 10.0, "time/engine_idle": 2.5, "time/train": 3.0, "time/values": 1.0}
    assert idle(row) == {"time/idle_engine": 0.25, "time/idle_trainer": 0.6}
