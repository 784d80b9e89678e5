"""Ends process groups that a killed process leaves behind: `Keeper` there, and `python keeper.py [FOLDER]` beside it.

A trainer's rank ends by itself when its connection closes, but not one that is stopped, nor one deep in a collective;
an agent's program never has to. The script gets "+" and a group's id on standard input, a line each, "-" and the id
when that group has ended, and "done" at a normal end. When the input closes without it, or its parent is gone (whose
forked children may hold the input open), it kills the groups, which stopped processes can't evade, and removes the
folder. It needs nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys


class Keeper:
    """The script, run for this process.

    Args:
        folder: removed where this process is killed; "" for none.
    """

    def __init__(self, folder: str = "") -> None:
        command = [sys.executable, "-I", "-S", __file__, folder]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, bufsize=0, start_new_session=True)

    def keep(self, group: int) -> None:
        """A process group began, which must not outlive this process."""
        self._send(f"+{group}")

    def forget(self, group: int) -> None:
        """Note that a process group has ended."""
        self._send(f"-{group}")

    def close(self) -> None:
        """End the script; what it kept goes on."""
        if self._process.poll() is None:
            self._send("done")
        self._process.communicate()

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it was killed: nothing is kept, and nothing else changes
            self._process.stdin.write(f"{line}\n".encode())


def main(folder: str = "") -> None:
    """Wait for the parent's end, normal or not."""
    parent, received = os.getppid(), b""
    groups: set[bytes] = set()
    while os.getppid() == parent:
        if select.select([0], [], [], 0.5)[0]:
            piece = os.read(0, 4096)
            *lines, received = (received + piece).split(b"\n")
            for line in lines:
                if line == b"done":
                    return
                (groups.add if line.startswith(b"+") else groups.discard)(line[1:])
            if not piece:
                break
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(int(group), signal.SIGKILL)
    if folder:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
