"""Servers that belong to us: whatever becomes of either side, nothing stays behind and the reason is told."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from agentrl.cluster.restarted_server import RestartedServer, Restarts
from agentrl.cluster.server import SHARED_MEMORY, ServerProcess, free_port
from agentrl.errors import EngineError
from tests.conftest import need

PATIENCE = 300.0
"""Seconds that a busy machine may take for what a quiet one does in ten: Ray's nodes, their workers, imports."""
CHILD = (
    "import subprocess, sys, time; print('child', subprocess.Popen(['sleep', '600']).pid, flush=True); time.sleep(600)"
)


def until(done: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """Whether a process runs (and is no zombie that nobody has buried yet)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def child_of(log: Path) -> int:
    until(lambda: log.exists() and "child" in log.read_text(), "the server did not start")
    return int(log.read_text().split()[1])


def never() -> Callable[[], asyncio.Future[bool]]:
    async def probe() -> bool:
        return False

    return probe  # type: ignore[return-value]


@pytest.mark.slow
async def test_a_server_that_dies_says_why() -> None:
    code = "import sys; print('loading'); sys.exit('no such model: the reason')"
    server = ServerProcess("thing", [sys.executable, "-c", code])
    with pytest.raises(EngineError, match="exit status 1") as caught:
        await server.wait_ready(never(), PATIENCE)
    assert "no such model: the reason" in str(caught.value)
    await server.close()
    assert not server.log.exists()


@pytest.mark.slow
async def test_a_server_that_is_killed_says_so() -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    server = ServerProcess("thing", [sys.executable, "-c", code])
    with pytest.raises(EngineError, match="exit status 137"):
        await server.wait_ready(never(), PATIENCE)
    await server.close()


@pytest.mark.slow
async def test_a_server_that_never_gets_ready_is_given_up_with_its_log() -> None:
    code = "import time; print('still loading', flush=True); time.sleep(600)"
    server = ServerProcess("thing", [sys.executable, "-c", code])
    until(lambda: "still loading" in server.tail(), "the server did not start")
    with pytest.raises(EngineError, match="start_timeout") as caught:
        await server.wait_ready(never(), 0.01)
    assert "still loading" in str(caught.value)
    await server.close()


@pytest.mark.slow
async def test_a_command_that_does_not_exist_is_reported() -> None:
    server = ServerProcess("thing", ["/no/such/interpreter"])
    with pytest.raises(EngineError, match="no/such/interpreter"):
        await server.wait_ready(never(), PATIENCE)
    await server.close()


@pytest.mark.slow
async def test_closing_ends_what_the_server_started_and_may_be_repeated(tmp_path: Path) -> None:
    server = ServerProcess("thing", [sys.executable, "-c", CHILD], log=tmp_path / "log")
    child = child_of(tmp_path / "log")
    await server.close()
    await server.close()
    until(lambda: not alive(child), "the server's child outlives it")
    assert (tmp_path / "log").exists()


@pytest.mark.slow
def test_a_server_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);" + CHILD
    server = ServerProcess("thing", [sys.executable, "-c", code], log=tmp_path / "log")
    child = child_of(tmp_path / "log")
    server.kill()
    until(lambda: not alive(child), "the server's child outlives it")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.slow
def test_nothing_outlives_an_owner_that_is_killed(how: signal.Signals, tmp_path: Path) -> None:
    """A handler would need a process that still lives; kill -9 leaves none."""
    code = f"""
        import time
        from pathlib import Path
        from agentrl.cluster.server import ServerProcess
        server = ServerProcess("thing", [{sys.executable!r}, "-c", {CHILD!r}], log=Path({str(tmp_path / "log")!r}))
        print(server.pid, flush=True)
        time.sleep(600)
    """
    owner = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    guard = int(owner.stdout.readline())
    child = child_of(tmp_path / "log")
    assert alive(child)
    owner.send_signal(how)
    owner.wait()
    owner.stdout.close()
    until(lambda: not alive(child) and not alive(guard), "the server outlives its owner")


@pytest.mark.slow
def test_neither_a_server_nor_what_it_started_outlives_its_guard(tmp_path: Path) -> None:
    server = ServerProcess("thing", [sys.executable, "-c", CHILD], log=tmp_path / "log")
    child = child_of(tmp_path / "log")
    parent = int(Path(f"/proc/{child}/stat").read_text().split()[3])
    os.kill(server.pid, signal.SIGKILL)
    until(lambda: not alive(child) and not alive(parent), "the server outlives its guard")
    server.kill()


def test_a_free_port_is_kept_for_the_server_that_it_was_chosen_for() -> None:
    """A server that loads a model listens half a minute later, when another process may have been given its port."""
    address = "127.0.0.1", free_port()
    with socket.socket() as another, pytest.raises(OSError, match="in use"):
        another.bind(address)
    with socket.create_server(address), socket.create_connection(address):
        pass


MAPS = """
import mmap, multiprocessing, os, sys, time
kept = [multiprocessing.get_context("spawn").Lock()]
for name in sys.argv[1:]:
    descriptor = os.open(name, os.O_RDWR | os.O_CREAT)
    os.ftruncate(descriptor, 4096)
    kept.append(mmap.mmap(descriptor, 4096))
print("mapped", kept[0]._semlock.name, flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_shared_memory_of_a_server_that_is_killed_is_removed_and_nobody_elses(tmp_path: Path) -> None:
    """Each SGLang server that was killed left a file in /dev/shm, and later a semaphore."""
    need(os.access(SHARED_MEMORY, os.W_OK), "no /dev/shm")
    own, shared, renewed, strange = (
        Path(SHARED_MEMORY) / f"agentrl-test-{os.getpid()}-{number}" for number in range(4)
    )
    strange.write_bytes(b"x")
    command = [sys.executable, "-c", MAPS]
    log = tmp_path / "log"
    server = ServerProcess("thing", [*command, str(own), str(shared), str(renewed)], log=log)

    async def mapped() -> bool:
        return log.read_text().endswith("\n")

    try:
        asyncio.run(server.wait_ready(mapped, PATIENCE))
        semaphore = Path(SHARED_MEMORY) / f"sem.{log.read_text().split()[1][1:]}"
        assert semaphore.exists()
        with subprocess.Popen([*command, str(shared)], stdout=subprocess.PIPE) as other:
            assert other.stdout is not None
            other.stdout.readline()
            os.killpg(server.pid, signal.SIGKILL)
            renewed.unlink()
            renewed.write_bytes(b"y" * 10)
            server.kill()
            other.kill()
        assert [each.exists() for each in (own, shared, renewed, strange)] == [False, True, True, True]
        assert not semaphore.exists()
    finally:
        server.end()
        for each in (own, shared, renewed, strange):
            each.unlink(missing_ok=True)


@pytest.mark.slow
def test_a_server_is_started_again_until_it_ends_too_often_and_never_after_it_was_closed() -> None:
    said: list[str] = []

    def start(code: str) -> RestartedServer:
        make = partial(ServerProcess, "thing", [sys.executable, "-c", code])
        return RestartedServer("the thing", make, said.append, restarts=Restarts(2, 3600.0))

    short = start("raise SystemExit('no luck')")
    assert short.given_up.result(60) == "the thing ended with 1: no luck (3 ends within 3600 s)"
    assert (said, short.restarts, short.running) == (["the thing ended with 1: no luck"] * 2, 2, False)
    short.close()
    long = start("import time; time.sleep(600)")
    assert long.running
    long.close()
    assert (len(said), long.running, long.given_up.done()) == (2, False, False)
