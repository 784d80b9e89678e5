"""Rules about what episodes leave: files, warnings of Python, exceptions that nobody catches."""

from __future__ import annotations

import os
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator

from agentrl.envs.check.findings import Note
from agentrl.envs.check.resources import SHARED
from agentrl.envs.check.subject import Subject
from agentrl.envs.check.traces import Traces

SYSTEM = ("/dev/", "/proc/", "/sys/")
REPEATED, SPREAD = 2, 3
"""Episodes that must have written one file, or different ones in one folder."""


async def files(subject: Subject) -> AsyncIterator[str]:
    """Episodes write no files but in their temporary folder."""
    for words in _left_files(subject.monitor.traces):
        yield words


def _left_files(traces: Traces) -> Iterator[str]:
    temporary, cache = os.path.realpath(tempfile.gettempdir()), os.path.expanduser("~/.cache")
    allowed = (os.path.dirname(temporary) + os.sep, os.environ.get("XDG_CACHE_HOME") or cache, cache, *SYSTEM)
    watched = set(map(os.path.realpath, SHARED.values()))  # whose new files `leaks` reports
    left: dict[str, list[str]] = defaultdict(list)
    for path, episodes in traces.written.items():
        real = os.path.realpath(path)
        if real.startswith(allowed) or "__pycache__" in real or not os.path.exists(real):
            continue
        if len(episodes) >= REPEATED:
            yield f"{len(episodes)} episodes write to {path}, which stays and is shared by all that run at a time"
        else:
            left[os.path.dirname(path)].append(path)
    for folder, paths in left.items():
        if len(paths) >= SPREAD and os.path.realpath(folder) not in watched:
            yield f"{len(paths)} episodes leave files in {folder}, such as {os.path.basename(paths[0])}"


async def told(subject: Subject) -> AsyncIterator[str | Note]:
    """No coroutine is left without await, and no exception is lost."""
    for words, never in subject.monitor.traces.warnings.items():
        yield words if never else Note(words)
    for words in subject.monitor.traces.lost:
        yield f"an exception was raised where nobody catches it: {words}"
