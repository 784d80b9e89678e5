"""HumanEval's own problems: every reference passes, no mutant does, and the verdict is the official evaluation's."""

from __future__ import annotations

import ast
import asyncio
import copy
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl.envs.builtin.code import Job, code_verdict
from agentrl.envs.builtin.code.problems import read_problems
from agentrl.envs.builtin.code.runners import judge
from agentrl.types import Task
from tests.envs.code.conftest import PATIENCE, Kept

SIDE_BY_SIDE = 4


@pytest.fixture(params=range(10), ids=lambda tens: f"{10 * tens}-{10 * tens + 9}")
def problems(shared_data: Path, request: pytest.FixtureRequest) -> tuple[Task, ...]:
    """Ten problems at a time, so that no test takes long."""
    found = read_problems(shared_data / "humaneval_0_99.jsonl", 1)
    assert len(found) == 100
    return found[10 * request.param : 10 * request.param + 10]


async def scored(jobs: list[tuple[Task, str]], kept: Kept, timeout: float) -> list[bool]:
    gate = asyncio.Semaphore(SIDE_BY_SIDE)

    async def one(task: Task, code: str) -> bool:
        async with gate:
            job = Job((code,), tuple(task["tests"]), task["entry_point"], task["trusted"])
            return (await judge(kept, job, timeout)).solved

    return list(await asyncio.gather(*(one(*job) for job in jobs)))


@pytest.mark.slow
async def test_every_reference_solution_scores_one(problems: tuple[Task, ...], docker: None) -> None:
    async def one(task: Task) -> bool:
        verdict = await code_verdict(
            f"This should do:\n\n```python\n{task['reference']}\n```",
            task["tests"],
            entry_point=task["entry_point"],
            prompt=task["prompt"],
            trusted=task["trusted"],
            timeout=PATIENCE,
        )
        return verdict.solved

    assert await asyncio.gather(*(one(task) for task in problems)) == [True] * 10


WRONG = """
def {name}(*args, **kwargs):
    right = _reference(*args, **kwargs)
    if right is None: return 0
    if isinstance(right, bool): return not right
    if isinstance(right, (int, float)): return right + 1
    if isinstance(right, str): return right + "x"
    if isinstance(right, list): return right + [None]
    if isinstance(right, tuple): return right + (None,)
    if isinstance(right, dict): return {{**right, "x": None}}
    raise TypeError
"""
MUTANTS = {
    "returns nothing": "def {name}(*args, **kwargs): return None",
    "raises": "def {name}(*args, **kwargs): raise ValueError",
    "returns the wrong type": "def {name}(*args, **kwargs): return [_reference(*args, **kwargs), 0]",
    "returns its argument": "def {name}(first, *args, **kwargs): return (first, 0)",
    "returns a near miss": WRONG,
}
"""Each is known to be wrong on all inputs (or, returning None, on one at least: no problem wants None always)."""


@pytest.mark.slow
async def test_every_mutant_scores_zero(problems: tuple[Task, ...], kept: Kept) -> None:
    """Two mutants of each problem, so that each kind is tried on forty in all."""
    jobs, kinds = [], list(MUTANTS)
    for number, task in enumerate(problems):
        for kind in (kinds[number % len(kinds)], kinds[(number + 1 + number // 5) % len(kinds)]):
            name = task["entry_point"]
            code = f"{task['reference']}\n_reference = {name}\n{MUTANTS[kind].format(name=name)}"
            jobs.append((task, code))
    solved = await scored(jobs, kept, PATIENCE)
    assert [job[0].id for job, passed in zip(jobs, solved, strict=True) if passed] == []


class Swapped(ast.NodeTransformer):
    """Changes one place of a program: an operator, a comparison, a constant, a condition or a result."""

    SWAPS = {  # noqa: RUF012
        ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv,
        ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
        ast.And: ast.Or, ast.Or: ast.And, ast.In: ast.NotIn,
    }  # fmt: skip

    def __init__(self, place: int) -> None:
        self.place, self.seen = place, 0

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        changed = type(node) in self.SWAPS or (isinstance(node, ast.Constant) and type(node.value) in (int, bool))
        if not changed:
            return node
        self.seen += 1
        if self.seen - 1 != self.place:
            return node
        if isinstance(node, ast.Constant):
            return ast.Constant(not node.value if node.value is True or node.value is False else node.value + 1)
        return self.SWAPS[type(node)]()


def swapped(task: Task, limit: int) -> Iterator[str]:
    tree = ast.parse(task["reference"])
    (function,) = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == task["entry_point"]]
    counter = Swapped(-1)
    counter.visit(copy.deepcopy(function))
    places = random.Random(task.id).sample(range(counter.seen), min(limit, counter.seen))
    for place in places:
        mutant = copy.deepcopy(tree)
        mutant.body[tree.body.index(function)] = Swapped(place).visit(copy.deepcopy(function))
        yield ast.unparse(ast.fix_missing_locations(mutant))


OFFICIAL = """
import json, signal, sys
class Late(BaseException): pass
def late(*_): raise Late
signal.signal(signal.SIGALRM, late)
for code, test, name in json.load(sys.stdin):
    signal.alarm(3)
    try:
        space = {"__name__": "program"}
        exec(code + "\\n" + test + "\\ncheck(" + name + ")", space)
        print("passed", file=sys.__stderr__)
    except Late: print("late", file=sys.__stderr__)
    except BaseException: print("failed", file=sys.__stderr__)
    finally: signal.alarm(0)
"""
"""What HumanEval's `check_correctness` does: the program, its test and the call of `check`, all in one namespace."""


@pytest.mark.slow
async def test_operator_mutants_get_the_official_evaluations_verdict(problems: tuple[Task, ...], kept: Kept) -> None:
    """On code that doesn't cheat, the two must agree; some of these mutants are caught and some are equivalent."""
    jobs = [(task, code) for task in problems for code in swapped(task, 1)]
    asked = json.dumps([[code, task["tests"][0], task["entry_point"]] for task, code in jobs])
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-I", "-c", OFFICIAL],
        input=asked,
        capture_output=True,
        text=True,
        timeout=170,
        env={"PATH": os.environ["PATH"]},
        check=True,
    )
    official = done.stderr.split()
    assert len(official) == len(jobs) >= 4
    assert "failed" in official
    kept_jobs = [(job, said) for job, said in zip(jobs, official, strict=True) if said != "late"]
    ours = await scored([job for job, _ in kept_jobs], kept, PATIENCE / 2)
    differing = [job for (job, said), solved in zip(kept_jobs, ours, strict=True) if solved != (said == "passed")]
    assert differing == []
