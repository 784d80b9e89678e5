"""The contract of a cluster, for each implementation."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest

from agentrl.cluster import Cluster, LocalCluster, Role, Worker, connect
from agentrl.common import garbage
from agentrl.common.imports import load
from agentrl.errors import ConfigError, DeadlineExceeded, InfraError
from tests.cluster.test_server import alive, until

pytestmark = pytest.mark.slow

COUNTER = Role("environments", "tests.cluster.roles:Counter", (5,), threads=1)
SOON, LONG, SILENCE = 0.3, 240.0, 2.0


@pytest.fixture(scope="module", params=["local", "ray"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    logs = tmp_path_factory.mktemp("logs")
    if request.param == "ray":
        nodes = request.getfixturevalue("ray_nodes")
        from agentrl.cluster.ray.cluster import RayCluster

        found: Cluster = RayCluster(nodes.address, logs)
    else:
        found = LocalCluster(logs)
    yield found
    found.close()


@pytest.fixture(scope="module")
def started(cluster: Cluster) -> Worker:
    worker = cluster.spawn(COUNTER)
    worker.wait_ready(LONG)
    return worker


@pytest.fixture
async def worker(started: Worker) -> AsyncIterator[Worker]:
    yield started
    assert started.poll() is None


async def test_a_roles_process_collects_garbage_as_seldom_as_a_run(worker: Worker) -> None:
    assert await worker.call("thresholds", timeout=LONG) == garbage.THRESHOLDS


async def test_a_role_is_called_by_name_from_event_loops_and_from_threads(worker: Worker) -> None:
    before = await worker.call("count", timeout=LONG)
    assert await worker.call("add", 2, timeout=LONG) == before + 2
    assert await asyncio.to_thread(worker.run, "add", 3, timeout=LONG) == before + 5
    assert await worker.call("process", timeout=LONG) != os.getpid()


async def test_what_yields_is_streamed_in_order(worker: Worker) -> None:
    assert [item async for item in worker.stream("slowly", 50, timeout=LONG)] == list(range(50))
    assert [item async for item in worker.stream("up_to", 50, timeout=LONG)] == list(range(50))
    assert list(worker.iterate("up_to", 3, timeout=LONG)) == [0, 1, 2]


async def test_a_call_past_its_deadline_is_cancelled_in_the_worker(worker: Worker) -> None:
    with pytest.raises(DeadlineExceeded):
        await worker.call("forever", timeout=SOON)
    with pytest.raises(DeadlineExceeded):
        worker.run("forever", timeout=SOON)
    await asyncio.to_thread(until, lambda: worker.run("waiting", timeout=LONG) == 0, "they go on")


async def test_leaving_a_stream_early_ends_it(worker: Worker) -> None:
    async with aclosing(worker.stream("slowly", 10**6, timeout=LONG)) as items:
        async for item in items:
            if item == 3:
                break
    assert await worker.call("add", 0, timeout=LONG) >= 5


async def test_errors_arrive_as_they_are_or_with_their_traceback_and_node(worker: Worker) -> None:
    with pytest.raises(ConfigError, match="the user must change that"):
        await worker.call("refuse", timeout=LONG)
    with pytest.raises(InfraError, match="broken inside") as found:
        await worker.call("fail", timeout=LONG)
    assert f"on {worker.node}" in str(found.value)
    assert "roles.py" in str(found.value)
    with pytest.raises(InfraError, match="function"):
        await worker.call("unpicklable", timeout=LONG)


async def test_another_worker_reaches_it_by_its_address_and_key_alone(cluster: Cluster, worker: Worker) -> None:
    other = cluster.spawn(COUNTER)
    await other.ready(LONG)
    before = await worker.call("count", timeout=LONG)
    assert await other.call("add_at", worker.address, 7, timeout=LONG) == before + 7
    with pytest.raises(InfraError, match="refused"):
        connect(replace(worker.address, key=b"another"))
    await other.close()


async def test_a_worker_that_dies_fails_its_calls_with_the_end_of_its_log(cluster: Cluster) -> None:
    worker = cluster.spawn(COUNTER)
    await worker.ready(LONG)
    call = asyncio.create_task(worker.call("forever", timeout=LONG))
    os.kill(await worker.call("process", timeout=LONG), signal.SIGKILL)
    with pytest.raises(InfraError, match="died"):
        await call
    assert "died" in str(await asyncio.wrap_future(worker.ended))
    with pytest.raises(InfraError, match="died"):
        await worker.call("count", timeout=LONG)
    await worker.close()


async def test_one_that_is_stopped_is_ended_after_its_silence_and_one_that_works_is_not(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other works for longer, in native code that holds Python's global lock."""
    monkeypatch.setattr(cluster, "silence_timeout", SOON)
    stopped, working = cluster.spawn(COUNTER), cluster.spawn(COUNTER)
    await asyncio.gather(stopped.ready(LONG), working.ready(LONG))
    work = asyncio.create_task(working.call("hold", timeout=None))
    call = asyncio.create_task(stopped.call("forever", timeout=None))
    os.kill(await stopped.call("process", timeout=LONG), signal.SIGSTOP)
    with pytest.raises(InfraError, match=r"process \d+ has shown no life for 0.3 s \(cluster.silence_timeout\)"):
        await call
    assert "shown no life" in str(await asyncio.wrap_future(stopped.ended))
    assert await work > 1e6
    assert working.poll() is None
    await asyncio.gather(stopped.close(), working.close())


async def test_closing_ends_it_with_what_it_started_and_fails_its_calls(cluster: Cluster) -> None:
    worker = cluster.spawn(COUNTER)
    await worker.ready(LONG)
    child = await worker.call("start_child", timeout=LONG)
    call = asyncio.create_task(worker.call("forever", timeout=LONG))
    await asyncio.sleep(0)
    await worker.close()
    with pytest.raises(InfraError, match="closed"):
        await call
    await asyncio.to_thread(until, lambda: not alive(child), "what it started goes on")


async def test_a_close_that_is_cancelled_ends_the_worker_before_it_ends_itself(cluster: Cluster) -> None:
    """Else its thread goes on while the cluster is left, and holds up the end of the event loop."""
    worker = cluster.spawn(COUNTER)
    await worker.ready(LONG)
    process = await worker.call("process", timeout=LONG)
    closing = asyncio.create_task(worker.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert not alive(process)


async def test_a_role_that_can_not_be_built_says_why(cluster: Cluster) -> None:
    worker = cluster.spawn(replace(COUNTER, arguments=(-1,)))
    with pytest.raises(ConfigError, match="must not be negative"):
        await worker.ready(LONG)
    await worker.close()


async def test_arguments_may_have_classes_of_a_file_that_was_imported_by_its_path(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Settings of a plug-in that was given as a file could not be read in a worker, which died."""
    (tmp_path / "mine.py").write_text("class Five(int):\n    pass\n")
    five = load(f"{tmp_path / 'mine.py'}:Five", "the test")
    worker = cluster.spawn(replace(COUNTER, arguments=(five(5),)))
    await worker.ready(LONG)
    assert await worker.call("add", 1, timeout=LONG) == 6
    await worker.close()


def test_each_worker_has_a_log_in_the_runs_folder_that_begins_with_who_it_is(cluster: Cluster, started: Worker) -> None:
    logs: Path = cluster.logs  # type: ignore[attr-defined]
    process = started.run("process", timeout=LONG)
    first = [log.read_text().partition("\n")[0] for log in logs.glob("environments-*.log")]
    assert first.count(f"environments on {started.node}, process {process}") == 1


def test_a_local_role_that_is_not_built_in_time_is_no_role_that_died() -> None:
    """DeadlineExceeded is an OSError, and was reported as "died with exit status None"."""
    cluster = LocalCluster()
    worker = cluster.spawn(Role("environments", "tests.cluster.roles:NotAtOnce"))
    with pytest.raises(DeadlineExceeded, match=r"not ready within 0 s"):
        worker.wait_ready(0.0)
    cluster.close()
