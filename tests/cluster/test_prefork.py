"""Workers that are forked: as new Pythons are, and started in a moment."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from agentrl.cluster import Role, Worker, prefork
from agentrl.cluster.local import LocalCluster
from tests.cluster.test_server import until
from tests.conftest import need

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="workers are forked on Linux alone"),
]


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    opened = LocalCluster()
    yield opened
    opened.close()


def started(cluster: LocalCluster, **given: Any) -> Worker:
    worker = cluster.spawn(Role("environments", "tests.cluster.roles:Inside", **{"threads": 1, **given}))
    worker.wait_ready(120)
    return worker


def forked(worker: Worker) -> bool:
    return isinstance(worker.process.server._process, prefork.Forked)  # type: ignore[attr-defined]


def test_a_forked_worker_finds_what_a_new_python_would(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its environment, working directory, import path, signals, threads, standard streams and open files.

    Modules are looked for where this process looks: one of the working directory took the place of Python's own.
    """
    (tmp_path / "heapq.py").write_text("raise RuntimeError")
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "beside.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path / "scripts")
    started(cluster)  # whose process goes on, with another environment and folder
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OF_THIS_TEST", "a \udcff b")
    reports = []
    for more in ({}, {"environment": {"HF_HOME": str(tmp_path)}}):
        worker = started(cluster, threads=2, loads=("torch", "numpy"), **more)
        assert forked(worker) is (not more)
        reports.append(worker.run("report", timeout=120))
    of_fork, of_new = reports
    assert of_fork.pop("HF_HOME") is None
    assert of_new.pop("HF_HOME") == str(tmp_path)
    assert of_fork == of_new


def test_forked_workers_draw_different_random_numbers(cluster: LocalCluster) -> None:
    drawn = [started(cluster, loads=("numpy",)).run("draw", timeout=120) for _ in range(3)]
    for library in zip(*drawn, strict=True):
        assert len(set(library)) == 3


def test_what_forks_has_one_thread_after_all_that_roles_load(cluster: LocalCluster) -> None:
    """A lock that another thread holds at a fork is never released in the copy."""
    loads = (
        "agentrl.rollout.engines.local.engine_role",
        "agentrl.train.trainers.fsdp.rank",
        "agentrl.train.driver.session_worker",
    )
    worker = started(cluster, loads=loads)
    assert forked(worker)
    assert psutil.Process(worker.process.server.pid).parent().num_threads() == 1  # type: ignore[attr-defined]


def test_a_role_whose_modules_change_others_is_forked_by_a_process_of_its_own(cluster: LocalCluster) -> None:
    workers = [started(cluster, apart=apart) for apart in ("", "of this test", "of this test")]
    assert all(forked(worker) for worker in workers)
    parents = [psutil.Process(worker.process.server.pid).parent() for worker in workers]  # type: ignore[attr-defined]
    assert parents[0] != parents[1] == parents[2]


def test_a_worker_ends_with_its_guard_and_what_forks_them_stays(cluster: LocalCluster) -> None:
    worker = started(cluster)
    process = worker.run("process", timeout=60)
    os.kill(worker.process.server.pid, signal.SIGKILL)  # type: ignore[attr-defined]
    until(lambda: not psutil.pid_exists(process), "a worker goes on without its guard")
    until(lambda: worker.process.poll() is not None, "nobody hears of the guard's end")
    assert started(cluster).run("process", timeout=60) != process


def test_workers_outlive_what_forked_them_and_the_next_start_begins_another(cluster: LocalCluster) -> None:
    first = started(cluster)
    assert forked(first)
    before = psutil.Process(first.process.server.pid).parent()  # type: ignore[attr-defined]
    before.kill()
    until(lambda: not prefork._own[None, ""].alive, "its end is not noticed")
    assert first.run("process", timeout=60)
    second = started(cluster)
    assert forked(second)
    assert psutil.Process(second.process.server.pid).parent() != before  # type: ignore[attr-defined]


def test_after_this_process_changed_its_environment_workers_are_forked_with_the_new_one(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started(cluster)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert [forked(started(cluster)) for _ in range(3)] == [False, True, True]


def test_a_role_that_can_not_be_imported_is_an_error_and_the_next_one_starts(cluster: LocalCluster) -> None:
    worker = cluster.spawn(Role("environments", "agentrl.no_such_module:Role", threads=1))
    with pytest.raises(Exception, match="no_such_module"):
        worker.wait_ready(60)
    assert forked(started(cluster))


def test_a_worker_that_exits_has_its_exit_status(cluster: LocalCluster) -> None:
    worker = started(cluster)
    with pytest.raises(Exception, match="exit status 7"):
        worker.run("leave", 7, timeout=60)
    assert worker.process.server.exit_status == 7  # type: ignore[attr-defined]


def test_a_container_that_shares_the_machines_network_shares_no_process_that_forks() -> None:
    """A worker of the one would be forked among the files of the other."""
    apart = ["unshare", "--user", "--map-root-user", "--mount"]
    can = shutil.which("unshare") and subprocess.run([*apart, "true"], capture_output=True).returncode == 0
    need(bool(can), "namespaces of one's own (unshare)")
    code = "from agentrl.cluster import prefork; print(prefork.shared_name())"
    there = subprocess.run([*apart, sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert there.stdout.strip().startswith("agentrl-prefork-")
    assert there.stdout.strip() != prefork.shared_name()


def test_what_another_owner_has_begun_is_joined_once_it_listens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two owners that began at once, the slower one had each worker loaded anew."""
    with socket.socket(socket.AF_UNIX) as theirs:
        theirs.bind(f"\0{tmp_path.name}")
        begin, ended = prefork._begin, list[int]()

        def begin_and_wait(where: str, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
            process = begin(where, environment)
            ended.append(process.wait())
            if len(ended) > 1:
                theirs.listen()
            return process

        monkeypatch.setattr(prefork, "_begin", begin_and_wait)
        prefork._begin_process(tmp_path.name, os.environ).close()
        assert ended == [0, 0]


def test_owners_that_share_what_forks_by_a_name_end_with_it_one_by_one(tmp_path: Path) -> None:
    """As the starters of a run on one of Ray's nodes do; it ends when the last of them has."""
    code = (
        "import sys, time\n"
        "from agentrl.cluster import Role\n"
        "from agentrl.cluster.base import Worker\n"
        "from agentrl.cluster.local import LocalProcess\n"
        "role = Role('environments', 'tests.cluster.roles:Inside', threads=1)\n"
        f"worker = Worker(role, LocalProcess(role, None, prefork_name={tmp_path.name!r}))\n"
        "worker.wait_ready(120)\n"
        "print(worker.run('process', timeout=60), flush=True)\n"
        "time.sleep(600)\n"
    )
    owners = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        workers = [int(owner.stdout.readline()) for owner in owners if owner.stdout]
        guards = [psutil.Process(worker).parent() for worker in workers]
        shared = {guard.parent() for guard in guards}
        assert len(shared) == 1, "each has one of its own"
        for owner, worker in zip(owners, workers, strict=True):
            assert all(one.is_running() for one in shared)
            assert psutil.pid_exists(worker)
            owner.kill()
            until(lambda worker=worker: not psutil.pid_exists(worker), "a worker outlives its owner")  # type: ignore[misc]
        until(lambda: not any(one.is_running() for one in shared), "what forks outlives the last owner")
    finally:
        for owner in owners:
            owner.kill()
            owner.communicate()
