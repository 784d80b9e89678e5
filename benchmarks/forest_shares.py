"""Bytes of a step's forests that each of the trainer's ranks receives, against its share and against a copy of all.

    python -m benchmarks.forest_shares [--ranks 2 4 8] [--groups 32]

Groups of eight sessions of random lengths behind a common prompt are packed as in a run, and divided among ranks as
their trainer divides them (`agentrl.train.trainers.ranks.balance`). A process for each rank receives its share in one
call, as a rank on a cluster does, and says how many bytes have arrived. A share is what all forests are in one message,
divided by the number of ranks; no tree is larger than that.
"""

from __future__ import annotations

import argparse
import contextlib
import random
from typing import Any

from agentrl.cluster import LocalCluster, Role
from agentrl.cluster.wire.frames import encode, traffic
from agentrl.config import AlgoConfig
from agentrl.train.algorithms import make_algorithm
from agentrl.train.forest.forest import Forest
from agentrl.train.forest.packing import pack
from agentrl.train.trainers.ranks.balance import Division
from agentrl.types import Group, Session, Task
from benchmarks.machine import machine
from benchmarks.workloads import grow

PROMPT, LONGEST, SESSIONS, BUDGET, WIDTH, VOCABULARY = 256, 1024, 8, 16_384, 1024, 32_000
SECONDS = 300.0


class Receiver:
    """Receives what a rank would."""

    def step(self, *given: Any) -> None:
        """Forget it."""

    def received(self) -> int:
        """The bytes of all messages so far."""
        return traffic["received"]


def forests(groups: int) -> list[Forest]:
    """Packed groups, whose sessions have from an eighth of `LONGEST` to all of it."""
    rng, task = random.Random(0), Task(id="t")

    def tokens(count: int) -> list[int]:
        return [rng.randrange(VOCABULARY) for _ in range(count)]

    made = []
    for number in range(groups):
        prompt, sessions = tokens(PROMPT), []
        for sample in range(SESSIONS):
            session = Session(f"{number}-{sample}", task, str(number), sample, reward=float(sample % 2))
            root = grow(session, None, prompt, sampled=False)
            grow(session, root, tokens(rng.randint(LONGEST // 8, LONGEST)), sampled=True)
            sessions.append(session)
        made.append(Group(str(number), task, sessions))
    return pack(made, make_algorithm(AlgoConfig()).credit(made), BUDGET)


def measure(batch: list[Forest], ranks: int) -> None:
    """Print what each rank received."""
    cluster = LocalCluster()
    with contextlib.closing(cluster):
        workers = [cluster.spawn(Role("trainer", "benchmarks.forest_shares:Receiver")) for _ in range(ranks)]
        for worker in workers:
            worker.wait_ready(SECONDS)
        before = [worker.run("received", timeout=SECONDS) for worker in workers]
        for worker, share in zip(workers, Division(tuple(range(ranks)), WIDTH).shares(batch), strict=True):
            worker.run("step", share, {}, timeout=SECONDS)
        got = [w.run("received", timeout=SECONDS) - b for w, b in zip(workers, before, strict=True)]
    whole = len(encode(batch))
    print(
        f"{ranks} ranks: {max(got) / 1e6:.2f} MB at most, {max(got) / (whole / ranks):.2f} of a share of "
        f"{whole / ranks / 1e6:.2f} MB (aim: at most 1.1); all to each: {whole * ranks / sum(got):.1f} times as much"
    )


def main() -> None:
    """Measure for each number of ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--groups", type=int, default=32)
    asked = parser.parse_args()
    print(machine())
    batch = forests(asked.groups)
    print(f"{len(batch)} forests of {sum(map(len, batch)):,} tokens")
    for ranks in asked.ranks:
        measure(batch, ranks)


if __name__ == "__main__":
    main()
