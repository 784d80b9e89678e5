"""A run on a Ray cluster loses a node at seeded points, and has to end as the run on one machine does.

    python -m benchmarks.cluster_kills                      # 20 points
    python -m benchmarks.cluster_kills --points 4 --head    # its head instead: the run is resumed on another cluster

The run is `calculator` with the tiny model, two engines, two environment workers and a trainer, on a head and two other
nodes (raylets on this machine). Each seed chooses one of the other nodes, a point of the code (`agentrl.faults.POINTS`)
and how often it must be reached before the node's raylet is killed. The run has to go on by itself, with the
sessions (token for token), losses and weights of the run without faults on one machine, bit for bit, and each group
trained once (`agentrl.train.record.ledger.faults`). With `--head` the raylet and the control store of the head are
killed: the run has to end with a message that says so within `HEAD_SECONDS`, and after being resumed as above; nothing
may be left of it.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from agentrl import faults
from agentrl.train.record import ledger
from benchmarks.crash_points import difference
from benchmarks.machine import machine
from benchmarks.soak import described, ours

STEPS = 4
WORDS = (
    *("env=calculator", "env.max_steps=2", "seed=3", f"steps={STEPS}", "checkpoint_every=2", "eval.tasks=1"),
    *("warm_start.steps=4", "warm_start.demos=16", "warm_start.batch=8", "rollout.retries=10"),
    *("rollout.groups_per_step=2", "rollout.group_size=4", "algo.lr=1e-3"),
)
RAY = ("cluster=ray", "cluster.environments=2", "fleet.engines=2")
POINTS = {"groups.taken": 4, "step.published": 4, "session.ended": 10, "trainer.step": 4, "weights.publish": 4}
"""Points that the driver reaches, and how often it surely does."""
RUN_SECONDS, HEAD_SECONDS = 900.0, 60.0
STORE = 80 << 20


@contextmanager
def nodes(others: Sequence[dict[str, Any]] = ({}, {})) -> Iterator[Any]:
    """A cluster of a head and other nodes, two of them or those with the settings that are given."""
    from ray.cluster_utils import Cluster

    small = {"num_cpus": 4, "object_store_memory": STORE, "include_dashboard": False}
    for left in (2, 1, 0):  # a raylet that is not up in 30 s, on a busy machine, is an error of Ray's
        cluster = Cluster()
        try:
            for more in ({}, *others):
                cluster.add_node(**small, **more)
            break
        except Exception:
            cluster.shutdown()
            if not left:
                raise
    try:
        yield cluster
    finally:
        for node in cluster.list_all_nodes():
            cluster.remove_node(node, allow_graceful=False)  # a head that is gone can't be asked


def pid(node: Any, kind: str = "raylet") -> int:
    """The process of a node."""
    found: int = node.all_processes[kind][0].process.pid
    return found


def roles(node: Any, run: Path) -> str:
    """The roles that were started on a node, by the first lines of a run's logs."""
    mark = f"({node.node_id[-6:]})"
    return ", ".join(log.stem for log in sorted((run / "logs").glob("*.log")) if mark in log.read_text()[:200])


def train(words: tuple[str, ...], log: Path, during: Any = lambda: None) -> tuple[int, str]:
    """Run the command to its end; its exit code and output."""
    with open(log, "ab") as out:
        process = subprocess.Popen([sys.executable, "-m", "agentrl", "train", *words], stdout=out, stderr=out)
        end = time.monotonic() + RUN_SECONDS
        while process.poll() is None:
            during()
            if time.monotonic() > end:
                process.send_signal(signal.SIGUSR1)
                time.sleep(2)
                process.kill()
            time.sleep(0.2)
    return process.returncode, log.read_text()


def choose(seed: int) -> tuple[str, int, int]:
    """A point, how often it is reached before, and one of the two nodes."""
    chance = random.Random(seed)
    point = chance.choice(list(POINTS))
    return point, chance.randint(1, POINTS[point]), chance.randrange(2)


def lose_node(reference: Path, folder: Path, seed: int) -> str:
    """Kill a node under a run; what is wrong with how it ended, and what was on the node."""
    point, nth, which = choose(seed)
    run, seen = folder / f"run-{seed}", ["nothing"]
    with nodes() as cluster:
        node = cluster.list_all_nodes()[1 + which]
        file, plan = folder / "raylet.pid", folder / "plan.yaml"
        file.write_text(str(pid(node)))
        plan.write_text(
            yaml.safe_dump({"faults": [{"action": "kill", "point": point, "nth": nth, "pid_file": str(file)}]})
        )

        def look() -> None:
            if not faults.fired(run):
                seen[0] = roles(node, run) or seen[0]

        words = (*WORDS, *RAY, f"cluster.address={cluster.address}", f"run_dir={run}", f"faults={plan}")
        code, said = train(words, folder / f"{seed}.log", look)
    wrong = f"exit code {code}: {said[-1500:]}" if code else difference(reference, run) or "; ".join(ledger.faults(run))
    wrong = wrong or ("" if faults.fired(run) else "the fault did not fire")
    print(f"{seed:4d}  {point} ({nth}), a node with {seen[0]}: {wrong or 'the same'}", flush=True)
    return wrong


def lose_head(reference: Path, folder: Path, seed: int) -> str:
    """Kill the head under a run, and resume that on another cluster; what is wrong."""
    run, killed = folder / f"run-{seed}", [0.0]
    steps, plan = random.Random(seed).randint(1, STEPS - 1), folder / "plan.yaml"
    pause = {"action": "delay", "point": "trainer.step", "nth": steps + 1, "seconds": HEAD_SECONDS}
    plan.write_text(yaml.safe_dump({"faults": [pause]}))  # else the run is done before its head is missed
    with nodes() as cluster:

        def kill() -> None:
            rows = run / "metrics.jsonl"
            if not killed[0] and rows.exists() and rows.read_bytes().count(b"\n") >= steps:
                for kind in ("gcs_server", "raylet"):
                    os.kill(pid(cluster.head_node, kind), signal.SIGKILL)
                killed[0] = time.monotonic()

        words = (*WORDS, *RAY, f"cluster.address={cluster.address}", f"run_dir={run}", f"faults={plan}")
        code, said = train(words, folder / f"{seed}.log", kill)
        took = time.monotonic() - killed[0]
        left = [described(one) for one in ours(run)]
    wrong = "" if killed[0] else f"it ended with {code} and the head was never killed: {said[-1500:]}"
    wrong = wrong or ("" if took < HEAD_SECONDS else f"it took {took:.0f} s: {said[-1500:]}") or "; ".join(left)
    wrong = wrong or ("" if code and "the head of the Ray cluster" in said else f"exit code {code}: {said[-1500:]}")
    if not wrong:
        with nodes() as cluster:
            words = (f"resume={run}", f"cluster.address={cluster.address}")
            code, said = train(words, folder / f"{seed}.log")
    wrong = wrong or (f"exit code {code}: {said[-1500:]}" if code else difference(reference, run))
    wrong = wrong or "; ".join(ledger.faults(run))
    print(f"{seed:4d}  the head after {steps} steps, ended in {took:.0f} s: {wrong or 'the same'}", flush=True)
    return wrong


def main() -> None:
    """Try as many points as are requested."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--head", action="store_true")
    asked = parser.parse_args()
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder, lose = Path(name), lose_head if asked.head else lose_node
        code, said = train((*WORDS, f"run_dir={folder / 'reference'}"), folder / "reference.log")
        if code:
            sys.exit(f"the run without faults ended with {code}:\n{said[-3000:]}")
        wrong = [lose(folder / "reference", folder, seed) for seed in range(asked.first, asked.first + asked.points)]
    print(f"{wrong.count('')} of {asked.points} ended as they should")
    print(machine())
    sys.exit(any(wrong))


if __name__ == "__main__":
    main()
