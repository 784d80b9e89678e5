"""The interface of a progress display."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol


class Progress(Protocol):
    """Displays progress and messages; `agentrl.train.display.console.Display` implements it."""

    def say(self, text: str) -> None:
        """Show a permanent line."""

    def warn(self, text: str) -> None:
        """Show a warning."""

    def warn_once(self, text: str) -> None:
        """Show a warning, unless it was shown before."""

    def part(
        self, name: str, total: int = 0, unit: str = "sessions", detail: Callable[[], str] = str
    ) -> AbstractContextManager[Callable[[object], None]]:
        """Show that the block is running; it calls what is yielded once for each of `total` units done.

        `detail` says something more in a few words, as it is then.
        """
