"""What the tiny model learns in built-in environments: `python -m benchmarks.learning [NAME ...] [--seeds N]`.

Each run is what `agentrl train env=calculator`, or `data_analysis` or `retail` with `env.level=1`, or `shapes` or
`grid_camera`, whose model sees, does: imitation of the environment's demonstrator, then reinforcement learning.
`grid_camera_blind` is the same with white pictures, which says what is found without seeing. The baseline of each run
is its own policy after the warm start, on the same held-out tasks. Demonstrators err (calculator's in a third of its
turns, grid_camera's in half of them, the others' in half of their tasks), so that this policy has something to learn.
It ends with 1 where, of the same seed, seeing is not over blindness: the lower 95 % bound of the one is not above the
upper bound of the other. `--small` takes a step of each, to show that a run comes to its end, and claims nothing.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

import agentrl
from agentrl.overrides import merge
from agentrl.rollout.stream.batch_metrics import Evaluation
from agentrl.train.display.console import Display
from benchmarks.machine import machine

SEEING, BLIND = "grid_camera", "grid_camera_blind"
SETTINGS: Mapping[str, dict[str, Any]] = {
    "calculator": {"env": "calculator"},
    "data_analysis": {"env": {"name": "data_analysis", "level": 1}},
    "retail": {"env": {"name": "retail", "level": 1}},
    "shapes": {"env": "shapes"},
    SEEING: {"env": "grid_camera"},
    BLIND: {"env": {"name": "grid_camera", "blind": True}},
}
SMALL: dict[str, Any] = {
    "steps": 1,
    "warm_start": {"steps": 1, "batch": 4, "demos": 4},
    "rollout": {"groups_per_step": 1, "group_size": 2},
    "eval": {"tasks": 2},
}


def main() -> int:
    """Train with each seed, print how the policy did before and after, and return 1 where a claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"environments ({', '.join(SETTINGS)}); all by default")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--small", action="store_true", help="a step of each, to show that runs come to their ends")
    given = parser.parse_args()
    print(machine(), flush=True)
    failed = False
    with TemporaryDirectory() as folder:
        for seed in range(given.first, given.first + given.seeds):
            after = {}
            for name in given.names or SETTINGS:
                settings = merge(SETTINGS[name], SMALL) if given.small else SETTINGS[name]
                after[name], text = measured(settings, seed, Path(folder) / f"{name}-{seed}")
                print(f"{name} seed {seed}: {text}", flush=True)
            if {SEEING, BLIND} <= after.keys():
                holds = after[SEEING].low > after[BLIND].high
                failed |= not (holds or given.small)
                said = " ".join(f"{name} {after[name].summary}" for name in (SEEING, BLIND))
                print(f"seed {seed}: {said}: {'seeing is over blindness' if holds else 'no clear difference'}")
    return int(failed)


def measured(settings: Mapping[str, Any], seed: int, run: Path) -> tuple[Evaluation, str]:
    """Train once; return how the policy does afterwards, and what came of it."""
    began = time.monotonic()
    with (run.parent / f"{run.name}.log").open("w") as log:
        result = agentrl.train(**settings, seed=seed, run_dir=str(run), display=Display(Console(file=log)))
    seconds, before, after = time.monotonic() - began, result.before, result.after
    assert before is not None
    assert after is not None
    curve = " ".join(f"{row['reward/mean']:.2f}" for row in result.metrics)
    return after, (
        f"{before.mean:.3f} [{before.low:.3f}, {before.high:.3f}] after the warm start -> "
        f"{after.mean:.3f} [{after.low:.3f}, {after.high:.3f}] after {len(result.metrics)} steps; "
        f"{sum(row['time/step'] for row in result.metrics):.0f} s of reinforcement learning, {seconds:.0f} s in all; "
        f"reward by step: {curve}"
    )


if __name__ == "__main__":
    sys.exit(main())
