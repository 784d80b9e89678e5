"""A tiny student that learns from a tiny teacher's log-probabilities: `python -m benchmarks.distillation [--seeds N]`.

The teacher is what reinforcement learning made of an imitation of the calculator's demonstrator, the student that
imitation. Printed are the reverse KL divergence of the student from the teacher, in nats a sampled token, in the first
step and in the mean of the last three, and the held-out rewards. The aim: under 0.05. Its small form, of a quarter of
the steps, is `tests/train/test_distill.py`.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

from rich.console import Console

import agentrl
from agentrl.train.display.console import Display
from benchmarks.machine import machine


def distil(student: Path, teacher: Path, folder: Path, *, steps: int = 24, seed: int = 0, tasks: int = 64) -> float:
    """Train the student; prints what came of it, and returns the divergence in the last three steps."""
    began = time.perf_counter()
    with (folder / "log").open("w") as log:
        result = agentrl.train(
            "calculator",
            model=str(student),
            algo="distill",
            steps=steps,
            seed=seed,
            run_dir=str(folder / "run"),
            display=Display(Console(file=log)),
            **{
                "policies.teacher.model": str(teacher),
                "algo.lr": 5e-4,
                "algo.schedule": "linear",
                "rollout.groups_per_step": 64,
                "rollout.group_size": 1,
                "rollout.turn_tokens": 24,
                "rollout.session_tokens": 400,
                "eval.tasks": tasks,
            },
        )
    rows = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    found = [row["distill/reverse_kl"] for row in rows]
    last = fmean(found[-3:])
    assert result.before is not None
    assert result.after is not None
    print(
        f"seed {seed}: reverse KL {found[0]:.3f} in the first step, {last:.3f} in the last three of {len(rows)}; "
        f"held-out reward {result.before.mean:.3f} -> {result.after.mean:.3f}; {time.perf_counter() - began:.0f} s",
        flush=True,
    )
    return last


def main() -> None:
    """Train a teacher and students."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="students")
    given = parser.parse_args()
    print(machine(), flush=True)
    with TemporaryDirectory() as name:
        folder = Path(name)
        with (folder / "log").open("w") as log:
            settings = {"steps": 28, "algo.schedule": "constant", "checkpoint_every": 100}
            display = Display(Console(file=log))
            teacher = agentrl.train("calculator", seed=0, run_dir=str(folder / "teacher"), display=display, **settings)
        assert teacher.after is not None
        print(f"the teacher's held-out reward: {teacher.after.mean:.3f}", flush=True)
        first, last = sorted((folder / "teacher" / "checkpoints").iterdir())
        for seed in range(given.seeds):
            own = folder / f"student-{seed}"
            own.mkdir()
            distil(first, last, own, seed=seed)


if __name__ == "__main__":
    main()
