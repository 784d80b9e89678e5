"""One word, one meaning: a reader who has met a class's name knows what it is wherever it stands."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import agentrl

ROOT = Path(agentrl.__file__).parent
TASKS = ROOT / "envs" / "builtin" / "swe" / "tasks"
"""Repositories that agents work on: none of them is imported."""


def test_no_public_class_name_is_used_twice() -> None:
    places = defaultdict(list)
    for file in sorted(ROOT.rglob("*.py")):
        if not file.is_relative_to(TASKS):
            for name in _public_classes(ast.parse(file.read_text(encoding="utf-8")).body):
                places[name].append(str(file.relative_to(ROOT.parent)))

    twice = {name: files for name, files in places.items() if len(set(files)) > 1}

    assert not twice, "\n".join(f"{name}: {', '.join(files)}" for name, files in sorted(twice.items()))


def _public_classes(body: list[ast.stmt]) -> Iterator[str]:
    """The classes of a module that stand in no other class or function."""
    for statement in body:
        if isinstance(statement, ast.ClassDef) and not statement.name.startswith("_"):
            yield statement.name
        elif isinstance(statement, ast.If | ast.Try):
            yield from _public_classes([*statement.body, *statement.orelse])
