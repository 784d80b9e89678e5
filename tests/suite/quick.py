"""What `make check` need not import: modules of which all tests are slow.

Their text says so: `pytestmark`, or a decorator of each test. That is a third of them, with what only they import.
"""

from __future__ import annotations

import re
from pathlib import Path

ALL_SLOW = re.compile(r"^pytestmark = (\[[^\]]*)?pytest\.mark\.slow\b", re.MULTILINE)
TEST = re.compile(r"(async )?def test_")
CLASS = re.compile(r"^(class )?Test\w*\b", re.MULTILINE)


def has_nothing(file: Path, marks: str) -> bool:
    """Whether `-m MARKS` leaves nothing of a module of tests.

    Args:
        file: any file or folder that pytest comes to.
        marks: the expression; one that may want slow tests leaves nothing out.
    """
    if "not slow" not in marks or not (file.name.startswith("test_") and file.suffix == ".py"):
        return False
    text = file.read_text()
    if ALL_SLOW.search(text):
        return True
    heads = _heads(text)
    return bool(heads) and not CLASS.search(text) and all("@pytest.mark.slow" in head for head in heads)


def _heads(text: str) -> list[str]:
    """Of each test, its decorators and its first line."""
    found, above = list[str](), ""
    for line in text.splitlines():
        if TEST.match(line):
            found.append(above + line)
        # What goes on in a line that begins with white space or a bracket is still the decorator's.
        above = above + line if line.startswith("@") or (above and line[:1] in ("", " ", ")", "]", "}")) else ""
    return found
