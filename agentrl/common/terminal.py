"""The consoles that commands print on, and lines as they are."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from io import StringIO
from typing import IO, Any

from rich.console import Console, RenderableType

from agentrl.common.untrusted import visible_text
from agentrl.errors import OutputClosed, OutputError

PLAIN_WIDTH = 200
"""Columns of a table that is written into a file or a pipe."""


class Output(Console):
    """A console that says by an error of its own that its stream can't be written; later output goes nowhere."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print as `rich.console.Console.print`.

        Raises:
            OutputClosed: it is a pipe that nothing reads any more.
            OutputError: it can't be written for another reason.
        """
        try:
            super().print(*objects, **options)
        except OSError as error:
            write_nowhere(self.file)
            if isinstance(error, BrokenPipeError):
                raise OutputClosed("nothing reads the output any more") from None
            name = "standard error" if self.stderr else "standard output"
            raise OutputError(f"can't write to {name}: {error.strerror}") from None

    def on_broken_pipe(self) -> None:
        """Leave the error that is being handled to `print`: rich would end the process, in any thread."""
        raise


def write_nowhere(*streams: IO[str] | int) -> None:
    """Have what is written to streams, or file descriptors, go nowhere: each write would fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in streams:
        with suppress(OSError, ValueError):  # a stream of a script without a descriptor
            os.dup2(nowhere, stream if isinstance(stream, int) else stream.fileno())
    os.close(nowhere)


if os.environ.get("COLUMNS", "").strip() == "0":  # as some terminals say that they don't know: nothing would be printed
    del os.environ["COLUMNS"]
out, err = Output(), Output(stderr=True)


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
