"""Rewritten tests run on trees of files in a sandbox, and their reports read."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.common.untrusted import read_json
from agentrl.envs.builtin.swe.changes import Tree, write_tar
from agentrl.envs.builtin.swe.generation.key import ReportRow
from agentrl.envs.builtin.swe.inside import PROGRAM
from agentrl.tools.sandbox.base import BUSY, ExecResult, Outcome, Sandbox, SandboxStarved

REPORT_BYTES = 2 << 20
FILE_BYTES = 64 << 20
STARTUP = 30.0
"""Seconds besides those of the tests: for the interpreter's start and killing what remains."""


@dataclass(frozen=True, slots=True)
class TaskSuite:
    """The command, files and limits of a task's tests.

    Attributes:
        files: paths of test files.
        paths: directories of the repository from which its modules are imported.
        timeout: seconds for all tests of a tree.
        env: variables that the tests need.
        setup: shell lines to be run in the repository first.
        conftest: whether `conftest.py` files count.
    """

    files: Sequence[str]
    paths: Sequence[str]
    timeout: float
    env: Mapping[str, str]
    setup: Sequence[str]
    conftest: bool


@dataclass(frozen=True, slots=True)
class SuiteResult:
    """The results of a tree's tests: the report's rows by file, and why they were stopped, where they were."""

    rows: Mapping[str, Sequence[ReportRow]]
    stopped: str = ""


class Unfinished(Exception):
    """The tests ended their own run, or the task's setup failed on the tree; the text says how."""


async def run_tests(
    sandbox: Sandbox, suite: TaskSuite, trees: Sequence[Tree], python: str = "python3"
) -> list[SuiteResult]:
    """Run the tests on each tree, one after the other.

    The trees share a sandbox and are not isolated from each other: an agent's tree is run alone.

    Raises:
        Unfinished: there is no report, and it isn't the sandbox's fault.
        SandboxError: the sandbox failed, or others left it no processor (SandboxStarved): not what ran in it.
    """
    names = [secrets.token_hex(4) for _ in trees]
    archive = {
        f"{name}/repo/{path}": file for name, tree in zip(names, trees, strict=True) for path, file in tree.items()
    }
    await sandbox.upload(write_tar(archive), ".")
    for line in suite.setup:
        for name in names:
            done = await sandbox.exec(line, cwd=f"{name}/repo", timeout=suite.timeout)
            if not done.ok:
                raise Unfinished(f"the task's setup fails on the changed tree: {done.text()[-500:]}")
    nonce = secrets.token_hex(16)
    done = await sandbox.exec(
        [python, "-I", "-B", "-c", PROGRAM],
        stdin=f"{json.dumps(_config(sandbox.workdir, suite, names))}\n{json.dumps(nonce)}\n",
        timeout=len(trees) * suite.timeout + STARTUP,
        limit=4 * len(trees) * REPORT_BYTES,
    )
    found = _report(done, nonce)
    if found is None:
        said = f"{done.outcome.value}, exit code {done.exit_code}: {done.text()[-500:]}"
        raise Unfinished(f"the tests came to no end: {said}")
    require_processor(found)
    return [SuiteResult(_by_file(run["rows"]), "" if run["ended"] == "over" else run["ended"]) for run in found]


def _config(home: str, suite: TaskSuite, names: Sequence[str]) -> dict[str, Any]:
    return {
        "runs": [
            {"root": f"{home}/{name}/repo", "output": f"{home}/{name}/output", "files": list(suite.files)}
            for name in names
        ],
        "paths": list(suite.paths),
        "timeout": suite.timeout,
        "busy": BUSY,
        "report_bytes": REPORT_BYTES,
        "file_bytes": FILE_BYTES,
        "conftest": suite.conftest,
        "env": dict(suite.env),
    }


def require_processor(runs: Sequence[Mapping[str, Any]]) -> None:
    """Raise SandboxStarved where others left a run of the tests no processor."""
    if any(run["ended"] == "starved" for run in runs):
        raise SandboxStarved("the tests got too little processor time for a verdict: the machine is overloaded")


def _report(done: ExecResult, nonce: str) -> Any:
    """The supervisor's report, which begins with the nonce; None where there is none."""
    if done.outcome is not Outcome.EXITED or done.exit_code:
        return None
    for text in done.stdout.decode(errors="replace").splitlines():
        if text.startswith(nonce):
            return json.loads(text[len(nonce) :])
    return None


def _by_file(text: str) -> dict[str, list[ReportRow]]:
    """A report's rows; lines that are none are left out, and a test that is named twice was not passed."""
    found: dict[str, ReportRow] = {}
    for line in text.splitlines():
        try:
            test, outcome, message, events = read_json(line)
        except (ValueError, TypeError):
            continue
        if all(isinstance(part, str) for part in (test, outcome, message)) and isinstance(events, list):
            found[test] = ReportRow(test, "repeated" if test in found else outcome, message, events)
    by_file: dict[str, list[ReportRow]] = {}
    for test, row in found.items():
        file, _, name = test.partition("::")
        by_file.setdefault(file, []).append(ReportRow(name, row.outcome, row.message, row.events))
    return by_file
