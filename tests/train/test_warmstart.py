"""Imitation before reinforcement learning: who is imitated, and how much of each."""

from __future__ import annotations

import errno
import random
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import agentrl
from agentrl.config import RolloutConfig, WarmStartConfig
from agentrl.envs.base import has_demonstrator, has_expert
from agentrl.envs.episode import DEMONSTRATOR, cut_by_rule, play
from agentrl.envs.wrappers import TurnLimit
from agentrl.errors import ConfigError, StoreError
from agentrl.rollout.episodes.groups import DEMO
from agentrl.sessions.store.store import Store
from agentrl.train.algorithms import make_algorithm
from agentrl.train.driver import warmstart
from agentrl.train.driver.api import configure
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from agentrl.types import Message, Session, Task
from tests.train.trees import as_group, environment_node, sampled_node


class Beginner(agentrl.Env):
    """Has a demonstrator and no expert."""

    max_turns = 1

    def tasks(self, split: str = "train") -> list[dict[str, int]]:
        return [{"n": n} for n in range(20)]

    def reset(self, task: Task, *, seed: int | None = None) -> str:
        return f"{task['n']}?"

    @agentrl.reward
    def even(self, session: Session) -> float:
        return float(session.answer == "even")

    def demonstrate(self, messages: Sequence[Message]) -> str:
        return "odd"


class Nobody(Beginner):
    """Has neither."""

    demonstrate = agentrl.Env.demonstrate


def demonstration(name: str, tokens: int) -> Session:
    session = Session(name, Task(id=name), group="demonstrations")
    environment_node(session, None, [8, 9])
    sampled_node(session, 0, [30] * tokens, demonstrated=True)
    return session


def test_by_default_every_demonstrated_token_weighs_the_same_however_long_its_demonstration() -> None:
    """A demonstrator who guessed (2 tokens) as often as he called a tool (15) made a model that only guessed."""
    sessions = [demonstration("short", 2), demonstration("long", 15)]

    def weights(config: WarmStartConfig) -> tuple[float, float]:
        shares = make_algorithm(warmstart.settings(config)).credit([as_group(sessions)]).shares
        ((short,), (long,)) = (shares[name, 1] for name in ("short", "long"))
        return short.weight, long.weight

    assert weights(WarmStartConfig()) == pytest.approx((1 / 17, 1 / 17))
    assert weights(WarmStartConfig(normalize="rollout")) == pytest.approx((1 / 4, 1 / 30))


def test_a_demonstrator_alone_is_imitated_and_where_there_is_nobody_there_is_no_warm_start() -> None:
    assert (has_expert(Beginner), has_demonstrator(Beginner), has_demonstrator(Nobody)) == (False, True, False)
    assert configure(Beginner, {}).warm_start.steps > 0
    assert configure(Nobody, {}).warm_start.steps == 0


@pytest.mark.slow
def test_a_tiny_model_is_made_from_what_a_demonstrator_says_and_measured_as_often_as_wanted(tmp_path: Path) -> None:
    sizes = {"warm_start.steps": 1, "warm_start.demos": 2, "eval.tasks": 2, "rollout.groups_per_step": 1, "steps": 5}
    result = agentrl.train(Beginner, run_dir=str(tmp_path / "run"), **sizes, **{"eval.every": 2})
    measured = [row["step"] for row in result.metrics if "eval/mean" in row]
    assert measured == [2, 4], "before the first step and after the last one the policy is measured anyway"
    with Store(tmp_path / "run" / "sessions.db") as store:
        played = {session.step for session in store.sessions() if session.phase == "eval"}
    assert played == {0, 2, 4, 5}
    assert "odd" in (tmp_path / "run" / "model" / "tokenizer.json").read_text()
    assert result.before is not None


class Undecided(Beginner):
    """Draws from the generator that it is given; every episode ends by its number of turns."""

    max_turns = 2

    def step(self, message: Message) -> agentrl.StepResult:
        return agentrl.StepResult([Message(role="user", content="and now?")], reward=0.5)

    def demonstrate(self, messages: Sequence[Message], rng: random.Random) -> str:
        return rng.choice(("odd", "even"))


async def demonstrated(env: agentrl.Env, seed: int) -> list[str]:
    session = await play(env, Task(id="3", data={"n": 3}), DEMONSTRATOR, seed=seed)
    assert cut_by_rule(session)
    return [node.message.text for node in session.nodes if node.message.role == "assistant"]


@pytest.mark.slow
async def test_a_demonstrators_chance_is_drawn_anew_for_each_demonstration_and_turn_and_repeats() -> None:
    first = {seed: tuple(await demonstrated(Undecided(), seed)) for seed in range(40)}
    assert set(first.values()) == set(product(("odd", "even"), repeat=2))
    assert first == {seed: tuple(await demonstrated(TurnLimit(Undecided(), 2), seed)) for seed in first}


class Kept(Beginner):
    """Its demonstrator's answers depend on the task."""

    def demonstrate(self, messages: Sequence[Message]) -> str:
        return "even" if int(messages[-1].content.rstrip("?")) % 2 == 0 else "odd"


@pytest.mark.slow
def test_where_every_episode_ends_by_its_turns_those_are_demonstrated_and_trained(tmp_path: Path) -> None:
    sizes = {"warm_start.steps": 2, "warm_start.demos": 8, "eval.tasks": 2, "rollout.groups_per_step": 2, "steps": 1}
    result = agentrl.train(Undecided, run_dir=str(tmp_path / "run"), **sizes)
    with Store(tmp_path / "run" / "sessions.db") as store:
        played = [session for session in store.sessions() if session.phase == DEMO]
    assert len(played) == 8
    assert all(map(cut_by_rule, played))
    assert result.metrics[-1]["sessions/trained_tokens"] > 0


class Certain(Beginner):
    """One prompt, one answer: nothing is left to choose after a few steps of imitation."""

    def reset(self, task: Task, *, seed: int | None = None) -> str:
        return "say it"


@pytest.mark.slow
def test_imitation_ends_at_its_floor_of_entropy_and_without_one_goes_on_to_its_last_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"warm_start.steps": 40, "warm_start.demos": 4, "steps": 1, "eval.tasks": 1, "rollout.groups_per_step": 1}
    seen: dict[str, list[float]] = {}
    step = TorchTrainer.step

    def noted(self: TorchTrainer, *args: Any, **kwargs: Any) -> dict[str, float]:
        metrics = step(self, *args, **kwargs)
        seen.setdefault(run, []).append(metrics["policy/entropy"])
        return metrics

    monkeypatch.setattr(TorchTrainer, "step", noted)
    for run, floor in (("free", 0.0), ("held", 0.05)):
        agentrl.train(Certain, run_dir=str(tmp_path / run), **sizes, **{"warm_start.entropy_floor": floor})
    assert len(seen["free"]) == 40 + 1
    assert seen["free"][39] < 0.05
    *before, last, _ = seen["held"]
    assert last < 0.05 <= min(before)


@pytest.mark.slow
def test_an_interrupted_warm_start_goes_on_from_its_last_saved_step_and_ends_with_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"warm_start.steps": 5, "warm_start.demos": 8, "warm_start.batch": 3, "checkpoint_every": 2}
    sizes |= {"steps": 1, "eval.tasks": 1, "rollout.groups_per_step": 1, "rollout.group_size": 2}
    agentrl.train(Kept, run_dir=str(tmp_path / "whole"), **sizes)
    trained, step = 0, TorchTrainer.step

    def interrupted(self: TorchTrainer, *args: Any, **kwargs: Any) -> dict[str, float]:
        nonlocal trained
        trained += 1
        if trained == 4:
            raise RuntimeError("killed")
        return step(self, *args, **kwargs)

    monkeypatch.setattr(TorchTrainer, "step", interrupted)
    run = tmp_path / "interrupted"
    with pytest.raises(RuntimeError, match="killed"):
        agentrl.train(Kept, run_dir=str(run), **sizes)
    assert [path.name for path in (run / "checkpoints" / "warm-start").iterdir()] == ["000002"]
    agentrl.train(Kept, resume=str(run), **sizes)
    assert trained == 4 + 3 + 1, "the third step again, two more, and one of reinforcement learning"
    assert not (run / "checkpoints" / "warm-start").exists()
    weights = [(path / "checkpoints/step-000000/model.safetensors").read_bytes() for path in (run, tmp_path / "whole")]
    assert weights[0] == weights[1]


@pytest.mark.slow
def test_a_disk_that_is_full_amid_a_warm_start_is_named_and_what_was_saved_before_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = TorchTrainer.save

    def full(self: TorchTrainer, path: Path) -> None:
        if path.name == "000002":
            path.with_name(f"{path.name}.partial").write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        save(self, path)

    monkeypatch.setattr(TorchTrainer, "save", full)
    sizes = {"warm_start.steps": 3, "warm_start.demos": 4, "warm_start.batch": 2, "checkpoint_every": 1}
    with pytest.raises(StoreError, match=r"warm start's step 2 .*No space left") as refused:
        agentrl.train(Kept, run_dir=str(tmp_path / "run"), **sizes)
    assert "from step 1 of its warm start" in refused.value.__notes__[0]
    assert [path.name for path in (tmp_path / "run/checkpoints/warm-start").iterdir()] == ["000001"]


class Warnings:
    """Keeps what is said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def warn(self, text: str) -> None:
        self.said.append(text)


@pytest.mark.slow
def test_demonstrations_beyond_the_context_are_not_imitated() -> None:
    """3,449 tokens were imitated in a context of 2,048."""
    demos = [demonstration("short", 5), demonstration("long", 50), demonstration("middle", 20)]
    context, limits = {"model=x's context of 40 tokens": 40, "engine.max_context=90": 90}, RolloutConfig(turn_tokens=8)

    def chosen(**settings: Any) -> tuple[list[str], list[str]]:
        display = Warnings()
        own = limits.model_copy(update=settings)
        kept = warmstart.fitting(demos, context, own, display)  # type: ignore[arg-type]
        return [session.id for session in kept], display.said

    kept, (long, turns) = chosen()
    assert kept == ["short", "middle"]
    assert long.startswith(
        "1 of 3 demonstrations are longer than model=x's context of 40 tokens: they are not imitated"
    )
    assert turns == "1 of 2 demonstrations exceed rollout.turn_tokens=8, which cuts sampled sessions off"
    assert chosen(overlong="keep")[0] == ["short", "long", "middle"]
    assert chosen(turn_tokens=99, session_tokens=99)[1] == [long]
    with pytest.raises(ConfigError, match=r"1 of 3 demonstrations .*\(the longest: 54 tokens; rollout.overlong=refuse"):
        chosen(overlong="refuse")
    with pytest.raises(ConfigError, match="3 of 3 demonstrations are longer than a"):
        warmstart.fitting(demos, {"a": 3}, limits, Warnings())  # type: ignore[arg-type]
