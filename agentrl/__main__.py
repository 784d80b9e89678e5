"""The command line: `agentrl`, or `python -m agentrl`. What it needs is loaded here; Ctrl-C meanwhile is silent.

The garbage collector is set before anything is loaded: it would look through a run's libraries again and again while
they load, a tenth of the time until the first step, and find nothing.
"""

from __future__ import annotations

import errno
import gc
import os
import sys

from agentrl.common.garbage import THRESHOLDS

PYTHON = 3, 11


def main() -> None:
    """Load the command line and run it; where it can't be loaded, end with what is missing."""
    if sys.version_info < PYTHON:
        wanted, there = (".".join(map(str, version)) for version in (PYTHON, sys.version_info[:2]))
        sys.exit(f"error: agentrl needs Python {wanted} or newer, and {sys.executable} is Python {there}")
    gc.set_threshold(*THRESHOLDS)
    try:
        from agentrl import cli
    except KeyboardInterrupt:
        sys.exit(130)
    except ModuleNotFoundError as error:
        if (error.name or "agentrl").startswith("agentrl"):
            raise
        mend = f"{sys.executable} -m pip install agentrl-platform, or -e and the checkout's folder"
        sys.exit(f"error: {error.name!r} is missing, which comes with agentrl: {mend}")
    try:
        cli.main()
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        where = repr(error.filename) if error.filename else "what is printed, or a file,"
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python would try once more as it ends
        sys.exit(f"error: {where} can't be written: {error.strerror}; make room on that disk, or write to another")


if __name__ == "__main__":
    main()
