"""Supervised learning on a file, `algo=sft data=gsm8k_train_2000.jsonl`: its held-out loss, and the answers it samples.

    python -m benchmarks.supervised            # 120 steps of 16 conversations: a pass over the file
    python -m benchmarks.supervised --steps 20

The tiny model learns the answers of GSM8K's problems; a tenth of them, by the hash of the question, is held out. An
answer is unfinished where the model has not ended its turn within `BOUND` tokens, which 99 of 100 answers of the file
do; random weights end it by chance. It ends with 1 where the held-out loss does not fall by a nat a token, or the share
of unfinished answers does not fall.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

import agentrl
from agentrl.train.display.console import Display
from benchmarks.machine import machine

PROBLEMS = Path(__file__).parents[2] / "shared" / "data" / "gsm8k_train_2000.jsonl"
LEAST = 1.0
"""The fall of the loss, in nats a token, that is asked for."""
BOUND = 384
"""The most tokens of a sampled answer."""
TASKS = 64
"""Questions, none of them trained on, that answers are sampled to."""


@dataclass(frozen=True)
class Measured:
    """A run's held-out loss in nats a token, and the shares of sampled answers without an end; before and after it."""

    before: Any
    after: Any
    unfinished_before: float
    unfinished_after: float


def measure(
    data: Path, folder: Path, *, seed: int, bound: int = BOUND, tasks: int = TASKS, **settings: Any
) -> Measured:
    """Train on a file, and sample answers to questions of it that are held out, before and after."""
    result = agentrl.train(run_dir=str(folder / "run"), data=str(data), algo="sft", model="tiny", seed=seed, **settings)
    assert result.before is not None
    assert result.after is not None
    models = folder / "run" / "model", result.checkpoint
    return Measured(
        result.before, result.after, *(unfinished(each, data, folder, seed, bound, tasks) for each in models)
    )


def unfinished(model: Path, data: Path, folder: Path, seed: int, bound: int, tasks: int) -> float:
    """The share of sampled answers that the bound cut off."""
    run = folder / f"answers-{model.name}"
    with (folder / "evaluations.log").open("a") as log:
        agentrl.evaluate(
            "questions",
            model=str(model),
            run_dir=str(run),
            seed=seed,
            display=Display(Console(file=log)),
            **{"env.path": str(data), "eval.tasks": tasks, "rollout.turn_tokens": bound},
        )
    found = json.loads((run / "result.json").read_text())
    share: float = found["errors"]["truncated"] / tasks
    return share


def main() -> None:
    """Train, and print losses and shares before and after."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--data", type=Path, default=PROBLEMS)
    parser.add_argument("--seed", type=int, default=0)
    words = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        found = measure(words.data, Path(scratch), seed=words.seed, steps=words.steps)
    print(machine())
    print("| seed | steps | loss before | loss after | unfinished before | unfinished after | seconds |")
    print("|---|---|---|---|---|---|---|")
    shares = f"{found.unfinished_before:.3f} | {found.unfinished_after:.3f}"
    losses, seconds = f"{found.before.summary} | {found.after.summary}", time.monotonic() - began
    print(f"| {words.seed} | {words.steps} | {losses} | {shares} | {seconds:.0f} |")
    fell = found.before.mean - found.after.mean >= LEAST and found.unfinished_after < found.unfinished_before
    sys.exit(not fell)


if __name__ == "__main__":
    main()
