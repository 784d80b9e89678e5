"""The expected values of a task's tests: their key, which never enters a sandbox with an agent's code.

It is found when a task is first used, by running the rewritten tests on the reference solution, where each assertion
shows what it expects beside what it sees. The tests as they will be scored are then run on the reference solution,
which has to be right by the key, and on the program as the agent finds it, which has to be wrong in every test that is
to be mended and right in the others. A task that doesn't pass is refused, and so is one that a program could be
rewarded for by guessing (`guess`). What was found is kept by its content's hash.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from agentrl.envs.builtin.swe.generation.expect import UNSEEN, fits
from agentrl.envs.builtin.swe.generation.observe import AssertionSite

PASSED = "passed"


@dataclass(frozen=True, slots=True)
class ReportRow:
    """A test's report: its name, pytest's outcome, what it said where it failed, and what its assertions showed."""

    test: str
    outcome: str
    message: str
    events: Sequence[Any]


@dataclass(frozen=True, slots=True)
class Expected:
    """A test's expected values.

    Attributes:
        test: its name.
        events: of each of its assertions, in order: (number, what is expected there).
        right: what the reference solution shows there; other right programs may show something else.
    """

    test: str
    events: Sequence[tuple[int, Any]]
    right: Sequence[Any] = ()


@dataclass(frozen=True, slots=True)
class FileKey:
    """A test file's key.

    Attributes:
        source: the file as it is sent.
        sites: its assertions.
        tests: what they should show, in the order in which they run.
    """

    source: str
    sites: Sequence[AssertionSite]
    tests: Sequence[Expected]


@dataclass(frozen=True, slots=True)
class Key:
    """A task's key: its files', by path.

    Attributes:
        files: by path.
        bits: how hard it is to guess (`guess.bits`).
    """

    files: Mapping[str, FileKey]
    bits: float = 0.0

    def to_json(self) -> str:
        """As text, for the cache."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Key:
        """Read the output of `to_json`."""
        data = json.loads(text)
        files = {}
        for path, one in data["files"].items():
            sites = tuple(AssertionSite(**site) for site in one["sites"])
            tests = tuple(
                Expected(test["test"], [tuple(event) for event in test["events"]], test["right"])
                for test in one["tests"]
            )
            files[path] = FileKey(one["source"], sites, tests)
        return cls(files, data["bits"])


def verdicts(key: FileKey, rows: Sequence[ReportRow]) -> dict[str, bool]:
    """Return whether each test of a file passed and showed what it should.

    Tests of several parameters are matched by their order: some of their names are told by what was expected of them.
    """
    wanted, shown = _grouped(key.tests), _grouped(rows)
    found: dict[str, bool] = {}
    for name, tests in wanted.items():
        runs = shown.get(name, [])
        for place, test in enumerate(tests):
            alike = len(runs) == len(tests)
            found[test.test] = alike and runs[place].outcome == PASSED and satisfied(key.sites, test, runs[place])
    return found


def _grouped(tests: Sequence[Any]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for test in tests:
        found.setdefault(test.test.partition("[")[0], []).append(test)
    return found


def satisfied(sites: Sequence[AssertionSite], expected: Expected, row: ReportRow) -> bool:
    """Whether a test's assertions showed what they should: each steady one as often and in the order that it should."""
    events = [event for event in row.events if _is_event(event, len(sites))]
    if len(events) != len(row.events):
        return False
    steady = [event for event in events if sites[event[0]].steady]
    wanted = [event for event in expected.events if sites[event[0]].steady]
    if [event[0] for event in steady] != [number for number, _ in wanted]:
        return False
    if not all(fits(sites[n], value, event[1]) for (n, value), event in zip(wanted, steady, strict=True)):
        return False
    varying = {number: value for number, value in expected.events if not sites[number].steady}
    if not varying.keys() <= {event[0] for event in events}:
        return False
    return all(fits(sites[e[0]], varying.get(e[0], UNSEEN), e[1]) for e in events if not sites[e[0]].steady)


def _is_event(event: Any, count: int) -> bool:
    if not isinstance(event, list) or len(event) < 2:
        return False
    return isinstance(event[0], int) and not isinstance(event[0], bool) and 0 <= event[0] < count
