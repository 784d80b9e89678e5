"""A policy of the run that judges on an engine of its own, asked by the run's process and by reward workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import agentrl
from agentrl.errors import AgentRLError, EngineError, InfraError
from agentrl.models.tiny import TinyShape, build
from agentrl.overrides import spread, validate
from agentrl.plugins.engine import Engine
from agentrl.sessions.store.store import Store
from agentrl.train.driver.api import run_rescore
from agentrl.train.evaluation.rescore.rescoring import RescoreConfig
from agentrl.types import Status
from tests.sessions.gateway.fakes import ScriptedEngine


def lenient(path: Path, config: Any, tokenizer: Any) -> Engine:
    """An engine that knows of nothing but its model's texts, and likes all answers."""
    return ScriptedEngine(lambda prompt: "It adds up.\nScore: 7")


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    words = ["hello there, how are you? <|im_end|>"] * 50
    return build(tmp_path_factory.mktemp("judge") / "model", words, shape=TinyShape(vocab=300, context=4096))


def judged(judge: Path, engine: str) -> dict[str, Any]:
    return {
        "policy": "expert",
        "policies": {"judge": {"model": str(judge), "engine": engine}},
        "rewards.clear": {"name": "llm_judge", "policy": "judge", "attempts": 1, "max_tokens": 8},
        "eval.tasks": 2,
    }


@pytest.mark.slow
def test_an_engine_of_the_run_judges_and_its_verdicts_are_kept_under_its_model(tmp_path: Path, judge: Path) -> None:
    settings = judged(judge, f"{__file__}:lenient") | {"rewards.clear.cache": str(tmp_path / "verdicts.db")}
    settings["rewards.clear"] |= {"max_tokens": 1024}
    first = agentrl.evaluate("calculator", run_dir=str(tmp_path / "first"), **settings)
    in_worker = settings | {
        "cluster.rewards": 1,
        "rewards.again": {"name": "llm_judge", "policy": "judge", "weight": 0},
    }
    second = agentrl.evaluate("calculator", run_dir=str(tmp_path / "second"), **in_worker)
    for result in (first, second):
        assert result.metrics["reward/clear"] == pytest.approx(0.7)
    kept = yaml.safe_load((tmp_path / "first" / "config.yaml").read_text())["rewards"]["clear"]
    assert not kept["url"], "an address is of one run alone"
    unreachable = settings | {"policies": {"judge": {"model": str(judge), "engine": f"{__file__}:mute"}}}
    third = agentrl.evaluate("calculator", run_dir=str(tmp_path / "third"), **unreachable)
    assert third.metrics["reward/clear"] == pytest.approx(0.7), "the same model's verdict was kept"
    asked = {key: settings[key] for key in ("policies", "rewards.clear", "rewards.clear.cache")}
    anew = validate(spread({**asked, "rewards.clear.rubric": "Is it short?"}), RescoreConfig)
    assert run_rescore(tmp_path / "first", anew)[1].mean == pytest.approx(0.7), "its engine scores a record too"


def mute(path: Path, config: Any, tokenizer: Any) -> Engine:
    """An engine that fails when it is asked."""
    return ScriptedEngine(fail=EngineError("out of memory"))


@pytest.mark.slow
def test_a_model_without_a_verdict_costs_no_score(tmp_path: Path, judge: Path) -> None:
    with pytest.raises(InfraError, match="judge failed 1 times: its reply has no verdict"):
        agentrl.evaluate("calculator", run_dir=str(tmp_path / "run"), **judged(judge, "local"))
    with Store(tmp_path / "run" / "sessions.db", read_only=True) as store:
        assert {store.load(each).status for each in store.ids()} == {Status.INFRA_ERROR}


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"policies": {"judge": {"name": "past"}}}, "a model that is not trained"),
        ({"policies": {"judge": {"model": "start"}}}, "policies.judge.model=start: nothing is loaded"),
        ({"policies": {"judge": {"model": "/no/such"}}}, "unknown model '/no/such'"),
    ],
)
def test_policies_that_can_not_judge_are_refused_by_name(
    settings: dict[str, Any], why: str, judge: Path, tmp_path: Path
) -> None:
    with pytest.raises(AgentRLError, match=why):
        agentrl.evaluate("calculator", run_dir=str(tmp_path / "run"), **judged(judge, "local") | settings)
