"""Recipes can be planned as their heads say, name what exists, and stand in the table of docs/recipes.md.

`python -m tests.docs.test_recipes` writes the memory in their heads, and the table, anew.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl.config import RunConfig
from agentrl.envs.registry import make
from agentrl.overrides import parse_words, read_yaml
from agentrl.train.algorithms import make_algorithm
from agentrl.train.driver.setup import complete
from agentrl.train.plan.dry_run import described
from agentrl.train.plan.report import plan_lines
from agentrl.train.plan.step import Rates
from agentrl.train.trainers import check_trainer

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "recipes.md"
RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))
FIELDS = ("hardware", "run", "plan", "memory", "tried")
TRAINER = re.compile(r"^memory of a trainer rank: (\S+ \w+) =", re.MULTILINE)
ENGINE = re.compile(r"^memory of an engine rank: weights (\S+ \w+), key-value cache (\S+ \w+) for (\d+)", re.MULTILINE)
REFCOCO = 120_624
"""Sentences in RefCOCO's training split."""
BEGIN, END = "<!-- recipes -->\n", "<!-- end of recipes -->"


def head(file: Path) -> dict[str, str]:
    """What a recipe is (`about`), and the fields of its head."""
    first, *rest = [line[2:] for line in file.read_text().splitlines() if line.startswith("# ")]
    return {"about": first} | {name: value.strip() for name, value in (line.split(":", 1) for line in rest)}


def config_of(file: Path) -> RunConfig:
    return complete(read_yaml(file))


def lines_of(file: Path) -> list[str]:
    """The lines that the command of its head prints; on a machine without GPUs at rates that nobody measures."""
    words = shlex.split(head(file)["plan"])
    assert (words[0], words[2:4]) == ("agentrl", ["-c", f"recipes/{file.name}"])
    if words[1] == "train":
        assert words[4:] == ["dry_run=true"]
        return list(described(config_of(file), Rates()))
    return list(plan_lines(parse_words(words[4:]), read_yaml(file)))


def memory_of(lines: list[str]) -> str:
    """What a rank of the trainer takes, and one of an engine, in the words of a head."""
    plan = "\n".join(lines)
    [trainer], [(weights, cache, sessions)] = TRAINER.findall(plan), ENGINE.findall(plan)
    return f"trainer rank {trainer}; engine rank {weights}, and {cache} of cache for {sessions} sessions"


def table() -> Iterator[str]:
    """The page's table, a row for each recipe."""
    yield "| recipe | hardware | memory | tried |\n|---|---|---|---|\n"
    for file in RECIPES:
        about = head(file)
        yield f"| `{file.stem}`: {about['about']} | {about['hardware']} | {about['memory']} | {about['tried']} |\n"


def updated(page: str) -> str:
    """The page with the table of today."""
    before, rest = page.split(BEGIN)
    return before + BEGIN + "".join(table()) + END + rest.split(END)[1]


@pytest.mark.parametrize("file", RECIPES, ids=lambda file: file.stem)
def test_a_recipe_is_planned_and_takes_the_memory_that_its_head_says(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    said = head(file)
    assert tuple(said) == ("about", *FIELDS)
    assert said["run"].startswith(f"agentrl train -c recipes/{file.name}")
    lines = lines_of(file)
    assert said["memory"] == memory_of(lines), "run python -m tests.docs.test_recipes"
    assert [line for line in lines if "a trainer rank computes with" in line or "no cache" in line] == []
    config = config_of(file)
    make_algorithm(config.algo)
    there = config.trainer.model_copy(update={"device": "auto"})  # whose devices this machine may lack
    check_trainer(there, config.algo, config.lora)
    data = {"path": str(PAGE)} if config.env.name == "questions" else {}  # which the command names
    assert make(config.env.name, **data | config.env.kwargs).splits
    assert "PATH" in said["run"] or config.model.name in ("tiny", "smollm2-135m")  # others are no known models


@pytest.mark.parametrize("size", ["3b", "7b"])
def test_vision_recipes_have_the_published_settings(size: str) -> None:
    """Of EasyR1's examples/config.yaml, and of VLM-R1's run_grpo_rec.sh with what TRL makes of it."""
    geometry, boxes = (
        config_of(ROOT / "recipes" / f"vision-{name}-{size}-gpus.yaml") for name in ("geometry", "boxes")
    )
    algo, rollout = geometry.algo.model_dump(), geometry.rollout
    loss = {name: algo["loss"][name] for name in ("clip_low", "clip_high", "dual_clip")}
    assert loss == {"clip_low": 0.2, "clip_high": 0.3, "dual_clip": 3.0}
    assert (algo["lr"], algo["kl_coef"], algo["kl_estimator"], algo["kl_as"]) == (1e-6, 0.01, "k3", "loss")
    assert (rollout.groups_per_step, rollout.group_size, algo["minibatches"]) == (512, 5, 4)
    assert geometry.rewards["correct"].name == "easyr1_math"
    algo, rollout = boxes.algo.model_dump(), boxes.rollout
    assert (algo["lr"], algo["kl_coef"], algo["kl_estimator"]) == (1e-6, 0.04, "k3")
    assert (rollout.group_size, rollout.turn_tokens) == (8, 2048)
    assert boxes.steps == 2 * REFCOCO // rollout.groups_per_step, "two epochs"
    assert [reward.name for reward in boxes.rewards.values()] == ["box_iou", "box_format"]


def test_the_page_lists_every_recipe() -> None:
    assert len(RECIPES) >= 10
    assert PAGE.read_text() == updated(PAGE.read_text()), "run python -m tests.docs.test_recipes"


if __name__ == "__main__":
    for each in RECIPES:
        text = re.sub(r"(?m)^# memory:.*$", f"# memory: {memory_of(lines_of(each))}", each.read_text())
        each.write_text(text)
    PAGE.write_text(updated(PAGE.read_text()))
