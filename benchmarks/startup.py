"""What a command costs before it does anything: `python -m benchmarks.startup [--rounds 5] [--resume]`.

CPU seconds of whole processes, user and system, the least of the rounds, in turn: `python -c pass` and `import torch`
are the baselines, beside them `agentrl --help`, `agentrl --version`, and a wrong word of `agentrl train`. `--resume`
has a tiny run take a step, resumes it, and says how long the second step is in coming, in seconds and in CPU seconds,
against `import torch, transformers`. Where time goes: `python -X importtime -m agentrl --help`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from benchmarks.machine import machine

AGENTRL = [sys.executable, "-m", "agentrl"]
BASE = "python -c pass"
COMMANDS: Mapping[str, tuple[Sequence[str], int]] = {
    BASE: ([sys.executable, "-c", "pass"], 0),
    "import torch": ([sys.executable, "-c", "import torch"], 0),
    "agentrl --help": ([*AGENTRL, "--help"], 0),
    "agentrl --version": ([*AGENTRL, "--version"], 0),
    "agentrl train env=calculatr": ([*AGENTRL, "train", "env=calculatr"], 2),
}
"""What is timed, by its name, with the exit code that it has to have."""
AIMS = {"agentrl --help": 0.3, "agentrl train env=calculatr": 0.6}
RESUME_AIM = 5.0
TINY = "env=calculator model=tiny seed=0 warm_start.steps=2 rollout.groups_per_step=2 rollout.group_size=2 eval.tasks=2"
POLL = 0.02


def cpu_seconds(command: Sequence[str], expected: int) -> float:
    """Run a command to its end; its CPU seconds.

    Raises:
        SystemExit: it ended with another code.
    """
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        told = process.stderr.read() if process.stderr else b""
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = code = os.waitstatus_to_exitcode(status)
    if code != expected:
        raise SystemExit(f"{' '.join(command[1:])} ended with {code}, not {expected}: {told.decode()[-2000:]}")
    return used.ru_utime + used.ru_stime


def commands(rounds: int) -> None:
    """Print each command's least CPU seconds, its ratio to both baselines, and its aim."""
    least = dict.fromkeys(COMMANDS, float("inf"))
    for _ in range(rounds):
        for name, (command, code) in COMMANDS.items():
            least[name] = min(least[name], cpu_seconds(command, code))
    for name, seconds in least.items():
        aim = f" (aim: at most {AIMS[name]} s)" if name in AIMS else ""
        ratios = f"{seconds / least[BASE]:5.1f} times {BASE}, {seconds / least['import torch']:4.2f} of import torch"
        print(f"{name:28} {seconds:5.2f} s of CPU, {ratios}{aim}", flush=True)


def resume() -> None:
    """Print how long a resumed run's first step is in coming."""
    libraries = cpu_seconds([sys.executable, "-c", "import torch, transformers"], 0)
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        subprocess.run(
            [*AGENTRL, "train", *TINY.split(), "steps=1", f"run_dir={run}"], check=True, stdout=subprocess.DEVNULL
        )
        rows, began = run / "metrics.jsonl", time.monotonic()
        process = subprocess.Popen([*AGENTRL, "train", f"resume={run}", "steps=2"], stdout=subprocess.DEVNULL)
        tree = psutil.Process(process.pid)
        while rows.read_bytes().count(b"\n") < 2:
            if process.poll() is not None:
                raise SystemExit(f"the resumed run ended with {process.returncode} before its step")
            time.sleep(POLL)
        seconds, used = time.monotonic() - began, tree.cpu_times()
        process.wait(600)
    cpu = used.user + used.system
    print(f"a resumed run's first step: {seconds:.1f} s after the command, {cpu:.1f} s of CPU", flush=True)
    print(f"  {cpu / libraries:.1f} times import torch, transformers ({libraries:.1f} s); aim: {RESUME_AIM:.0f} s")


def main() -> None:
    """Time all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--resume", action="store_true", help="also the first step of a resumed run")
    given = parser.parse_args()
    print(machine(), flush=True)
    commands(given.rounds)
    if given.resume:
        resume()


if __name__ == "__main__":
    main()
