"""Traces of episodes besides resources: files that they write, Python's warnings, exceptions that nobody catches.

Files are seen as they are opened for writing (an audit hook), so what other processes write meanwhile is none of it.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import warnings
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from agentrl.envs.check import places

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
FILES = {"open": 0, "os.mkdir": 0, "sqlite3.connect": 0}
"""Audit events that may make a file, and which argument is its path."""
NEVER = "was never awaited"


class Traces:
    """Collects them.

    Attributes:
        episode: the number of the episode that runs.
        written: the episodes that opened a file for writing, by its path.
        warnings: what Python warned of, each once, and whether it is a coroutine that was never awaited.
        lost: exceptions that nobody caught, each once.
    """

    def __init__(self, running: Callable[[], bool]) -> None:
        self.episode = 0
        self.written: dict[str, set[int]] = defaultdict(set)
        self.warnings: dict[str, bool] = {}
        self.lost: dict[str, None] = {}
        self._running = running

    def install(self) -> None:
        """Listen, for as long as this process lives."""
        sys.addaudithook(self._audit)
        warnings.simplefilter("always", RuntimeWarning)
        warnings.showwarning = self._warned
        sys.unraisablehook = lambda args: self._lose(args.exc_value)
        threading.excepthook = lambda args: self._lose(args.exc_value)

    def listen(self, loop: asyncio.AbstractEventLoop) -> None:
        """Hear of tasks whose exceptions nobody fetched."""
        loop.set_exception_handler(lambda loop, context: self._lose(context.get("exception")))

    def _audit(self, event: str, args: Any) -> None:
        if event not in FILES or not self._running():
            return
        path, flags = args[0], args[2] if event == "open" else WRITING
        if not isinstance(path, (str, bytes, os.PathLike)) or not (isinstance(flags, int) and flags & WRITING):
            return
        self.written[os.path.abspath(os.fsdecode(path))].add(self.episode)

    def _warned(
        self, message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: str | None = None
    ) -> None:
        never = NEVER in str(message)
        place = places.own([(filename, lineno, "")])
        if never or place:
            self.warnings.setdefault(str(message) if never else f"{category.__name__}: {message}", never)

    def _lose(self, error: BaseException | None) -> None:
        place = places.of_error(error) if error is not None else ""
        if error is not None and place:
            self.lost.setdefault(f"{type(error).__name__}: {error} at {place}")
