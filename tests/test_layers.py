"""Modules import only from layers below their own, and never in a circle, lazy imports included."""

from __future__ import annotations

import ast
import gc
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "agentrl"
BUILT_IN_TASKS = PACKAGE / "envs" / "builtin" / "swe" / "tasks"
LAYERS = (
    {"errors"},
    {"common"},
    {
        "types",
        "config",
        "attachments",
        "faults",
        "logs",
        "overrides",
        "prometheus",
        "registry",
        "tracing",
        "watchdog",
    },
    {"models", "cluster"},
    {"tools", "sessions"},
    {"retrieval"},
    {"envs"},
    {"rollout"},
    {"train"},
    {"viewer"},
    {"checks", "completion", "settings_help", "cli", "__main__", ""},
    {"plugins"},
)
"""The lowest first; modules and packages of one layer that stand beside each other know nothing of each other."""


@pytest.fixture(scope="module", autouse=True)
def no_collections() -> Iterator[None]:
    """Those that look at the nodes of all files on the way were half of the time."""
    gc.disable()
    yield
    gc.enable()


def modules() -> dict[str, Path]:
    files = (file for file in PACKAGE.rglob("*.py") if BUILT_IN_TASKS not in file.parents)
    names = {".".join(("agentrl", *file.relative_to(PACKAGE).with_suffix("").parts)): file for file in files}
    return {name.removesuffix(".__init__"): file for name, file in names.items()}


@cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Those below a module or a statement: of expressions, ten times as many, none imports anything."""
    for part in ("body", "orelse", "handlers", "finalbody", "cases"):
        yield from getattr(node, part, ())


def imported(node: ast.AST, *, typing: bool) -> Iterator[str]:
    """What a tree imports, wherever it does; `typing`: also what only types need."""
    for child in statements(node):
        if not typing and isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            continue
        if isinstance(child, ast.ImportFrom) and child.module:
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
            yield child.module
        elif isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        yield from imported(child, typing=typing)


@cache
def graph(*, typing: bool = False) -> dict[str, set[str]]:
    known = modules()
    found = {}
    for name, file in known.items():
        every = [other for other in imported(parsed(file), typing=typing) if other in known and other != name]
        inner = {other.rpartition(".")[0] for other in every}  # of `from package import module` the module is meant
        found[name] = {other for other in every if other not in inner}
    return found


def circles(edges: dict[str, set[str]]) -> list[set[str]]:
    left = dict(edges)
    while ends := {name for name, others in left.items() if not others & left.keys()}:
        left = {name: others for name, others in left.items() if name not in ends}
    reached = {start: reachable(start, left) for start in left}
    return [set(c) for c in {frozenset(o for o in reached[n] if n in reached[o]) for n in left} if len(c) > 1]


def reachable(start: str, edges: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        more = edges[waiting.pop()] & edges.keys() - found
        found |= more
        waiting.extend(more)
    return found


def layer(name: str) -> int:
    part = [*name.split("."), ""][1]
    return next(place for place, parts in enumerate(LAYERS) if part in parts)


@pytest.mark.slow
def test_no_module_imports_in_a_circle() -> None:
    assert circles(graph()) == []


@pytest.mark.slow
def test_no_module_is_in_a_circle_for_types_alone() -> None:
    assert circles(graph(typing=True)) == []


def test_no_module_imports_from_a_layer_above_its_own() -> None:
    upward = [f"{a} -> {b}" for a, others in graph().items() for b in others if layer(b) > layer(a) and a != "agentrl"]
    assert upward == []


def test_nothing_inside_imports_what_is_re_exported_for_authors_of_plug_ins() -> None:
    inside = [(a, b) for a, others in graph().items() for b in others if "plugins" in b.split(".")[1:2]]
    assert [pair for pair in inside if "plugins" not in pair[0].split(".")[1:2]] == []


def test_tools_and_sessions_know_nothing_of_each_other() -> None:
    beside = [
        (a, b)
        for a, others in graph().items()
        for b in others
        if {*a.split(".")[1:2], *b.split(".")[1:2]} == {"tools", "sessions"}
    ]
    assert beside == []


def test_a_circle_and_an_upward_import_would_be_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [{"a", "b", "c"}]
    assert (
        layer("agentrl.train.driver.loop")
        > layer("agentrl.rollout.stream.stream")
        > layer("agentrl.envs.base")
        > layer("agentrl.types")
    )


def test_only_the_clusters_own_modules_import_ray() -> None:
    found = set()
    for name, file in modules().items():
        for node in ast.walk(parsed(file)) if "ray" in file.read_text() else ():
            imported = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            imported += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            found |= {name for module in imported if module.partition(".")[0] == "ray"}
    assert found == {f"agentrl.cluster.ray.{name}" for name in ("cluster", "groups", "starter")}


def test_no_folder_holds_more_than_twenty_five_files() -> None:
    folders = Counter(file.parent.relative_to(PACKAGE).as_posix() for file in modules().values())
    assert {folder: count for folder, count in folders.items() if count > 25} == {}
