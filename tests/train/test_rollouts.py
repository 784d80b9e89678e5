"""`agentrl.rollouts`: groups for a training loop of one's own."""

from __future__ import annotations

import asyncio
import runpy
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import agentrl
from agentrl.errors import ConfigError, InvalidInput
from agentrl.sessions.store.store import Store
from agentrl.train.driver.api import configure
from agentrl.train.plan.preflight import check_training
from agentrl.types import Group, Message, Session, StepResult, Task

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "examples" / "scripts" / "own_loop.py"
SMALL: dict[str, Any] = {
    **{"steps": 2, "rollout.groups_per_step": 2, "rollout.group_size": 2, "rollout.turn_tokens": 6},
    **{"rollout.max_turns": 1, "algo.lr": 1e-2, "algo.schedule": "constant", "algo.warmup_steps": 0},
}


class Letters(agentrl.Env):
    """Answers are scored by their letters, as good as by chance."""

    def tasks(self, split: str = "train") -> Iterable[Task]:
        return [Task(id=str(n)) for n in range(6)]

    def reset(self, task: Task, *, seed: int | None = None) -> str:
        return f"Say something about {task.id}."

    @agentrl.reward
    def letters(self, session: Session) -> float:
        return sum(map(ord, session.nodes[-1].message.text)) % 97 / 97


def test_the_script_in_examples_learns_what_train_learns_bit_for_bit(tmp_path: Path) -> None:
    main = runpy.run_path(str(SCRIPT))["main"]
    agentrl.register("letters", Letters)
    own = asyncio.run(main("letters", run_dir=str(tmp_path / "own"), **SMALL))
    unmeasured = {"eval.tasks": 1, "checkpoint_every": 2, "weights.probe_tokens": 0}
    trained = agentrl.train("letters", run_dir=str(tmp_path / "train"), **SMALL, **unmeasured)
    row = trained.metrics[-1]
    assert row["grad_norm"] > 0
    assert {name: own[name] for name in ("loss", "grad_norm")} == {name: row[name] for name in ("loss", "grad_norm")}
    assert sampled(tmp_path / "own") == sampled(tmp_path / "train")


class SavedLetters(Letters):
    """The same, with a second turn and a state between them."""

    turns = 0

    def step(self, message: Message) -> StepResult:
        self.turns += 1
        return StepResult([Message(role="user", content="Go on.")], terminated=self.turns == 2)

    def state(self) -> Any:
        return self.turns

    def restore(self, task: Task, state: Any) -> None:
        self.turns = state


@pytest.mark.parametrize(("search", "least"), [("best", 8), ("tree", 1)])
def test_the_search_in_examples_takes_the_best_of_its_continuations(
    search: str, least: int, capsys: pytest.CaptureFixture[str]
) -> None:
    main = runpy.run_path(str(SCRIPT.with_name("search.py")))["main"]
    agentrl.register("saved-letters", SavedLetters)
    settings = SMALL | {"steps": 1, "rollout.max_turns": 2, "rollout.groups_per_step": 1, "engine.process": "shared"}
    (score,) = asyncio.run(main("saved-letters", search, **settings))
    assert 0 < score <= 1
    count = int(capsys.readouterr().out.split("the best of ")[1].split(":")[0])
    assert count >= 2 * least


def sampled(run: Path) -> dict[str, list[list[int]]]:
    with Store(run / "sessions.db", read_only=True) as store:
        return {s.id: [node.token_ids for node in s.nodes] for s in store.sessions() if s.phase == "train"}


def test_groups_are_iterated_over_without_further_ado_and_leaving_the_loop_ends_the_run() -> None:
    run = agentrl.rollouts(Letters, **SMALL | {"steps": 9, "rollout.staleness": 2, "engine.process": "shared"})

    async def some() -> list[Group]:
        groups = []
        async for group in run:
            groups.append(group)
            if len(groups) == 5:
                break
        return groups

    groups = asyncio.run(some())
    assert [group.number for group in groups] == [0, 1, 2, 3, 4]
    assert all(session.score is not None for group in groups for session in group.sessions)
    with pytest.raises(InvalidInput, match="not open"):
        _ = run.engine


async def test_published_weights_generate_what_begins_after_them_under_a_version_that_grows() -> None:
    async with agentrl.rollouts(Letters, **SMALL) as run:
        versions = []
        async for group in run:
            versions.append({span.version for s in group.sessions for node in s.nodes for span in node.versions})
            if group.number == 1:
                zeros = {name: tensor * 0 for name, tensor in state(run.model).items()}
                assert await run.publish(zeros, 7) == 7
                with pytest.raises(InvalidInput, match="version=7: the engine has version 7"):
                    await run.publish(zeros, 7)
    assert versions == [{0}, {0}, {7}, {7}]


def state(model: Path) -> dict[str, Any]:
    from transformers import AutoModelForCausalLM

    return dict(AutoModelForCausalLM.from_pretrained(model).state_dict())


async def test_a_filter_of_ones_own_has_groups_replaced_and_its_errors_name_the_setting(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def odd(group):\n    return group.number % 2\n\ndef wrong(group):\n    return group.nothing\n")
    own = {"rollout.filter": f"{file}:odd", "rollout.max_replaced": 1}
    assert [group.number async for group in agentrl.rollouts(Letters, **SMALL, **own)] == [1, 3, 5, 7]
    few = own | {"rollout.max_replaced": 0}
    assert [group.number async for group in agentrl.rollouts(Letters, **SMALL, **few)] == [0, 1, 2, 3]
    with pytest.raises(ConfigError, match=r"wrong' raised AttributeError for group train-0\.0"):
        await anext(aiter(agentrl.rollouts(Letters, **SMALL, **{"rollout.filter": f"{file}:wrong"})))
    with pytest.raises(agentrl.errors.UnknownName, match=r"'signals'.*'signal'"):
        await anext(aiter(agentrl.rollouts(Letters, **SMALL, **{"rollout.filter": "signals"})))


def test_settings_that_only_train_uses_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"rollout\.reuse=0\.5 is for agentrl\.train"):
        agentrl.rollouts("calculator", rollout={"reuse": 0.5})
    check_training(configure("calculator", {"rollout.reuse": 0.5}))
    with pytest.raises(ConfigError, match=r"warm_start is for agentrl\.train"):
        agentrl.rollouts("calculator", warm_start={"steps": 3})
