"""Runs on sessions that are read: they learn, are measured, killed, resumed bit for bit, and verified."""

from __future__ import annotations

import json
import math
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from agentrl.config import EnvConfig, RunConfig
from agentrl.config.data import DataConfig
from agentrl.errors import ConfigError, NoSignal
from agentrl.overrides import spread
from agentrl.rollout.sources.files import read_conversations
from agentrl.rollout.sources.trees import TreeWriter
from agentrl.rollout.stream.health import HealthMonitor
from agentrl.sessions.renderers import get_renderer
from agentrl.sessions.store.store import Store
from agentrl.train.algorithms import make_algorithm
from agentrl.train.display.step_warnings import StepWarnings
from agentrl.train.driver import api
from agentrl.train.driver.setup import complete
from agentrl.train.plan.trainer_checks import late_rates
from agentrl.train.record.verify.run_checks import verify
from agentrl.train.trainers.optimizer import Optimizer
from agentrl.types import Session
from benchmarks import supervised
from tests.train.test_resume import exit_code_of

ROWS = 60
SMALL: dict[str, Any] = {
    "steps": 4,
    "checkpoint_every": 2,
    "rollout.groups_per_step": 4,
    "eval.tasks": 8,
    "eval.every": 2,
}


def rows(file: Path) -> Path:
    """Sums in words, some with the same question."""
    names = ["one", "two", "three", "four", "five", "six"]
    questions = [f"What is {a} and {b}?" for a in names for b in names]
    lines = [{"question": q, "answer": f"It is {n} of {ROWS}."} for n, q in enumerate(questions * 2)][:ROWS]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def metrics(run: Path) -> list[dict[str, float]]:
    timed = ("time/", "throughput/", "resumed/", "stream/")
    lines = [orjson.loads(line) for line in (run / "metrics.jsonl").read_bytes().splitlines()]
    return [{name: value for name, value in line.items() if not name.startswith(timed)} for line in lines]


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "checkpoints" / "step-000004" / "model.safetensors")


@pytest.mark.slow
def test_supervised_learning_lowers_the_held_out_loss_and_is_the_same_after_a_kill(tmp_path: Path) -> None:
    data = str(rows(tmp_path / "sums.jsonl"))
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    result = api.train(data=data, run_dir=str(whole), **SMALL)
    assert result.before is not None
    assert result.after is not None
    assert result.after.mean < result.before.mean - 0.1
    assert metrics(whole)[1]["eval/loss"] < result.before.mean
    assert metrics(whole)[0]["pack/sharing"] >= 1
    assert verify(whole).passed

    plan = tmp_path / "plan.yaml"
    plan.write_text("faults: [{action: kill, point: step.published, nth: 4}]")
    settings = SMALL | {"data": data, "run_dir": str(killed), "faults": str(plan)}
    assert exit_code_of(lambda: api.train(**settings)) == -signal.SIGKILL
    again = api.train(resume=str(killed), faults=None)
    assert again.before is not None
    assert again.before.mean == result.before.mean
    assert metrics(killed) == metrics(whole)
    assert all(torch.equal(tensor, weights(whole)[name]) for name, tensor in weights(killed).items())
    assert verify(killed).passed

    measured = result.before.mean
    assert measured == pytest.approx(naive_loss(whole / "model", data), abs=1e-4)
    (tmp_path / "sums.jsonl").write_text('{"question": "a", "answer": "b"}\n{"question": "c", "answer": "d"}\n')
    with pytest.raises(ConfigError, match="the data changed"):
        api.train(resume=str(killed), steps=5)


@pytest.mark.slow
def test_imitated_answers_are_finished_within_the_bound(tmp_path: Path) -> None:
    """The small form of `python -m benchmarks.supervised`."""
    few = {"rollout.groups_per_step": 8, "eval.tasks": 4, "eval.every": 1000, "checkpoint_every": 1000}
    found = supervised.measure(rows(tmp_path / "sums.jsonl"), tmp_path, seed=0, bound=32, tasks=8, steps=15, **few)
    assert found.unfinished_before > 0.5
    assert found.unfinished_after < found.unfinished_before


def naive_loss(model: Path, data: str) -> float:
    """The mean over trained tokens of the held-out paths, one row at a time, by transformers."""
    found = read_conversations(DataConfig(name=data))
    found.prepare(TreeWriter(get_renderer(model), found.config))
    network = AutoModelForCausalLM.from_pretrained(model)
    losses: dict[tuple[str, int, int], float] = {}
    for task in found.tasks["eval"][:8]:
        (session,) = found.sessions("eval", task)
        for path in session.stored_paths():
            ids = torch.tensor([[token for node in path for token in node.token_ids]])
            with torch.no_grad():
                logp = network(ids).logits.log_softmax(-1)[0]
            at = 0
            for node in path:
                for place, trained in enumerate(node.trainable):
                    if trained:
                        losses[task.id, node.id, place] = -float(logp[at + place - 1, node.token_ids[place]])
                at += len(node.token_ids)
    return sum(losses.values()) / len(losses)


@pytest.mark.slow
def test_recorded_sessions_are_imitated_and_reinforced_with_their_own_log_probabilities(tmp_path: Path) -> None:
    recorded, imitated, reinforced = (tmp_path / name for name in ("recorded", "imitated", "reinforced"))
    small = {"rollout.group_size": 4, "warm_start.steps": 4, "warm_start.demos": 8, "eval.tasks": 1, "steps": 2}
    api.train("calculator", run_dir=str(recorded), **SMALL | small, **{"rollout.turn_tokens": 24})
    more = {"data": str(recorded), "model": str(recorded / "model"), "steps": 2}
    result = api.train(algo="sft", run_dir=str(imitated), **SMALL | more)
    assert metrics(imitated)[0]["signal/trained"] > 0
    assert result.after is not None
    api.train(algo="grpo", run_dir=str(reinforced), **SMALL | more)
    with Store(recorded / "sessions.db") as before, Store(reinforced / "sessions.db") as after:
        for session in after.sessions(phase="train"):
            original = before.load(f"{session.task.id}-{session.sample}")
            assert [node.logprobs for node in session.nodes] == [node.logprobs for node in original.nodes]
            assert session.reward == original.reward
    assert verify(imitated).passed
    assert verify(reinforced).passed
    with pytest.raises(ConfigError, match=r"data\.min_reward"):
        api.train(algo="sft", run_dir=str(tmp_path / "none"), **SMALL | more, **{"data.min_reward": 9})
    with pytest.raises(ConfigError, match=r"has another tokenizer|recorded tokens are of a model"):
        api.train(algo="sft", run_dir=str(tmp_path / "other"), **SMALL | more | {"model": "tiny"})
    with pytest.raises(ConfigError, match=r"data\.agent=zz: no session has such an agent"):
        api.train(algo="sft", run_dir=str(tmp_path / "nobody"), **SMALL | more, **{"data.agent": "zz"})
    reward(recorded, lambda session: 1.0)
    with pytest.raises(ConfigError, match=r"in none of \d+ groups do sessions differ"):
        api.train(algo="dpo", run_dir=str(tmp_path / "flat"), **SMALL | more)
    reward(recorded, lambda session: float(session.sample % 2))
    with pytest.raises(ConfigError, match=r"differ in their rewards by more than algo\.min_gap=1, so"):
        api.train(algo="dpo", run_dir=str(tmp_path / "near"), **SMALL | more, **{"algo.min_gap": 1})
    result = api.train(algo="dpo", run_dir=str(tmp_path / "preferred"), **SMALL | more)
    assert metrics(tmp_path / "preferred")[0]["preference/pairs"] == 4
    assert result.after is not None
    assert result.after.metrics["margin"] != 0
    assert "recorded tokens were trained" in result.tokens
    assert verify(tmp_path / "preferred").passed


def reward(run: Path, of: Callable[[Session], float]) -> None:
    """Give a run's stored sessions other rewards."""
    with Store(run / "sessions.db") as store:
        for session in list(store.sessions(phase="train")):
            session.reward, session.rewards = of(session), {}
            store.save(session, replace=True)


def test_a_run_without_an_environment_and_without_data_is_told_what_it_lacks() -> None:
    with pytest.raises(ConfigError, match="env= or data="):
        api.train("calculator", data="rows.jsonl")
    with pytest.raises(ConfigError, match="algo=grpo learns from rewards"):
        api.train(data=__file__, algo="grpo")


@pytest.mark.parametrize(("apart", "told"), [(7.0, True), (0.1, False)])
def test_a_model_far_from_what_sampled_the_recorded_tokens_is_told(apart: float, told: bool) -> None:
    """A run on `model/`, which the recorded run's warm start had left far behind, taught nothing and said nothing."""
    said: list[str] = []
    config = RunConfig(env=EnvConfig(name="data"))
    display: Any = SimpleNamespace(warn_once=said.append)
    warnings = StepWarnings(config, make_algorithm(config.algo), display, "chatml", True, HealthMonitor())
    row = {"mismatch/abs_mean": 0.0, "staleness/abs_mean": apart}
    assert list(warnings.find(1, [], row)) == []
    assert any("7 nats from this model's" in line for line in said) == told


def test_a_run_whose_gradients_are_never_finite_says_so_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every update was skipped, all tokens counted as trained, and nothing but a metric said it."""
    monkeypatch.setattr(Optimizer, "_clip", lambda optimizer: math.nan)
    more = {"steps": 30, "eval.every": None, "eval.tasks": 1, "rollout.groups_per_step": 1, "metrics": []}
    with pytest.raises(NoSignal, match=r"no token was trained for 20 steps in a row: 0 of .* \(lost: skipped"):
        api.train(data=str(rows(tmp_path / "sums.jsonl")), run_dir=str(tmp_path / "run"), **SMALL | more)
    assert all(row["signal/skipped"] == row["signal/sampled"] > 0 for row in metrics(tmp_path / "run"))
    log = (tmp_path / "run" / "log.jsonl").read_text()
    assert "1 updates were skipped (in 20 steps in a row): their gradient was not finite" in log


def test_warm_ups_that_last_as_long_as_the_run_are_told() -> None:
    late = {"algo.warmup_steps": 5, "algo.lr": 6.0, "algo.value_warmup": 5}
    config, longer = (
        complete(spread({"env": "calculator", "algo.name": "ppo", **late, "steps": steps})) for steps in (5, 6)
    )
    first, second = late_rates(config.learners, config.learning_steps)
    assert "algo.warmup_steps=5 in 5 steps: the learning rate ends at 5 and never is algo.lr=6" in first
    assert "algo.value_warmup=5 in 5 steps" in second
    assert not list(late_rates(longer.learners, longer.learning_steps))


def test_a_run_that_reads_says_that_nothing_can_be_learned_from_it() -> None:
    config = RunConfig(env=EnvConfig(name="data"))
    warnings = StepWarnings(config, make_algorithm(config.algo), Any, "chatml", True, HealthMonitor())
    found = [list(warnings.find(step, [], {"pack/signal": 0.0})) for step in range(5)]
    assert found[:4] == [[]] * 4
    assert "nothing could be learned from the last 5 steps" in found[4][0]


def test_a_best_checkpoint_by_a_number_that_no_evaluation_has_is_told() -> None:
    said: list[str] = []
    config = RunConfig(**{"env": EnvConfig(name="data"), "keep_best": "-eval/lss", "eval": {"every": 1}})
    display: Any = SimpleNamespace(warn_once=said.append)
    warnings = StepWarnings(config, make_algorithm(config.algo), display, "chatml", True, HealthMonitor())
    assert not [*warnings.find(1, [], {}), *warnings.find(2, [], {"eval/loss": 1.0}), *said[1:]]
    assert "keep_best=-eval/lss: an evaluation has no such number" in said[0]
    assert "there are: eval/loss" in said[0]
