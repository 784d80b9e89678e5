"""Ends ranks whose trainer was killed, and removes their folder: `python keeper.py FOLDER`.

A rank ends by itself when its connection closes, but not one that is stopped, nor one deep in a collective. This
process gets the ids of ranks, one a line, on standard input, and "done" when they were ended normally. When the input
closes without it, or the trainer's process is gone (whose forked children may hold the input open), it kills the ranks'
process groups, which stopped processes can't evade, and removes the folder. It needs nothing but the standard library.
"""

import contextlib
import os
import select
import shutil
import signal
import sys


def main(folder: str) -> None:
    """Wait for the trainer's end, normal or not."""
    parent, received = os.getppid(), b""
    while os.getppid() == parent:
        if select.select([0], [], [], 0.5)[0]:
            piece = os.read(0, 4096)
            received += piece
            if received.endswith(b"done\n"):
                return
            if not piece:
                break
    for line in received.split():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(int(line), signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1])
