"""What a crashed controller leaves, and that only that is reaped."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.tools.sandbox.docker import owner, reaper
from agentrl.tools.sandbox.docker.backend import create_docker
from agentrl.tools.sandbox.docker.daemon import WORKERS, daemon
from agentrl.tools.sandbox.docker.reaper import find, reap
from agentrl.tools.sandbox.runner.loop import on_loop
from tests.tools.sandbox.conftest import SMALL, TINY

REPO = Path(__file__).resolve().parents[3]


def python(program: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program], cwd=REPO, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.slow
def test_an_owner_is_alive_until_its_process_is_gone_and_unknown_ones_are_never_judged() -> None:
    other = python("from agentrl.tools.sandbox.docker.owner import owner; print(owner().id, flush=True); input()")
    try:
        name = said(other)
        assert owner.alive(name) is True
        age = owner.heartbeat_age(name)
        assert age is not None
    finally:
        other.kill()
        other.wait()
    assert owner.alive(name) is False
    assert owner.alive(owner.owner().id) is True
    assert owner.alive("elsewhere-1-abc") is None
    assert owner.alive("../../etc/passwd") is None
    assert owner.alive("") is None


CONTROLLER = """
import asyncio
from agentrl.tools.sandbox.docker.daemon import daemon
from agentrl.tools.sandbox.docker.container import create_container
from agentrl.tools.sandbox.docker.backend import create_docker
from agentrl.tools.sandbox.runner.loop import on_loop
from tests.tools.sandbox.conftest import SMALL, TINY
async def main():
    running, paused, exited = await asyncio.gather(*(create_docker(TINY) for _ in range(3)))
    d = daemon()
    created = await on_loop(create_container(d, TINY))
    plain = await create_docker(TINY.model_copy(update={"runner": "none"}))
    await asyncio.to_thread(d.api.pause, paused.id); await asyncio.to_thread(d.api.kill, exited.id)
    print(running.id, paused.id, exited.id, created, plain.id, flush=True)
    await running.exec("sleep 600", timeout=900)
asyncio.run(main())
"""


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Owners that only this test and its processes know: nobody else reaps their containers."""
    monkeypatch.setenv("AGENTRL_STATE", str(tmp_path))


@pytest.mark.slow
async def test_what_a_controller_killed_with_9_leaves_is_reaped_by_the_next_and_nothing_else(
    docker: None, apart: None
) -> None:
    ours = await create_docker(TINY)
    labels = {owner.LABEL: "1", owner.OWNER: "another-machine-17-ffff", owner.CREATED: "1"}
    api = daemon().api
    foreign = api.create_container(TINY.image, ["true"], labels=labels, network_disabled=True)["Id"]
    unlabelled = api.create_container(TINY.image, ["true"], network_disabled=True)["Id"]
    controller = python(CONTROLLER)
    try:
        left = set(said(controller).split())
        assert len(left) == 5
        assert left <= {one.id for one in await find()}
        assert not left & {one.id for one in await reap()}, "its owner was alive"
        os.kill(controller.pid, signal.SIGKILL)
        controller.wait()
        states = {one.state for one in await find() if one.id in left}
        assert {"paused", "created", "exited"} <= states
        assert left <= {one.id for one in await reap(dry_run=True)}
        assert left <= {one.id for one in await reap()}
        there = {container["Id"] for container in api.containers(all=True)}
        assert not there & left
        assert {ours.id, foreign, unlabelled} <= there
        assert await ours.healthy()
    finally:
        controller.kill()
        controller.wait()
        for one in (foreign, unlabelled):
            api.remove_container(one, force=True)
        await ours.close()


ONE = """
import asyncio
from agentrl.tools.sandbox.docker.backend import create_docker
from tests.tools.sandbox.conftest import TINY
async def main():
    print((await create_docker(TINY)).id, flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


@pytest.mark.slow
async def test_those_that_remain_remove_what_a_killed_process_leaves(
    docker: None, apart: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaper, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(reaper, "_watched", set())
    await reaper.watch()
    await reaper.watch()  # another environment's sandboxes
    assert len(reaper._watched) == 1
    controllers = [python(ONE), python(ONE)]
    try:
        left, kept = map(said, controllers)
        controllers[0].kill()
        controllers[0].wait()
        while left in (there := {one.id for one in await find()}):  # noqa: ASYNC110 (the daemon has no event for it)
            await asyncio.sleep(0.05)
        assert kept in there
    finally:
        for controller in controllers:
            controller.kill()
            controller.wait()
        await reap()


SILENT = """
import asyncio
from agentrl.tools.sandbox.docker.backend import create_docker
from tests.tools.sandbox.conftest import TINY
async def main():
    s = await create_docker(TINY.model_copy(update={"lease": 5.0}))
    await asyncio.sleep(6)  # longer than the lease: the heartbeat keeps it
    assert await s.healthy()
    print(s.id, flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


@pytest.mark.slow
async def test_a_sandbox_whose_controller_falls_silent_ends_by_itself(docker: None) -> None:
    controller = python(SILENT)
    try:
        id = said(controller)
        os.kill(controller.pid, signal.SIGSTOP)
        api = daemon().api
        async with asyncio.timeout(120):
            while (await on_loop(daemon().call(api.inspect_container, id)))["State"]["Status"] != "exited":  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    finally:
        controller.kill()
        controller.wait()
        await reap()


@pytest.mark.slow
async def test_forty_lives_with_faults_leave_no_container_volume_thread_or_descriptor(docker: None) -> None:
    import threading

    from agentrl.tools.sandbox.base import SandboxDied

    api = daemon().api
    together = threading.Barrier(WORKERS)

    def held() -> tuple[int, int, int, int]:
        containers = api.containers(all=True, filters={"label": f"{owner.OWNER}={owner.owner().id}"})
        volumes = api.volumes()["Volumes"] or []
        api.close()  # idle connections: how many it keeps is chance
        return len(containers), len(volumes), threading.active_count(), len(os.listdir("/proc/self/fd"))

    async def life(number: int) -> str:
        sandbox = await create_docker(SMALL)
        try:
            if number % 10 == 3:
                await on_loop(daemon().call(api.kill, sandbox.id))
            return (await sandbox.exec("echo lived")).stdout.decode().strip()
        except SandboxDied:
            return "died"
        finally:
            await sandbox.close()

    await asyncio.gather(*(daemon().call(together.wait) for _ in range(WORKERS)))  # every thread of its pool
    await asyncio.gather(*(life(number) for number in range(8)))
    before = held()
    ends = []
    for start in range(0, 40, 8):
        ends += await asyncio.gather(*(life(number) for number in range(start, start + 8)))
    assert ends.count("died") == 4
    assert ends.count("lived") == 36
    for _ in range(1200):  # a busy machine ends threads late
        if all(now <= then for now, then in zip(held(), before, strict=True)):
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"containers, volumes, threads, descriptors: {held()}, where there were {before}")
