"""docs/rewards.md: its kinds are those that there are, and what it prints can be typed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agentrl.cli import app
from agentrl.config import RunConfig
from agentrl.envs.rewards import BUILT_IN, make_rewards
from agentrl.overrides import typed, validate
from agentrl.plugins.reward import check_reward

PAGE = (Path(__file__).parents[2] / "docs" / "rewards.md").read_text(encoding="utf-8")


def blocks(language: str) -> Iterator[str]:
    yield from re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def commands(*names: str) -> list[str]:
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    return [line for line in lines if line.split()[1] in names]


def test_every_kind_has_a_row_and_every_row_a_kind() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ", PAGE.partition("## Built in")[2].partition("## Composition")[0], re.MULTILINE)
    assert sorted(rows) == sorted(BUILT_IN)


@pytest.mark.parametrize("line", commands("train", "eval"))
def test_settings_that_are_printed_build_a_run_and_its_rewards(line: str) -> None:
    config = validate(typed(shlex.split(line)[2:]), RunConfig)
    assert make_rewards(config.rewards)


async def test_the_class_of_ones_own_keeps_the_contract() -> None:
    (code,) = blocks("python")
    found: dict[str, type] = {}
    exec(code, found)
    assert await check_reward(found["Novel"]) == []


def test_help_lists_the_settings_of_a_kind() -> None:
    printed = CliRunner().invoke(app, ["train", "rewards.x=llm_judge", "rewards", "--help"]).output
    assert all(f"rewards.x.{name}" in printed for name in ("rubric", "votes", "gates", "where"))
