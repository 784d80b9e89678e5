"""How long a worker takes to start: forked from a process that has loaded its modules, against a new Python.

    python -m benchmarks.worker_starts            six starts of each, in turn
    python -m benchmarks.worker_starts --starts 2

The worker has the local engine's modules (torch, transformers). Prints the median of both and their ratio; the first
fork, for which they are loaded, is apart.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import time

from agentrl.cluster import Role
from agentrl.cluster.local import LocalCluster
from benchmarks.machine import machine

MODULE = "agentrl.rollout.engines.local.engine_role"


class Loaded:
    """A role that needs what an engine needs."""

    def __init__(self) -> None:
        importlib.import_module(MODULE)


def seconds(cluster: LocalCluster, **environment: str) -> float:
    """From a worker's start until it is ready; a variable that is read at load has it be a new Python."""
    role = Role("probe", f"{__name__}:Loaded", threads=1, loads=(MODULE,), environment=environment)
    began = time.monotonic()
    worker = cluster.spawn(role)
    worker.wait_ready(300)
    taken = time.monotonic() - began
    worker.shutdown()
    return taken


def main() -> None:
    """Time both in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=6)
    count = parser.parse_args().starts
    cluster = LocalCluster()
    first = seconds(cluster)
    pairs = [(seconds(cluster), seconds(cluster, AGENTRL_START=str(number))) for number in range(count)]
    forked, new = (statistics.median(each) for each in zip(*pairs, strict=True))
    print(
        f"{machine()}\nforked {forked:.2f} s (the first one {first:.2f} s), new Pythons {new:.2f} s: {new / forked:.0f}"
    )
    cluster.close()


if __name__ == "__main__":
    from benchmarks.worker_starts import main as run  # the role's import path must not be __main__

    run()
