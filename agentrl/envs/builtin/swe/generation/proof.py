"""Proving that a task is valid: its fail_to_pass fail before the reference solution and pass after it.

Two trees of files for each task, with the hidden tests in both, and the task's tests run in them. Trees share a
sandbox, since a container costs more than the tests of a small program. Not for untrusted code (the trees are not
isolated from each other); an agent's code is scored by `scoring`.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agentrl.envs.builtin.swe.changes import File, Tree, apply_changes, write_tar
from agentrl.envs.builtin.swe.generation.running import require_processor
from agentrl.envs.builtin.swe.inside import PROGRAM
from agentrl.envs.builtin.swe.patch import read_patch
from agentrl.envs.builtin.swe.task import SweTask
from agentrl.errors import InvalidInput, SandboxError
from agentrl.tools.sandbox.base import BUSY, Sandbox

AT_ONCE = 24
"""Trees in a sandbox at a time: a few megabytes, and minutes at the worst."""
REPORT_BYTES = 1 << 20
FILE_BYTES = 16 << 20
STARTUP = 30.0
"""Seconds beside those of the tests."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A tree of files and the test files to be run in it.

    Attributes:
        tree: everything there is.
        files: paths of test files.
        paths: directories that modules are imported from.
        timeout: seconds for all of its tests.
        env: variables that they need.
    """

    tree: Tree
    files: Sequence[str]
    paths: Sequence[str] = ("",)
    timeout: float = 60.0
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Outcomes:
    """The results of a trial's tests.

    Attributes:
        passed: whether each test that was run passed.
        messages: what those that failed said, the end of it.
        finished: whether the run came to its end.
    """

    passed: Mapping[str, bool]
    messages: Mapping[str, str]
    finished: bool


async def run_trials(sandbox: Sandbox, trials: Sequence[Trial]) -> list[Outcomes]:
    """Run trials one after the other, in the order given.

    Raises:
        SandboxError: the sandbox failed, or the program that runs the tests did.
    """
    found: list[Outcomes] = []
    for start in range(0, len(trials), AT_ONCE):
        found += await _batch(sandbox, trials[start : start + AT_ONCE])
    return found


async def _batch(sandbox: Sandbox, trials: Sequence[Trial]) -> list[Outcomes]:
    folder = secrets.token_hex(4)
    home = f"{sandbox.workdir}/{folder}"
    await sandbox.upload(
        write_tar({f"{folder}/{n}/{path}": f for n, trial in enumerate(trials) for path, f in trial.tree.items()}), "."
    )
    found = []
    for number, trial in enumerate(trials):
        root = f"{home}/{number}"
        config = {
            "runs": [{"root": root, "output": f"{home}/{number}.log", "files": list(trial.files)}],
            "paths": list(trial.paths),
            "timeout": trial.timeout,
            "busy": BUSY,
            "report_bytes": REPORT_BYTES,
            "file_bytes": FILE_BYTES,
            "conftest": any(path.rpartition("/")[2] == "conftest.py" for path in trial.tree),
            "env": dict(trial.env),
        }
        found.append(await _one(sandbox, config, trial.timeout))
    await sandbox.exec(["rm", "-rf", home])
    return found


async def _one(sandbox: Sandbox, config: Mapping[str, object], timeout: float) -> Outcomes:
    nonce = secrets.token_hex(8)
    done = await sandbox.exec(
        ["python3", "-I", "-B", "-c", PROGRAM],
        stdin=f"{json.dumps(config)}\n{json.dumps(nonce)}\n",
        timeout=timeout + STARTUP,
        limit=8 * REPORT_BYTES,
    )
    line = next((line for line in done.stdout.decode(errors="replace").splitlines() if line.startswith(nonce)), None)
    if line is None:
        raise SandboxError(f"the tests' runner came to no end: {done.outcome.value}: {done.text()[-500:]}")
    (run,) = runs = json.loads(line[len(nonce) :])
    require_processor(runs)
    rows = [json.loads(row) for row in run["rows"].splitlines() if row.endswith("]")]
    return Outcomes(
        passed={test: outcome == "passed" for test, outcome, *_ in rows},
        messages={test: message for test, outcome, message, _ in rows if outcome != "passed"},
        finished=run["ended"] == "over",
    )


def solved_tree(task: SweTask) -> dict[str, File]:
    """The repository after the reference solution.

    Raises:
        InvalidInput: the task has no patch for a solution, or it doesn't apply.
    """
    if not task.solution:
        raise InvalidInput(f"task {task.id!r}: solution is empty: allowed: a diff")
    base = {path: File(text.encode()) for path, text in task.files.items()}
    return apply_changes(base, read_patch(base, task.solution.encode()))


async def prove(sandbox: Sandbox, tasks: Sequence[SweTask]) -> dict[str, list[str]]:
    """Return the reasons why each task is invalid, by its id; an empty list where it is proven.

    Args:
        sandbox: a fresh one.
        tasks: tasks whose commits make their repository.

    Raises:
        InvalidInput: a solution can't be applied.
        SandboxError: the sandbox failed.
    """
    trials: list[Trial] = []
    for task in tasks:
        tests = {path: File(text.encode()) for path, text in task.test_files.items()}
        files = sorted({test.partition("::")[0] for test in task.required})
        base = {path: File(text.encode()) for path, text in task.files.items()}
        trials += [
            Trial({**tree, **tests}, files, task.paths, task.timeout, task.env) for tree in (base, solved_tree(task))
        ]
    found = await run_trials(sandbox, trials)
    return {
        task.id: _problems(task, before, after)
        for task, before, after in zip(tasks, found[::2], found[1::2], strict=True)
    }


def _problems(task: SweTask, before: Outcomes, after: Outcomes) -> list[str]:
    said = [f"{test} passes before the solution" for test in task.fail_to_pass if before.passed.get(test)]
    said += [f"{test} fails before the solution" for test in task.pass_to_pass if not before.passed.get(test)]
    said += [
        f"{test} fails after the solution: {after.messages.get(test, 'it was not run')}"
        for test in task.required
        if not after.passed.get(test)
    ]
    return said + ([] if after.finished else [f"the tests take longer than {task.timeout:g} s after the solution"])
