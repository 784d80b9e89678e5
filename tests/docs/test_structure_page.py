"""The map in docs/structure.md is the code's: each package with the first sentence of its docstring.

`python -m tests.docs.test_structure_page` writes it anew.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "structure.md"
LEFT_OUT = {"tasks", "template"}
"""Folders below which there are no packages of ours: programs to repair, and the files of a new package."""


def packages(folder: Path, depth: int = 0) -> Iterator[tuple[int, Path, str]]:
    """Each package below a folder, the packages within it after it, with the first sentence of what it says of
    itself."""
    for each in sorted(folder.iterdir()):
        init = each / "__init__.py"
        if init.is_file() and each.name not in LEFT_OUT:
            said = ast.get_docstring(ast.parse(init.read_text())) or ""
            sentence = re.split(r"(?<=\.)\s", said.split("\n\n")[0].replace("\n", " "))[0]
            yield depth, each, sentence
            yield from packages(each, depth + 1)


def drawn() -> str:
    """The map as a list in Markdown."""
    return "".join(
        f"{'  ' * depth}- `{folder.name}/` {sentence}\n" for depth, folder, sentence in packages(ROOT / "agentrl")
    )


def updated(page: str) -> str:
    """The page with the map of today."""
    begin, end = "<!-- map -->\n", "<!-- end of map -->"
    before, rest = page.split(begin)
    return before + begin + drawn() + end + rest.split(end)[1]


def test_the_map_of_the_page_is_that_of_the_code() -> None:
    page = PAGE.read_text()
    assert page == updated(page), "run python -m tests.docs.test_structure_page"


def test_every_package_says_what_it_is_in_one_sentence() -> None:
    silent = [str(folder) for _, folder, sentence in packages(ROOT / "agentrl") if not sentence.endswith(".")]
    assert silent == []


def test_every_module_that_the_page_names_exists() -> None:
    page = re.sub(r"(?s)<!-- map -->.*<!-- end of map -->", "", PAGE.read_text())
    named = re.findall(r"`((?:[a-z_0-9]+/)+(?:[a-z_0-9]+\.py)?)`", page)
    gone = [name for name in named if not any((root / name).exists() for root in (ROOT, ROOT / "agentrl"))]
    assert named
    assert gone == []


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text()))
