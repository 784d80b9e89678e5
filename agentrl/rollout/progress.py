"""Who is told how far something is."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol


class Progress(Protocol):
    """Shows progress and what there is to say; `agentrl.train.display.Display` is one."""

    def say(self, text: str) -> None:
        """Show a line that stays."""

    def warn(self, text: str) -> None:
        """Show a line about something that is not as it should be."""

    def part(
        self, name: str, total: int = 0, unit: str = "sessions"
    ) -> AbstractContextManager[Callable[[object], None]]:
        """Show that something goes on in the block; what is yielded is called with each of `total` that ends."""
