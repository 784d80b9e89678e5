"""Ends process groups that a killed process leaves behind: `Keeper` there, and `python keeper.py` beside it.

An agent's program never has to end by itself. The script gets "+" and a group's id on standard input, a line each, and
"-" and the id when that group has ended. When the input closes, or its parent is gone (whose forked children may hold
the input open), it kills the groups, which stopped processes can't evade. It needs nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys


class Keeper:
    """The script, run for this process."""

    def __init__(self) -> None:
        command = [sys.executable, "-I", "-S", __file__]
        reading, self._pipe = os.pipe()
        with open(reading, "rb") as theirs:
            nowhere = subprocess.DEVNULL  # whoever reads this process's output waits for its own end alone
            self._process = subprocess.Popen(
                command, stdin=theirs, stdout=nowhere, stderr=nowhere, start_new_session=True
            )

    def keep(self, group: int) -> None:
        """A process group began, which must not outlive this process."""
        self._send(f"+{group}")

    def forget(self, group: int) -> None:
        """Note that a process group has ended."""
        self._send(f"-{group}")

    def _send(self, line: str) -> None:
        with contextlib.suppress(OSError):  # it was killed: nothing is kept, and nothing else changes
            os.write(self._pipe, f"{line}\n".encode())


def main() -> None:
    """Wait for the parent's end, normal or not."""
    parent, received = os.getppid(), b""
    groups: set[bytes] = set()
    while os.getppid() == parent:
        if select.select([0], [], [], 0.5)[0]:
            piece = os.read(0, 4096)
            *lines, received = (received + piece).split(b"\n")
            for line in lines:
                (groups.add if line.startswith(b"+") else groups.discard)(line[1:])
            if not piece:
                break
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(int(group), signal.SIGKILL)


if __name__ == "__main__":
    main()
