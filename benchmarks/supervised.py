"""Supervised learning on a file, `algo=sft data=gsm8k_train_2000.jsonl`, by its held-out loss.

    python -m benchmarks.supervised            # 120 steps of 16 conversations: a pass over the file
    python -m benchmarks.supervised --steps 20

The tiny model learns the answers of GSM8K's problems; a tenth of them, by the hash of the question, is held out. It
ends with 1 where the held-out loss does not fall by a nat a token.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import agentrl

PROBLEMS = Path(__file__).parents[2] / "shared" / "data" / "gsm8k_train_2000.jsonl"
LEAST = 1.0
"""The fall of the loss, in nats a token, that is asked for."""


def main() -> None:
    """Train, and print the loss before and after."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--data", type=Path, default=PROBLEMS)
    parser.add_argument("--seed", type=int, default=0)
    words = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        settings = {"data": str(words.data), "algo": "sft", "model": "tiny", "steps": words.steps, "seed": words.seed}
        result = agentrl.train(run_dir=f"{scratch}/run", **settings)
    assert result.before is not None
    assert result.after is not None
    print("| seed | steps | held-out conversations | loss before | loss after | seconds |")
    print("|---|---|---|---|---|---|")
    before, after, seconds = result.before.summary, result.after.summary, time.monotonic() - began
    print(f"| {words.seed} | {words.steps} | {result.after.tasks} | {before} | {after} | {seconds:.0f} |")
    sys.exit(result.before.mean - result.after.mean < LEAST)


if __name__ == "__main__":
    main()
