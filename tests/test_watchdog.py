"""A process that makes no progress has its stacks written; a slow or stopped one is left alone."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from agentrl import watchdog
from agentrl.watchdog import TICK, Silence, Watchdog


def appears(file: Path, words: str = "") -> str:
    deadline = time.monotonic() + 120
    while not file.exists() or words not in file.read_text():
        assert time.monotonic() < deadline, f"{file.name} was not written"
        time.sleep(0.01)
    return file.read_text()


def test_only_time_without_progress_in_which_the_process_ran_counts() -> None:
    silence = Silence(100.0, now=0.0)
    assert not any(silence.lasted(0.0 + second, count=second) for second in range(1000)), "it makes progress"
    assert not silence.lasted(1_000_000.0, count=999), "it was stopped"
    found = [second for second in range(1, 500) if silence.lasted(1_000_000.0 + second * TICK, count=999)]
    assert found[:3] == [98, 198, 298]


@pytest.mark.slow
def test_a_hang_is_written_down_with_what_each_thread_and_task_waits_for(tmp_path: Path) -> None:
    async def waits_for_nothing() -> None:
        await asyncio.Event().wait()

    async def outer() -> None:
        await waits_for_nothing()

    async def run() -> list[Path]:
        found: list[Path] = []
        work = asyncio.create_task(outer(), name="the one that hangs")
        with Watchdog(tmp_path, 0.05, lambda seconds, file: found.append(file)):
            await asyncio.to_thread(appears, tmp_path / "stacks-2.txt", "child process")
        work.cancel()
        return found

    stopped = threading.Event()
    threading.Thread(target=stopped.wait, name="a waiting thread", daemon=True).start()
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        found = asyncio.run(run())
    finally:
        child.kill()
        child.wait()
        stopped.set()
    text = found[0].read_text()
    assert "a waiting thread" in text
    assert "the one that hangs" in text
    assert "outer" in text.partition("the one that hangs")[2].partition("waits_for_nothing")[0]
    assert str(child.pid) in text
    assert len(found) >= 2, "it is written again as long as nothing progresses"


@pytest.mark.slow
def test_a_signal_has_the_stacks_written_at_once(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGUSR1)
    with Watchdog(tmp_path, None, lambda seconds, file: None):
        os.kill(os.getpid(), signal.SIGUSR1)
        assert "MainThread" in appears(tmp_path / "stacks-1.txt", "MainThread")
        assert appears(tmp_path / watchdog.SIGNAL_FILE, "test_watchdog")
    assert signal.getsignal(signal.SIGUSR1) == before


@pytest.mark.slow
def test_a_run_that_hangs_says_where_and_ends_where_it_shall(tmp_path: Path) -> None:
    plan, run = tmp_path / "plan.yaml", tmp_path / "run"
    plan.write_text("faults: [{action: delay, point: trainer.step, nth: 1, seconds: 100000}]")
    small = ["env=calculator", "warm_start.steps=0", "rollout.groups_per_step=1", "eval.tasks=1", f"run_dir={run}"]
    ends = ["watchdog.timeout=6", "watchdog.end=true", "grace=1", f"faults={plan}"]
    command = [sys.executable, "-m", "agentrl", "train", *small, *ends]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 128 + signal.SIGTERM, done.stdout + done.stderr
    assert "no progress" in done.stdout
    assert "MainThread" in (run / "stacks-1.txt").read_text()
