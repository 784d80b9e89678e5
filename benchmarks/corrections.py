"""What staleness costs in samples, with corrections and without: the calculator, over several seeds.

    python -m benchmarks.corrections [--seeds 5] [--steps 60] [--tasks 512] [--every 2] [--bound 0.9]
        [--staleness 0 4 8] [--start FOLDER]

An expert is imitated once, as `agentrl train env=calculator` does (`--start` names a model that has been through this).
From that model each seed's runs go on with the calculator's own settings and another `rollout.staleness`: 0, the
synchronous run; 4 with decoupled PPO and truncated weights; 8 with a proximal policy that is recomputed and no weight,
so that nothing corrects for the policy that sampled. A run ends with the first evaluation that reaches the bound, or
after `--steps`. Printed: the sessions that were trained until then, the best evaluation, and how many versions the
trained tokens were behind on average; at the end, for each setting, the sum of these sessions over the seeds.
`--seeds 1 --steps 6 --tasks 16` is a short form.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import agentrl
from agentrl.envs.builtin.calculator import Calculator
from agentrl.train.display.console import Display
from agentrl.train.driver import setup
from agentrl.train.driver.interrupt import Stopped
from benchmarks.machine import machine

RECOMPUTED = {"algo.correction.proximal": "recomputed"}
SETTINGS: dict[int, dict[str, Any]] = {
    0: {},
    4: {**RECOMPUTED, "algo.correction.weight": "token", "algo.correction.weight_max": 2.0},
    8: RECOMPUTED,
}
"""By `rollout.staleness`."""
CONCURRENCY = 128
"""A step's sessions, and as many as the engine generates at once: more would be begun early and wait in its queue."""


class UntilBound(Display):
    """Has the run end once an evaluation has reached a reward."""

    def __init__(self, bound: float) -> None:
        super().__init__()
        self.bound = bound

    def step(self, metrics: Mapping[str, float], curve: float) -> None:
        """A step has ended."""
        super().step(metrics, curve)
        if metrics.get("eval/mean", 0.0) >= self.bound:
            self.request_stop()


def imitate(folder: Path) -> str:
    """The folder of a model that has imitated the expert, and has learned nothing else."""
    settings: dict[str, Any] = {"steps": 1, "eval.tasks": 1, "checkpoint_every": 1}
    run = agentrl.train("calculator", run_dir=str(folder / "start"), **settings)
    return str(run.path / "checkpoints" / "step-000000")


def train(staleness: int, seed: int, start: str, words: argparse.Namespace, folder: Path) -> tuple[float, bool]:
    """One run; prints it. The sessions that it trained, and whether it reached the bound."""
    settings = dict(setup.TINY_RECIPE) | Calculator.recipe(setup.TINY) | {"warm_start.steps": 0, "model": start}
    settings |= {"eval.every": words.every, "eval.tasks": words.tasks, "steps": words.steps}
    settings |= {"rollout.staleness": staleness, "rollout.concurrency": CONCURRENCY, **SETTINGS[staleness]}
    run = folder / f"{staleness} {seed}"
    with suppress(Stopped):
        agentrl.train("calculator", seed=seed, run_dir=str(run), display=UntilBound(words.bound), **settings)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    best = max(row.get("eval/mean", 0.0) for row in rows)
    # An asynchronous run may have a step under way when it is asked to stop.
    ended = next((i for i, row in enumerate(rows) if row.get("eval/mean", 0.0) >= words.bound), len(rows) - 1)
    sessions = sum(row["sessions/count"] for row in rows[: ended + 1])
    behind = statistics.fmean(row.get("staleness/mean", 0.0) for row in rows)
    print(
        f"seed {seed}, staleness {staleness}: {sessions:.0f} sessions to {best:.3f}; {behind:.2f} versions behind",
        flush=True,
    )
    return sessions, best >= words.bound


def main() -> None:
    """Train every mode with each seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--tasks", type=int, default=512)
    parser.add_argument("--every", type=int, default=2)
    parser.add_argument("--bound", type=float, default=0.9)
    parser.add_argument("--staleness", type=int, nargs="+", default=list(SETTINGS), choices=SETTINGS)
    parser.add_argument("--start")
    words = parser.parse_args()
    print(machine())
    runs: dict[int, list[tuple[float, bool]]] = {staleness: [] for staleness in words.staleness}
    with TemporaryDirectory() as name:
        folder = Path(name)
        start = words.start or imitate(folder)
        for seed in range(words.seeds):
            for staleness, found in runs.items():
                found.append(train(staleness, seed, start, words, folder))
    totals = {staleness: sum(sessions for sessions, _ in found) for staleness, found in runs.items()}
    for staleness, found in runs.items():
        ratio = f", {totals[staleness] / totals[0]:.2f} of synchronous" if 0 in totals else ""
        missed = sum(not reached for _, reached in found)
        short = f"; {missed} did not reach {words.bound:g}" if missed else ""
        print(f"all seeds, staleness {staleness}: {totals[staleness]:.0f} sessions{ratio}{short}")


if __name__ == "__main__":
    main()
