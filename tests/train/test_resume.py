"""A run that is killed goes on bit for bit."""

from __future__ import annotations

import json
import multiprocessing
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import agentrl
from agentrl.rollout.episodes.groups import TRAIN
from agentrl.rollout.stream.outcomes import TRAINED
from agentrl.sessions.store.store import Store
from agentrl.train.record import ledger
from agentrl.train.record.files import whole_lines
from benchmarks.soak import ours

SETTINGS: dict[str, Any] = {
    **{"env": "calculator", "env.max_steps": 2, "warm_start.steps": 40, "warm_start.demos": 64, "warm_start.batch": 8},
    **{"rollout.groups_per_step": 4, "rollout.group_size": 4, "eval.tasks": 2, "algo.lr": 1e-3, "seed": 3},
    **{"checkpoint_every": 1, "keep_checkpoints": 1, "steps": 4},
}


def words(settings: dict[str, Any]) -> list[str]:
    """Settings as a command has them."""
    return [f"{key}={value}" for key, value in settings.items()]


def start(*words: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "agentrl", "train", *words]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def exit_code_of(work: Callable[[], object]) -> int | None:
    """The exit code of a process forked from this one, which has imported what it needs; -N: signal N ended it."""
    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join(400)
    ended = not process.is_alive()
    process.kill()
    process.join()
    assert ended, "it does not end"  # which must not count as killed by signal 9
    return process.exitcode


def kill_amid(work: Callable[[], object], far_enough: Callable[[], bool]) -> None:
    """Kill a process that does the work, forked from this one, once it has come far enough."""
    process, deadline = multiprocessing.get_context("fork").Process(target=work), time.monotonic() + 400
    process.start()
    try:
        while not far_enough():
            assert process.is_alive(), "the run ended before it could be killed"
            assert time.monotonic() < deadline
            time.sleep(0.005)
    finally:
        process.kill()
        process.join()
    assert process.exitcode == -signal.SIGKILL


def end(process: subprocess.Popen[bytes], number: signal.Signals, far_enough: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 400
    while not far_enough():
        assert process.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(number)
    process.communicate(timeout=400)


def copy_before(run: Path, step: int, killed: Path) -> None:
    """Copy a run as a kill leaves it that comes after a step's rows and before its checkpoint, the newest."""
    shutil.copytree(run, killed)
    newest = killed / "checkpoints" / f"step-{step:06d}"
    assert newest == max((killed / "checkpoints").glob("step-*"))
    shutil.rmtree(newest)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """The folder of a whole run by an algorithm and `engine.process`, made once, in this process."""

    @cache
    def run(algo: str, process: str) -> Path:
        path = tmp_path_factory.mktemp("straight") / algo
        agentrl.train(**SETTINGS, algo=algo, **{"engine.process": process, "run_dir": str(path)})
        return path

    return run


def left_after_seconds(run: Path) -> list[str]:
    """The run's processes that are still there after two minutes; killed ones take a while on a busy machine."""
    deadline = time.monotonic() + 120
    while (left := ours(run)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return [str(process) for process in left]


def rows(run: Path) -> list[dict[str, Any]]:
    """A run's metrics without what depends on the machine; the run may be writing them."""
    clocks = ("time/", "throughput/", "stream/", "resumed/", "count/infra_retries")
    lines = whole_lines(run / "metrics.jsonl")
    return [{k: v for k, v in json.loads(line).items() if not k.startswith(clocks)} for line in lines]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("algo", "number", "process"), [("grpo", signal.SIGKILL, "shared"), ("ppo", signal.SIGTERM, "own")]
)
def test_four_steps_straight_equal_two_a_kill_and_two_more_to_the_last_bit(
    algo: str, number: signal.Signals, process: str, straight: Callable[[str, str], Path], tmp_path: Path
) -> None:
    """SIGKILL leaves the newest checkpoint; SIGTERM has the run save one where none is due.

    The run that gets SIGTERM has its engine in a process of its own; resumed, it gets SIGINT as well. What is killed is
    the command line's process; the run that is not, and the last resumption, are this process's.
    """
    whole, killed = straight(algo, process), tmp_path / "killed"
    settings = SETTINGS | {"algo": algo, "engine.process": process, "run_dir": killed}

    def far_enough() -> bool:
        if number is signal.SIGKILL:  # the second step's checkpoint is removed when there is the third's
            return any(found.name >= "step-000002" for found in (killed / "checkpoints").glob("step-*"))
        return (killed / "metrics.jsonl").exists() and b"\n" in (killed / "metrics.jsonl").read_bytes()

    victim = start(*words(settings | {"checkpoint_every": 1 if number is signal.SIGKILL else 1000}))
    end(victim, number, far_enough)
    assert victim.returncode == (-signal.SIGKILL if number is signal.SIGKILL else 128 + signal.SIGTERM)
    assert not (killed / "checkpoints" / "step-000004").exists(), "killed too late to prove anything"
    if number is signal.SIGTERM:
        saved = [path.name for path in (killed / "checkpoints").iterdir()]
        assert len(saved) == 1, saved
        assert saved[0] > "step-000000", "nothing of what was learned is saved"
        assert left_after_seconds(killed) == []
        before = len(rows(killed))
        again = start(f"resume={killed}")
        end(again, signal.SIGINT, lambda: len(rows(killed)) > before)
        assert again.returncode == 128 + signal.SIGINT
        assert left_after_seconds(killed) == []
    shutil.rmtree(killed / "model")  # then engines and exports need another folder, and checkpoints are pruned
    agentrl.train(resume=str(killed))

    assert rows(killed) == rows(whole)
    assert ledger.read(killed) == ledger.read(whole)
    assert list(ledger.faults(killed)) == []
    assert any(row.get("grad_norm") for row in rows(whole)), "nothing was learned, so nothing was compared"
    one, two = (load_file(run / "checkpoints" / "step-000004" / "model.safetensors") for run in (whole, killed))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)
    with Store(whole / "sessions.db") as a, Store(killed / "sessions.db") as b:
        assert a.ids() == b.ids()
        assert all(a.load(i).nodes == b.load(i).nodes for i in a.ids())
        turns = [sum(node.sampled for node in session.nodes) for session in a.sessions(phase=TRAIN)]
    assert max(turns) > 1, "no session has called its tool"


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_along_the_history_of_a_killed_asynchronous_run_each_group_is_trained_once(tmp_path: Path) -> None:
    path = tmp_path / "run"
    settings = SETTINGS | {"warm_start.steps": 2, "steps": 7, "rollout.groups_per_step": 2, "checkpoint_every": 3}
    settings |= {"rollout.staleness": 2, "rollout.order": "ready", "weights.mode": "abort", "run_dir": str(path)}

    def beyond_its_checkpoint() -> bool:
        lines = (path / "metrics.jsonl").read_bytes().count(b"\n") if (path / "metrics.jsonl").exists() else 0
        return lines >= 4 and lines % 3 > 0

    kill_amid(lambda: agentrl.train(**settings), beyond_its_checkpoint)
    assert list(ledger.faults(path)) == []
    agentrl.train(resume=str(path))
    assert list(ledger.faults(path)) == []
    trained = [entry for entry in ledger.read(path) if entry.outcome.outcome == TRAINED]
    assert [entry.step for entry in trained] == [step for step in range(1, 8) for _ in range(2)]
    assert all(entry.step - 1 - entry.outcome.begun <= 2 for entry in trained)


@pytest.mark.slow
def test_a_checkpoint_is_a_folder_that_transformers_loads(straight: Callable[[str, str], Path]) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    run = straight("grpo", "shared")
    folder = run / "checkpoints" / "step-000004"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "12*7"}], return_tensors="pt", return_dict=False)
    logits = AutoModelForCausalLM.from_pretrained(folder)(ids).logits
    assert torch.isfinite(logits).all()
    assert (run / "learning_curve.png").stat().st_size > 5000
    assert "**assistant**" in (run / "transcripts" / "after.md").read_text()
