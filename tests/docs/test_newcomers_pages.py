"""The pages for newcomers name settings, alarms and algorithms that there are."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from agentrl.overrides import parse_words
from agentrl.train.display.panel import INVALID_NUMBERS
from agentrl.train.driver.setup import complete
from agentrl.viewer import health

DOCS = Path(__file__).parents[2] / "docs"
WORDS = re.compile(r"`([a-z_]+(?:\.[a-z_]+)*=[^`…]+)`")
NAMED = ("FILE", "NAME", "MODEL", "PATH", "runs/", "env.", "rewards.", "data=", "policy=")
"""What stands for something of the reader's own."""


def titles() -> set[str]:
    """The titles of the viewer's alarms."""
    calls = [node for node in ast.walk(ast.parse(Path(health.__file__).read_text())) if isinstance(node, ast.Call)]
    alarms = [call.args[1] for call in calls if isinstance(call.func, ast.Name) and call.func.id == "Alarm"]
    known = {str(title.value) for title in alarms if isinstance(title, ast.Constant)}
    return known | {label.capitalize() for label in INVALID_NUMBERS.values()}


def test_the_page_on_debugging_has_every_alarm_of_the_viewer_and_no_other() -> None:
    assert set(re.findall(r"\*\*(.+?)\*\*", (DOCS / "debugging.md").read_text())) - {"Health"} == titles()


@pytest.mark.parametrize("page", ["choosing.md", "debugging.md", "faq.md"])
def test_the_settings_that_a_page_proposes_are_valid(page: str) -> None:
    proposed = [words for words in WORDS.findall((DOCS / page).read_text()) if not any(each in words for each in NAMED)]
    assert proposed or page == "faq.md"
    around = {
        "algo=distill": ["policies.teacher.model=tiny"],
        "trainer.moe": ["trainer=megatron"],
        "engine.server": ["engine=sglang"],
        **{f"algo={name}": ["data=x.jsonl"] for name in ("dpo", "simpo", "orpo", "kto", "sft", "reward_model")},
        "algo=vine": ["rollout.branch=every"],
    }
    for words in proposed:
        more = next((found for begins, found in around.items() if words.startswith(begins)), [])
        own = [] if "data=x.jsonl" in more else ["env=calculator"]
        complete(parse_words([*own, *more, *words.split()]))
