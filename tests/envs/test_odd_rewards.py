"""One rule says which rewards are taken, whoever gives them; one that is none costs its session, never the run."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import torch

import agentrl
from agentrl.config import EvalConfig, RewardConfig, RolloutConfig
from agentrl.envs import calls
from agentrl.envs.base import Env
from agentrl.envs.episode import EXPERT, play
from agentrl.envs.rewards import NamedReward, Reward, adding
from agentrl.errors import EnvError, InvalidInput, InvalidReward
from agentrl.rollout.episodes.groups import Rollouts
from agentrl.rollout.episodes.policies import Policy
from agentrl.rollout.stream.batch_metrics import evaluate_groups, rollout_metrics
from agentrl.rollout.stream.health import failures, sampling_notes, with_retries
from agentrl.sessions.gateway.http.api_error import ApiError
from agentrl.sessions.gateway.http.requests import validated
from agentrl.sessions.gateway.rewards import CloseBody, RewardBody
from agentrl.sessions.renderers.families.null import NullRenderer
from agentrl.tools.tool import tool
from agentrl.train.display import panel
from agentrl.types import Group, Message, Session, Status, StepResult, Task
from agentrl.viewer import health


class Giver(Env):
    """Gives the value in its task, in the way that the class names."""

    return_range = (-1.0, 1.0)

    def tasks(self, split: str = "train") -> list[dict[str, int]]:
        return [{"n": n} for n in range(8)]

    def reset(self, task: Task, *, seed: int | None = None) -> str:
        self.n = task["n"]
        return "?"

    def expert(self, messages: list[Message]) -> str | Message:
        return "done"

    def value(self) -> Any:
        raise NotImplementedError


class Final(Giver):
    @agentrl.reward
    def given(self, session: Session) -> Any:
        return self.value()


class Late(Giver):
    @agentrl.reward
    async def given(self, session: Session) -> Any:
        return self.value()


class Step(Giver):
    def step(self, message: Message) -> StepResult:
        return StepResult(reward=self.value(), terminated=True)


class Earned(Giver):
    @tool
    def take(self) -> str:
        """Take it."""
        self.earn(self.value())
        return "taken"

    def expert(self, messages: list[Message]) -> str | Message:
        return self.call("take") if len(messages) == 1 else "done"


class Judge(Reward):
    def __init__(self, value: Callable[[], Any]) -> None:
        super().__init__(RewardConfig(name="judge"))
        self.value = value

    def compute(self, session: Session) -> Any:
        return self.value()


def giving(kind: type[Giver], value: Callable[[Giver], Any]) -> Callable[[], Env]:
    return type(kind.__name__, (kind,), {"value": value})


WAYS = [Final, Late, Step, Earned]
HALVES = [0.5, "0.5", np.float32(0.5), np.array([0.5]), torch.tensor(0.5, requires_grad=True), Decimal("0.5")]
ODD = [math.nan, -math.inf, "none", {"score": 1}, 1e200, np.array([0.1, 0.2])]


@pytest.mark.parametrize("way", WAYS)
async def test_a_half_is_a_half_in_every_way_and_of_every_library(way: type[Giver]) -> None:
    for value in HALVES:
        session = await play(giving(way, lambda self, value=value: value)(), Task(id="t", data={"n": 0}))
        assert (session.score, type(session.score)) == (0.5, float)


@pytest.mark.parametrize("way", WAYS)
async def test_what_is_no_reward_is_refused_in_every_way_by_name(way: type[Giver]) -> None:
    for value in ODD:
        with pytest.raises(InvalidReward, match=rf"{way.__name__}.* gave .*, which is ") as caught:
            await play(giving(way, lambda self, value=value: value)(), Task(id="t", data={"n": 0}))
        assert "raised" not in str(caught.value)


async def test_rewards_that_a_run_adds_and_that_programs_post_follow_the_same_rule() -> None:
    for value in HALVES:
        assert await NamedReward("judge", Judge(lambda value=value: value))(Session("s", Task(id="t"))) == 0.5
        assert validated(RewardBody, {"value": value}).value == 0.5
        assert validated(CloseBody, {"reward": value, "rewards": {"a": value}}).rewards == {"a": 0.5}
    for value in (*ODD, None):
        if value is not None and not isinstance(value, dict):
            with pytest.raises(InvalidReward, match=r"rewards\.judge=.* gave"):
                await NamedReward("judge", Judge(lambda value=value: value))(Session("s", Task(id="t")))
        with pytest.raises(ApiError, match=r"value: .*which is"):
            validated(RewardBody, {"value": value})
        with pytest.raises(ApiError, match=r"rewards\.a: .*which is"):
            validated(CloseBody, {"rewards": {"a": value}})
    assert validated(CloseBody, {"reward": None}).reward is None


class Two(Giver):
    agents = ("a", "b")

    def reset(self, task: Task, *, seed: int | None = None) -> Any:
        return {"a": "?", "b": "?"}

    def step(self, message: Message) -> StepResult:
        return StepResult(terminated=True, rewards={"a": np.float32(0.25)})

    @agentrl.reward
    def shares(self, session: Session) -> Any:
        return {"a": np.bool_(True), "b": type("NAType", (), {})()}


async def test_rewards_by_agent_are_numbers_too_and_a_missing_one_is_none() -> None:
    session = await play(Two(), Task(id="t", data={"n": 0}))
    assert session.rewards == {"shares/a": 1.0}
    assert session.nodes[-1].reward == 0.25
    judged = NamedReward("judge", Judge(lambda: {"a": "0.5", "b": None}))
    assert (await play(adding(Two, [judged])(), Task(id="t", data={"n": 0}))).rewards["judge/a"] == 0.5


async def played(make: Callable[[], Env], tasks: int = 8) -> list[Group]:
    rollouts = Rollouts(make, Policy(NullRenderer()), RolloutConfig(retries=2), seed=5)
    return await rollouts.collect(list(calls.tasks(make()))[:tasks], EXPERT, phase="eval", n=1)


@pytest.mark.parametrize("way", WAYS)
async def test_a_reward_that_is_none_now_and_then_costs_its_session_and_is_told_and_counted(way: type[Giver]) -> None:
    """Such a value (0/0 where a list was empty) ended the run, after however many steps."""
    begun: list[int] = []

    def value(self: Giver) -> Any:
        begun.append(self.n)
        return math.nan if self.n == 3 else 0.5

    groups = await played(giving(way, value))
    sessions = [session for group in groups for session in group.sessions]
    assert [session.status is Status.INFRA_ERROR for session in sessions] == [n == 3 for n in range(8)]
    assert begun.count(3) == 1, "the same session would get the same reward"
    assert sessions[3].score is None
    assert sessions[3].counters["invalid_rewards"] == 1
    result = evaluate_groups(groups, EvalConfig())
    assert (result.mean, result.sessions, result.generated) == (0.5, 7, 8)
    assert "gave nan, which is not a finite number" in failures(sessions)
    assert "1 of 8 sessions failed (1 with an invalid reward)" in failures(sessions)
    assert any("count/invalid_rewards" in note for note in sampling_notes(sessions, trained=True))
    assert str(result).endswith("n=7 of 8 (1 with an invalid reward)"), "the infrastructure lost none"
    assert (result.infra_errors, result.errors["infra"], result.errors["invalid_rewards"]) == (0, 0, 1)
    row = rollout_metrics(groups)
    assert {name: share for name, share in panel.failures(row).items() if share} == {"invalid rewards": 1 / 8}
    [alarm] = health.failures([{**row, "step": 1}], {})
    assert (alarm.title, alarm.metric) == ("Invalid rewards", "count/invalid_rewards")


@pytest.mark.parametrize("given", [math.nan, math.inf, 1e39, "nan"])
async def test_a_critics_view_that_is_no_number_costs_its_session_and_is_told_and_counted(given: Any) -> None:
    """It ended the run, after however many steps."""

    class Viewed(giving(Final, lambda self: 0.5)):  # type: ignore[misc]
        def critic_view(self, agent: str) -> list[Any]:
            return [0.0, given if self.n == 3 else 1.0]

    rollouts = Rollouts(Viewed, Policy(NullRenderer()), RolloutConfig(retries=2), seed=5, views=True)
    tasks = list(calls.tasks(Viewed()))[:8]
    groups = await rollouts.collect(tasks, EXPERT, phase="eval", n=1)
    sessions = [session for group in groups for session in group.sessions]
    assert [session.counters.get("invalid_views", 0) for session in sessions] == [int(n == 3) for n in range(8)]
    assert "1 of 8 sessions failed (1 with an invalid critic_view); the first: InvalidNumber: " in failures(sessions)
    assert any("count/invalid_views" in note for note in sampling_notes(sessions, trained=True))
    assert panel.failures(rollout_metrics(groups))["invalid views"] == 1 / 8


async def test_where_no_session_has_a_reward_that_is_one_the_run_ends_at_once_and_says_so() -> None:
    make, attempts = giving(Final, lambda self: "none"), []

    async def generate() -> list[Group]:
        attempts.append(1)
        return await played(make, 2)

    with pytest.raises(EnvError, match=r"step 1: all 2 sessions failed .*'given' of Final gave 'none'"):
        await with_retries(generate, "step 1", pytest.fail)
    assert attempts == [1]


@pytest.mark.slow
@pytest.mark.parametrize("weight", [math.nan, "much", None, math.inf])
def test_a_weight_is_a_number_as_well(weight: Any) -> None:
    with pytest.raises(InvalidInput, match=r"its weight is .*, which is"):
        agentrl.reward(weight=weight)(lambda self, session: 1.0)
