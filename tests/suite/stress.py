"""The suite on a busy machine: run by run, on a record that a later call goes on with, and a table of what failed.

`python -m tests.suite.stress FOLDER` makes one more run beside six processes that compute, and prints what failed in
which of the folder's runs. A run that was stopped (`--stop-after`, Ctrl-C, the machine) goes on where it was: each
test's outcome is written as soon as there is one, and what has one is left out. A test that failed once and passed on
repetition is a defect like any other: while the table has one, the command's exit status is 1. Tests given (`@FILE`
as well, of those that `tests.suite.times --waiting` prints) restrict a run to them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BUSY = "import os\nowner = os.getppid()\nwhile os.getppid() == owner: sum(range(100_000))"
"""What computes for as long as the process lives that began it."""


def outcomes(file: Path) -> dict[str, str]:
    """The outcome of each test of a run."""
    lines = file.read_text().splitlines() if file.exists() else []
    return {row["test"]: row["outcome"] for row in map(json.loads, lines)}


class Record:
    """Writes a run's outcomes, in the process that hands out the tests; its workers leave out what has one."""

    def __init__(self, file: Path, stop_after: float | None) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self._done = sorted(outcomes(file))
        self._file = file.open("a", buffering=1)
        self._worst: dict[str, str] = {}
        self._end = time.monotonic() + (stop_after or float("inf"))

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput["recorded"] = self._done

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        LeaveOut(self._done).pytest_collection_modifyitems(config, items)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed and self._worst.get(report.nodeid) != "failed":
            self._worst[report.nodeid] = report.outcome
        if report.when not in ("setup", "call"):  # a worker that died has a phase of its own
            line = {"test": report.nodeid, "outcome": self._worst.pop(report.nodeid, "passed")}
            self._file.write(json.dumps(line) + "\n")

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logfinish(self) -> None:
        if time.monotonic() > self._end:
            pytest.exit("the seconds of --stop-after are over; the same command goes on", returncode=0)


class LeaveOut:
    """Leaves out tests that have an outcome."""

    def __init__(self, done: list[str]) -> None:
        self._done = frozenset(done)

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        left_out = [item for item in items if item.nodeid in self._done]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item.nodeid not in self._done]


def install(config: pytest.Config, file: Path | None, stop_after: float | None) -> None:
    """Keep a record, or leave out what the record of the process that hands out the tests has."""
    given = getattr(config, "workerinput", None)
    if given is not None and "recorded" in given:
        config.pluginmanager.register(LeaveOut(given["recorded"]))
    elif file is not None and given is None:
        config.pluginmanager.register(Record(file, stop_after))


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """Processes that compute meanwhile."""
    started = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def table(runs: dict[str, dict[str, str]]) -> list[str]:
    """A line for each test that failed in a run, with a letter of each run's outcome, or a dot where it was not run."""
    failed = sorted({test for run in runs.values() for test, outcome in run.items() if outcome == "failed"})
    lines = [f"{''.join(run.get(test, '.')[0].upper() for run in runs.values())}  {test}" for test in failed]
    counts = ", ".join(f"{name}: {len(run)}" for name, run in runs.items())
    return [*lines, f"{len(failed)} tests failed; tests of each run: {counts}"]


def main() -> int:
    """Go on with the newest run that is not whole, or begin one; print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("tests", nargs="*", help="what pytest takes; default: the whole suite")
    parser.add_argument("--busy", type=int, default=6)
    parser.add_argument("--stop-after", type=float, metavar="SECONDS")
    parser.add_argument("--table", action="store_true", help="run nothing")
    arguments = parser.parse_intermixed_args()
    files = sorted(arguments.folder.glob("*.jsonl"))
    if not arguments.table:
        whole = [file for file in files if file.with_suffix(".whole").exists()]
        file = next((file for file in files if file not in whole), arguments.folder / f"{len(files) + 1:02}.jsonl")
        command = [sys.executable, "-m", "pytest", "--numprocesses", "3", f"--record={file}", *arguments.tests]
        if arguments.stop_after:
            command.append(f"--stop-after={arguments.stop_after}")
        with busy(arguments.busy):
            began = time.monotonic()
            status = subprocess.run(command, check=False).returncode
        if status in (0, 1) and not (arguments.stop_after and time.monotonic() - began >= arguments.stop_after):
            file.with_suffix(".whole").touch()
        files = sorted(arguments.folder.glob("*.jsonl"))
    runs = {file.stem: outcomes(file) for file in files}
    print("\n".join(table(runs)))
    return int("failed" in {outcome for run in runs.values() for outcome in run.values()})


if __name__ == "__main__":
    sys.exit(main())
