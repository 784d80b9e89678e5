"""Runs a server and makes sure that it does not outlive the process that started it.

The owner holds the other end of this process's standard input. When that end closes, for whatever reason (also
`kill -9`), the server's whole process group is ended: a pipe is closed by the kernel, while a handler needs a
process that still lives. The server in turn gets a signal from the kernel when this process dies. It needs nothing but
Python's standard library, so that any interpreter can run it as a file, and it costs 10 MB.

Where this process is itself killed (Ray kills the children of an actor that ends), a second one, which shares its
memory, ends the group.

A thread-safe `PR_SET_PDEATHSIG` in the owner was the alternative: it fires when the *thread* that started the
server ends, which a notebook's or a test's thread does too early.
"""

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable

GRACE = 5.0
"""Seconds between asking the group to end and killing it."""
ENDING = (signal.SIGTERM, signal.SIGINT)
_PR_SET_PDEATHSIG = 1


def main(argv: list[str]) -> int:
    """Run `argv` until it ends or standard input closes; returns the exit status for the shell."""
    follow = follower()
    server = subprocess.Popen(  # one thread; open files were given to this process for the server
        argv, stdin=subprocess.DEVNULL, preexec_fn=follow, close_fds=False
    )
    return watch(server.pid, server.poll)


def follower() -> Callable[[], None]:
    """Return what a child of this process calls first, so that the child does not outlive this process."""
    parent = os.getpid()
    for number in ENDING:  # the group gets one: the server ends, and then this process
        signal.signal(number, signal.SIG_IGN)

    def follow() -> None:
        for number in ENDING:
            signal.signal(number, signal.SIG_DFL)
        if sys.platform == "linux":
            ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return follow


def watch(pid: int, poll: Callable[[], int | None]) -> int:
    """Wait until the server has ended, or standard input closes, which ends the group; returns the shell's exit status.

    Args:
        pid: the server, a child of this process.
        poll: how it ended (a negative number is a signal); None while it runs.
    """
    ended = [os.pidfd_open(pid)] if hasattr(os, "pidfd_open") else []  # else it is asked twice a second
    watcher = _watcher()
    while (status := poll()) is None:
        ready, _, _ = select.select([0, *ended], [], [], 0.5)
        if 0 in ready and not os.read(0, 4096):
            return _end(poll)
    os.kill(watcher, signal.SIGKILL)
    os.waitpid(watcher, 0)
    return status if status >= 0 else 128 - status


def _watcher() -> int:
    """Fork a process that kills the group when this one is killed; returns its id."""
    reading, _writing = os.pipe()  # which stays open as long as this process lives
    watcher = os.fork()
    if watcher:
        os.close(reading)
        return watcher
    for descriptor in range(3):  # neither the owner's pipe nor the server's output stays open because of it
        os.dup2(reading, descriptor)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.read(0, 1)  # returns when the other end is closed
    os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _end(poll: Callable[[], int | None]) -> int:
    os.killpg(0, signal.SIGTERM)
    end = time.monotonic() + GRACE
    while poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    os.killpg(0, signal.SIGKILL)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
