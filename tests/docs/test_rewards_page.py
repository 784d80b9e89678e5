"""docs/rewards.md: its kinds are those that there are, and what it prints can be typed."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import agentrl
from agentrl.cli import app
from agentrl.config import RunConfig
from agentrl.envs.rewards import BUILT_IN
from agentrl.overrides import merge_settings, validate
from agentrl.plugins.reward import check_reward
from agentrl.train.evaluation.suite.commands import WORSE
from tests.envs.scoring.judge_server import serving

PAGE = (Path(__file__).parents[2] / "docs" / "rewards.md").read_text(encoding="utf-8")


def blocks(language: str) -> Iterator[str]:
    yield from re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


COMMANDS = [line for block in blocks("sh") for line in block.splitlines()]
ROWS = [
    {"question": "How many are 2 and 2?", "answer": "They are 4.\n#### 4"},
    {"question": "How many are 3 and 2?", "answer": "They are 5.\n#### 5"},
]
MIXED = [
    {"question": f"What is {number} and 2?", "answer": f"#### {number + 2}" if number % 2 else ["words"]}
    for number in range(32)
]


def test_every_kind_has_a_row_and_every_row_a_kind() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ", PAGE.partition("## Built in")[2].partition("## Composition")[0], re.MULTILINE)
    assert sorted(rows) == sorted(BUILT_IN)


@pytest.mark.usefixtures("in_tmp_path")
@pytest.mark.slow
def test_commands_that_are_printed_run(tmp_path: Path) -> None:
    """A command of training plays as `agentrl eval` by the environment's expert: its rewards are what it shows."""
    for name, rows in (("train", ROWS), ("test", ROWS), ("mixed", MIXED * 8)):
        Path(f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with serving(lambda question: "Score: 5\nBetter: A") as server:
        for place, line in enumerate(COMMANDS):
            if line.split()[1] in ("rescore", "compare"):
                newest = next(Path().glob("rescore-*"), Path("none"))
                words = shlex.split(line.replace("runs/rescore-NAME-DIGEST", str(newest)).replace("runs/NAME", "run-0"))
                assert CliRunner().invoke(app, words[1:]).exit_code in (0, WORSE), line
                continue
            words = [word.replace("http://127.0.0.1:8000/v1", server.url) for word in shlex.split(line)[2:]]
            config = validate(merge_settings(words), RunConfig)
            own: dict[str, Any] = {"policy": "expert", "run_dir": f"run-{place}", "eval.tasks": 12, "eval.n": 2}
            rewards = {name: each.model_dump() for name, each in config.rewards.items()}
            own["eval.probe"] = config.eval.probe.model_dump()
            settings = {f"env.{name}": value for name, value in config.env.kwargs.items()}
            result = agentrl.evaluate(config.env.name, rewards=rewards, **settings, **own)
            assert result.worked, line
            assert {f"reward/{name}" for name in rewards} <= result.metrics.keys(), line
            assert config.eval.probe.active == ("probe/gap" in result.metrics), line


async def test_the_class_of_ones_own_keeps_the_contract() -> None:
    (code,) = blocks("python")
    found: dict[str, type] = {}
    exec(code, found)
    assert await check_reward(found["Novel"]) == []


def test_help_lists_the_settings_of_a_kind() -> None:
    printed = CliRunner().invoke(app, ["train", "rewards.x=llm_judge", "rewards", "--help"]).output
    assert all(f"rewards.x.{name}" in printed for name in ("rubric", "votes", "gates", "where"))
