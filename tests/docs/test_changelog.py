"""The changelog is read at a glance: a short line for each thing that a user notices, below headings that stay."""

from __future__ import annotations

import re
from pathlib import Path

CHANGELOG = (Path(__file__).parents[2] / "CHANGELOG.md").read_text()
LONGEST = 200
HEADINGS = [
    "Training",
    "Rollouts and engines",
    "Environments and tools",
    "Gateway and clients",
    "Evaluation and viewer",
    "Clusters",
    "Commands and settings",
    "Security",
]


def test_each_entry_is_one_line_below_a_known_heading() -> None:
    _, _, entries = CHANGELOG.partition("\n### ")
    lines = f"### {entries}".splitlines()
    assert [line for line in lines if line and not line.startswith(("- ", "## ", "### "))] == []
    assert [line for line in lines if len(line) > LONGEST] == []


def test_each_version_has_the_same_headings_in_their_order() -> None:
    for version in re.split(r"^## ", CHANGELOG, flags=re.MULTILINE)[1:]:
        headings = re.findall(r"^### (.+)$", version, re.MULTILINE)
        assert headings == [heading for heading in HEADINGS if heading in headings]
