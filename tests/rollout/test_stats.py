from __future__ import annotations

import math

import pytest

from agentrl.config import EvalConfig
from agentrl.rollout.stream.batch_metrics import evaluate_groups, idle, rollout_metrics, staleness
from agentrl.rollout.workers.held import after_switch
from agentrl.types import Group, Message, Node, Session, Status, Task, VersionSpan

TASK = Task(id="t")


def group(name: str, *scores: float | None, status: Status = Status.COMPLETED) -> Group:
    sessions = [Session(f"{name}-{i}", TASK, group=name, status=status, reward=s) for i, s in enumerate(scores)]
    return Group(name, TASK, sessions)


def test_a_session_that_failed_for_our_reasons_is_in_no_mean_and_is_counted() -> None:
    groups = [group("a", 1.0, 0.0), group("b", 1.0)]
    spoiled = Session("a-x", TASK, group="a", status=Status.INFRA_ERROR, reward=0.0)
    groups[0].sessions.append(spoiled)
    result = evaluate_groups(groups, EvalConfig())
    assert (result.mean, result.sessions, result.infra_errors) == (0.75, 3, 1)
    assert rollout_metrics(groups)["reward/mean"] == pytest.approx(2 / 3)


def test_a_session_without_reward_is_not_a_zero() -> None:
    assert evaluate_groups([group("a", 1.0, None)], EvalConfig()).mean == 1.0


def test_each_task_weighs_the_same_however_many_sessions_it_has() -> None:
    assert evaluate_groups([group("a", 1.0, 1.0, 1.0), group("b", 0.0)], EvalConfig()).mean == 0.5


def test_a_task_whose_step_rewards_add_up_to_one_but_for_rounding_is_solved() -> None:
    total = sum([1 / 14] * 14)
    assert total < 1.0
    assert evaluate_groups([group("a", total)], EvalConfig()).pass_at == {1: 1.0}
    assert evaluate_groups([group("a", 0.999)], EvalConfig()).pass_at == {1: 0.0}


def test_nothing_played_gives_no_number_rather_than_a_zero() -> None:
    assert math.isnan(evaluate_groups([], EvalConfig()).mean)


def test_a_single_task_prints_no_bound_that_is_not_a_number() -> None:
    for reward in (1.0, 5.0):
        found = evaluate_groups([group("a", reward)], EvalConfig())
        assert "nan" not in f"{found} {found.summary}"


def test_an_evaluation_reports_pass_hat_scores_by_task_errors_by_blame_and_cost() -> None:
    groups = [group("a", 1.0, 0.0), group("b", 1.0, 1.0)]
    groups[1].task = Task(id="u", data={"n": 1})
    groups[0].sessions[1].status = Status.AGENT_ERROR
    for session in groups[0].sessions:
        session.counters = {"prompt_tokens": 1000, "completion_tokens": 10, "tool_errors": 2}
    result = evaluate_groups(groups, EvalConfig(prompt_price=2.0, completion_price=50.0))
    assert (result.pass_at, result.pass_hat) == ({1: 0.75, 2: 1.0}, {1: 0.75, 2: 0.5})
    assert [(each.task, each.scores) for each in result.scores] == [("t", [1.0, 0.0]), ("u", [1.0, 1.0])]
    assert result.scores[0].digest != result.scores[1].digest
    assert result.errors == {"agent": 1, "infra": 0, "truncated": 0, "tool_calls": 4}
    assert (result.usage.prompt, result.usage.completion) == (2000, 20)
    assert result.cost == pytest.approx((2000 * 2 + 20 * 50) / 1e6)
    assert "pass^2 0.500" in str(result)
    assert evaluate_groups(groups, EvalConfig()).cost is None


def test_every_k_up_to_the_fewest_sessions_of_a_task_has_its_chance_and_the_line_names_only_the_ends() -> None:
    groups = [group(name, *[1.0] * solved, *[0.0] * (5 - solved)) for name, solved in (("a", 2), ("b", 4), ("c", 0))]
    result = evaluate_groups(groups, EvalConfig())
    at = [(0.4 + 0.8 + 0) / 3, (0.7 + 1 + 0) / 3, (0.9 + 1 + 0) / 3, 2 / 3, 2 / 3]  # a: 1 - C(3, k) / C(5, k)
    hat = [(0.4 + 0.8 + 0) / 3, (0.1 + 0.6 + 0) / 3, (0 + 0.4 + 0) / 3, (0 + 0.2 + 0) / 3, 0.0]  # C(c, k) / C(5, k)
    assert result.pass_at == pytest.approx(dict(enumerate(at, 1)), abs=1e-12)
    assert result.pass_hat == pytest.approx(dict(enumerate(hat, 1)), abs=1e-12)
    assert "pass@1 0.400  pass@5 0.667  pass^5 0.000  n=15" in str(result)
    uneven = evaluate_groups([*groups, group("d", 1.0, 0.0, 0.0)], EvalConfig())
    assert (list(uneven.pass_at), list(uneven.pass_hat)) == ([1, 2, 3], [1, 2, 3])
    assert uneven.pass_at[2] == pytest.approx((0.7 + 1 + 0 + 2 / 3) / 4, abs=1e-12)


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


@pytest.mark.slow
def test_engine_and_trainer_are_idle_for_the_rest_of_a_steps_time() -> None:
    row = {"time/step": 10.0, "time/engine_idle": 2.5, "time/train": 3.0, "time/values": 1.0}
    assert idle(row) == {"time/idle_engine": 0.25, "time/idle_trainer": 0.6}
