"""The jail: a small hardened sandbox that each attack runs in, and that must be whole after each of them.

An attack is a program that reports, line by line, what it got done; a test first asserts that it really ran (it
got as far as the limit or refusal in question) and then that it had no effect. One sandbox serves many attacks: an
attack that kills or cripples it fails its own test.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

import pytest

from agentrl.tools.sandbox.base import ExecResult
from agentrl.tools.sandbox.docker.backend import DockerSandbox
from agentrl.tools.sandbox.docker.hardening import audit
from agentrl.tools.sandbox.runner.loop import blocking

Attack = Callable[..., Awaitable[ExecResult]]
PRELUDE = """
import ctypes, errno, os, signal, socket, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *args):
    ctypes.set_errno(0)
    result = getattr(libc, name)(*args) if isinstance(name, str) else libc.syscall(name, *args)
    return "done" if result >= 0 else errno.errorcode.get(ctypes.get_errno(), ctypes.get_errno())
def attempt(what, action):
    try: outcome = action()
    except OSError as error: outcome = errno.errorcode.get(error.errno, error.errno)
    print(what, outcome, flush=True)
"""


async def run_until_late(
    run: Callable[[float], Awaitable[ExecResult]], sign: bytes, seconds: float, most: float = 60.0
) -> ExecResult:
    """The result of a command that never ends, once it has said `sign`: a busy machine gives it longer to begin."""
    while sign not in (result := await run(seconds)).stdout + result.stderr and seconds < most:
        seconds = min(4 * seconds, most)
    return result


@pytest.fixture
def jail(shared: DockerSandbox) -> Iterator[DockerSandbox]:
    """The sandbox to attack; checked afterwards: the same container, alive, hardened, empty of processes."""
    yield shared
    assert blocking(shared.healthy(), 20), "the attack broke the sandbox"
    seen = blocking(
        shared.exec("for p in /proc/[0-9]*; do echo $p; done | wc -l; rm -rf /work/* /tmp/* /dev/shm/*"), 90
    )
    assert int(seen.stdout) <= 5, f"processes are left: {seen.stdout!r}"  # runner, supervisor, shell, wc, subshell
    inspection = blocking(shared.inspect(), 20)
    assert inspection["State"]["Running"]
    assert audit(inspection, shared.spec) == []


@pytest.fixture
def attack(jail: DockerSandbox) -> Attack:
    """Runs a Python program in the jail, with helpers to report what it got done."""

    async def run(program: str, timeout: float = 20.0, **options: object) -> ExecResult:
        return await jail.exec(["python3", "-c", PRELUDE + program], timeout=timeout, **options)  # type: ignore[arg-type]

    return run
