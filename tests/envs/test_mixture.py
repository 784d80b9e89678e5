"""Several environments in one run: `env=mixture env.NAME=WEIGHT`."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import agentrl
from agentrl.config import RolloutConfig, SamplerConfig
from agentrl.envs.base import Env
from agentrl.envs.episode import NOOP
from agentrl.errors import ConfigError
from agentrl.overrides import parse_words
from agentrl.rollout.episodes.groups import Rollouts
from agentrl.rollout.episodes.policies import Policy
from agentrl.rollout.stream.batch_metrics import rollout_metrics
from agentrl.rollout.stream.buffer import Gate
from agentrl.rollout.stream.samplers.difficulty import DifficultyConfig
from agentrl.rollout.stream.stream import Stream
from agentrl.rollout.stream.tasks import training_tasks
from agentrl.sessions.renderers.families.null import NullRenderer
from agentrl.train.driver.setup import complete
from agentrl.types import Group, Session, Task

pytestmark = pytest.mark.slow


class Fair(Env):
    """Worth `worth` a task."""

    def __init__(self, size: int = 5, worth: float = 0.5) -> None:
        self.size, self.worth = size, worth

    def tasks(self, split: str = "train") -> Iterable[Mapping[str, Any]]:
        return [{"id": str(number)} for number in range(self.size)]

    def reset(self, task: Task, *, seed: int | None = None) -> str:
        return f"task {task.id}"

    @agentrl.reward
    def worth_it(self, session: Session) -> float:
        return self.worth


class Streamed(Fair):
    def tasks(self, split: str = "train") -> Iterable[Mapping[str, Any]]:
        yield from super().tasks(split)


class Alone(Fair):
    splits = ("other",)


@pytest.fixture(autouse=True)
def known() -> None:
    for kind in (Fair, Streamed, Alone):
        agentrl.register(kind.__name__.lower(), kind)


async def test_numbers_go_to_the_parts_by_weight_and_each_session_is_one_of_its_own_environment() -> None:
    config = complete(parse_words(["env=mixture", "env.fair=3", "env.streamed.worth=1", "env.streamed.size=4"]))
    make = lambda: agentrl.make("mixture", **config.env.kwargs)  # noqa: E731
    rollouts = Rollouts(make, Policy(NullRenderer()), RolloutConfig(), seed=1, environment="mixture")
    tasks = training_tasks(make(), "train", 1, SamplerConfig())
    async with Stream(rollouts, tasks, NOOP, group_size=1, gate=Gate(80, steps=1)) as stream:
        groups = await stream.take(80)
    counts = Counter(session.environment for group in groups for session in group.sessions)
    assert 50 < counts["fair"] < 70
    assert counts.keys() == {"fair", "streamed"}
    assert {(s.environment, s.reward) for g in groups for s in g.sessions} == {("fair", 0.5), ("streamed", 1.0)}
    assert [g.task.id for g in groups if g.task.environment == "streamed"][:6] == ["0", "1", "2", "3", "0", "1"]
    metrics = rollout_metrics(groups)
    assert metrics["env/fair/reward/mean"] == 0.5
    assert metrics["env/streamed/groups"] == counts["streamed"]
    assert not [name for name in rollout_metrics(groups[:1]) if name.startswith("env/")]


def test_a_saved_mixture_goes_on_with_the_same_environments_and_tasks() -> None:
    mixture = agentrl.make("mixture", fair={"size": 50}, easy={"name": "fair", "weight": 2.5, "worth": 1.0})

    def choices(number: int, saved: Any = None) -> tuple[list[Any], Any]:
        tasks = training_tasks(mixture, "train", 3, DifficultyConfig())
        if saved is not None:
            tasks.restore(saved)
        chosen = []
        for each in range(number, number + 20):
            choice = tasks.choose(each)
            session = Session("s", tasks.at(choice), reward=float(each % 3 == 0))
            tasks.see(choice, Group("g", session.task, [session]))
            chosen.append(choice)
        return chosen, json.loads(json.dumps(tasks.state()))

    first, saved = choices(0)
    assert {name for name, _ in first} == {"fair", "easy"}
    again, _ = choices(20, saved)
    tasks = training_tasks(mixture, "train", 3, DifficultyConfig())
    straight = []
    for each in range(40):
        straight.append(tasks.choose(each))
        session = Session("s", tasks.at(straight[-1]), reward=float(each % 3 == 0))
        tasks.see(straight[-1], Group("g", session.task, [session]))
    assert straight == first + again


def test_where_every_task_comes_once_the_parts_take_turns_until_all_have_ended() -> None:
    mixture = agentrl.make("mixture", fair={"size": 4, "weight": 2}, streamed={"size": 3})
    names = [(task.environment, task.id) for task in mixture.tasks("eval")]
    assert [name for name, _ in names] == ["fair", "fair", "streamed", "fair", "fair", "streamed", "streamed"]
    assert len(set(names)) == 7
    assert list(islice(mixture.tasks("eval"), 2)) == list(mixture.tasks("eval"))[:2]


def test_built_in_environments_are_evaluated_and_trained_together(tmp_path: Path) -> None:
    parts = {"calculator": {"weight": 2, "min_steps": 3}, "castle": 1}
    found = agentrl.evaluate("mixture", env=parts, policy="expert", run_dir=str(tmp_path / "eval"), eval={"tasks": 6})
    assert found.mean == 1.0
    assert (found.metrics["env/calculator/groups"], found.metrics["env/castle/groups"]) == (4.0, 2.0)
    small = {"groups_per_step": 6, "group_size": 2, "max_turns": 2, "turn_tokens": 8}
    trained = agentrl.train(
        "mixture", env=parts, run_dir=str(tmp_path / "run"), steps=1, rollout=small, eval={"tasks": 2}
    )
    assert trained.metrics[-1]["env/castle/groups"] + trained.metrics[-1]["env/calculator/groups"] == 6


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({}, "needs environments with weights, as in env.calculator=3"),
        ({"fair": 0}, r"env\.fair\.weight=0 must be a number above 0"),
        ({"fair": True}, r"env\.fair=True: a weight or settings"),
        ({"fair": {"weight": "much"}}, "'much' must be a number"),
        ({"fair": {"sise": 3}}, r"env\.fair: .*sise.*size"),
        ({"fare": 1}, "unknown environment 'fare'; did you mean 'fair'"),
        ({"fair": 1, "alone": 1}, "no split in common"),
    ],
)
def test_a_wrong_mixture_is_refused_by_the_name_of_the_setting(parts: dict[str, Any], words: str) -> None:
    with pytest.raises((ConfigError, agentrl.errors.UnknownName), match=words):
        agentrl.make("mixture", **parts)


def test_a_mixture_itself_plays_nothing() -> None:
    mixture = agentrl.make("mixture", fair=1)
    with pytest.raises(agentrl.errors.EnvError, match="plays no task itself"):
        asyncio.run(agentrl.envs.calls.reset(mixture, Task(id="1")))
