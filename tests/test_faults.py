"""Faults by plan: they fire where and when the plan says, are logged, and runs get over them."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from agentrl import faults
from agentrl.common import processes
from agentrl.config import RolloutConfig
from agentrl.envs.episode import EXPERT
from agentrl.envs.sandboxes import close_all
from agentrl.errors import ConfigError, InfraError
from agentrl.rollout.episodes.groups import Rollouts
from agentrl.rollout.episodes.policies import Policy
from agentrl.sessions.renderers.families.null import NullRenderer
from agentrl.tools.sandbox.docker import daemon
from agentrl.types import Status, Task
from benchmarks.soak_parts import SandboxCalculator
from tests.conftest import need

ROOT = Path(__file__).parents[1]


class Alone(SandboxCalculator):
    """No sandbox but the episode's is created."""

    async def prepare(self, tasks: Sequence[Task], sessions: int) -> None:
        pass


def written(folder: Path, *planned: str, seed: int = 0) -> Path:
    file = folder / "plan.yaml"
    file.write_text(f"seed: {seed}\nfaults:\n" + "".join(f"  - {{{one}}}\n" for one in planned))
    return file


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("action: kil, point: env.step, nth: 1", "'kill', 'stop'"),
        ("action: kill, point: checkpoint.rname, nth: 1", "did you mean 'checkpoint.rename'"),
        ("action: kill, point: env.step, nht: 1", "nht"),
        ("action: kill, point: env.step", "one of nth, chance and every, not none"),
        ("action: kill, point: env.step, nth: 1, chance: 0.5", "not nth and chance"),
        ("action: drop, every: 60", "needs a point"),
        ("action: drop, point: metrics.write, nth: 1", "it can at: engine.reply"),
        ("action: delay, point: env.step, nth: 1, target: engine", "is for action=kill and stop"),
        ("action: delay, point: env.step, nth: 1, seconds: -1", "must be over 0"),
        ("action: stop, point: env.step, nth: 1, target: sandbox", "is for action=kill"),
        ("action: kill, point: env.step, nth: 1, target: engine, pid_file: a.pid", "without a target"),
        ("action: drop, point: env.step, nth: 1, pid_file: a.pid", "pid_file is for action=kill and stop"),
    ],
)
def test_a_mistake_in_a_plan_is_named(fault: str, words: str, tmp_path: Path) -> None:
    file = written(tmp_path, fault)
    with pytest.raises(ConfigError) as caught:
        faults.load(file)
    assert words in str(caught.value)
    assert "faults" in str(caught.value)


@pytest.mark.slow
def test_the_points_of_the_code_are_those_that_a_plan_can_name() -> None:
    sources = [file.read_text() for file in (ROOT / "agentrl").rglob("*.py")]
    used = {name for text in sources for name in re.findall(r"faults\.(?:async_)?point\(\s*\"([a-z.]+)\"", text)}
    assert used == set(faults.POINTS)
    described = (ROOT / "docs" / "faults.md").read_text()
    assert all(f"`{name}`" in described for name in faults.POINTS)


def test_without_a_plan_a_point_returns_what_it_is_given(tmp_path: Path) -> None:
    with faults.inject_faults(None, tmp_path):
        assert faults.point("engine.response", b"data") == b"data"
    assert not (tmp_path / faults.LOG).exists()


def test_faults_fire_at_their_times_and_are_logged_first(tmp_path: Path) -> None:
    plan = written(
        tmp_path,
        "action: drop, point: env.step, nth: 2",
        "action: full_disk, point: metrics.write, nth: 1",
        "action: garble, point: engine.response, nth: 1",
        "action: garble, point: checkpoint.renamed, nth: 1",
    )
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "large").write_bytes(b"x" * 100)
    (tmp_path / "checkpoint" / "small").write_bytes(b"x" * 10)
    with faults.inject_faults(plan, tmp_path):
        faults.point("env.step")
        with pytest.raises(InfraError, match="dropped"):
            faults.point("env.step")
        faults.point("env.step")
        with pytest.raises(OSError, match="No space left") as full:
            faults.point("metrics.write")
        assert full.value.errno == errno.ENOSPC
        assert sum(a != b for a, b in zip(faults.point("engine.response", b"12345"), b"12345", strict=True)) == 1
        faults.point("checkpoint.renamed", tmp_path / "checkpoint")
    assert [file.stat().st_size for file in sorted((tmp_path / "checkpoint").iterdir())] == [50, 10]
    assert [(row["fault"], row["reached"]) for row in faults.list_fired(tmp_path)] == [(0, 2), (1, 1), (2, 1), (3, 1)]


def test_chances_follow_from_the_seed_and_a_resumed_run_counts_on(tmp_path: Path) -> None:
    def fires(folder: Path, seed: int) -> list[int]:
        folder.mkdir(exist_ok=True)
        found = []
        with faults.inject_faults(
            written(folder, "action: drop, point: env.step, chance: 0.3, times: 5", seed=seed), folder
        ):
            for number in range(40):
                try:
                    faults.point("env.step")
                except InfraError:
                    found.append(number)
        return found

    first = fires(tmp_path / "a", 1)
    assert len(first) == 5
    assert first == fires(tmp_path / "b", 1)
    assert first != fires(tmp_path / "c", 2)
    assert fires(tmp_path / "a", 1) == [], "a fault that has fired as often as it may is over, also after a restart"


@pytest.mark.slow
def test_a_fault_without_a_point_comes_by_itself(tmp_path: Path) -> None:
    real = time.time()
    with faults.inject_faults(written(tmp_path, "action: jump_clock, every: 0.001, seconds: -1000"), tmp_path):
        deadline = time.monotonic() + 60
        while not faults.list_fired(tmp_path) or time.time() > real:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert time.time() >= real, "the clock is set right again"


@pytest.mark.slow
def test_a_process_is_killed_whose_number_is_in_a_file(tmp_path: Path) -> None:
    """A reward service, say, which is no child of the run: the fault waits until there is one."""
    pid_file = tmp_path / "service.pid"
    with faults.inject_faults(
        written(tmp_path, f"action: kill, pid_file: {pid_file}, point: env.reward, nth: 1"), tmp_path
    ):
        faults.point("env.reward")
        assert faults.list_fired(tmp_path) == []
        with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as service:
            pid_file.write_text(str(service.pid))
            faults.point("env.reward")
            assert service.wait(60) == -signal.SIGKILL
    assert len(faults.list_fired(tmp_path)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["docker", "subprocess"])
async def test_a_session_gets_another_sandbox_where_its_own_was_killed(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The container is killed while an episode uses it; the episode is an infrastructure error, and not the model's."""
    need(backend != "docker" or daemon.available(), "no Docker daemon answers")
    monkeypatch.setattr(processes, "_sandboxes", {})  # those of earlier tests may still run
    killed = written(tmp_path, "action: kill, target: sandbox, point: env.step, nth: 1")
    task = next(iter(Alone().tasks()))
    rollouts = Rollouts(lambda: Alone(backend), Policy(NullRenderer()), RolloutConfig(), 0)
    with faults.inject_faults(killed, tmp_path):
        [group] = await rollouts.collect([task], EXPERT, phase="train", n=1)
    [row] = faults.list_fired(tmp_path)
    assert row["target"] == "sandbox"
    [session] = group.sessions
    assert (session.status, session.attempt, session.counters["infra_retries"]) == (Status.COMPLETED, 1, 1)
    await close_all()


FULL = """
mount -t tmpfs -o size=14m none "$DISK" || exit 8
if "$@" run_dir="$DISK/run"; then exit 9; fi
df "$DISK"
mount -o remount,size=200m "$DISK"
exec "$1" -m agentrl train resume="$DISK/run"
"""
"""A disk that has room for a run's first checkpoints, and more once the run has failed."""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_whose_disk_is_really_full_says_so_and_is_resumed_once_there_is_room(tmp_path: Path) -> None:
    unshare = ["unshare", "--map-root-user", "--mount"]
    need(not subprocess.run([*unshare, "true"], check=False, capture_output=True).returncode, "no user namespaces")
    train = [sys.executable, "-m", "agentrl", "train", "env=calculator", "warm_start.steps=1", "warm_start.demos=64"]
    sizes = ["rollout.groups_per_step=2", "rollout.group_size=2", "eval.tasks=1", "steps=3", "checkpoint_every=1"]
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "DISK": str(tmp_path),
        "COLUMNS": "500",
    }
    command = [*unshare, "sh", "-c", FULL, "sh", *train, *sizes]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=800, check=False)
    shown = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == 0, shown
    assert "No space left on device" in shown
    assert "resume from step 1" in shown
    assert "resuming" in shown


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_ends_the_same_bit_for_bit_whatever_happens_to_it() -> None:
    """Dropped replies, a locked store, a stopped process, a clock that jumps; and crashes, a full disk, a cut file.

    It trains an adapter, with embeddings in full, on the base that its warm start left.
    """
    command = [sys.executable, "-m", "benchmarks.crash_points", "--points", "2", "--first", "31", "--adapter", "4"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "full_disk at checkpoint" in done.stdout
    assert "garble at checkpoint" in done.stdout
    assert (
        "kill at trainer.step (1), kill at weights.publish (1), kill at checkpoint.rename (1): the same" in done.stdout
    )
    assert "4 of 4 ended as they should" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_of_two_policies_that_dies_at_six_points_ends_the_same_bit_for_bit() -> None:
    """Before, within and after publications and commit; `tests/train/backends/ranks` kills trainers and engines."""
    command = [sys.executable, "-m", "benchmarks.crash_points", "--points", "0", "--team"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("kill at ") == 6
    assert "kill at trainer.step (2), kill at weights.publish (4), kill at step.published (1)" in done.stdout
    assert "2 of 2 ended as they should" in done.stdout
