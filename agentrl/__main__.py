"""The command line: `agentrl`, or `python -m agentrl`. What it needs is loaded here; Ctrl-C meanwhile is silent.

The garbage collector is set before anything is loaded: it would look through a run's libraries again and again while
they load, a tenth of the time until the first step, and find nothing.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
import traceback

from agentrl.common.garbage import THRESHOLDS
from agentrl.common.text_encoding import reads_utf8

PYTHON = 3, 11
PATIENCE, MOST_PATIENCE = 5.0, 60.0
"""Seconds that a process which is over waits for threads before it tells of them, and then until it leaves them."""
HIGHEST_STANDARD = 2
"""The descriptor of standard error; standard input and output have those below it."""


def main() -> None:
    """Load the command line and run it; where it can't be loaded, end with what is missing."""
    if sys.version_info < PYTHON:
        wanted, there = (".".join(map(str, version)) for version in (PYTHON, sys.version_info[:2]))
        sys.exit(f"error: agentrl needs Python {wanted} or newer, and {sys.executable} is Python {there}")
    while (number := os.open(os.devnull, os.O_RDWR)) <= HIGHEST_STANDARD:
        pass  # it was closed (`>&-`): a file of a run's would get its number, and what libraries print
    os.close(number)
    if not reads_utf8() and os.environ.get("PYTHONUTF8") != "1":  # every text file would be read otherwise
        os.environ["PYTHONUTF8"] = "1"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    gc.set_threshold(*THRESHOLDS)
    try:
        os.getcwd()
    except OSError as error:  # libraries fail by it in ways of their own
        sys.exit(
            f"error: the working folder can't be used: {error.strerror}; it may have been removed: change to another"
        )
    try:
        _run()
    except Exception:
        if hiding := _find_hiding(traceback.format_exc()):
            mend = "name it otherwise, or run `agentrl` without PYTHONPATH, which doesn't look there"
            sys.exit(f"error: {hiding} hides a module of Python's own: {mend}")
        raise


def _run() -> None:
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
    except SystemExit as ended:
        threading.Thread(target=_end_without_threads, args=(ended.code,), daemon=True).start()
        raise
    except Exception as error:
        from agentrl.common.foreign_errors import disk_failure

        if (failure := disk_failure(error)) is None:
            raise
        where = repr(failure.filename) if failure.filename else "can't write to standard output, or a file"
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python would try once more as it ends
        sys.exit(f"error: {where}: {failure.strerror}")


def _find_hiding(trace: str) -> str:
    """The file of the working directory that was imported in place of a module of Python's own; '' where none was."""
    try:
        there, names = os.getcwd(), sorted(os.listdir())
    except OSError:  # it was removed
        return ""
    for name in names if not {"", there}.isdisjoint(sys.path) else ():
        file, module = os.path.join(there, name), name.removesuffix(".py")
        hides = module != name and module in sys.stdlib_module_names
        if hides and (file in trace or getattr(sys.modules.get(module), "__file__", "") == file):
            return file
    return ""


def _end_without_threads(code: object) -> None:
    """End the process where threads of other people's code keep it from ending, after telling which."""
    for seconds in (PATIENCE, MOST_PATIENCE):
        time.sleep(seconds)
        left = [t.name for t in threading.enumerate() if not t.daemon and t is not threading.main_thread()]
        if not left:
            return
        if seconds == PATIENCE:
            threads = ", ".join(left[:5])
            say = f"waiting {MOST_PATIENCE:g} s for threads that were left running: {threads} (daemon=True?)"
            print(say, file=sys.stderr, flush=True)
    from agentrl.train.driver.interrupt import end_process

    end_process(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    main()
