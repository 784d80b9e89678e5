"""Ranks that stand still are found, and none is left behind by a trainer that was killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agentrl.train.trainers.ranks import heartbeat

BEATING = """
import pathlib, sys, time
sys.path.insert(0, sys.argv[1])
import heartbeat
heartbeat.beat(pathlib.Path(sys.argv[2]))
time.sleep(600)
"""

OWNER = """
import os, signal, socket, sys, time
from agentrl.cluster import forking, keeper, prefork
ours, theirs = socket.socketpair()
environment = {**os.environ, "OMP_NUM_THREADS": "1"}
start = forking.ForkRequest("rank", [], environment, os.getcwd(), "tests.cluster.roles:rank", guarded=False)
rank = prefork.start(start, 1, 2, theirs.fileno())
keeper.Keeper(sys.argv[1]).keep(rank.pid)
os.kill(rank.pid, signal.SIGSTOP)
with open(f"/proc/{rank.pid}/stat") as stat:
    print(rank.pid, stat.read().rpartition(")")[2].split()[1], flush=True)
time.sleep(600)
"""


def until(holds: Callable[[], object], seconds: float = 100.0) -> None:
    """Wait for something to come true."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.1)


def gone(process: int) -> bool:
    return heartbeat._state(process) in ("", "Z")


@pytest.mark.slow
def test_of_two_processes_the_stopped_one_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "STOPPED", 2.0)
    files = [tmp_path / "0", tmp_path / "1"]
    command = [sys.executable, "-S", "-c", BEATING, str(Path(heartbeat.__file__).parent)]
    processes = [subprocess.Popen([*command, str(file)]) for file in files]
    try:
        watch = heartbeat.Watch(files, [process.pid for process in processes], silent=1e9)
        until(lambda: all(file.exists() for file in files))
        assert watch.still() == {}
        processes[1].send_signal(signal.SIGSTOP)
        found: dict[int, str] = {}
        until(lambda: found.update(watch.still()) or found)
        assert list(found) == [1]
        assert f"is stopped: process {processes[1].pid}" in found[1]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_an_engine_that_was_suspended_together_with_the_watcher_does_not_count_as_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(heartbeat.time, "monotonic", lambda: now[0])
    (tmp_path / "0").touch()
    watch = heartbeat.Watch([tmp_path / "0"], [os.getpid()], silent=60)
    for _ in range(20):
        now[0] += 1000
        assert watch.still() == {}
    for _ in range(60):
        now[0] += 1
        found = watch.still()
    assert "has no heartbeat" in found[0]


@pytest.mark.slow
def test_a_stopped_rank_and_its_folder_go_when_the_trainer_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "ranks"
    folder.mkdir()
    command = [sys.executable, "-c", OWNER, str(folder)]
    owner = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    rank, forking = map(int, owner.stdout.readline().split())
    try:
        time.sleep(1)
        assert not gone(rank)
        assert folder.exists()
        owner.kill()
        owner.communicate()
        until(lambda: gone(rank) and gone(forking) and not folder.exists())
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(rank, signal.SIGKILL)
