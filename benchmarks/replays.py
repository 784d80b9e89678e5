"""Whether random turns of finished runs come again from their seeds, to the last bit.

    python -m benchmarks.replays runs/ONE runs/OTHER [--turns 200] [--seed 0]

Each run gets an equal part of the turns, drawn from its training sessions; each is replayed as by `agentrl replay`.
A turn is expected to be equal where the run's engine is deterministic (engine=local on a CPU in float32), and its
environment's answers with it; the exit code is 1 where one is not. Of other engines the share is printed that is.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from pathlib import Path

from agentrl.errors import ConfigError
from agentrl.sessions.store import Store
from agentrl.train.replay import ReplayConfig, replay
from agentrl.types import MAIN
from benchmarks.machine import machine


def turns(run: Path) -> list[tuple[str, int]]:
    """The turns of a run's training sessions: the session, and the turn's number from 1."""
    with Store(run / "sessions.db", read_only=True) as store:
        sampled = [
            (session.id, sum(node.sampled and node.policy == MAIN for node in session.nodes))
            for session in store.sessions(phase="train")
        ]
    return [(session, turn) for session, count in sampled for turn in range(1, count + 1)]


def compare(run: Path, chosen: list[tuple[str, int]]) -> bool:
    """Replay the turns and print what came; whether all that had to be equal are."""
    equal = promised = refused = 0
    broken: list[str] = []
    for session, turn in chosen:
        try:
            result = asyncio.run(replay(run, session, ReplayConfig(turn=turn)))
        except ConfigError as error:
            refused += 1
            print(f"  refused: {error}")
            continue
        (again,) = result.replays
        equal += again.reproduced
        promised += result.exact
        if result.exact and not (again.reproduced and not again.differences):
            broken.append(f"{session}, turn {turn}")
    print(f"{run}: {equal} of {len(chosen) - refused} turns equal to the last bit, {promised} were promised", *broken)
    return not broken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(machine())
    rng, each = random.Random(options.seed), -(-options.turns // len(options.runs))
    held = []
    for run in options.runs:
        every = turns(run)
        held.append(compare(run, rng.sample(every, min(each, len(every)))))
    sys.exit(0 if all(held) else 1)


if __name__ == "__main__":
    main()
