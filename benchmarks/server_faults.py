"""An asynchronous run with an inference server that is killed, stopped and answers wrongly, and has to end in order.

    python -m benchmarks.server_faults engine=sglang engine.python=.venv-sglang/bin/python engine.device=cpu
    python -m benchmarks.server_faults --few --stall 60 engine=vllm fleet.engines=2 …    # where starts are dear

`calculator` with the tiny model at staleness 2. Replies are lost, late and garbled; the server is stopped for less and
for more than the time after which it counts as hanging, killed amid turns, and killed as weights are about to be
published. With `--few` there are three faults: garbage, a kill, and a stop for so long that it counts as hanging. The
command ends with 1 where the run does not end with all its steps, a fault has not fired, a step is missing or doubled,
the ledger of groups (`agentrl.train.record.ledger.faults`) has a fault, or a process is left.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from agentrl import faults
from agentrl.train.record import ledger
from benchmarks.machine import machine
from benchmarks.soak import described, ours

STALL = 20
ALL: tuple[dict[str, Any], ...] = (
    {"action": "drop", "point": "engine.reply", "nth": 20, "times": 3},
    {"action": "delay", "point": "engine.reply", "nth": 40, "times": 5, "seconds": 2},
    {"action": "garble", "point": "engine.response", "nth": 300, "times": 2},
    {"action": "stop", "target": "engine", "point": "engine.reply", "nth": 80, "seconds": 5},
    {"action": "kill", "target": "engine", "point": "engine.reply", "nth": 120},
    {"action": "stop", "target": "engine", "point": "engine.reply", "nth": 180, "seconds": 4.0},
    {"action": "kill", "target": "engine", "point": "weights.publish", "nth": 9},
)
FEW: tuple[dict[str, Any], ...] = (
    {"action": "garble", "point": "engine.response", "nth": 40, "times": 2},
    {"action": "kill", "target": "engine", "point": "engine.reply", "nth": 30},
    {"action": "stop", "target": "engine", "point": "engine.reply", "nth": 70, "seconds": 4.0},
)
SETTINGS: dict[str, Any] = {
    **{"env": "calculator", "model": "tiny", "seed": 3, "warm_start.steps": 60, "warm_start.demos": 128},
    **{"rollout.staleness": 2, "rollout.groups_per_step": 4, "rollout.group_size": 4, "rollout.retries": 10},
    **{"eval.tasks": 2, "algo.lr": 5e-4, "checkpoint_every": 4},
}


def longer(one: dict[str, Any], stall: int) -> dict[str, Any]:
    """A fault whose `seconds` are a float counts them in times after which a server hangs."""
    return {**one, "seconds": one["seconds"] * stall} if isinstance(one.get("seconds"), float) else one


def main() -> None:
    """Run it, and print what was seen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--minutes", type=float, default=40, help="a run that takes longer hangs")
    parser.add_argument("--few", action="store_true", help="three faults, where starting a server is dear")
    parser.add_argument("--stall", type=int, default=STALL, help="fleet.stall_timeout")
    parser.add_argument("settings", nargs="+", help="the engine, and other settings, as agentrl train takes them")
    chosen = parser.parse_args()
    print(machine())
    wrong: list[str] = []
    faulty = [longer(one, chosen.stall) for one in (FEW if chosen.few else ALL)]
    with tempfile.TemporaryDirectory() as folder:
        run, plan = Path(folder) / "run", Path(folder) / "plan.yaml"
        plan.write_text(yaml.safe_dump({"faults": faulty}))
        settings = {
            **SETTINGS,
            "steps": chosen.steps,
            "run_dir": run,
            "faults": plan,
            "fleet.stall_timeout": chosen.stall,
        }
        words = [*(f"{key}={value}" for key, value in settings.items()), *chosen.settings]
        began = time.monotonic()
        command = [sys.executable, "-m", "agentrl", "train", *words]
        if code := subprocess.run(command, timeout=60 * chosen.minutes, check=False).returncode:
            wrong.append(f"the run ended with {code}")
        fired = Counter(row["fault"] for row in faults.fired(run))
        for index, one in enumerate(faulty):
            print(f"fired {fired[index]} times: {one}")
            if fired[index] != one.get("times", 1):
                wrong.append(f"fired {fired[index]} times: {one}")
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        if [row["step"] for row in rows] != list(range(1, chosen.steps + 1)):
            wrong.append(f"metrics.jsonl has the steps {[row['step'] for row in rows]}")
        wrong += ledger.faults(run)
        wrong += [f"left over: {described(process)}" for process in ours(run)]
        print(f"{len(rows)} steps, {sum(fired.values())} faults, {time.monotonic() - began:.0f} s; {machine()}")
    for problem in wrong:
        print(f"WRONG: {problem}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
