"""What a run finds out before it begins: budgets without room for a turn, episodes that can't be opened."""

from __future__ import annotations

import asyncio
import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import agentrl
from agentrl.config import RunConfig
from agentrl.envs.builtin.questions.images import column_of_images
from agentrl.envs.registry import ENVS, make
from agentrl.errors import ConfigError, EngineError, EnvError, SandboxError, UnknownName
from agentrl.models import devices
from agentrl.overrides import merge_settings, parse_words, validate
from agentrl.rollout.engines.servers.remote import RemoteEngine
from agentrl.sessions.renderers import get_renderer
from agentrl.train.driver import base_model
from agentrl.train.driver.setup import complete
from agentrl.train.plan import preflight, room
from agentrl.types import Task


class Greeting(agentrl.Env):
    """Say hello."""

    def tasks(self, split: str = "train") -> list[dict[str, int]]:
        return [{"n": n} for n in range(3)]

    def reset(self, task: Task, *, seed: int | None = None) -> Any:
        return "Say hello to everybody in the room."

    @agentrl.reward
    def said(self, session: agentrl.Session) -> float:
        return float("hello" in session.messages[-1].text)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return asyncio.run(base_model.build_tiny(Greeting, tmp_path_factory.mktemp("greeting") / "model", seed=0))


def test_an_environment_that_workers_can_not_find_is_refused() -> None:
    """A class that a script gave was "unknown" to the workers, after the model had been loaded."""
    config = validate(merge_settings(["env=greeting", "cluster.environments=2"]), RunConfig)
    with ENVS.forgetting():
        agentrl.register("greeting", Greeting)
        for check in (preflight.check_rollouts, preflight.check_evaluation):
            with pytest.raises(
                ConfigError, match=r"env='greeting' is registered in this process alone.*file\.py:CLASS"
            ):
                check(config)


@pytest.mark.parametrize("setting", ["resume", "rerun"])
def test_a_run_whose_environment_only_its_script_has_is_told_to_go_on_there(setting: str) -> None:
    """It was an unknown environment, with the name of another one as the nearest."""
    config = validate(merge_settings(["env=greeting", f"{setting}=runs/x"]), RunConfig)
    with pytest.raises(UnknownName, match=rf"unknown environment .*agentrl\.train\(CLASS, {setting}='runs/x'\)"):
        preflight.check_rollouts(config)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("algo=gdpo algo.weights.corect=1", "algo.weights.corect: env=calculator has no such reward; did you mean"),
        ("algo=distill policies.teacher.model=start algo.teachers.x=teacher", "algo.teachers.x: env=calculator has no"),
    ],
)
def test_rewards_and_agents_that_an_algorithm_names_are_there(words: str, said: str) -> None:
    """A reward that no session had was weighed, all advantages were 0, and nothing said so."""
    config = complete(parse_words(["env=calculator", *words.split()]))
    with pytest.raises(ConfigError, match=said):
        preflight.check_training(config)
    preflight.check_training(complete(parse_words(["env=calculator", "algo=gdpo", "algo.weights.correct=2"])))


async def look(model: Path, *words: str) -> None:
    config = validate(merge_settings(["env=x", "trainer.token_budget=4096", *words]), RunConfig)
    await room.check_room(budgets(model, config), Greeting, get_renderer(model), program=config.agent)


def budgets(model: Path, config: RunConfig) -> partial[Any]:
    return partial(room.split_budgets, config.engine, config.model.name, model, config.rollout, config.eval)


@pytest.mark.slow
@pytest.mark.parametrize(
    "word",
    [
        "engine.max_context=10",
        "rollout.context_tokens=10",
        "rollout.session_tokens=10",
    ],
)
async def test_a_budget_too_small_for_a_turn_is_refused_by_its_name(model: Path, word: str) -> None:
    """Every session had 0 turns, and the run went on with them."""
    with pytest.raises(ConfigError, match=rf"{word} leaves no room for a turn: task 'train-0' opens with \d+ tokens"):
        await look(model, "rollout.turn_tokens=10", word)


@pytest.mark.slow
async def test_a_session_that_is_too_short_is_given_a_length_that_passes(model: Path) -> None:
    with pytest.raises(ConfigError, match=r"rollout\.session_tokens=\d+ gives it room") as refused:
        await look(model, "rollout.turn_tokens=10", "rollout.session_tokens=10")
    await look(model, "rollout.turn_tokens=10", re.findall(r"rollout\.session_tokens=\d+", str(refused.value))[-1])


@pytest.mark.slow
async def test_budgets_with_room_pass_and_programs_may_write_shorter_prompts(model: Path) -> None:
    await look(model, "engine.max_context=100")
    await look(model, "engine.max_context=10", "agent=solve.py:solve")


class Flaky(Greeting):
    """Its machine fails now and then."""

    failures = 0

    def reset(self, task: Task, *, seed: int | None = None) -> Any:
        type(self).failures += 1
        if type(self).failures in (1, 3):
            raise SandboxError("the daemon hiccuped")
        return super().reset(task, seed=seed)


async def test_the_tiny_model_is_built_although_our_machinery_fails_now_and_then(tmp_path: Path) -> None:
    Flaky.failures = 0
    assert (await base_model.build_tiny(Flaky, tmp_path / "model", seed=0)).is_dir()


class Careless(Greeting):
    """Has a demonstrator, and no reward for what it does now and then."""

    def demonstrate(self, messages: Any) -> str:
        return "hello"

    @agentrl.reward
    def said(self, session: agentrl.Session) -> float:
        return float("nan") if session.task["n"] == 1 else 1.0


async def test_the_tiny_model_is_built_although_a_demonstration_has_no_reward(tmp_path: Path) -> None:
    assert (await base_model.build_tiny(Careless, tmp_path / "model", seed=0)).is_dir()


class Picture(Greeting):
    """Shows a picture that is none."""

    def reset(self, task: Task, *, seed: int | None = None) -> Any:
        parts = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": "data:,"}}]
        return [{"role": "user", "content": parts}]


@pytest.mark.slow
async def test_a_broken_image_is_refused_by_a_run_and_found_by_check(tmp_path: Path) -> None:
    """It passed `agentrl check`, and ended the tiny model's run in a template's traceback."""
    with pytest.raises(EnvError, match=r"Picture\.reset gave a user message with an image that can't be read"):
        await base_model.build_tiny(Picture, tmp_path / "model", seed=0)
    assert any("image that can't be read" in str(finding) for finding in agentrl.check_env(Picture, scored=3))


class Parts(Greeting):
    """Speaks in parts, all of them text."""

    def reset(self, task: Task, *, seed: int | None = None) -> Any:
        return [{"role": "user", "content": [{"type": "text", "text": "Say "}, {"type": "text", "text": "hello."}]}]


async def test_text_in_parts_is_text(tmp_path: Path) -> None:
    assert (await base_model.build_tiny(Parts, tmp_path / "model", seed=0)).is_dir()


@pytest.mark.parametrize("setting", ["engine.device", "trainer.device"])
def test_a_gpu_that_is_not_there_is_refused_in_one_line(setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    config = validate(merge_settings(["env=calculator", f"{setting}=cuda"]), RunConfig)
    with pytest.raises(ConfigError, match=rf"{setting}=cuda: torch \S+ finds no CUDA device.*{setting}=cpu or auto"):
        preflight.check_training(config)
    assert devices.torch_device("auto", setting) == "cpu"


class OneLong(Greeting):
    """One of its tasks has much data, and a prompt to match."""

    def tasks(self, split: str = "train") -> list[dict[str, str]]:
        return [{"id": str(n), "text": "hello " * (200 if n == 77 else 1)} for n in range(300)]

    def reset(self, task: Task, *, seed: int | None = None) -> Any:
        return f"Say {task['text']}"


async def test_the_tasks_with_the_most_data_are_opened(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One in three hundred prompts did not fit, and was found in the step that drew it."""
    words = ["env=x", "rollout.session_tokens=90", "rollout.turn_tokens=10", "trainer.token_budget=4096"]
    await room.check_room(budgets(model, validate(merge_settings(words), RunConfig)), OneLong, get_renderer(model))
    assert "in 1 of 16 tasks of the split 'train' that were opened; '77' opens with" in caplog.text


class Sizes(Greeting):
    """A third of its prompts are long."""

    def tasks(self, split: str = "train") -> list[dict[str, int]]:
        return [{"n": n} for n in range(300)]

    def reset(self, task: Task, *, seed: int | None = None) -> Any:
        return "Say hello." + " to everybody" * (40 if task["n"] % 3 == 2 else 0)


@pytest.mark.slow
@pytest.mark.parametrize("split", ["train", "eval"])
async def test_prompts_that_do_not_fit_are_found_before_the_run_wherever_they_are_in_a_split(
    model: Path, split: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Only the first task of the first split was looked at."""
    base = ["env=x", "trainer.token_budget=4096", "rollout.turn_tokens=10", "rollout.session_tokens=90"]
    renderer = get_renderer(model)

    async def check(*words: str) -> None:
        config = validate(merge_settings([*base, *words]), RunConfig)
        lines.extend(await room.check_room(budgets(model, config), Sizes, renderer, (split,)))

    lines: list[str] = []
    await check()
    assert f"in 6 of 16 tasks of the split {split!r} that were opened" in caplog.text
    assert lines == [
        f"lengths: 16 of 300 tasks of the split {split!r} were opened, those with most data among them; the longest "
        "takes 140 tokens of rollout.session_tokens=90 (longer ones: rollout.overlong=skip)"
    ]
    assert "rollout.session_tokens=90 leaves no room" in caplog.text
    with pytest.raises(ConfigError, match=r"6 of 16 tasks .* opens with \d+ tokens \(rollout\.overlong=refuse\)"):
        await check("rollout.overlong=refuse")
    own = "eval.session_tokens=95 leaves" if split == "eval" else "rollout.session_tokens=90 leaves"
    caplog.clear()
    await check("eval.session_tokens=95")
    assert own in caplog.text


def test_an_environment_that_gives_no_reward_is_refused_unless_something_else_gives_one(tmp_path: Path) -> None:
    """A run with env=prompts and no reward played its first step before it was told that nothing is learned from it."""
    rows = [{"prompt": f"Say {n}.", "answer": str(n)} for n in range(20)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["env=prompts", f"env.path={tmp_path / 'rows.jsonl'}", "warm_start.steps=0"]

    def check(*more: str) -> None:
        preflight.check_training(validate(merge_settings([*words, *more]), RunConfig))

    with pytest.raises(ConfigError, match="env=prompts gives no reward, so algo=grpo has nothing to learn from"):
        check()
    check("rewards.said=exact_match")
    check("allow_no_signal=true")
    mixed = ["env=mixture", "env.calculator=1", "warm_start.steps=0"]
    preflight.check_training(validate(merge_settings(mixed), RunConfig))
    plain = {"env": {"name": "mixture", "plain": {"name": "prompts", "path": str(tmp_path / "rows.jsonl")}}}
    with pytest.raises(ConfigError, match="env=mixture, Prompts in it gives no reward"):
        preflight.check_training(validate({**plain, "warm_start": {"steps": 0}}, RunConfig))


@pytest.mark.parametrize("column", ["image", "images"])
def test_rows_with_images_are_refused_by_the_environment_that_shows_none(tmp_path: Path, column: str) -> None:
    """They were trained on without their images."""
    row = {"prompt": "<image>How many?", "answer": "3", column: ["a.png"]}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    env = make("prompts", path=str(tmp_path / "rows.jsonl"))
    with pytest.raises(ConfigError, match=rf"row 1: the column '{column}' holds images.* env=questions does"):
        env.tasks("train")
    assert column_of_images({column: "python:3.11"}) is None, "a container's image"


def test_penalties_and_calls_under_a_grammar_are_refused_on_servers_that_are_not_known_to_have_them() -> None:
    """SGLang's counts are a token behind where it overlaps steps, and another's server may have another library.

    Servers of `fleet.urls` counted as our own, and evaluations were not asked: calls were drawn without a grammar.
    """
    pytest.importorskip("llguidance")

    def check(engine: dict[str, Any], **rollout: Any) -> None:
        given = {"engine": engine, "env": "calculator", "model": "tiny", "rollout": {"top_p": 0.9, **rollout}}
        config = validate(given, RunConfig)
        preflight._check_sampling(config.rollout, config.engine, config.trainer, refuse=True)

    apart = {"disable-overlap-schedule": True}
    url = {"url": "http://127.0.0.1:9"}
    for engine in ({"name": "sglang", "server": apart}, {"name": "vllm"}, {"name": "vllm", **url}):
        check(engine, min_p=0.1, repetition_penalty=1.1)
    for engine in ({"name": "sglang"}, {"name": "sglang", **url, "server": apart}):
        check(engine, min_p=0.1)
        with pytest.raises(ConfigError, match="no token could be trained: engine=sglang does not record what pen"):
            check(engine, repetition_penalty=1.1)
    library = {"grammar_backend": "llguidance"}
    for engine in ({"name": "sglang"}, {"name": "vllm"}, {"name": "sglang", **url, "server": library}):
        check(engine, strict_calls=True)
    attached = {"fleet": {"urls": ["http://127.0.0.1:9"]}, "env": "calculator", "model": "tiny"}
    for engine in ("sglang", "vllm"):
        config = validate({**attached, "engine": engine, "rollout": {"strict_calls": True}}, RunConfig)
        for refuse in (preflight.check_training, preflight.check_evaluation):
            with pytest.raises(ConfigError, match=f"strict_calls=true: engine={engine} has no grammars"):
                refuse(config)
    penalised = {"engine": {"name": "sglang", "server": apart}, "rollout": {"repetition_penalty": 1.1}}
    with pytest.raises(ConfigError, match="no token could be trained: engine=sglang does not record what pen"):
        preflight.check_training(validate(attached | penalised, RunConfig))
    other = {"structured_outputs_config": {"backend": "xgrammar"}}
    for engine in ({"name": "sglang", **url}, {"name": "vllm", **url}, {"name": "vllm", "server": other}):
        with pytest.raises(ConfigError, match=f"strict_calls=true: engine={engine['name']} has no grammars"):
            check(engine, strict_calls=True)


@pytest.mark.slow
def test_a_server_that_should_run_already_is_missed_before_anything_is_imitated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RemoteEngine, "attach_seconds", 0.0)
    engine = {"name": "vllm", "url": "http://127.0.0.1:9"}
    with pytest.raises(EngineError, match="no server answers there"):
        agentrl.train("calculator", engine=engine, run_dir=str(tmp_path / "run"))
    assert not list((tmp_path / "run").rglob("warm*"))
