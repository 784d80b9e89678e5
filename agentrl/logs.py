"""A run's log as JSON lines, each with the run and, where one is worked on, the session and its turn.

It has what agentrl's loggers say from INFO on, also what the terminal has shown already (`shown`), so that one can ask
of a warning when it came, and of which session. Warnings of other loggers go on to standard error as without it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import orjson

from agentrl import tracing
from agentrl.common.untrusted import safe_text
from agentrl.config.secrets import scrub

NAME = "log.jsonl"
"""The log, in the run's folder."""
shown = logging.getLogger("agentrl.shown")
"""The lines that a run has shown already, by whatever shows them."""
shown.addHandler(logging.NullHandler())  # else Python prints warnings a second time where no log is written


@contextmanager
def write_log(file: Path, run: str, secrets: Iterable[str] = ()) -> Iterator[None]:
    """Append what is logged within the block to a file, without secrets.

    A line that can't be written, as on a full disk, is lost, and stops nothing.
    """
    own, handlers = logging.getLogger("agentrl"), (_Lines(file, run, secrets), _Terminal())
    level = own.level
    own.setLevel(logging.INFO)
    for handler in handlers:
        own.addHandler(handler)
    try:
        yield
    finally:
        for handler in handlers:
            own.removeHandler(handler)
            handler.close()
        own.setLevel(level)


class _Lines(logging.FileHandler):
    def __init__(self, file: Path, run: str, secrets: Iterable[str]) -> None:
        super().__init__(file, encoding="utf-8", delay=True)
        self._run, self._secrets = run, frozenset(secrets)

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": record.created,
            "level": record.levelname.lower(),
            "logger": record.name,
            "run": self._run,
            **tracing.current(),
            "message": self._safe(record.getMessage()),
        }
        if record.exc_info:
            line["traceback"] = self._safe(logging.Formatter().formatException(record.exc_info))
        return orjson.dumps(line).decode()

    def _safe(self, text: str) -> str:
        return safe_text(scrub(text, self._secrets))

    def handleError(self, record: logging.LogRecord) -> None:
        """A line that can't be written is lost."""

    def close(self) -> None:
        with suppress(OSError):  # what was not written yet still can't be
            super().close()


class _Terminal(logging.Handler):
    """A handler like Python's own of last resort, for warnings where nobody has set up logging."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.name != shown.name and not logging.root.handlers and logging.lastResort is not None:
            said = {"msg": scrub(logging.lastResort.format(record)), "args": None, "exc_info": None, "exc_text": None}
            logging.lastResort.handle(logging.makeLogRecord({**record.__dict__, **said, "stack_info": None}))
