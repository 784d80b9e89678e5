"""The built-in tasks: each proves itself in the sandbox, and none tells its solution."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Sequence

import pytest

from agentrl.envs import sandboxes
from agentrl.envs.builtin.swe import library
from agentrl.envs.builtin.swe.changes import File
from agentrl.envs.builtin.swe.env import SPEC, Swe
from agentrl.envs.builtin.swe.generation.find_key import LEAST_BITS, examine, find_stored
from agentrl.envs.builtin.swe.generation.key import Key
from agentrl.envs.builtin.swe.generation.proof import prove, solved_tree
from agentrl.envs.builtin.swe.patch import as_patch
from agentrl.envs.builtin.swe.repository import commit_id
from agentrl.envs.builtin.swe.task import Commit, SweTask

TASKS = library.builtin()
FIELDS = {"parser", "data-structures", "web", "cli", "numerics", "concurrency", "regular-expressions", "dates"}
FIELDS |= {"text", "state-machine", "caching", "graph", "file-formats", "encoding", "scheduling"}


def proofs(tasks: Sequence[SweTask]) -> dict[str, list[str]]:
    async def run(part: Sequence[SweTask]) -> dict[str, list[str]]:
        async with sandboxes.supplier("docker").pool.lease(SPEC) as sandbox:
            return await prove(sandbox, part)

    async def run_all() -> dict[str, list[str]]:
        one, other = await asyncio.gather(run(tasks[::2]), run(tasks[1::2]))
        return one | other

    return asyncio.run(run_all())


@pytest.mark.slow
@pytest.mark.usefixtures("docker")
def test_hidden_tests_fail_before_the_solution_and_pass_after_it() -> None:
    """As they are written, every fourth task's; as they are scored, every task's (below)."""
    assert proofs(TASKS[::4]) == {task.id: [] for task in TASKS[::4]}


def examined(task: SweTask) -> tuple[Key, list[str]]:
    async def run() -> tuple[Key, list[str]]:
        async with sandboxes.supplier("docker").pool.lease(SPEC) as sandbox:
            return await examine(task, sandbox)

    return asyncio.run(run())


@pytest.mark.slow
@pytest.mark.usefixtures("docker")
def test_every_task_can_be_scored() -> None:
    async def run() -> None:
        await Swe().prepare([task.as_task() for task in TASKS], 1)

    asyncio.run(run())
    keys = [find_stored(task) for task in TASKS]
    assert all(key is not None and key.bits >= LEAST_BITS for key in keys)


def refused(program: str, solution: str, tests: str, *names: str) -> str:
    """What is said of a task with these tests; nothing where it is taken."""
    before, after = {"m.py": File(program.encode())}, {"m.py": File(solution.encode())}
    task = SweTask(
        id="t",
        instruction="Repair it.",
        commits=(Commit(message="All", files={"m.py": program}),),
        tests={"test_m.py": tests},
        fail_to_pass=tuple(f"test_m.py::{name}" for name in names),
        solution=as_patch(before, after).decode(),
        timeout=60,
    )
    return "; ".join(examined(task)[1])


WRONG, RIGHT = "def f(x):\n    return []\n", "def f(x):\n    return [x, 'far away', x * 91]\n"


@pytest.mark.usefixtures("docker")
@pytest.mark.slow
def test_a_task_that_rests_on_truths_none_or_exceptions_is_refused() -> None:
    truths = "from m import f\ndef test_a():\n    assert f(1)\ndef test_b():\n    assert not f(2) == []\n"
    assert "bits; allowed: 7 or more" in refused(WRONG, RIGHT, truths, "test_a", "test_b")
    raising = "def f(x):\n    raise ValueError\n"
    raises = "import pytest\nfrom m import f\ndef test_a():\n    with pytest.raises(ValueError):\n        f(1)\n"
    assert "bits; allowed: 7 or more" in refused(WRONG, raising, raises, "test_a")
    values = "from m import f\ndef test_a():\n    assert f(3) == [3, 'far away', 273]\n"
    assert refused(WRONG, RIGHT, values, "test_a") == ""


@pytest.mark.usefixtures("docker")
@pytest.mark.slow
def test_a_required_test_that_shows_nothing_is_refused_and_one_in_any_place_is_taken() -> None:
    nothing = "import contextlib\nfrom m import f\ndef test_a():\n    f(1)[0]\ndef test_b():\n"
    nothing += "    with contextlib.suppress(ValueError):\n        assert f(3) == [3, 'far away', 273]\n"
    said = refused(WRONG, RIGHT, nothing, "test_a", "test_b")
    assert "test_m.py::test_a shows nothing that could be wrong" in said
    assert "test_m.py::test_b shows nothing that could be wrong" in said
    places = """
import unittest
import pytest
from m import f

class Mixin:
    def test_mixed(self):
        self.assertEqual(f(3), [3, "far away", 273])

class TestMixed(Mixin, unittest.TestCase):
    pass

class TestOuter:
    class TestInner:
        def test_nested(self):
            assert f(4) == [4, "far away", 364]

if True:
    @pytest.mark.parametrize("x", [5])
    def test_branch(x):
        assert f(x) == [5, "far away", 455]

def check(x, wanted):
    assert f(x) == wanted

def test_helped():
    check(6, [6, "far away", 546])
"""
    names = ["TestMixed::test_mixed", "TestOuter::TestInner::test_nested", "test_branch[5]", "test_helped"]
    assert refused(WRONG, RIGHT, places, *names) == ""
    assert "is not run after the solution" in refused(WRONG, RIGHT, places, "TestMixed::test_other")


@pytest.mark.slow
@pytest.mark.usefixtures("docker")
def test_something_that_is_no_task_is_recognised() -> None:
    task = library.load("lru-cache")
    one, other = task.fail_to_pass[0], task.pass_to_pass[0]
    swapped = task.model_copy(update={"fail_to_pass": (other,), "pass_to_pass": (one, "tests/test_cache.py::nothing")})
    said = proofs([swapped])[task.id]
    assert f"{other} passes before the solution" in said
    assert f"{one} fails before the solution" in said
    assert "tests/test_cache.py::nothing fails after the solution: it was not run" in said


def test_there_are_enough_of_every_kind() -> None:
    assert len(TASKS) >= 40
    graded = Counter(task.difficulty for task in TASKS)
    assert min(graded[grade] for grade in ("easy", "medium", "hard")) >= 8
    assert {tag for task in TASKS for tag in task.tags} >= FIELDS
    several = [task.id for task in TASKS if len(re.findall(r"^diff --git", task.solution, re.MULTILINE)) > 1]
    assert len(several) >= 8


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.id)
def test_a_task_is_a_small_program_with_a_history_and_both_kinds_of_tests(task: SweTask) -> None:
    programs = [text for path, text in task.files.items() if path.endswith(".py") and path not in task.visible_tests]
    assert 40 <= sum(text.count("\n") for text in programs) <= 200
    changed = re.findall(r"^diff --git a/(\S+)", task.solution, re.MULTILINE)
    assert 1 <= len(changed) <= 3
    assert not set(changed) & set(task.test_files), "a solution changes the program, not its tests"
    assert len(task.commits) >= 2
    assert [commit.time for commit in task.commits] == sorted({commit.time for commit in task.commits})
    assert task.visible_tests
    assert task.tests
    assert not set(task.tests) & set(task.files), "hidden tests are not in the repository"
    assert not any(" " in test for test in task.required), "logs are parsed at blanks"
    assert any("unittest" in text for text in task.test_files.values()) or "def test_" in "".join(task.tests.values())


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.id)
def test_the_instruction_does_not_give_the_solution_away(task: SweTask) -> None:
    """No line that the solution adds is in the instruction or anywhere in the history."""
    after = solved_tree(task)
    added = {line.strip() for path in after for line in after[path].data.decode().splitlines()}
    added -= {line.strip() for text in task.files.values() for line in text.splitlines()}
    older = {
        line.strip() for commit in task.commits for text in commit.files.values() for line in (text or "").split("\n")
    }
    assert [line for line in sorted(added) if len(line) > 12 and (line in older or line in task.instruction)] == []
    assert not re.search(r"```|^diff |^[-+]{3} ", task.instruction, re.MULTILINE)


def test_histories_are_the_same_everywhere() -> None:
    """Names of commits that were made once; another name would be another repository."""
    assert commit_id(library.load("ini-reader").commits) == "7f756826726d3cb08785f13cb71de8ce52b31a75"
    assert commit_id(library.load("event-bus").commits) == "56629f5c51482a4254dd58a0220e3c557c696fc6"
