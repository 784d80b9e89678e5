"""`pytest --forks N`: collected once, by a process that N then go on from; for tests that start no process.

Each worker of xdist imports and collects for itself, which is as much work as a quarter of what `make check` runs. Here
a process is forked once everything is collected. Both take a module at a time, whichever is free, and what one of them
reports is told again by the other.
"""

from __future__ import annotations

import gc
import os
import pickle
import threading
from collections.abc import Generator, Iterator
from itertools import chain, groupby, pairwise
from typing import Any, BinaryIO

import pytest

PLACE = 4
"""Bytes of a module's place in the line of them: what a pipe gives whole to one reader."""


class Forks:
    """Runs the tests of a session in so many processes."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._told: BinaryIO | None = None
        """Where a forked process tells its reports."""

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Generator[None, object, object]:
        gc.disable()  # all of it stays
        try:
            return (yield)
        finally:
            gc.freeze()  # nothing looks at it again, or writes to what is shared
            gc.enable()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.testsfailed or session.config.option.collectonly:
            return None  # pytest's own loop says so
        modules = [list(items) for _, items in groupby(session.items, lambda item: item.path)]
        line = _line(len(modules))
        readers = [self._fork(session, modules, line) for _ in range(self._count - 1)]
        _run(session, modules, line)
        for reader in readers:
            reader.tell(session)
        return True

    def _fork(self, session: pytest.Session, modules: list[list[pytest.Item]], line: int) -> Reader:
        ends, begins = os.pipe()
        process = os.fork()
        if process:
            os.close(begins)
            return Reader(process, ends)
        try:
            session.config.pluginmanager.unregister(name="terminalreporter")
            with os.fdopen(begins, "wb") as self._told:
                _run(session, modules, line)
        except BaseException:
            os._exit(1)
        os._exit(0)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self._told is not None:
            pickle.dump(report._to_json(), self._told)


class Reader:
    """Takes in what a forked process reports, so that it need not wait, and tells it at the end."""

    def __init__(self, process: int, ends: int) -> None:
        self._process = process
        self._reports: list[dict[str, Any]] = []
        self._thread = threading.Thread(target=self._read, args=(ends,), daemon=True)
        self._thread.start()

    def _read(self, ends: int) -> None:
        with os.fdopen(ends, "rb") as told:
            while True:
                try:
                    self._reports.append(pickle.load(told))
                except EOFError:
                    return

    def tell(self, session: pytest.Session) -> None:
        """Report what the process did once it has ended; one that died fails the run."""
        self._thread.join()
        _, status = os.waitpid(self._process, 0)
        for report in self._reports:
            session.config.hook.pytest_runtest_logreport(report=pytest.TestReport._from_json(report))
        if status:
            last = self._reports[-1]["nodeid"] if self._reports else "its first test"
            pytest.exit(f"a forked process ended with status {status} after {last}", returncode=1)


def _line(count: int) -> int:
    """A pipe in which the places of all modules stand; whoever reads one has it."""
    line, end = os.pipe()
    os.write(end, b"".join(place.to_bytes(PLACE, "little") for place in range(count)))
    os.close(end)
    return line


def _run(session: pytest.Session, modules: list[list[pytest.Item]], line: int) -> None:
    """Run the tests of the modules that this process gets."""

    def mine() -> Iterator[pytest.Item]:
        while place := os.read(line, PLACE):
            yield from modules[int.from_bytes(place, "little")]

    for item, after in pairwise(chain(mine(), [None])):
        assert item is not None
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
        if session.shouldfail or session.shouldstop:
            return
