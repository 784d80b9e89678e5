"""The consoles that commands print on, and lines as they are."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console

from agentrl.common.untrusted import visible_text

out, err = Console(), Console(stderr=True)


def print_lines(lines: Iterable[str], console: Console = out) -> None:
    """Print lines without markup, colours or wrapping; what a terminal would obey or hide becomes its escape."""
    for line in lines:
        console.print(visible_text(line), markup=False, highlight=False, soft_wrap=True)
