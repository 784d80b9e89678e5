"""Finding the line of a stack that is in the environment's own code."""

from __future__ import annotations

import asyncio
import functools
import os
import re
import sys
import sysconfig
import threading
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

Line = tuple[str, int, str]
"""File, line number, function."""
PACKAGE = str(Path(__file__).resolve().parents[2]) + os.sep
BUILT_IN = str(Path(__file__).resolve().parents[1]) + os.sep
_CALLS = ("attribution", "base", "calls", "deadlines", "methods", "reward_marks", "saving", "state", "wrappers")
_LOOP = ("episode", "results", "sub_agents", "turns")
MACHINERY = (*(f"{BUILT_IN}{name}.py" for name in (*_CALLS, *_LOOP)), f"{BUILT_IN}check{os.sep}")
STDLIB = sysconfig.get_path("stdlib") + os.sep
DUMPED = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)


def own(lines: Iterable[Line]) -> str:
    """The innermost line of the environment's own code, as "file.py:12 in reset"; "" where there is none.

    Args:
        lines: a stack, innermost first.
    """
    lines = list(lines)
    for matches in (_is_authors, _is_installed, _is_built_in):
        for file, number, function in lines:
            if matches(file):
                return f"{short(file)}:{number} in {function}"
    return ""


@functools.cache
def is_own(file: str) -> bool:
    """Return whether a file is the environment's own, so that `own` names a line of it."""
    return _is_authors(file) or _is_installed(file) or _is_built_in(file)


def of_error(error: BaseException) -> str:
    """Find the line that an exception came from."""
    return own(_raised(error.__traceback__))


def of_dump(text: str) -> str:
    """Find a process's place in faulthandler's stacks; the threads that run agentrl's calls go first."""
    stacks = [[(f, int(n), name) for f, n, name in DUMPED.findall(part)] for part in text.split("\n\n")]
    stacks.sort(key=lambda stack: not any(file.startswith(PACKAGE) for file, _, _ in stack))
    return next((place for place in map(own, stacks) if place), "")


def of_waiting(task: asyncio.Task[Any] | None) -> str:
    """Find the line at which a suspended call waits: in its own coroutine, in one it started, or in a tool's thread."""
    others = sorted((one for one in asyncio.all_tasks() if one is not task), key=lambda one: one.get_name())
    stacks = [_suspended(one) for one in [*([task] if task else []), *others]]
    main = threading.get_ident()
    stacks += [_frames(frame) for ident, frame in sys._current_frames().items() if ident != main]
    return next((place for place in map(own, stacks) if place), "")


def _suspended(task: asyncio.Task[Any]) -> list[Line]:
    lines: list[Line] = []
    at: Any = task.get_coro()
    while at is not None:
        frame = getattr(at, "cr_frame", None) or getattr(at, "gi_frame", None)
        if frame is not None:
            lines.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        at = getattr(at, "cr_await", None) or getattr(at, "gi_yieldfrom", None)
    return lines[::-1]


def _frames(frame: FrameType) -> list[Line]:
    return [(one.f_code.co_filename, number, one.f_code.co_name) for one, number in traceback.walk_stack(frame)]


def _raised(trace: TracebackType | None) -> list[Line]:
    walked = [(frame.f_code.co_filename, number, frame.f_code.co_name) for frame, number in traceback.walk_tb(trace)]
    return walked[::-1]


def _is_installed(file: str) -> bool:
    return (
        "site-packages" in file and f"{os.sep}pydantic" not in file
    )  # pydantic validates what an environment returned


def _is_built_in(file: str) -> bool:
    return file.startswith(BUILT_IN) and not file.startswith(MACHINERY)


def _is_authors(file: str) -> bool:
    return not (file.startswith((PACKAGE, STDLIB, "<frozen")) or _is_installed(file))


def short(file: str) -> str:
    """A file's path below the working directory, or its name."""
    path = Path(file)
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return path.name
