"""The tasks of docs/tasks.md are found by their words, and end in a command of the pages that it names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
ROW = re.compile(r"^\| (\d+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \| `([^|]+)` \|$", re.MULTILINE)
TASKS = ROW.findall((DOCS / "tasks.md").read_text())
HEADING = re.compile(r"^#+ ", re.MULTILINE)


def sections_with(words: str, page: str) -> list[str]:
    """The sections of a page in which all of these words begin a word, as the site's search takes them."""
    sections = HEADING.split((DOCS / page).read_text().lower())
    return [one[:60] for one in sections if all(re.search(rf"\b{word}", one) for word in words.split())]


def test_there_are_ten_tasks() -> None:
    assert [int(number) for number, *_ in TASKS] == list(range(1, 11))


@pytest.mark.parametrize(
    ("task", "words", "links", "command"), [row[1:] for row in TASKS], ids=[row[1] for row in TASKS]
)
def test_a_task_is_solved_by_search_and_at_most_three_pages(task: str, words: str, links: str, command: str) -> None:
    pages = re.findall(r"\]\(([a-z_]+\.md)", links)
    assert 1 <= len(pages) <= 3
    assert sections_with(words, pages[0]), f"{words!r} is in no section of {pages[0]}"
    assert any(command in (DOCS / page).read_text() for page in pages), f"{command} is on none of {pages}"
