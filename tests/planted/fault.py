"""Planted faults: one wrong text in one function, and the test that exists to find it.

A fault's place is its function's qualified name, so that moving a function changes one line of the entry; a fault whose
text is gone is an error instead of a test that seems to find nothing. The entries are YAML files beside this module, by
area: a test, then its faults, each `module:qualified.name: [old text, new text]`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
ENTRIES = Path(__file__).parent


class NoLongerApplies(Exception):
    """A fault's function, text or test is not there any more."""


@dataclass(frozen=True)
class Fault:
    """A function (`module:qualified.name`), a text in it, what to write instead, and the test that must fail then."""

    function: str
    old: str
    new: str
    test: str

    def __str__(self) -> str:
        return f"{self.function}: {self.old!r} -> {self.new!r}"

    def file(self, root: Path = ROOT) -> Path:
        """The source of the function's module under a root."""
        path = root.joinpath(*self.function.partition(":")[0].split("."))
        return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")

    def planted(self, root: Path = ROOT) -> str:
        """Return the module's source with the fault in it.

        Raises:
            NoLongerApplies: there is no such function, it has the old text not once, or the new one is no Python.
        """
        file = self.file(root)
        if not file.is_file():
            raise NoLongerApplies(f"{self}: there is no file {file.relative_to(root)}")
        source = file.read_text()
        lines = source.splitlines(keepends=True)
        first, end = _lines_of(ast.parse(source), self.function.partition(":")[2], str(self))
        body = "".join(lines[first:end])
        if (count := body.count(self.old)) != 1:
            raise NoLongerApplies(f"{self}: the old text must be in the function once, it is there {count} times")
        changed = "".join(lines[:first]) + body.replace(self.old, self.new) + "".join(lines[end:])
        try:
            ast.parse(changed)
        except SyntaxError as error:
            raise NoLongerApplies(f"{self}: the new text makes no Python: {error}") from None
        return changed

    def check(self, root: Path = ROOT) -> None:
        """Raise `NoLongerApplies` where the fault can't be planted or its test is gone."""
        self.planted(root)
        name, _, node = self.test.partition("::")
        if not (file := root / name).is_file():
            raise NoLongerApplies(f"{self}: there is no file {name}")
        if node and f"def {node.rpartition('::')[2].partition('[')[0]}(" not in file.read_text():
            raise NoLongerApplies(f"{self}: {name} has no test {node}")


def _lines_of(tree: ast.AST, name: str, fault: str) -> tuple[int, int]:
    """First line and the one past the last, from 0, of the function with this qualified name."""
    node = tree
    for part in name.split("."):
        named = (
            child
            for child in ast.walk(node)
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and child.name == part
        )
        if (inner := next(named, None)) is None:
            raise NoLongerApplies(f"{fault}: the module has no {name}")
        node = inner
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    return min(node.lineno, *(each.lineno for each in node.decorator_list or [node])) - 1, node.end_lineno or 0


def entries(folder: Path = ENTRIES) -> Iterator[Fault]:
    """All faults of a folder's YAML files."""
    for file in sorted(folder.glob("*.yaml")):
        for test, faults in yaml.safe_load(file.read_text()).items():
            for fault in faults:
                ((function, (old, new)),) = fault.items()
                yield Fault(function, old, new, test)
