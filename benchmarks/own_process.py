"""Asynchronous against synchronous training with a real engine, in the order there and back.

    python -m benchmarks.own_process [--steps 12] [--env calculator] [--rounds 1] [engine.device=cpu …]
    python -m benchmarks.own_process engine=sglang engine.python=.venv-sglang/bin/python engine.device=cpu

Whole runs of `agentrl.train` with the tiny model, alike but for `rollout.staleness` and, for the local engine, where it
computes: in the run's process, or in one of its own. A server has processes of its own in each run. Timed are the
steps after the first two, so neither start-up nor evaluation counts. How long sessions are differs from run to run
where the engine is not deterministic, so the time per generated token is compared. A round takes every kind of run and
then all again in the opposite order, since the machine's speed changes meanwhile.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import agentrl
from agentrl.train.display.console import Display
from benchmarks.machine import machine

UNTIMED = 2
LOCAL: Mapping[str, Mapping[str, Any]] = {
    "synchronous": {"rollout.staleness": 0},
    "staleness 1, one process": {"rollout.staleness": 1, "engine.process": "shared"},
    "staleness 1, own process": {"rollout.staleness": 1, "engine.process": "own"},
}
SERVER: Mapping[str, Mapping[str, Any]] = {
    "synchronous": {"rollout.staleness": 0},
    "staleness 1": {"rollout.staleness": 1},
}


class Times(Display):
    """Notes when each step ended."""

    def __init__(self) -> None:
        super().__init__()
        self.console.quiet = True
        self.ends: list[float] = []

    def step(self, *words: Any, **more: Any) -> None:
        """A step has ended."""
        self.ends.append(time.monotonic())
        super().step(*words, **more)


@dataclass(frozen=True)
class Speed:
    """A run's, over its timed steps: seconds a step, and generated tokens a step."""

    seconds: float
    tokens: float


def speed(env: str, steps: int, settings: Mapping[str, Any]) -> Speed:
    """Of a run with these settings."""
    display = Times()
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        agentrl.train(env, display=display, run_dir=str(run), steps=steps, checkpoint_every=steps, **settings)
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()][UNTIMED:]
    ends = display.ends[-steps:]
    tokens = sum(row["sessions/count"] * row["sessions/trained_tokens"] for row in rows)
    return Speed((ends[-1] - ends[UNTIMED - 1]) / len(rows), tokens / len(rows))


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--env", default="calculator")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("settings", nargs="*")
    words = parser.parse_args()
    common = {"model": "tiny", "eval.tasks": 4, "warm_start.steps": 60}
    common |= dict(pair.split("=", 1) for pair in words.settings)
    print(machine(), flush=True)
    kinds = LOCAL if common.get("engine", "local") == "local" else SERVER
    speeds: dict[str, list[Speed]] = {kind: [] for kind in kinds}
    for _ in range(words.rounds):
        for kind in [*kinds, *reversed(kinds)]:
            speeds[kind].append(found := speed(words.env, words.steps, {**common, **kinds[kind]}))
            print(f"  {kind:28} {found.seconds:6.2f} s and {found.tokens:6.0f} tokens a step", flush=True)
    rates = {
        kind: sum(one.tokens for one in found) / sum(one.seconds for one in found) for kind, found in speeds.items()
    }
    for kind, rate in rates.items():
        print(f"{kind:28} {rate:7.1f} tokens/s, {rate / rates['synchronous']:5.2f} times the synchronous run's speed")
    print(machine())


if __name__ == "__main__":
    main()
