"""One word, one meaning: a reader who has met a name knows what it stands for wherever it is used."""

from __future__ import annotations

import ast
import gc
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import agentrl

ROOT = Path(agentrl.__file__).parent
TASKS = ROOT / "envs" / "builtin" / "swe" / "tasks"
"""Repositories that agents work on: none of them is imported."""
Function = ast.FunctionDef | ast.AsyncFunctionDef
PARTICIPLE = re.compile(
    r"_?([^\W_]+ed|known|made|found|taken|held|kept|told|said|shown|seen|given|drawn|chosen|written|sent|left|lost)"
    r"(_(in|by|as|of|to|with|on|at|from|for))?"
)
NO_PARTICIPLES = {"seed", "feed", "need", "speed", "embed", "exceed", "unembed"}
NAMED_FOR_AUTHORS = ("agentrl/envs/check/rules/", "builtin/instructions/checks.py", "conformance.py", "/inside/")
"""Functions that are listed by their names or their docstrings, or that run in a sandbox."""
OTHER_PROJECT = re.compile(r"\binstall\b[^`\n]*[\s'\"=]agentrl(\[[\w,-]*\])?(?=['\"`\s<>=]*[,;.]?$|['\"`<>=])")
QUESTION = re.compile(r"(What|How|Which|Whether|Whose|Who|Where|Why)\b")


def test_no_public_class_name_is_used_twice() -> None:
    places = defaultdict(list)
    for place, module in _modules():
        for name in _public_classes(module.body):
            places[name].append(place)

    twice = {name: files for name, files in places.items() if len(set(files)) > 1}

    assert not twice, "\n".join(f"{name}: {', '.join(files)}" for name, files in sorted(twice.items()))


def test_a_public_method_without_a_docstring_overrides_one_that_has_it() -> None:
    known = defaultdict(list)
    for _, kind in _classes():
        known[kind.name].append(kind)
    of_protocols = {
        name for _, kind in _classes() if {"Protocol", "ABC"} & set(_bases(kind)) for name in _described_methods(kind)
    }

    lacking = [
        f"{place}:{method.lineno} {kind.name}.{method.name}"
        for place, kind in _classes()
        for method in _methods(kind)
        if not (method.name.startswith("_") or kind.name.startswith("_") or ast.get_docstring(method))
        and method.name not in of_protocols
        and not _inherits(kind, method.name, known)
    ]

    assert not lacking, "\n".join(lacking)


def test_functions_are_named_by_verbs_not_by_participles_alone() -> None:
    nouns = [
        f"{place}:{function.lineno} {function.name}"
        for place, module in _modules()
        if not any(part in place for part in NAMED_FOR_AUTHORS)
        for function in _functions(module)
        if (match := PARTICIPLE.fullmatch(function.name)) and match[1] not in NO_PARTICIPLES
    ]

    assert not nouns, "\n".join(nouns)


def test_no_text_installs_the_other_project_that_the_registry_has_under_this_name() -> None:
    pages = [*ROOT.parent.glob("*.md"), *(ROOT.parent / "docs").rglob("*.md"), *(ROOT.parent / "examples").rglob("*")]
    files = [file for file in (*ROOT.rglob("*.py"), *pages) if file.suffix in (".py", ".md", ".toml", ".txt", ".yaml")]
    lines = [(file, line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    wrong = [f"{file.relative_to(ROOT.parent)}: {line.strip()}" for file, line in lines if OTHER_PROJECT.search(line)]
    assert not wrong, "\n".join(wrong)


def test_no_docstring_is_a_bare_question() -> None:
    questions = [
        f"{place}:{line} {said.splitlines()[0]}"
        for place, module in _modules()
        for node in ast.walk(module)
        for line, said in _docstrings(node)
        if QUESTION.match(said)
    ]

    assert not questions, "\n".join(questions)


def _docstrings(node: ast.AST) -> Iterator[tuple[int, str]]:
    """The line and the text of a node's docstring, and of those below the fields and constants in its body."""
    if isinstance(node, Function | ast.ClassDef | ast.Module):
        if said := ast.get_docstring(node):
            yield getattr(node, "lineno", 1), said
        for field, below in pairwise(node.body):
            said = getattr(getattr(below, "value", None), "value", None)
            if isinstance(field, ast.Assign | ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(said, str):
                yield below.lineno, said


def _functions(module: ast.Module) -> Iterator[Function]:
    """A module's functions, and the private methods of its classes, which nothing decorates."""
    for statement in module.body:
        if isinstance(statement, Function) and not statement.decorator_list:
            yield statement
        elif isinstance(statement, ast.ClassDef):
            for method in _methods(statement):
                if method.name.startswith("_") and not method.decorator_list:
                    yield method


def _inherits(kind: ast.ClassDef, method: str, known: dict[str, list[ast.ClassDef]]) -> bool:
    """Return whether a base class describes the method, or is another package's."""
    return any(
        name not in known
        or any(method in _described_methods(base) or _inherits(base, method, known) for base in known[name])
        for name in _bases(kind)
        if name not in ("Protocol", "ABC", "Generic", kind.name)
    )


def _described_methods(kind: ast.ClassDef) -> set[str]:
    return {method.name for method in _methods(kind) if ast.get_docstring(method)}


def _methods(kind: ast.ClassDef) -> list[Function]:
    return [statement for statement in kind.body if isinstance(statement, Function)]


def _bases(kind: ast.ClassDef) -> list[str]:
    return [ast.unparse(base).split("[")[0].split(".")[-1] for base in kind.bases]


@cache
def _modules() -> list[tuple[str, ast.Module]]:
    files = [file for file in sorted(ROOT.rglob("*.py")) if not file.is_relative_to(TASKS)]
    gc.disable()  # collections that look at millions of nodes on the way were two thirds of the time
    try:
        return [(str(file.relative_to(ROOT.parent)), ast.parse(file.read_text(encoding="utf-8"))) for file in files]
    finally:
        gc.enable()


@cache
def _classes() -> list[tuple[str, ast.ClassDef]]:
    """The classes that stand in no function."""
    return [(place, kind) for place, module in _modules() for kind in module.body if isinstance(kind, ast.ClassDef)]


def _public_classes(body: list[ast.stmt]) -> Iterator[str]:
    """The classes of a module that stand in no other class or function."""
    for statement in body:
        if isinstance(statement, ast.ClassDef) and not statement.name.startswith("_"):
            yield statement.name
        elif isinstance(statement, ast.If | ast.Try):
            yield from _public_classes([*statement.body, *statement.orelse])
