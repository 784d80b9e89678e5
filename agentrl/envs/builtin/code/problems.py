"""Problems from JSONL files in HumanEval's layout, and in MBPP's two.

HumanEval (Chen et al., 2021, arXiv:2107.03374): `task_id`, `prompt`, `entry_point`, `canonical_solution`, `test`, where
`test` defines `check(candidate)`. MBPP (Austin et al., 2021, arXiv:2108.07732): `task_id`, `text`, `code`, `test_list`,
`test_setup_code`; its sanitized version has `prompt` for `text` and `test_imports` for `test_setup_code`. A file may
mix them. MBPP's problems don't say what the function is called, so its authors show the tests; here the first one is
shown and all of them are run.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from agentrl.envs.builtin.code.builtin import PROBLEMS
from agentrl.envs.data.rows import MakeTask, read_tasks, require_file
from agentrl.envs.data.splits import TaskList
from agentrl.types import Task

HUMANEVAL = ("prompt", "entry_point", "canonical_solution", "test")
COMPLETE = (
    "Complete this Python function. Answer with the whole function in a fenced block.\n\n```python\n{prompt}\n```"
)
WRITE = (
    "{text}\n\nWrite the function in Python, in a fenced block. Tests like these must pass:\n\n```python\n{shown}\n```"
)


def read_problems(path: str | Path | None, shown: int) -> TaskList:
    """A file's problems, or the built-in ones.

    Args:
        path: a JSONL or Parquet file; None is the built-in set.
        shown: how many of an MBPP problem's tests are shown.

    Raises:
        ConfigError: a row is of no known layout; it is named.
    """
    if path is None:
        return TaskList(problem(row, f"code-{number}", shown) for number, row in enumerate(PROBLEMS, 1))
    return read_tasks(require_file("env.path", path), _maker(shown), "problems", layout_of)


@cache
def _maker(shown: int) -> MakeTask:
    """One function for each `shown`, by which `read_tasks` keeps what it read."""
    return lambda row, number: problem(row, f"code-{number}", shown)


def problem(row: Mapping[str, Any], id: str, shown: int) -> Task:
    """A task from a row of either layout; `shown` of MBPP's tests are shown.

    Raises:
        ValueError: it is of no known layout, or its code does not parse.
    """
    return _humaneval(row, id) if layout_of(row) == "HumanEval's" else _mbpp(row, id, shown)


def layout_of(row: Mapping[str, Any]) -> str:
    """The layout of a row.

    Raises:
        ValueError: it is none of the two, or both, with other tests.
    """
    humaneval = all(isinstance(row.get(field), str) for field in HUMANEVAL)
    mbpp = isinstance(row.get("code"), str) and isinstance(row.get("test_list"), list) and bool(row["test_list"])
    if humaneval and mbpp:
        raise ValueError("it has the fields of HumanEval (test) and of MBPP (test_list): leave one of the tests out")
    if not humaneval and not mbpp:
        raise ValueError(f"neither a HumanEval nor an MBPP row: fields {', '.join(sorted(row))}")
    return "HumanEval's" if humaneval else "MBPP's"


def _humaneval(row: Mapping[str, Any], id: str) -> Task:
    prompt = row["prompt"]
    try:
        ast.parse(prompt)
        trusted = prompt
    except SyntaxError:
        trusted = f"{prompt.rstrip()}\n    pass\n"
    ast.parse(trusted)
    return Task(
        id=str(row.get("task_id", id)),
        data={
            "statement": COMPLETE.format(prompt=prompt.strip("\n")),
            "prompt": prompt,
            "entry_point": row["entry_point"],
            "reference": prompt + row["canonical_solution"],
            "tests": [row["test"]],
            "trusted": trusted,
        },
    )


def _mbpp(row: Mapping[str, Any], id: str, shown: int) -> Task:
    tests = [str(test) for test in row["test_list"]]
    defined = {node.name for node in ast.parse(row["code"]).body if isinstance(node, ast.FunctionDef)}
    called = [name for test in tests for name in _list_called(test) if name in defined]
    if not called:
        raise ValueError(f"its tests call none of the functions of its code ({', '.join(sorted(defined)) or 'none'})")
    setup = str(row.get("test_setup_code") or "")
    text = str(row.get("text") or row.get("prompt") or "")
    trusted = list(row.get("test_imports") or [])
    used = {node.id for test in [setup, *tests] for node in ast.walk(ast.parse(test)) if isinstance(node, ast.Name)}
    names, imports = _split_names(row["code"], used - set(_list_bound(ast.parse("\n".join([*trusted, setup, *tests])))))
    return Task(
        id=f"mbpp-{row['task_id']}" if "task_id" in row else id,
        data={
            "statement": WRITE.format(text=text.strip(), shown="\n".join(tests[:shown]) or f"{called[0]}(...)"),
            "prompt": "",
            "entry_point": called[0],
            "reference": row["code"].replace("\r\n", "\n"),
            "tests": [*([setup] if setup else []), *tests],
            "trusted": "\n".join([*trusted, *imports]),
            "names": names,
        },
    )


def _split_names(code: str, wanted: set[str]) -> tuple[list[str], list[str]]:
    """Of the names that the tests use: those that the reference defines, and its imports of the others."""
    names: list[str] = []
    imports: list[str] = []
    for node in ast.parse(code).body:
        bound = wanted.difference(dir(builtins)) & set(_list_bound(node))
        if bound and isinstance(node, ast.Import | ast.ImportFrom):
            imports.append(ast.unparse(node))
        elif bound:
            names += sorted(bound)
    return list(dict.fromkeys(names)), imports


def _list_bound(node: ast.AST) -> Iterator[str]:
    """The names that a statement, or a module's, define; of functions and classes their own."""
    if isinstance(node, ast.Module):
        for part in node.body:
            yield from _list_bound(part)
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Import | ast.ImportFrom):
        yield from ((alias.asname or alias.name).split(".")[0] for alias in node.names)
    else:
        yield from (
            part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
        )


def _list_called(test: str) -> list[str]:
    calls = (node.func for node in ast.walk(ast.parse(test)) if isinstance(node, ast.Call))
    return [call.id for call in calls if isinstance(call, ast.Name)]
