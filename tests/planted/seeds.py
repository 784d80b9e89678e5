"""Pytest plug-in: a test some times over in one process, each time with other random numbers, until it fails.

Hypothesis gets another seed each time, also where it is derandomized, no database, and no time to shrink; the first
failing example's number is kept, because a size near the latest of them is all that the test needs. Other random
structures come from `random.Random(seed)` in the tests' own files: from the second time on with other seeds. Theirs is
the number of generators made before the failure.
"""

from __future__ import annotations

import copy
import functools
import inspect
import json
import os
import random
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis.errors import StopTest, UnsatisfiedAssumption

TIMES = "PLANTED_TIMES"
RESULT = "PLANTED_RESULT"


class Failed(BaseException):
    """A failing example; no `Exception`, so that hypothesis does not try to make it smaller."""


class Shifted(random.Random):
    """`random.Random` whose seeds, given in a file of the tests, become others with each time."""

    time = made = 0

    def __init__(self, x: Any = None) -> None:
        given = sys._getframe(1).f_globals.get("__name__", "").startswith("tests.")
        Shifted.made += given
        super().__init__(f"{self.time}/{x!r}" if self.time and given and x is not None else x)


class Times:
    """Runs all collected tests once a time, and writes for each time whether one failed and in which example."""

    def __init__(self, times: int, result: Path) -> None:
        self._times, self._result = times, result
        self._failed, self._hung, self._example = False, False, 0

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        handles = [getattr(getattr(item, "obj", None), "hypothesis", None) for item in items]
        for handle in {
            id(handle): handle for handle in handles if handle is not None
        }.values():  # one for all parameters
            handle.inner_test = self._counted(handle.inner_test)

    def _counted(self, test: Callable[..., Any]) -> Callable[..., Any]:
        def failed(error: BaseException) -> Failed:
            return Failed(f"example {self._example}: {error!r}")

        @functools.wraps(test)
        def sync(*args: Any, **kwargs: Any) -> Any:
            self._example += 1
            try:
                return test(*args, **kwargs)
            except (UnsatisfiedAssumption, StopTest):  # no valid example
                self._example -= 1
                raise
            except (Exception, pytest.fail.Exception) as error:
                raise failed(error) from error

        @functools.wraps(test)
        async def coroutine(*args: Any, **kwargs: Any) -> Any:
            self._example += 1
            try:
                return await test(*args, **kwargs)
            except (UnsatisfiedAssumption, StopTest):  # no valid example
                self._example -= 1
                raise
            except (Exception, pytest.fail.Exception) as error:
                raise failed(error) from error

        return coroutine if inspect.iscoroutinefunction(test) else sync

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._failed |= report.failed
        self._hung |= report.failed and "Failed: Timeout" in str(report.longrepr)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        found: list[int | None] = []
        for time in range(self._times):
            Shifted.time, self._failed = time, False
            for place, item in enumerate(session.items):
                self._example = Shifted.made = 0
                if hasattr(getattr(item, "obj", None), "hypothesis"):
                    hypothesis.seed(zlib.crc32(f"{time}/{item.nodeid}".encode()))(item.obj)
                last = place + 1 == len(session.items)
                after = copy.copy(session.items[0 if last else place + 1])  # a copy: the item itself would stay set up
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=None if self._ends(time, last) else after)
                if self._failed:
                    break
            found.append((self._example or Shifted.made) if self._failed else None)
            if self._hung:  # and would each time, for as long
                found += found[-1:] * (self._times - len(found))
            self._result.write_text(json.dumps(found))
            if self._hung:
                break
        return True

    def _ends(self, time: int, last: bool) -> bool:
        return last and time + 1 == self._times


def pytest_configure(config: pytest.Config) -> None:
    """Take the place of the usual loop, where the command has asked for it."""
    if TIMES in os.environ and not hasattr(config, "workerinput"):
        random.Random = Shifted  # type: ignore[misc]
        config.pluginmanager.register(Times(int(os.environ[TIMES]), Path(os.environ[RESULT])))
