"""Results of tests from a test runner's log, read as SWE-bench's harness reads it.

The test names in `FAIL_TO_PASS` and `PASS_TO_PASS` of a SWE-bench row are whatever the harness's parser made of a log:
cut at a blank, without a parameter's directory, or a docstring's first line in place of a test's name. A parser that
read logs better would not find those names. So each format here gives the mapping that the harness's parser of that
name gives (`swebench.harness.log_parsers.python`, release 5.0.2), on any log at all; the one difference is that a
"status" such as `ERROR:`, which the harness stores and never counts, is left out. Unlike the harness's, these parsers
take time linear in the log, since a log may be written to make a parser slow.

They are as easily deceived as the harness's: a program that prints `PASSED test_x` writes what a log has of a passed
test. A log alone is therefore no verdict on untrusted code; see `scoring` for what is required besides.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from functools import partial

from agentrl.errors import unknown_name


class TestStatus(StrEnum):
    """A test's result, in the harness's words."""

    __test__ = False  # not a class of tests, whatever its name says to pytest

    FAILED = "FAILED"
    PASSED = "PASSED"
    SKIPPED = "SKIPPED"
    ERROR = "ERROR"
    XFAIL = "XFAIL"


STATUSES = tuple(status.value for status in TestStatus)
Said = Iterator[tuple[str, str]]
"""(test, status) in the log's order; the last word on a test counts."""

_SKIP_COUNT = re.compile(r"\[\d+\]")  # SKIPPED [2] test_x.py:4: reason
_COLOUR = re.compile(r"\[\d+m")
_CONTROL = dict.fromkeys(range(1, 32))
_DJANGO_OK = (" ... ok", " ... OK", " ...  OK")
_INTERRUPTED = tuple(  # what the runner prints between a name and its "ok": how it begins, how it ends, on one line?
    (re.compile(r"\s\.\.\.\s" + head, re.MULTILINE), re.compile(tail, re.MULTILINE), one_line)
    for head, tail, one_line in (
        (r"Testing against Django installed in ", r" silenced\)\.\nok$", False),
        (r"Internal Server Error: /", r"/\nok$", True),
        (r"System check identified no issues \(0 silenced\)(?=\nok$)", "", True),
    )
)


def parse(log: str, format: str) -> dict[str, TestStatus]:
    """The status of each test that a log names.

    Args:
        log: the runner's whole output.
        format: one of `FORMATS`; `format_of` knows which one a repository of SWE-bench's is read with.

    Raises:
        UnknownName: no such format.
    """
    if format not in FORMATS:
        raise unknown_name("log format", format, FORMATS)
    said = dict(FORMATS[format](log))
    return {test: TestStatus(status) for test, status in said.items() if status in STATUSES}


def format_of(repo: str) -> str:
    """The format that SWE-bench reads a repository's logs with; `pytest` where it does not know the repository."""
    return REPOSITORIES.get(repo, "pytest")


def find(results: Mapping[str, TestStatus], test: str) -> TestStatus | None:
    """A test's status, where the log names it.

    SWE-bench's rows hold names cut off within a parameter (`test_x[a`, from `test_x[a b]`). Such a name stands for all
    tests that begin with it, if they agree on whether they passed; so the harness decides, and so do we.
    """
    if test in results:
        return results[test]
    if test.count("[") > test.count("]"):
        found = [status for name, status in results.items() if name.startswith(test)]
        if len({_passed(status) for status in found}) == 1:
            return found[0]
    return None


def fixed(results: Mapping[str, TestStatus], test: str) -> bool:
    """Return whether a test of FAIL_TO_PASS passes: it ran, and passed or failed as it was expected to."""
    return _passed(find(results, test))


def kept(results: Mapping[str, TestStatus], test: str) -> bool:
    """Return whether a test of PASS_TO_PASS still holds: like `fixed`, and skipping it is no regression."""
    status = find(results, test)
    return _passed(status) or status is TestStatus.SKIPPED


def _passed(status: TestStatus | None) -> bool:
    return status in (TestStatus.PASSED, TestStatus.XFAIL)


# ------------------------------------------------------------------------------------------------ pytest


def _pytest(
    log: str, *, name: Callable[[str], str] = lambda word: word, rewrite: Mapping[str, str] | None = None
) -> Said:
    """Lines of `pytest -rA`'s summary: a status, then a name up to the next blank."""
    for line in log.split("\n"):
        for old, new in (rewrite or {}).items():
            line = line.replace(old, new)
        if line.startswith(STATUSES):
            words = (line.replace(" - ", " ") if line.startswith("FAILED") else line).split()
            if len(words) > 1 and not _is_skip_count(words):
                yield name(words[1]), words[0]


def _without_directory(word: str) -> str:
    """A parametrised name; a path in the parameter keeps its last part only, for it differs between machines."""
    opening, closing = word.find("["), word.rfind("]")
    if not -1 < opening < closing:
        return word
    main, option = word[:opening], word[opening + 1 : closing]
    if option.startswith("/") and not option.startswith("//") and "*" not in option:
        option = "/" + option.rpartition("/")[2]
    return f"{main}[{option}]"


def _pytest_v2(log: str) -> Said:
    """Names with blanks in them, colours and control characters taken out, and lines that end in their status."""
    for raw in log.split("\n"):
        line = _COLOUR.sub("", raw).translate(_CONTROL)
        if line.startswith(STATUSES):
            words = (line.split(" - ", 1)[0] if line.startswith("FAILED") else line).split()
            if len(words) > 1 and not _is_skip_count(words):
                yield " ".join(words[1:]), words[0]
        elif line.endswith(STATUSES):
            words = line.split()
            if len(words) > 1:
                yield " ".join(words[:-1]), words[-1]


def _seaborn(log: str) -> Said:
    """Summary lines, and verbose ones with the status in the second place."""
    for line in log.split("\n"):
        words = line.split()
        if len(words) < 2:
            continue
        if line.startswith("FAILED"):
            yield words[1], "FAILED"
        elif " PASSED " in line:
            if words[1] == "PASSED":
                yield words[0], "PASSED"
        elif line.startswith("PASSED"):
            yield words[1], "PASSED"


def _is_skip_count(words: list[str]) -> bool:
    return words[0] == "SKIPPED" and _SKIP_COUNT.fullmatch(words[1]) is not None


# ------------------------------------------------------------------------------------------------ others


def _unittest(log: str) -> Said:
    """`unittest -v` and Django's runner: `name ... ok`, a test's output perhaps between its name and its `ok`."""
    open_test: str | None = None
    for raw in log.split("\n"):
        line = raw.strip()
        if "--version is equivalent to version" in line:
            yield "--version is equivalent to version", "PASSED"
        if " ... " in line:
            open_test = line.split(" ... ")[0]
        for ending in _DJANGO_OK:
            if line.endswith(ending):
                if line.startswith("Applying sites.0002_alter_domain_unique...test_no_migrations"):
                    line = line.split("...", 1)[-1].strip()
                yield line.rsplit(ending, 1)[0], "PASSED"
                break
        if " ... skipped" in line:
            yield line.split(" ... skipped")[0], "SKIPPED"
        for mark, status in (("FAIL", "FAILED"), ("ERROR", "ERROR")):
            if line.endswith(f" ... {mark}"):
                yield line.split(f" ... {mark}")[0], status
            if line.startswith(f"{mark}:") and len(words := line.split()) > 1:
                yield words[1], status
        if line.startswith("ok") and open_test is not None:
            yield open_test, "PASSED"
    yield from _interrupted(log)


def _interrupted(log: str) -> Said:
    """Tests whose `ok` follows what something else printed; in time linear in the log, as its writer isn't trusted."""
    for head, tail, one_line in _INTERRUPTED:
        over, last = 0, None
        for opening in head.finditer(log):
            if opening.start() < over:
                continue
            if last is None or last.start() < opening.end():
                last = tail.search(log, opening.end())
                if last is None:
                    break
                line = log.rfind("\n", 0, last.start()) + 1
            begin = log.rfind("\n", 0, opening.start()) + 1
            if begin >= over and (opening.end() >= line or not one_line):
                yield log[begin : opening.start()], "PASSED"
                over = last.end()


def _sympy(log: str) -> Said:
    """SymPy's own runner: `test_x ok`, and a rule over each failure."""
    for line in log.split("\n"):  # "____ sympy/core/tests/test_x.py:test_y ____"
        first, last = line.find(" "), line.rfind(" ")
        colon = line.rfind(".py:", 0, max(last, 0))
        if -1 < first < colon:
            yield f"{line[first + 1 : colon]}.py:{line[colon + 4 : last]}", "FAILED"
    for raw in log.split("\n"):
        line = raw.strip()
        if line.startswith("test_"):
            for ending, status in ((" E", "ERROR"), (" F", "FAILED"), (" ok", "PASSED")):
                if line.endswith(ending):
                    yield line.split()[0], status


def _r2e(log: str) -> Said:
    """R2E-Gym's reading of pytest's summary: names without their file, their parts joined by dots."""
    _, _, summary = log.partition("short test summary info")
    for line in summary.split("\n"):
        name = ".".join(line.split("::")[1:])
        for status in ("PASSED", "FAILED", "ERROR"):
            if status in line:
                yield name if status == "PASSED" else name.split(" - ")[0], status
                break


FORMATS: Mapping[str, Callable[[str], Said]] = {
    "pytest": _pytest,
    "pytest_options": partial(_pytest, name=_without_directory),
    "pytest_v2": _pytest_v2,
    "matplotlib": partial(_pytest, rewrite={"MouseButton.LEFT": "1", "MouseButton.RIGHT": "3"}),
    "seaborn": _seaborn,
    "sympy": _sympy,
    "django": _unittest,
    "unittest": _unittest,
    "r2e": _r2e,
}
"""Log formats by name; each is the harness's `parse_log_<name>`, `unittest` is Django's, whose runner it is, and `r2e`
is R2E-Gym's."""

REPOSITORIES: Mapping[str, str] = {
    "astropy/astropy": "pytest_v2",
    "django/django": "django",
    "matplotlib/matplotlib": "matplotlib",
    "mwaskom/seaborn": "seaborn",
    "psf/requests": "pytest_options",
    "pydicom/pydicom": "pytest_options",
    "pylint-dev/pylint": "pytest_options",
    "scikit-learn/scikit-learn": "pytest_v2",
    "sphinx-doc/sphinx": "pytest_v2",
    "sympy/sympy": "sympy",
}
"""SWE-bench's repositories whose logs are not in the format `pytest`."""
