"""An evaluation's best sessions are looked at a second time, and an alarm tells where the gap grows."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import orjson
import pytest

import agentrl
from agentrl.config import RunConfig
from agentrl.envs.base import Env, reward
from agentrl.envs.episode import play
from agentrl.errors import ConfigError
from agentrl.overrides import validate
from agentrl.train.evaluation.probe import FILE, HeldOutProbe, best_sessions
from agentrl.types import Group, Session, Task
from tests.envs.scoring.judge_server import closed_port


class Said(Env):
    """Rewards long answers, whatever they say; or with `drawn` the number that its seed draws."""

    max_turns = 1
    drawn = False

    def tasks(self, split: str = "train") -> list[dict[str, Any]]:
        return [{}]

    def reset(self, task: Task, *, seed: int | None = None) -> str:
        self.number = random.Random(seed).randint(0, 10**6) if self.drawn else 7
        return "What is it?"

    @reward
    def good(self, session: Session) -> float:
        return float(session.answer == str(self.number)) if self.drawn else min(len(session.answer) / 10, 1.0)


class Drawn(Said):
    drawn = True


def config(**probe: Any) -> RunConfig:
    return validate({"env": "calculator", "eval": {"probe": probe}}, RunConfig)


async def groups(answers: list[str], env: type[Said] = Said, seed: int = 0) -> list[Group]:
    made = []
    for place, answer in enumerate(answers):
        task = Task(id=f"t{place}", data={"answer": "7"})
        session = await play(env(), task, lambda env, messages, answer=answer: _said(answer), seed=seed)  # type: ignore[misc]
        session.id = f"s{place}"
        made.append(Group(f"g{place}", task, [session]))
    return made


def _said(answer: str) -> agentrl.Message:
    return agentrl.Message(role="assistant", content=answer)


RIGHT = {"right": {"name": "exact_match"}}


async def test_there_is_an_alarm_where_scores_rise_that_a_second_scorer_does_not_confirm(tmp_path: Path) -> None:
    told, said = list[str](), list[str]()
    early, late = await groups(["7", "7", "8"]), await groups(["7" * 10] * 3)

    def probe() -> HeldOutProbe:  # another process of the run, which was resumed
        return HeldOutProbe(config(rewards=RIGHT), Said, tmp_path, told.append, said.append)

    first = await probe().look(early, "before", 0)
    assert first == {
        "probe/best": pytest.approx(0.1),
        "probe/score": pytest.approx(2 / 3),
        "probe/gap": pytest.approx(0.1 - 2 / 3),
        "probe/alarm": 0.0,
    }
    assert (await probe().look(early, "after 1", 1))["probe/alarm"] == 0.0
    assert told == []
    hacked = await probe().look(late, "after 2", 2)
    assert (hacked["probe/gap"], hacked["probe/alarm"]) == (1.0, 1.0)
    assert len(told) == 1
    assert said[2] == "after 2: probe: the best 3 sessions score 1.000, the second scorer gives 0.000 (gap +1.000)"
    assert "after 2: the best sessions' score is 1.000" in told[0]
    assert [orjson.loads(line)["step"] for line in (tmp_path / FILE).read_bytes().splitlines()] == [0, 1, 2]
    assert {each.rewards["good"] for group in late for each in group.sessions} == {1.0}


async def test_turns_that_only_fit_one_seed_are_found_by_playing_them_under_others(tmp_path: Path) -> None:
    number = str(random.Random(0).randint(0, 10**6))
    for name, env, answer, expected in (("a", Drawn, number, 1.0), ("b", Said, "7" * 10, 0.0)):
        folder = tmp_path / name
        folder.mkdir()
        found = await HeldOutProbe(config(seeds=2), env, folder, pytest.fail).look(
            await groups([answer], env), "now", 0
        )
        assert (found["probe/best"], found["probe/replay_gap"]) == (1.0, expected)


async def test_a_service_that_is_down_is_no_score_and_no_alarm(tmp_path: Path) -> None:
    told: list[str] = []
    judge = {"name": "llm_judge", "url": f"http://127.0.0.1:{closed_port()}", "attempts": 1}
    found = await HeldOutProbe(config(rewards={"judge": judge}), Said, tmp_path, told.append).look(
        await groups(["7"]), "now", 0
    )
    assert found == {}
    assert len(told) == 2
    assert told[0].startswith("now: the second scorer failed for 1 of 1 sessions (eval.probe): InfraError: the judge ")
    assert told[1] == "now: the probe has no second score of any session (eval.probe)"
    assert not (tmp_path / FILE).exists()


async def test_the_best_of_each_task_are_looked_at_and_without_a_probe_nothing_is(tmp_path: Path) -> None:
    made = await groups(["a" * 3, "a" * 9, "a" * 6])
    assert [each.id for each in best_sessions(made, 2)] == ["s1", "s2"]
    assert await HeldOutProbe(config(), Said, tmp_path, pytest.fail).look(made, "now", 0) == {}


def test_a_policy_of_the_run_is_no_second_scorer() -> None:
    with pytest.raises(ConfigError, match=r"rewards\.judge\.url=ADDRESS"):
        config(rewards={"judge": {"name": "llm_judge", "policy": "judge"}})


def test_a_reward_of_groups_is_no_second_scorer() -> None:
    with pytest.raises(ConfigError, match="compares the sessions of a group"):
        config(rewards={"place": {"name": "rank"}})


@pytest.mark.slow
def test_an_evaluation_has_the_probes_metrics(tmp_path: Path) -> None:
    probe = {"rewards": {"short": {"name": "length", "most": 9}}, "seeds": 1}
    own = {"policy": "expert", "eval.tasks": 2, "run_dir": str(tmp_path / "run")}
    result = agentrl.evaluate("calculator", **own, **{"eval.probe": probe})
    assert {"probe/best", "probe/gap", "probe/replay_gap", "probe/alarm"} <= result.metrics.keys()
    assert orjson.loads((tmp_path / "run" / "result.json").read_bytes())["metrics"]["probe/gap"] == 0.0
