"""The samples that adapters need beside the whole model's: `OMP_NUM_THREADS=1 python -m benchmarks.lora_samples`.

Each run is `agentrl train env=calculator seed=S`, without and with `lora.rank`, until the mean training reward of five
steps is 0.9. The whole model's run imitates first; the others begin with the model that this left, which is what their
own warm start would leave. `--folder` keeps the runs: a command that was interrupted goes on there. `--small` takes two
steps of each. Exits with 1 where an adapter needs more than 1.3 times the whole model's samples.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import orjson
from rich.console import Console

from agentrl.config import RunConfig, WarmStartConfig
from agentrl.overrides import merge
from agentrl.train.display.console import Display
from agentrl.train.driver.api import configure, run_train
from agentrl.train.driver.interrupt import Stopped
from benchmarks.machine import machine

REWARD, WINDOW, MOST = 0.9, 5, 1.3
"""The mean reward that counts, the steps that it is a mean of, and an adapter's samples over the whole model's."""
SETTINGS: Mapping[str, Any] = {"eval": {"tasks": 8}, "checkpoint_every": 5, "keep_checkpoints": 16}
SMALL: Mapping[str, Any] = {
    "steps": 2,
    "warm_start": {"steps": 1, "batch": 4, "demos": 4},
    "rollout": {"groups_per_step": 1, "group_size": 2},
    "eval": {"tasks": 2},
    "allow_no_signal": True,
}


class UntilReached(Display):
    """The display of a run, which it stops once the reward is reached."""

    def __init__(self, folder: Path) -> None:
        super().__init__(Console(file=folder.with_suffix(".log").open("a")))
        self.folder = folder

    def step(self, metrics: Mapping[str, float], curve: float) -> None:
        """Show the step, and stop the run where it was the last that is needed."""
        super().step(metrics, curve)
        if "reward/mean" in metrics and reached([*rewards_of(self.folder), metrics["reward/mean"]]) < math.inf:
            self.request_stop()


def rewards_of(run: Path) -> list[float]:
    """The mean training reward of each step that a run has taken."""
    file = run / "metrics.jsonl"
    return [orjson.loads(line)["reward/mean"] for line in file.read_bytes().splitlines()] if file.exists() else []


def reached(rewards: Sequence[float]) -> float:
    """The first step whose reward, in the mean with those of the steps before it, is high enough; inf if none is."""
    means = (fmean(rewards[end - WINDOW : end]) for end in range(WINDOW, len(rewards) + 1))
    return next((float(end) for end, mean in enumerate(means, WINDOW) if mean >= REWARD), math.inf)


def configured(run: Path, rank: int, seed: int, given: Mapping[str, Any], start: Path | None) -> RunConfig:
    """The settings of a run: to go on, or to begin, where a model is given with that after its imitation."""
    if (run / "config.yaml").exists():
        return configure(None, {"resume": str(run)})
    own = {"seed": seed, "run_dir": str(run), "lora": {"rank": rank}}
    config = configure("calculator", merge(merge(SETTINGS, given), own))
    if start is None:
        return config
    model = config.model.model_copy(update={"name": str(start)})
    return config.model_copy(update={"model": model, "warm_start": WarmStartConfig()})


def measure(folder: Path, rank: int, seed: int, given: Mapping[str, Any]) -> tuple[float, list[float]]:
    """Train until the reward is reached, and return the samples that this took, and the reward by step."""
    run, whole = (folder / f"rank-{each}-seed-{seed}" for each in (rank, 0))
    start = whole / "checkpoints" / "step-000000" if rank else None
    rewards = rewards_of(run)
    config = configured(run, rank, seed, given, start)
    if reached(rewards) == math.inf and len(rewards) < config.steps:
        with contextlib.suppress(Stopped):
            run_train(config, UntilReached(run))
    sessions = config.rollout.groups_per_step * config.rollout.group_size
    return reached(rewards_of(run)) * sessions, rewards_of(run)


def described(rank: int, samples: float, whole: float, rewards: Sequence[float]) -> str:
    """A line of the table: what a run took, beside the whole model's, and the reward of each of its steps."""
    taken = f"{samples:.0f} samples" if samples < math.inf else f"not reached in {len(rewards)} steps"
    times = f" ({samples / whole:.2f} times the whole model's)" if rank and samples < math.inf else ""
    curve = " ".join(f"{reward:.2f}" for reward in rewards)
    return f"{f'rank {rank}' if rank else 'whole'}: {taken}{times}; reward by step: {curve}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Train with each seed and rank, and print what it took; 1 where an adapter took too much."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="*", default=(0, 1, 2))
    parser.add_argument("--ranks", type=int, nargs="*", default=(16, 1))
    parser.add_argument("--folder", type=Path, help="where runs stay; a temporary one by default")
    parser.add_argument("--small", action="store_true", help="two steps of each, to show that runs come to their ends")
    given = parser.parse_args(arguments)
    print(machine(), flush=True)
    held = True
    with TemporaryDirectory() as scratch:
        for seed in given.seeds:
            whole = math.nan
            for rank in (0, *given.ranks):
                samples, rewards = measure(given.folder or Path(scratch), rank, seed, SMALL if given.small else {})
                whole = whole if rank else samples
                held = held and (not rank or samples <= MOST * whole)
                print(f"seed {seed}, {described(rank, samples, whole, rewards)}", flush=True)
    return 0 if held or given.small else 1


if __name__ == "__main__":
    sys.exit(main())
