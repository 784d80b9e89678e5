"""The handlers of loggers, which no environment may change.

A process that trains has thousands of loggers, one for each module of its libraries: to look at all of them before and
after each call took more than the calls. So one that gets its first handler is noted as it gets it.
"""

from __future__ import annotations

import logging


class LogHandlers:
    """The loggers that have or had a handler, and those that they have now."""

    def __init__(self) -> None:
        every = logging.root.manager.loggerDict.items()
        self._loggers = {name: one for name, one in every if isinstance(one, logging.Logger) and one.handlers}
        self._loggers["root"] = logging.root

    def install(self) -> None:
        """Note every logger that gets a handler, for as long as this process lives."""
        add = logging.Logger.addHandler

        def adding(logger: logging.Logger, handler: logging.Handler) -> None:
            self._loggers[logger.name] = logger
            add(logger, handler)

        logging.Logger.addHandler = adding  # type: ignore[method-assign, assignment]

    def now(self) -> dict[str, tuple[logging.Handler, ...]]:
        """Each one's handlers, by its name; nothing of a logger without any.

        Not their identities: each call of `id` is an event of `sys.audit`, to which a check listens.
        """
        return {name: tuple(one.handlers) for name, one in list(self._loggers.items()) if one.handlers}
