"""The README and the pages have short sentences and paragraphs.

`python -m tests.docs.test_readability [PAGE …]` says where not.
Running text alone is looked at: code, tables and headings are left out. A link counts as its words, code as one word.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
MOST_WORDS = 35
MOST_LINES = 6
WIDTH = 120
"""The characters of a line: how a paragraph's lines are counted, however its file is broken into lines."""

FENCE = re.compile(r"^( *)```.*?^\1```$", re.DOTALL | re.MULTILINE)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
CODE = re.compile(r"`[^`]+`")
ITEM = re.compile(r"^ *(?:[-*]|\d+\.) ", re.MULTILINE)
END = re.compile(r"(?<=[.!?:;])[)\"*]* +(?=[\"(*`A-Z0-9])")


def paragraphs(page: str) -> Iterator[str]:
    """The paragraphs and items of lists of a page, each on one line."""
    text = COMMENT.sub("", FENCE.sub("", page))
    blocks = (item for block in re.split(r"\n\s*\n", text) for item in ITEM.split(block))
    for block in blocks:
        lines = [line.strip() for line in block.strip("\n").splitlines()]
        if lines and not block.startswith("    ") and not lines[0].startswith(("#", "|")):
            yield " ".join(lines)


def sentences(paragraph: str) -> list[str]:
    """The sentences of a paragraph, as they are read: links without their targets."""
    return END.split(LINK.sub(r"\1", paragraph))


def number_of_words(sentence: str) -> int:
    """The words of a sentence; a piece of code is one."""
    return len(re.findall(r"\w[\w'.-]*", CODE.sub("code", sentence)))


def too_long(page: str) -> Iterator[str]:
    """What is too long on a page, in a line each."""
    for paragraph in paragraphs(page):
        read = LINK.sub(r"\1", paragraph)
        if (lines := -(-len(read) // WIDTH)) > MOST_LINES:
            yield f"{lines} lines: {read[:100]}…"
        for sentence in sentences(paragraph):
            if (words := number_of_words(sentence)) > MOST_WORDS:
                yield f"{words} words: {sentence[:100]}…"


def test_what_is_too_long_is_found_and_code_and_tables_are_not_counted() -> None:
    long = "One " + "word " * 35
    assert list(too_long(f"# {long}\n\n| {long} |\n\n```\n{long}\n```\n\n    {long}\n")) == []
    assert [found[:8] for found in too_long(f"A start. {long.strip()}. An end.\n\n- `{long}` is.\n- {long}")] == [
        "36 words",
        "36 words",
    ]
    assert [found[:8] for found in too_long("A few short words. " * 40)] == ["7 lines:"]


def test_pages_have_no_long_sentence_and_no_long_paragraph() -> None:
    assert {page.name: found for page in PAGES if (found := list(too_long(page.read_text())))} == {}


if __name__ == "__main__":
    for each in map(Path, sys.argv[1:] or PAGES):
        for line in too_long(each.read_text()):
            print(f"{each.name}: {line}")
