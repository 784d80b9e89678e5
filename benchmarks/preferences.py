"""Learning from a policy's own sessions without a loop: `reject` and `sft`, and preferences on recorded pairs.

    python -m benchmarks.preferences              # about six minutes on two cores
    python -m benchmarks.preferences --seed 1

A tiny model imitates the calculator's expert for a while, and is recorded for some steps at a learning rate of nearly
0. `agentrl reject` takes the best of n sessions of each training task, `algo=sft` learns from that file, and the reward
on held-out tasks is measured before and after. Then dpo, simpo and kto learn from the recorded groups, by their
held-out margin. It ends with 1 where the reward, or a margin, does not rise by more than its bounds; margins are
compared pair by pair.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import agentrl
from agentrl.overrides import typed
from agentrl.train.driver.api import run_reject
from agentrl.train.driver.setup import complete
from agentrl.train.evaluation.rejection import split_settings

WARM_STEPS, RECORDED_STEPS, SAMPLES, TASKS, HELD_OUT = 120, 20, 4, 256, 128
SFT_STEPS, PREFERENCE_STEPS = 30, 15
DESIRABLE_WEIGHT = 4.0
"""Of KTO: a fifth of the sessions are desirable, and the paper asks for both kinds to weigh about the same."""


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The mean less and plus 1.96 standard errors."""
    mean, error = fmean(values), 1.96 * stdev(values) / len(values) ** 0.5
    return mean - error, mean + error


def main() -> None:
    """Train, and print what was measured before and after."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    words = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        rows, rose = measure(Path(scratch), words.seed)
    print("| by | measured | before | after |")
    print("|---|---|---|---|")
    for row in rows:
        print(f"| {' | '.join(row)} |")
    print(f"seed {words.seed}, {time.monotonic() - began:.0f} s")
    sys.exit(not rose)


def imitate(scratch: Path, seed: int) -> Path:
    """Imitate the expert for a while, and record what that model does; the folder of the run."""
    shape = {"rollout.groups_per_step": 16, "rollout.group_size": SAMPLES, "eval.tasks": 8}
    warm = {"warm_start.steps": WARM_STEPS, "steps": RECORDED_STEPS, "algo.lr": 1e-9, "keep_checkpoints": 10}
    agentrl.train("calculator", run_dir=str(scratch / "recorded"), seed=seed, metrics=[], **shape, **warm)
    return scratch / "recorded"


def improve(scratch: Path, seed: int, base: Path) -> tuple[Any, Path]:
    """Learn from the best of a model's own sessions; what was kept of them, and the model."""
    file = scratch / "best.jsonl"
    words = ["env=calculator", f"model={base}", f"out={file}", f"run_dir={scratch}", f"n={SAMPLES}"]
    tree, own = split_settings(typed(words))
    found = run_reject(complete(tree | {"seed": seed, "eval": {**tree["eval"], "tasks": TASKS}}), own)
    settings = {"run_dir": str(scratch / "imitated"), "algo.lr": 1e-3, "steps": SFT_STEPS, "metrics": []}
    learned = agentrl.train(algo="sft", data=str(file), model=str(base), seed=seed, **settings)
    return found, learned.checkpoint


def measure(scratch: Path, seed: int) -> tuple[list[tuple[str, ...]], bool]:
    """The rows of the table, and whether all of them rose."""
    small = {"seed": seed, "metrics": []}
    recorded = imitate(scratch, seed)
    base = recorded / "checkpoints" / "step-000000"

    def reward(model: Path) -> Any:
        settings = {"eval.tasks": HELD_OUT, "eval.n": 2, "run_dir": str(scratch / f"eval-{model.parent.parent.name}")}
        return agentrl.evaluate("calculator", model=str(model), **settings)

    found, better = improve(scratch, seed, base)
    before, after = reward(base), reward(better)
    what = f"reward, {HELD_OUT} held-out tasks; {found.counts['rows']} conversations"
    rows, rose = [("reject, sft", what, before.summary, after.summary)], after.low > before.mean
    for algo in ("dpo", "simpo", "kto"):
        own_settings = {"steps": PREFERENCE_STEPS, "run_dir": str(scratch / algo), "algo.lr": 3e-4, "eval.tasks": 64}
        own_settings |= {"algo.loss.desirable_weight": DESIRABLE_WEIGHT} if algo == "kto" else {}
        result = agentrl.train(algo=algo, data=str(recorded), model=str(base), **small, **own_settings)
        assert result.before is not None
        assert result.after is not None
        pair = [f"{each.mean:.3f} (accuracy {each.metrics['accuracy']:.0%})" for each in (result.before, result.after)]
        known = {each.task: each.scores[0] for each in result.before.scores}
        low, high = interval([each.scores[0] - known[each.task] for each in result.after.scores])
        if algo == "kto":  # of all desirable sequences with all others, and 0 before the first step
            low, high = result.after.low, result.after.high
        rows.append((algo, f"margin; {result.after.tasks} held-out groups; rises by [{low:.3f}, {high:.3f}]", *pair))
        rose = rose and low > 0
    return rows, rose


if __name__ == "__main__":
    main()
