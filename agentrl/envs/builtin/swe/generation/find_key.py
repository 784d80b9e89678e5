"""Finding a task's key: its tests run on the reference solution, and on the program as it is.

Nothing of an agent's is in this sandbox, and it is removed afterwards instead of being reused: it is the one place
outside our own process where expected values are.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl.common.native import cache_dir
from agentrl.envs.builtin.swe import inside
from agentrl.envs.builtin.swe.changes import File, Tree
from agentrl.envs.builtin.swe.generation import constant, expect, guess, observe, prune
from agentrl.envs.builtin.swe.generation import key as keys
from agentrl.envs.builtin.swe.generation.expect import fits
from agentrl.envs.builtin.swe.generation.guess import MISSING, Open, can_fail, literals_of
from agentrl.envs.builtin.swe.generation.key import Expected, FileKey, Key, ReportRow
from agentrl.envs.builtin.swe.generation.observe import Rewritten, rewritten
from agentrl.envs.builtin.swe.generation.proof import solved_tree
from agentrl.envs.builtin.swe.generation.running import SuiteResult, Unfinished, run_tests
from agentrl.envs.builtin.swe.scoring import Exam, final_tree, judged
from agentrl.envs.builtin.swe.task import SweTask
from agentrl.errors import InvalidInput
from agentrl.tools.sandbox import Sandbox

LEAST_BITS = 7.0
"""Of a task (`guess.bits`): one that is guessed more easily is refused."""

_found: dict[str, Key] = {}


def find_stored(task: SweTask) -> Key | None:
    """A task's key, where it was found before: by this process, or kept in the user's cache."""
    digest = fingerprint(task)
    if digest not in _found and (path := _path(digest)).is_file():
        try:
            _found[digest] = Key.from_json(path.read_text())
        except (OSError, ValueError, KeyError, TypeError):
            return None  # cut short, or another's: it is found anew
    return _found.get(digest)


async def find(task: SweTask, sandbox: Sandbox, *, python: str = "python3") -> Key:
    """Find a task's key, and keep it.

    Args:
        task: one whose commits make its repository.
        sandbox: a fresh one, to be removed afterwards.
        python: the interpreter there; it has pytest.

    Raises:
        InvalidInput: the task is none that could be scored; the message says why.
        SandboxError: the sandbox failed.
    """
    key, complaints = await examine(task, sandbox, python=python)
    if complaints:
        raise InvalidInput(f"task {task.id!r} can't be scored: {'; '.join(complaints[:5])}")
    digest = fingerprint(task)
    _found[digest] = key
    _keep(_path(digest), key.to_json())
    return key


async def examine(task: SweTask, sandbox: Sandbox, *, python: str = "python3") -> tuple[Key, list[str]]:
    """A task's key, and what keeps the task from being scored with it; nothing where all is well.

    Raises:
        InvalidInput: it has no reference solution that can be applied, or its tests are no Python.
        SandboxError: the sandbox failed.
    """
    exam, solved = Exam.of(task), solved_tree(task)
    related: dict[str, frozenset[int]] = {}
    try:
        while True:
            files = {path: _rewritten(task, path, related.get(path, frozenset())) for path in exam.suite.files}
            trees = [
                _with(exam, solved, files, True),
                _with(exam, solved, files, False),
                _with(exam, exam.base, files, False),
            ]
            recorded, right, broken = await run_tests(sandbox, exam.suite, trees, python)
            more = {
                path: _hidden(recorded.rows.get(path, []), file) - related.get(path, set())
                for path, file in files.items()
            }
            if not any(more.values()):
                break
            related = {path: related.get(path, frozenset()) | found for path, found in more.items()}
    except Unfinished as error:
        return Key({}), [str(error)]
    key = Key({path: _file_key(file, recorded.rows.get(path, [])) for path, file in files.items()})
    complaints = _complaints(task, key, recorded, right, broken)
    found = guesses(task, key, broken)
    bits = guess.bits(found)
    if not complaints and bits < LEAST_BITS:
        complaints.append(
            f"who knows what the program shows now guesses what its tests should show in about {2**bits:.0f} tries "
            f"({bits:.1f} bits; allowed: {LEAST_BITS:g} or more): let the tests in fail_to_pass compare more values "
            "that are wrong now with expected ones that are written out, rather than truths, None or exceptions"
        )
    return Key(key.files, bits), complaints


def guesses(task: SweTask, key: Key, broken: SuiteResult) -> list[Open]:
    """The values that a patch that repairs nothing has to guess to get the task's tests passed."""
    found: list[Open] = []
    for path, file in key.files.items():
        rows = {expected.test: row for expected, row in paired(file.tests, broken.rows.get(path, []))}
        for expected in file.tests:
            if f"{path}::{expected.test}" not in task.fail_to_pass:
                continue
            literals = literals_of(file.source, expected.test)
            shown: dict[int, list[Any]] = {}
            for event in rows[expected.test].events if expected.test in rows else []:
                shown.setdefault(event[0], []).append(event[1])
            turns: Counter[int] = Counter()
            for (number, value), right in zip(expected.events, expected.right, strict=True):
                turns[number] += 1
                site, seen = file.sites[number], shown.get(number, [])
                honest = seen[turns[number] - 1] if len(seen) >= turns[number] else MISSING
                if honest is MISSING or not fits(site, value, honest):
                    name = f"{path}::{expected.test}"
                    found.append(Open(name, site, value, honest, literals, number, turns[number], right))
    return found


def fingerprint(task: SweTask) -> str:
    """The name under which a key is kept: of all that it follows from, this very code included."""
    digest = hashlib.sha256()
    for part in (constant, expect, guess, inside, keys, observe, prune, inspect.getmodule(fingerprint)):
        digest.update(inspect.getsource(part).encode())  # type: ignore[arg-type]
    digest.update(task.model_dump_json(exclude={"instruction", "tags", "difficulty"}).encode())
    return digest.hexdigest()


def _path(digest: str) -> Path:
    return cache_dir() / "swe-keys" / f"{digest[:32]}.json"


def _keep(path: Path, text: str) -> None:
    """Written beside and renamed into place; a cache that can't be written to is no error."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            file.write(text)
        os.replace(file.name, path)
    except OSError:
        return


def _rewritten(task: SweTask, path: str, related: frozenset[int]) -> Rewritten:
    text = task.test_files.get(path) or task.files.get(path)
    if text is None:
        raise InvalidInput(f"task {task.id!r}: {path!r} is named by a required test and is no file of the task")
    try:
        return rewritten(text, related)
    except (SyntaxError, ValueError) as error:
        raise InvalidInput(f"task {task.id!r}: {path} is no Python: {error}") from None


def _with(exam: Exam, tree: Tree, files: Mapping[str, Rewritten], recording: bool) -> dict[str, File]:
    """A tree with the task's test files in one of their two forms."""
    texts = {path: file.recording if recording else file.scoring for path, file in files.items()}
    return final_tree(exam, dict(tree)) | {path: File(text.encode()) for path, text in texts.items()}


def _hidden(rows: Sequence[ReportRow], file: Rewritten) -> frozenset[int]:
    """Assertions that compare what has no value to be sent."""
    return frozenset(
        event[0]
        for row in rows
        for event in row.events
        if file.sites[event[0]].kind not in ("truth", "raises") and "['object'," in repr(event[1:])
    )


def _file_key(file: Rewritten, rows: Sequence[ReportRow]) -> FileKey:
    tests = [
        Expected(
            row.test,
            [(event[0], event[2] if len(event) > 2 else None) for event in row.events],
            [event[1] for event in row.events],
        )
        for row in rows
    ]
    return FileKey(file.scoring, file.sites, tests)


def paired(tests: Sequence[Expected], rows: Sequence[ReportRow]) -> list[tuple[Expected, ReportRow]]:
    """Tests and their reports, matched by name and, where there are parameters, by order."""
    shown: dict[str, list[ReportRow]] = {}
    for row in rows:
        shown.setdefault(row.test.partition("[")[0], []).append(row)
    return [(test, shown[name].pop(0)) for test in tests if shown.get(name := test.test.partition("[")[0])]


def _complaints(task: SweTask, key: Key, recorded: SuiteResult, right: SuiteResult, broken: SuiteResult) -> list[str]:
    recorded_rows = {f"{path}::{row.test}": row for path, rows in recorded.rows.items() for row in rows}
    said: list[str] = []
    for test in task.required:
        row = recorded_rows.get(test)
        if row is None:
            said.append(f"{test} is not run after the solution")
        elif row.outcome != "passed":
            said.append(f"{test} fails after the solution: {row.message[-200:]}")
        elif not _tells(key.files[test.partition("::")[0]], row):
            said.append(
                f"{test} shows nothing that could be wrong: allowed: at least one assertion that it always reaches"
            )
    if said:
        return said
    after, before = judged(task.required, key, right), judged(task.required, key, broken)
    said += [
        f"{test} fails after the solution, or differs from run to run" for test, good in after.tests.items() if not good
    ]
    said += [f"{test} passes before the solution" for test in task.fail_to_pass if before.tests[test]]
    said += [f"{test} fails before the solution" for test in task.pass_to_pass if not before.tests[test]]
    return said


def _tells(file: FileKey, row: ReportRow) -> bool:
    """Return whether anything that a test shows could be wrong."""
    return any(can_fail(file.sites[event[0]], event[2] if len(event) > 2 else None) for event in row.events)
