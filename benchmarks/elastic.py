"""A run on a Ray cluster whose nodes come and go in order, and that has to end as the run on one machine does.

    python -m benchmarks.elastic                 # a node joins, and another is drained
    python -m benchmarks.elastic --autoscaler    # Ray's autoscaler, from no workers to a trained run and back

Nodes are raylets on this machine. In the first form the trainer, an engine and an environment worker are on a node that
is drained (`ray drain-node`) once another one has joined and is used: everything has to move there, the raylet has to
end by itself since nothing is left on it, and the run has to end with the sessions (token for token), losses and
weights of the run without a cluster, bit for bit.

In the second, the head has no cores. A cluster is started with Ray's autoscaler and its provider of local nodes, a run
asks it for nodes by waiting in its queue, ends as above, and its nodes have to be gone `IDLE_MINUTES` afterwards.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import yaml

from agentrl.cluster.server import free_port
from agentrl.train.record import ledger
from benchmarks.cluster_kills import RAY, STORE, WORDS, nodes, roles, train
from benchmarks.crash_points import difference
from benchmarks.machine import machine

PAUSE_SECONDS = 60.0
"""How long each step waits, so that what happens to nodes happens within the run."""
IDLE_MINUTES = 0.2
GONE_SECONDS = 120.0
"""How long nodes may take to end that nothing is on."""
GROWS = ("cluster.max_environments=4", "fleet.max_engines=3", "cluster.resources.trainer.custom.away=1")
"""A run whose trainer is on one of the nodes that come and go, not on the head."""
RESERVED = ("cluster.resources.trainer.cpus=1", "cluster.resources.engine.cpus=1")
HEAD_ID = "f" * 51 + "00000"
PROVIDER = "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider"
RAY_WORDS = [sys.executable, "-m", "ray.scripts.scripts"]


def leave_in_order(reference: Path, folder: Path) -> str:
    """A node joins a run and the one with its trainer is drained; what is wrong."""
    run, seen, plan = folder / "run", dict[str, str](), folder / "plan.yaml"
    pause = {"action": "delay", "point": "groups.taken", "chance": 1, "times": 100, "seconds": PAUSE_SECONDS}
    plan.write_text(yaml.safe_dump({"faults": [pause]}))
    with nodes(others=[{"resources": {"away": 4}}]) as cluster:
        first = cluster.list_all_nodes()[1]
        second: list[Any] = []

        def step() -> None:
            rows = run / "metrics.jsonl"
            if not second and rows.exists() and rows.read_bytes():
                second.append(cluster.add_node(num_cpus=4, object_store_memory=STORE, resources={"away": 4}))
            elif second and "joined" not in seen and "environments" in (found := roles(second[0], run)):
                seen["joined"], seen["before"] = found, roles(first, run)
                words = ["drain-node", "--address", cluster.address, "--node-id", first.node_id]
                reason = ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "a test"]
                deadline = ["--deadline-remaining-seconds", "600"]
                subprocess.run([*RAY_WORDS, *words, *reason, *deadline], check=True, stdout=subprocess.DEVNULL)
            elif "joined" in seen and "gone" not in seen and gone(first):
                seen["gone"], seen["after"] = "within the run", roles(second[0], run)

        words = (*WORDS, *RAY, *GROWS, f"cluster.address={cluster.address}", f"run_dir={run}", f"faults={plan}")
        code, said = train(words, folder / "run.log", step)
        print(f"on the first node: {seen.get('before')}; on the new one before the drain: {seen.get('joined')}")
        print(f"in the end on the new one: {seen.get('after')}; the first one's raylet ended: {seen.get('gone')}")
    if code:
        return f"exit code {code}: {said[-3000:]}"
    missing = [name for name in ("joined", "gone") if name not in seen]
    return difference(reference, run) or "; ".join(ledger.faults(run)) or ", ".join(f"not {name}" for name in missing)


def gone(node: Any) -> bool:
    """Whether the raylet of a node has ended by itself."""
    return node.all_processes["raylet"][0].process.poll() is not None


def scale(reference: Path, folder: Path) -> str:
    """A run asks an autoscaler for nodes that it begins without; what is wrong."""
    run = folder / "run"
    with autoscaling(folder) as (address, temporary):
        words = (*WORDS, *RAY, *RESERVED, f"cluster.address={address}", f"run_dir={run}")
        code, said = train(words, folder / "run.log")
        if code:
            return f"exit code {code}: {said[-3000:]}"
        print(f"processes were on: {', '.join(sorted(places(run)))}")
        wrong = difference(reference, run) or "; ".join(ledger.faults(run))
        return wrong or ("" if within(lambda: raylets(temporary) <= 1) else "idle nodes are not ended")


def within(done: Callable[[], bool], seconds: float = GONE_SECONDS) -> bool:
    """Whether something is so before that many seconds have passed."""
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            return False
        time.sleep(0.5)
    return True


def places(run: Path) -> set[str]:
    """The nodes of a run's workers, by the first lines of their logs."""
    return {log.read_text()[:200].partition(" on ")[2].partition(",")[0] for log in (run / "logs").glob("*.log")}


@contextmanager
def autoscaling(folder: Path, cpus: int = 4, most: int = 3) -> Iterator[tuple[str, Path]]:
    """The address and folder of a cluster that has a head without cores, and gets nodes by what is asked for.

    `ray.cluster_utils.AutoscalingCluster` ends every Ray on the machine, and wants a file that the wheel lacks, as
    `fake_multinode` does.
    """
    port, temporary = free_port(), Path("/tmp") / f"ray-{os.getpid()}"
    address = f"127.0.0.1:{port}"
    settings = {
        **{"cluster_name": "benchmark", "max_workers": most, "idle_timeout_minutes": IDLE_MINUTES},
        **{"upscaling_speed": 1.0, "auth": {}, "head_node_type": "ray.head.default"},
        "provider": {
            **{"type": "external", "module": PROVIDER, "gcs_address": address, "head_node_id": HEAD_ID},
            **{"launch_multiple": True, "disable_node_updaters": True, "disable_launch_config_check": True},
        },
        **{"setup_commands": [], "head_setup_commands": [], "worker_setup_commands": []},
        **{"initialization_commands": [], "file_mounts": {}, "cluster_synced_files": []},
        **{"head_start_ray_commands": [], "worker_start_ray_commands": []},
        "available_node_types": {
            "ray.head.default": {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
            "worker": {
                "resources": {"CPU": cpus, "object_store_memory": STORE},
                **{"node_config": {}, "min_workers": 0, "max_workers": most},
            },
        },
    }
    file = folder / "autoscaler.json"
    file.write_text(json.dumps(settings))
    words = ["start", "--head", f"--port={port}", "--num-cpus=0", f"--object-store-memory={STORE}"]
    more = ["--node-ip-address=127.0.0.1", f"--temp-dir={temporary}", f"--autoscaling-config={file}"]
    variables = {"AUTOSCALER_UPDATE_INTERVAL_S": "1", "RAY_FAKE_CLUSTER": "1", "RAY_worker_niceness": "0"}
    newer = {"RAY_enable_autoscaler_v2": "1", "RAY_CLOUD_INSTANCE_ID": HEAD_ID}
    own = {"RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD_ID, "RAY_USAGE_STATS_ENABLED": "0"}
    try:
        begin = [*RAY_WORDS, *words, *more, "--include-dashboard=false", "--disable-usage-stats"]
        everything = {**os.environ, **variables, **newer, **own}
        subprocess.run(begin, check=True, stdout=subprocess.DEVNULL, env=everything)
        yield address, temporary
    finally:
        for process in mentioning(temporary):
            with suppress(psutil.Error):
                process.kill()
        shutil.rmtree(temporary, ignore_errors=True)


def mentioning(path: Path) -> list[psutil.Process]:
    """The processes that have a path in their words."""
    return [
        each for each in psutil.process_iter(["cmdline"]) if any(str(path) in w for w in each.info["cmdline"] or ())
    ]


def raylets(path: Path) -> int:
    """How many raylets a cluster has."""
    return sum(Path(each.info["cmdline"][0]).name == "raylet" for each in mentioning(path))


def main() -> None:
    """Try one of the two forms."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--autoscaler", action="store_true")
    asked = parser.parse_args()
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder, tried = Path(name), scale if asked.autoscaler else leave_in_order
        code, said = train((*WORDS, f"run_dir={folder / 'reference'}"), folder / "reference.log")
        if code:
            sys.exit(f"the run without a cluster ended with {code}:\n{said[-3000:]}")
        began = time.monotonic()
        wrong = tried(folder / "reference", folder)
        print(f"{time.monotonic() - began:.0f} s: {wrong or 'the same'}; {machine()}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
