"""An asynchronous run for as long as it is told, with a fault a minute: no hang, no leak, and its ledger in order.

    python -m benchmarks.soak                                       # an hour
    python -m benchmarks.soak --minutes 10 --every 20
    python -m benchmarks.soak --minutes 10 trainer=torch env.sandbox=subprocess    # without Megatron, without Docker

The run is `agentrl train` in a process of its own at staleness 2, with its local engine and Megatron's rank in others,
a Docker sandbox for each session and a reward service (`benchmarks.soak_parts`), which is started again when it dies.
Faults come as Poisson processes (`agentrl.faults`): engines, trainer, sandboxes, service and driver are killed or
stopped, replies of engine and environment are lost or late, the store is locked, the disk is full, a checkpoint is cut
off; the first of them kills the driver once the warm start is over. Whenever the run ends it is resumed, until the time
is over; then it is sent SIGTERM, so that it saves and ends.

What must hold, or the command ends with 1: every kind of fault fired, where five of it were to be expected;
`metrics.jsonl` gets a new row within `--patience` seconds; resident memory, open files, threads, child processes and
containers of a run that lives longer than five minutes don't grow (the median of its last fifth over that of its second
fifth, by at most a third); at the end no process and no container is left; the steps have no gap, and
`agentrl.train.record.ledger.faults` finds nothing.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml

from agentrl import faults
from agentrl.cluster.server import free_port
from agentrl.tools.sandbox.docker import daemon
from agentrl.tools.sandbox.docker.owner import OWNER
from agentrl.train.record import ledger
from benchmarks.machine import machine

SERVICE = "service.pid"
KINDS: tuple[tuple[int, dict[str, Any]], ...] = (
    (8, {"action": "kill", "target": "engine"}),
    (5, {"action": "stop", "target": "engine", "seconds": 5}),
    (5, {"action": "kill", "target": "trainer"}),
    (4, {"action": "stop", "target": "trainer", "seconds": 5}),
    (8, {"action": "kill", "target": "sandbox"}),
    (5, {"action": "kill", "pid_file": SERVICE}),
    (3, {"action": "stop", "pid_file": SERVICE, "seconds": 5}),
    (4, {"action": "stop", "seconds": 3}),
    (3, {"action": "kill"}),
    (4, {"action": "drop", "point": "engine.reply"}),
    (2, {"action": "drop", "point": "env.step"}),
    (2, {"action": "delay", "point": "env.step", "seconds": 5}),
    (2, {"action": "lock_store", "point": "store.commit", "seconds": 2}),
    (1, {"action": "full_disk", "point": "metrics.write"}),
    (1, {"action": "full_disk", "point": "checkpoint.write"}),
    (1, {"action": "garble", "point": "checkpoint.renamed"}),
    (2, {"action": "jump_clock", "point": "env.step", "seconds": -3600}),
)
"""How many of 60 faults are of each kind."""
SETTINGS = {
    **{"env": f"{Path(__file__).with_name('soak_parts.py')}:SandboxCalculator", "trainer": "megatron"},
    **{"rewards.service": f"{Path(__file__).parents[1] / 'examples/plugins/reward_service.py'}:Service"},
    **{"rewards.service.weight": 0.1, "rewards.service.timeout": 20, "model": "tiny", "steps": 10**6},
    **{"warm_start.steps": 120, "warm_start.demos": 512, "eval.tasks": 2, "algo.lr": 5e-4},
    **{"rollout.staleness": 2, "rollout.order": "ready", "rollout.groups_per_step": 4, "rollout.group_size": 4},
    **{"rollout.concurrency": 12, "rollout.turn_tokens": 24, "rollout.session_tokens": 400},
    **{"checkpoint_every": 10, "watchdog.timeout": 120, "trainer.max_restarts": 1000},
}
SAMPLE_SECONDS = 2.0
MEASURED_LIFE = 300.0
"""A process that lives longer has its growth measured, in seconds."""
GROWTH = 1 / 3


@dataclass
class Usage:
    """What a run and its child processes hold at a moment: MiB, and numbers."""

    memory: float = 0.0
    files: int = 0
    threads: int = 0
    processes: int = 0
    containers: int = 0

    @classmethod
    def of(cls, process: psutil.Process) -> Usage:
        """As it is now; processes that end meanwhile are left out."""
        found = cls(containers=len(containers([process.pid])))
        for one in (process, *process.children(recursive=True)):
            try:
                found.memory += one.memory_info().rss / 2**20
                found.files += one.num_fds()
                found.threads += one.num_threads()
                found.processes += 1
            except psutil.Error:
                continue
        return found


@dataclass
class Soak:
    """The run, and what was seen of it."""

    run: Path
    patience: float
    wrong: list[str] = field(default_factory=list)
    lives: list[list[Usage]] = field(default_factory=list)
    ended: Counter[int] = field(default_factory=Counter)
    pids: list[int] = field(default_factory=list)

    def live(self, words: Sequence[str], until: float) -> bool:
        """Start or resume the run, and watch it until it ends; False where it hangs, or when the time is over."""
        with open(self.run.with_suffix(".log"), "ab") as log:
            process = subprocess.Popen([sys.executable, "-m", "agentrl", "train", *words], stdout=log, stderr=log)
        self.pids.append(process.pid)
        usages: list[Usage] = []
        self.lives.append(usages)
        over = False
        rows, since = self.rows(), (began := time.monotonic())
        while process.poll() is None:
            time.sleep(SAMPLE_SECONDS)
            now = time.monotonic()
            try:
                usages.append(Usage.of(psutil.Process(process.pid)))
            except psutil.Error:
                continue
            if (new := self.rows()) != rows:
                if since == began:
                    usages.clear()  # it has started only now
                rows, since = new, now
            if now - since > self.patience:
                self.wrong.append(f"no step within {self.patience:g} s: {self.stacks(process)}")
                process.kill()
            elif now > until:
                process.send_signal(signal.SIGTERM)
                over, until = True, now + self.patience
        code = process.wait()
        print(f"ended with {code} after {len(usages) * SAMPLE_SECONDS:.0f} s, {self.rows()} steps", flush=True)
        self.ended[code] += 1
        return not over and not self.wrong

    def rows(self) -> int:
        """How many steps the run has recorded."""
        file = self.run / "metrics.jsonl"
        return file.read_bytes().count(b"\n") if file.exists() else 0

    def stacks(self, process: subprocess.Popen[bytes]) -> str:
        """Have a run that hangs write its stacks; where they are."""
        process.send_signal(signal.SIGUSR1)
        time.sleep(5)
        kept = shutil.copytree(self.run, tempfile.mkdtemp(prefix="soak-"), dirs_exist_ok=True, symlinks=True)
        return f"the run is kept in {kept}"

    def check(self, due: Sequence[int]) -> None:
        """What must hold at the end; `due` are the faults that five or more of were to be expected."""
        deadline = time.monotonic() + 60
        while (left := [*map(described, ours(self.run)), *containers(self.pids)]) and time.monotonic() < deadline:
            time.sleep(1)
        self.wrong += [f"left over: {one}" for one in left]
        fired = Counter(row["fault"] for row in faults.fired(self.run))
        self.wrong += [f"fault {KINDS[index][1]} never fired" for index in due if not fired[index]]
        steps = [json.loads(line)["step"] for line in (self.run / "metrics.jsonl").read_text().splitlines()]
        if steps != list(range(1, len(steps) + 1)):
            self.wrong.append("metrics.jsonl doesn't have each step once, in order")
        self.wrong += ledger.faults(self.run)
        for index, usages in enumerate(self.lives):
            for name, before, after in growth(usages):
                print(
                    f"process {index + 1}, {len(usages) * SAMPLE_SECONDS:.0f} s: {name} {before:.0f}, then {after:.0f}"
                )
                if after > before * (1 + GROWTH):
                    self.wrong.append(f"{name} of process {index + 1} grew from {before:.0f} to {after:.0f}")
        print(f"{len(steps)} steps, {sum(fired.values())} faults; ended {dict(self.ended)} (exit code: times)")


def growth(usages: Sequence[Usage]) -> list[tuple[str, float, float]]:
    """Of each kind the median in the second and in the last fifth of a process's life; nothing for a short one."""
    if len(usages) * SAMPLE_SECONDS < MEASURED_LIFE:
        return []
    fifth = len(usages) // 5
    early, late = usages[fifth : 2 * fifth], usages[-fifth:]

    def median(part: Sequence[Usage], name: str) -> float:
        return statistics.median(asdict(usage)[name] for usage in part)

    return [(name, median(early, name), median(late, name)) for name in asdict(Usage())]


def containers(pids: Sequence[int]) -> list[str]:
    """The containers, running or not, that these processes own."""
    if not daemon.available():
        return []
    found = daemon.daemon().api.containers(all=True, filters={"label": OWNER})
    owners = {str(pid) for pid in pids}
    return [f"container {one['Id'][:12]}" for one in found if one["Labels"][OWNER].split("-")[-2] in owners]


def described(process: psutil.Process) -> str:
    """A process, for the reader."""
    with suppress(psutil.Error):
        return f"process {process.pid}: {' '.join(process.cmdline())[:120]}"
    return f"process {process.pid}"


@contextmanager
def service(pid_file: Path) -> Iterator[int]:
    """A reward service, started again a second after it has died; its port."""
    port, over = free_port(), threading.Event()

    def keep() -> None:
        while not over.is_set():
            command = [sys.executable, "-m", "benchmarks.soak_parts", str(port), str(pid_file)]
            process = subprocess.Popen(command)
            while process.poll() is None:
                if over.wait(1):
                    process.kill()
                    process.wait()

    thread = threading.Thread(target=keep)
    thread.start()
    try:
        yield port
    finally:
        over.set()
        thread.join()


def ours(run: Path) -> list[psutil.Process]:
    """Processes that belong to a run, by its folder among their words or their open files."""
    found = []
    for process in psutil.process_iter():
        try:
            words = [*process.cmdline(), *(file.path for file in process.open_files())]
        except psutil.Error:
            continue
        if any(str(run) in word for word in words) and process.pid != psutil.Process().pid:
            found.append(process)
    return found


def main() -> None:
    """Run it, and print what was seen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--every", type=float, default=60, help="seconds between two faults, on average")
    parser.add_argument("--patience", type=float, default=300, help="seconds without a step that count as a hang")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("settings", nargs="*", help="settings of the run, as agentrl train takes them")
    chosen = parser.parse_args()
    print(machine())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    with tempfile.TemporaryDirectory() as folder:
        run, first, plan, pid_file = (Path(folder) / name for name in ("run", "first.yaml", "plan.yaml", SERVICE))
        total = sum(weight for weight, _ in KINDS)
        planned = [{**kind, "every": chosen.every * total / weight, "times": 10**6} for weight, kind in KINDS]
        planned = [{**one, "pid_file": str(pid_file)} if "pid_file" in one else one for one in planned]
        plan.write_text(yaml.safe_dump({"seed": chosen.seed, "faults": planned}))
        settings = [f"{key}={value}" for key, value in SETTINGS.items()]
        with service(pid_file) as port:
            settings.append(f"rewards.service.url=http://127.0.0.1:{port}")
            first.write_text("faults: [{action: kill, point: groups.taken, nth: 1}]")
            words = [*settings, *chosen.settings, f"run_dir={run}", f"seed={chosen.seed}", f"faults={first}"]
            soak, until = Soak(run, chosen.patience), time.monotonic() + 60 * chosen.minutes
            while soak.live(words, until):
                words = [f"resume={run}", f"faults={plan}"]
        soak.check([index for index, one in enumerate(planned) if one["every"] < 12 * chosen.minutes])
    print(f"machine again: {machine()}")
    for one in soak.wrong:
        print(f"WRONG: {one}")
    sys.exit(bool(soak.wrong))


if __name__ == "__main__":
    main()
