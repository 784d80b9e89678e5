"""Failures of ours: each is a SandboxError (INFRA), in bounded time, and the next sandbox works.

Daemon faults are done to a daemon of the tests' own, with its own data, so that nobody else's is disturbed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.errors import Blame, SandboxError
from agentrl.tools.sandbox.base import DaemonError, PathError, Sandbox, SandboxDied
from agentrl.tools.sandbox.docker import daemon as daemons
from agentrl.tools.sandbox.docker.backend import DockerSandbox, create_docker
from agentrl.tools.sandbox.pool import SandboxPool
from agentrl.tools.sandbox.runner.loop import on_loop
from tests.conftest import need
from tests.tools.sandbox.conftest import SMALL, TINY, Make

pytestmark = pytest.mark.slow
BEGINS, HAS_BEGUN = "touch begun; sleep 60", "until [ -e begun ]; do sleep 0.01; done"


async def fails(sandbox: Sandbox, command: str = "sleep 60", timeout: float = 1.0) -> SandboxError:
    with pytest.raises(SandboxError) as caught:
        await sandbox.exec(command, timeout=timeout)
    assert caught.value.blame is Blame.INFRA
    return caught.value


async def test_a_container_killed_mid_exec_is_our_failure_and_says_what_the_daemon_knows(make: Make) -> None:
    sandbox = await asyncio.to_thread(make, SMALL)
    running = asyncio.ensure_future(fails(sandbox, BEGINS, timeout=60))
    assert (await sandbox.exec(HAS_BEGUN)).ok
    await on_loop(sandbox.daemon.call(sandbox.daemon.api.kill, sandbox.id))
    assert "container exited, exit code 137" in str(await running)
    assert not await sandbox.healthy()


async def test_a_frozen_container_is_given_up_in_bounded_time(make: Make) -> None:
    sandbox = await asyncio.to_thread(make, SMALL)
    sandbox.grace = 1.0
    await on_loop(sandbox.daemon.call(sandbox.daemon.api.pause, sandbox.id))
    assert not await sandbox.healthy()
    assert "did not answer" in str(await fails(sandbox))
    assert isinstance(await fails(sandbox), SandboxDied), "it is not tried again"


async def test_a_removed_container_is_our_failure(make: Make) -> None:
    sandbox = await asyncio.to_thread(make, SMALL)
    await on_loop(sandbox.daemon.call(sandbox.daemon.api.remove_container, sandbox.id, force=True))
    await fails(sandbox)


async def test_an_upload_that_a_fresh_sandbox_refuses_is_our_failure_and_a_models_bad_path_is_not(make: Make) -> None:
    sandbox = await asyncio.to_thread(make, SMALL)
    outside = await on_loop(sandbox.daemon.call(sandbox.daemon.api.exec_create, sandbox.id, ["chmod", "0500", "/work"]))
    await on_loop(sandbox.daemon.call(sandbox.daemon.api.exec_start, outside["Id"]))
    with pytest.raises(SandboxError, match="no command has run") as caught:
        await sandbox.write("file", "x")
    assert caught.value.blame is Blame.INFRA
    for path in ("/etc/file", "/work"):
        with pytest.raises(PathError):
            await sandbox.write(path, "x")
    await sandbox.exec("true")  # from here on, it may be a command's doing
    with pytest.raises(PathError):
        await sandbox.write("file", "x")


async def test_a_loosened_sandbox_is_never_used_again(make: Make) -> None:
    sandbox = await asyncio.to_thread(make, SMALL.model_copy(update={"user": "0:0"}))
    with pytest.raises(SandboxError, match="user='0:0'"):
        await sandbox.reset()


async def test_what_an_outside_exec_left_running_is_killed_or_the_sandbox_thrown_away(make: Make) -> None:
    """Agent programs get the container's name, and may `docker exec` in it."""
    sandbox = await asyncio.to_thread(make, SMALL)
    api = sandbox.daemon.api
    for user in ("", "0"):
        made = await on_loop(sandbox.daemon.call(api.exec_create, sandbox.id, ["sleep", "600"], user=user))
        await on_loop(sandbox.daemon.call(api.exec_start, made["Id"], detach=True))
        async with asyncio.timeout(60):  # the daemon answers before it runs
            while b"sleep" not in (await sandbox.exec("cat /proc/[0-9]*/cmdline")).stdout:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        if user == "0":
            with pytest.raises(SandboxError, match="processes"):
                await sandbox.reset()
        else:
            await sandbox.reset()
            assert b"600" not in (await sandbox.exec("cat /proc/[0-9]*/cmdline")).stdout


async def test_work_in_a_pool_survives_containers_that_are_killed_under_it(docker: None) -> None:
    pool = SandboxPool(total=3)
    tries: list[str] = []

    async def work(sandbox: Sandbox) -> bytes:
        assert isinstance(sandbox, DockerSandbox)
        tries.append(sandbox.id)
        if len(tries) == 1:
            await on_loop(sandbox.daemon.call(sandbox.daemon.api.kill, sandbox.id))
        return (await sandbox.exec("echo made it")).stdout

    try:
        await pool.warm(SMALL, 2)
        assert await pool.run(SMALL, work) == b"made it\n"
        assert len(set(tries)) == 2
    finally:
        await pool.close()


class OwnDaemon:
    """A second dockerd with its own data and network namespace: one without a bridge removes the host's docker0."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.address = f"unix://{home}/docker.sock"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        folders = ["--data-root", f"{self.home}/data", "--exec-root", f"{self.home}/exec", "-p", f"{self.home}/pid"]
        networks = ["--bridge=none", "--iptables=false", "--ip6tables=false"]
        command = ["unshare", "--net", "dockerd", "-H", self.address, *folders, *networks]
        with (self.home / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        for _ in range(1200):
            if daemons.available(self.address):
                return
            time.sleep(0.1)
        raise AssertionError((self.home / "log").read_text()[-2000:])

    def load(self, image: str) -> None:
        saved = subprocess.Popen(["docker", "save", image], stdout=subprocess.PIPE)
        subprocess.run(["docker", "-H", self.address, "load"], stdin=saved.stdout, check=True, capture_output=True)
        saved.wait()

    def stop(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        self.process.wait(60)


@pytest.fixture
def own(docker: None) -> Iterator[OwnDaemon]:
    have = all(shutil.which(program) for program in ("dockerd", "unshare"))
    need(os.geteuid() == 0 and have, "root, dockerd and unshare, for a daemon of the tests' own")
    home = Path(tempfile.mkdtemp(prefix="agentrl-dockerd-"))
    one = OwnDaemon(home)
    try:
        one.start()
        one.load(TINY.image)
        yield one
    finally:
        if one.process is not None and one.process.poll() is None:
            one.stop()
        with contextlib.suppress(KeyError):
            daemons._daemons.pop(one.address).close()
        for line in reversed(Path("/proc/self/mounts").read_text().splitlines()):
            if str(home) in line.split()[1]:
                subprocess.run(["umount", "-l", line.split()[1]], check=False)
        shutil.rmtree(home, ignore_errors=True)


async def test_a_daemon_stopped_and_restarted_costs_its_sandboxes_and_nothing_more(own: OwnDaemon) -> None:
    spec = TINY.model_copy(update={"daemon": own.address})
    sandbox = await create_docker(spec)
    assert (await sandbox.exec("echo before")).stdout == b"before\n"
    running = asyncio.ensure_future(fails(sandbox, BEGINS, timeout=60))
    assert (await sandbox.exec(HAS_BEGUN)).ok
    await asyncio.to_thread(own.stop)
    await running
    with pytest.raises(DaemonError):
        await create_docker(spec)
    await sandbox.close()
    await asyncio.to_thread(own.start)
    again = await create_docker(spec)
    assert (await again.exec("echo after")).stdout == b"after\n"
    await again.close()


async def test_a_hanging_daemon_is_noticed_and_a_pool_goes_on_when_it_wakes(
    own: OwnDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it holds up fails in bounded time; nothing waits for it for ever."""
    spec = TINY.model_copy(update={"daemon": own.address, "start_timeout": 60.0})
    sandbox: Any = await create_docker(spec)
    sandbox.grace = 1.0
    assert own.process is not None
    own.process.send_signal(signal.SIGSTOP)
    try:
        for _ in range(100):  # on a busy machine, its threads stop one after the other
            if not await sandbox.healthy():
                break
            await asyncio.sleep(0.05)
        else:
            raise AssertionError("a daemon that hangs seems healthy")
        await fails(sandbox)
        monkeypatch.setattr(daemons.Daemon.call, "__kwdefaults__", {"timeout": 2.0})
        with pytest.raises(SandboxError, match="longer than"):
            await create_docker(spec.model_copy(update={"start_timeout": 2.0}))
    finally:
        own.process.send_signal(signal.SIGCONT)
        monkeypatch.undo()
    await asyncio.sleep(0.5)
    pool = SandboxPool(total=2)
    try:
        async with pool.lease(spec, timeout=60) as fresh:
            assert (await fresh.exec("echo awake")).stdout == b"awake\n"
    finally:
        await pool.close()
        await sandbox.close()


async def test_a_daemon_out_of_disk_fails_to_make_sandboxes_and_says_so(own: OwnDaemon) -> None:
    spec = TINY.model_copy(update={"daemon": own.address})
    await asyncio.to_thread(own.stop)
    await asyncio.to_thread(shutil.rmtree, own.home / "data")
    (own.home / "data").mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(own.home / "data")]
    await asyncio.to_thread(subprocess.run, mount, check=True)
    await asyncio.to_thread(own.start)
    await asyncio.to_thread(own.load, TINY.image)
    filler = own.home / "data" / "filler"
    with contextlib.suppress(OSError), filler.open("wb") as file:
        while True:
            file.write(b"x" * 65536)
    with pytest.raises(SandboxError, match="no space left"):
        await create_docker(spec)
    filler.unlink()
    sandbox = await create_docker(spec)
    assert (await sandbox.exec("echo room again")).stdout == b"room again\n"
    await sandbox.close()
