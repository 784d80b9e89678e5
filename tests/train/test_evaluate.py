"""An evaluation says what it is worth: why fewer sessions count, and where nothing worked at all."""

from __future__ import annotations

import gc
import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import agentrl
from agentrl.config import EvalConfig, RolloutConfig
from agentrl.errors import AgentError, ConfigError, InfraError, SandboxError
from agentrl.overrides import spread
from agentrl.rollout.episodes.groups import Rollouts
from agentrl.rollout.episodes.policies import Policy
from agentrl.sessions.renderers.families.null import NullRenderer
from agentrl.train.display.console import Display
from agentrl.train.display.pictures import learning_curve
from agentrl.train.evaluation.evaluate import list_ignored
from agentrl.train.record.lock import RunLock
from agentrl.train.record.verify.evaluation import verify as verify_run
from agentrl.types import Node

pytestmark = pytest.mark.slow


class Three(agentrl.Env):
    """Three tasks, and a place to plant a failure."""

    splits = ("train", "test")
    failure: Exception | None = None

    def tasks(self, split: str = "train") -> Any:
        return [{"id": f"{split}-{number}"} for number in range(3)]

    def reset(self, task: Any, *, seed: int | None = None) -> str:
        return f"task {task.id}"

    def step(self, message: Any) -> agentrl.StepResult:
        if self.failure:
            raise self.failure
        return agentrl.StepResult(terminated=True)

    @agentrl.reward
    def always(self, session: Any) -> float:
        return 1.0


def evaluated(folder: Path, env: type[agentrl.Env] = Three, **settings: Any) -> tuple[Any, str]:
    file = StringIO()
    result = agentrl.evaluate(env, display=Display(Console(file=file)), run_dir=str(folder), policy="noop", **settings)
    return result, file.getvalue()


def test_fewer_tasks_than_requested_are_reported_and_none_is_tried_twice(tmp_path: Path) -> None:
    result, said = evaluated(tmp_path / "run", eval={"n": 2})
    assert (result.tasks, result.sessions, result.worked) == (3, 6, True)
    assert "3 tasks, not eval.tasks=128: split 'test' has no more" in said

    class Generated(Three):
        def tasks(self, split: str = "train") -> Any:
            yield from super().tasks(split)

    result, said = evaluated(tmp_path / "other", Generated)
    assert result.tasks == 3


def test_an_evaluation_lets_go_of_its_folder_and_leaves_none_where_no_session_ended(tmp_path: Path) -> None:
    class Unprepared(Three):
        async def prepare(self, tasks: Any, concurrency: int) -> None:
            raise ConfigError("no data")

    with pytest.raises(ConfigError, match="no data"):
        evaluated(tmp_path / "run", Unprepared)
    assert not (tmp_path / "run").exists()
    evaluated(tmp_path / "run")
    RunLock(tmp_path / "run").release()
    with pytest.raises(ConfigError, match="holds a run already; another run_dir"):
        evaluated(tmp_path / "run")


@pytest.mark.usefixtures("without_pauses")
def test_sessions_that_do_not_count_are_reported_with_the_reason(tmp_path: Path) -> None:

    class Flaky(Three):
        def reset(self, task: Any, *, seed: int | None = None) -> str:
            if task.id.endswith("1"):
                raise SandboxError("no daemon")
            return "go"

    result, said = evaluated(tmp_path / "run", Flaky)
    assert "1 of 3 sessions failed (1 INFRA_ERROR); the first: SandboxError: no daemon" in said
    assert str(result).endswith("n=2 of 3 (1 lost to infrastructure)")
    assert "1 of 3" in json.loads((tmp_path / "run" / "result.json").read_text())["finding"]


@pytest.mark.usefixtures("without_pauses")
def test_an_evaluation_in_which_every_session_failed_did_not_work(tmp_path: Path) -> None:

    class Refusing(Three):
        failure = AgentError("you said nothing")

        @agentrl.reward
        def always(self, session: Any) -> float:
            return 0.0

    result, said = evaluated(tmp_path / "run", Refusing)
    assert not result.worked
    assert "all 3 sessions failed (3 AGENT_ERROR); the first: AgentError: you said nothing" in said

    class Down(Three):
        failure = SandboxError("no daemon")

    with pytest.raises(InfraError, match=r"attempt 3 of 3: all 3 sessions failed .*no daemon"):
        evaluated(tmp_path / "down", Down)


def test_an_evaluation_has_limits_of_its_own_beside_those_of_rollouts(tmp_path: Path) -> None:
    class Endless(Three):
        def step(self, message: Any) -> agentrl.StepResult:
            return agentrl.StepResult(messages=[{"role": "user", "content": "go on"}])

    result, _ = evaluated(tmp_path / "run", Endless, eval={"max_turns": 2}, rollout={"max_turns": 5})
    assert result.metrics["sessions/turns_max"] == 2
    with pytest.raises(ConfigError, match=r"eval and rollout: deadlines must nest: .* not 30 < 120 < 100"):
        evaluated(tmp_path / "other", eval={"timeout": 100})
    shared, apart = EvalConfig(), EvalConfig(concurrency=3, turn_tokens=7, temperature=0)
    rollouts = Rollouts(Three, Policy(NullRenderer()), RolloutConfig(group_deadline=500.0), seed=0)
    assert rollouts.limited(shared.limits(rollouts.limits), apart=False).slots is rollouts.slots
    other = rollouts.limited(apart.limits(rollouts.limits), apart=True)
    assert (other.slots.count, other.limits.turn_tokens, other.limits.temperature) == (3, 7, 0)
    assert (other.limits.group_deadline, rollouts.slots.count) == (None, 256)


def test_the_learning_curve_shows_the_evaluations_during_training(tmp_path: Path) -> None:
    rows = [{"step": step, "reward/mean": step / 6} for step in range(1, 7)]
    learning_curve(tmp_path / "without.png", rows, "a run", {})
    rows[3] |= {"eval/mean": 0.7, "eval/low": 0.6, "eval/high": 0.8}
    rows[4] |= {"eval/mean": 0.7, "eval/low": None, "eval/high": None}  # type: ignore[dict-item]  # of one task
    learning_curve(tmp_path / "with.png", rows, "a run", {})
    assert (tmp_path / "with.png").read_bytes() != (tmp_path / "without.png").read_bytes()


def test_settings_for_training_are_refused_in_an_evaluation_of_any_policy(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"algo\.lr is for training"):
        evaluated(tmp_path / "run", algo={"lr": 1.0})
    assert not (tmp_path / "run").exists()
    model: dict[str, Any] = {"env": "e", "model": "m", "engine.max_batch": 3, "eval.n": 2, "rollout.turn_tokens": 5}
    assert list_ignored(spread(model)) == {}
    assert set(list_ignored(spread(model | {"policy": "expert"}))) == {
        "model",
        "engine.max_batch",
        "rollout.turn_tokens",
    }
    assert set(list_ignored(spread({"trainer": "megatron", "rollout.temperature": 0.5}))) == {
        "trainer",
        "rollout.temperature",
    }
    rewarding = {"policy": "expert", "cluster": {"name": "ray", "rewards": 2, "resources": {"rewards": {"gpus": 1}}}}
    assert list_ignored(rewarding) == {}
    assert set(list_ignored({"policy": "expert", "cluster": {"name": "ray"}})) == {"cluster.name"}
    assert set(list_ignored({"policy": "expert", "cluster": {"rewards": 2, "environments": 1}})) == {
        "cluster.environments"
    }


def test_a_policy_without_an_engine_is_scored_by_reward_workers_too(tmp_path: Path) -> None:
    rewards = {"one": {"name": str(Path(__file__).parents[1] / "cluster" / "scores.py:Odd")}}
    here, _ = evaluated(tmp_path / "here", rewards=rewards)
    there, _ = evaluated(tmp_path / "there", rewards=rewards, cluster={"rewards": 1})
    assert there.scores == here.scores
    assert there.mean == 2.0
    assert [file.name for file in (tmp_path / "there" / "logs").iterdir()] == ["rewards-0.log"]


def test_sessions_of_an_evaluation_leave_the_memory_as_their_tasks_are_done(tmp_path: Path) -> None:
    """All of them stayed there to the end: 3,000 short ones took 280 MB."""
    alive: list[int] = []

    class Counted(Three):
        def reset(self, task: Any, *, seed: int | None = None) -> str:
            gc.collect()
            alive.append(sum(type(each) is Node for each in gc.get_objects()))
            return f"task {task.id}"

        def tasks(self, split: str = "train") -> Any:
            return [{"id": f"{split}-{number}"} for number in range(6)]

    gc.collect()
    before = sum(type(each) is Node for each in gc.get_objects())
    result, _ = evaluated(tmp_path / "run", Counted, eval={"n": 1, "concurrency": 1})
    assert (result.sessions, result.mean) == (6, 1.0)
    assert max(alive) - before <= 2 * 2  # of one that is being stored, and of the next
    assert "task test-5" in (tmp_path / "run" / "transcripts" / "eval.md").read_text()
    assert verify_run(tmp_path / "run").passed
