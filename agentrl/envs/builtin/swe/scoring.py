"""Scoring: the agent's changes applied to the base commit in a fresh sandbox, and the task's own tests run on them.

Nothing of the agent's sandbox is used but the changed files. Test files, and files that configure the test run
(`PROTECTED`), are the task's own; the interpreter starts isolated; the tests report observed values and do not contain
the expected ones (`observe`), and a report is compared with a key that stays outside the sandbox (`key`). Whatever goes
wrong inside (a hang, a crash, a flood of output, a forged report) is a failed test; only a failure of the sandbox is an
infrastructure error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agentrl.envs.builtin.swe.changes import Changes, File, Tree, applied
from agentrl.envs.builtin.swe.generation.key import Key, verdicts
from agentrl.envs.builtin.swe.generation.running import SuiteResult, TaskSuite, Unfinished, run_tests
from agentrl.envs.builtin.swe.task import SweTask
from agentrl.envs.builtin.swe.workspace import base_tree
from agentrl.tools.sandbox import Sandbox

PROTECTED = frozenset(
    {"conftest.py", "pytest.ini", ".pytest.ini", "tox.ini", "sitecustomize.py", "usercustomize.py", "__editable__.pth"}
)
"""Names, in any directory, of which only the task's own count: they configure the interpreter or the test run."""
PROTECTED_ENDINGS = (".pth", ".egg-link")


@dataclass(frozen=True, slots=True)
class Exam:
    """A solution's tests and their key.

    Attributes:
        base: the repository at the base commit.
        tests: the task's own test files, by their path in the repository; they replace whatever is there.
        required: tests that must pass, as pytest names them: path::Class::name[parameters].
        paths: directories of the repository from which its modules are imported.
        timeout: seconds for all tests.
        env: variables that the tests need.
        setup: shell lines to be run in the repository first.
    """

    base: Tree
    tests: Tree
    required: Sequence[str]
    paths: Sequence[str] = ("",)
    timeout: float = 60.0
    env: Mapping[str, str] = field(default_factory=dict)
    setup: Sequence[str] = ()

    @classmethod
    def of(cls, task: SweTask) -> Exam:
        """The exam of a task."""
        named = {test.partition("::")[0] for test in task.required}
        tests = {path: task.files[path] for path in named if path in task.files} | task.test_files
        return cls(
            base=base_tree(task),
            tests={path: File(text.encode()) for path, text in tests.items()},
            required=task.required,
            paths=task.paths,
            timeout=task.timeout,
            env=task.env,
            setup=task.setup,
        )

    @property
    def suite(self) -> TaskSuite:
        """The suite of its tests."""
        return TaskSuite(
            files=sorted({test.partition("::")[0] for test in self.required}),
            paths=self.paths,
            timeout=self.timeout,
            env=self.env,
            setup=self.setup,
            conftest=any(path.rpartition("/")[2] == "conftest.py" for path in (*self.tests, *self.base)),
        )


@dataclass(frozen=True, slots=True)
class ScoringResult:
    """The result of a scoring: each required test, a note, messages of failed tests, and rewards that a task wrote."""

    tests: Mapping[str, bool]
    note: str = ""
    failures: Mapping[str, str] = field(default_factory=dict)
    rewards: Mapping[str, float] = field(default_factory=dict)

    @property
    def solved(self) -> bool:
        """Whether every required test was passed (there is at least one)."""
        return bool(self.tests) and all(self.tests.values())

    def share(self, among: Sequence[str]) -> float:
        """The passed share of some of the tests; 1 where there are none."""
        return sum(self.tests.get(test, False) for test in among) / len(among) if among else 1.0


def final_tree(exam: Exam, changes: Changes) -> dict[str, File]:
    """The tree that is tested: the base with the agent's changes, but for what is protected, and the task's tests."""
    allowed = {path: file for path, file in changes.items() if not protected(path)}
    tree = applied(exam.base, allowed)
    for path in exam.tests:
        parts = path.split("/")
        for depth in range(1, len(parts)):  # a file or a link in place of a directory of the tests
            tree.pop("/".join(parts[:depth]), None)
        for below in [other for other in tree if other.startswith(f"{path}/")]:
            del tree[below]
    return tree | dict(exam.tests)


def protected(path: str) -> bool:
    """Return whether only the task's own version of a file counts."""
    return path.rpartition("/")[2] in PROTECTED or path.endswith(PROTECTED_ENDINGS)


async def score(exam: Exam, key: Key, changes: Changes, sandbox: Sandbox, *, python: str = "python3") -> ScoringResult:
    """Run the required tests on the changed tree.

    Args:
        exam: the tests and the base commit.
        key: what its tests should show.
        changes: the agent's.
        sandbox: a fresh one, which is not fresh afterwards.
        python: the interpreter there; it has pytest.

    Raises:
        SandboxError: the sandbox failed, not what ran in it.
    """
    tree = final_tree(exam, changes) | {path: File(file.source.encode()) for path, file in key.files.items()}
    try:
        (run,) = await run_tests(sandbox, exam.suite, [tree], python)
    except Unfinished as error:
        return ScoringResult(dict.fromkeys(exam.required, False), str(error))
    return await asyncio.to_thread(judged, exam.required, key, run)  # its size depends on the agent's code


def judged(required: Sequence[str], key: Key, run: SuiteResult) -> ScoringResult:
    """The verdict on a run's report by the key."""
    passed: dict[str, bool] = {}
    messages: dict[str, str] = {}
    for path, file in key.files.items():
        rows = run.rows.get(path, [])
        passed |= {f"{path}::{name}": good for name, good in verdicts(file, rows).items()}
        messages |= {f"{path}::{row.test}": row.message for row in rows if row.message}
    tests = {test: passed.get(test, False) for test in required}
    note = f"the tests were stopped: {run.stopped}" if run.stopped else ""
    return ScoringResult(tests, note, {test: messages.get(test, "") for test, good in tests.items() if not good})
