"""The consoles that commands print on, and lines as they are."""

from __future__ import annotations

import os
from collections.abc import Iterable
from io import StringIO

from rich.console import Console, RenderableType

from agentrl.common.untrusted import visible_text

PLAIN_WIDTH = 200
"""Columns of a table that is written into a file or a pipe."""
if os.environ.get("COLUMNS", "").strip() == "0":  # as some terminals say that they don't know: nothing would be printed
    del os.environ["COLUMNS"]
out, err = Console(), Console(stderr=True)


def print_lines(lines: Iterable[str], console: Console = out) -> None:
    """Print lines without markup, colours or wrapping; what a terminal would obey or hide becomes its escape."""
    for line in lines:
        console.print(visible_text(line), markup=False, highlight=False, soft_wrap=True)


def print_part(part: RenderableType, console: Console = out, *, fits: bool = True) -> None:
    """Print on a terminal in which it fits; elsewhere in wide lines that end where their text does."""
    if console.is_terminal and fits:
        return console.print(part)
    plain = Console(width=PLAIN_WIDTH, file=StringIO())
    with plain.capture() as text:
        plain.print(part)
    print_lines((line.rstrip() for line in text.get().splitlines()), console)
