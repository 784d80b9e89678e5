"""A small run dies at seeded points of its code, is resumed, and has to end as a run without faults does.

    python -m benchmarks.crash_points                        # 200 points, synchronous
    python -m benchmarks.crash_points --points 50 --staleness 2
    python -m benchmarks.crash_points --points 50 --adapter 4
    python -m benchmarks.crash_points --points 100 --team    # two policies that learn

The run is `calculator` with the tiny model on the CPU, from one checkpoint after a warm start. A first run counts how
often each named point (`agentrl.faults.POINTS`) is reached; then each seed chooses one of them, and what happens
there: the driver is killed, a write fails as on a full disk, or the checkpoint that was just renamed is cut to half
and the driver killed a little later. The run is resumed until it ends. Synchronous runs must then have the metrics, the
sessions (token for token) and the weights of the run without faults, bit for bit. In every run each group that was
begun is trained once or discarded with a recorded cause (`agentrl.train.record.ledger.faults`). With `--adapter` the
runs train an adapter of that rank, and the embeddings beside it. With `--team` two policies learn `demand`, and the run
that dies several times does so before, within and after the publications of a step, and its commit.

Each run is a fork of this process, which has imported what the first run did, has loaded its model once (what
transformers computes for that is kept), and has no threads: a resumption takes a third of the CPU time that it takes
in a new process.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml
from safetensors.numpy import load_file

import agentrl
from agentrl import faults
from agentrl.sessions.store.store import Store
from agentrl.train.record import ledger

STEPS = 4
SETTINGS: dict[str, Any] = {
    **{"env": {"name": "calculator", "max_steps": 2}, "warm_start.steps": 40, "warm_start.demos": 64, "seed": 3},
    **{"warm_start.batch": 8, "rollout.groups_per_step": 2, "rollout.group_size": 4, "eval.tasks": 1, "algo.lr": 1e-3},
    **{"steps": STEPS, "checkpoint_every": 2, "keep_checkpoints": 2},
    **{"rollout.retries": 10},  # one session may have all faults of a plan
}
TEAM: dict[str, Any] = {
    **{"env": {"name": "examples/several_agents/demand.py:Demand"}, "agents.right": "other", "algo.minibatches": 1},
    **{"policies.other.algo": "magrpo", "policies.other.algo.lr": 3e-3, "policies.other.algo.minibatches": 1},
}
"""What is set besides where two policies learn."""
LEFT_OUT = ("time/", "throughput/", "stream/", "resumed/", "count/infra_retries")
"""Metrics that depend on the time that things take, or count what failed."""
SURVIVED: tuple[dict[str, Any], ...] = (
    {"action": "drop", "point": "engine.reply", "nth": 20, "times": 3},
    {"action": "drop", "point": "env.reset", "nth": 5},
    {"action": "drop", "point": "env.step", "nth": 9},
    {"action": "drop", "point": "env.reward", "nth": 3},
    {"action": "delay", "point": "engine.reply", "chance": 0.1, "times": 20, "seconds": 0.05},
    {"action": "lock_store", "point": "groups.taken", "nth": 2, "seconds": 0.5},
    {"action": "stop", "point": "trainer.step", "nth": 2, "seconds": 0.5},
    {"action": "jump_clock", "point": "env.step", "nth": 30, "seconds": -86400.0},
    {"action": "jump_clock", "point": "trainer.step", "nth": 3, "seconds": 1e6},
)
"""Faults that a run goes on after by itself."""
KILLS: tuple[dict[str, Any], ...] = tuple(
    {"action": "kill", "point": point, "nth": 1} for point in ("trainer.step", "weights.publish", "checkpoint.rename")
)
"""Deaths of one run: in a step, in a publication, and while it saves."""
TEAM_KILLS: tuple[dict[str, Any], ...] = tuple(
    {"action": "kill", "point": point, "nth": nth}
    for point, nth in (
        *(("trainer.step", 2), ("weights.publish", 4), ("step.published", 1)),
        *(("checkpoint.write", 1), ("checkpoint.rename", 1), ("checkpoint.renamed", 1)),
    )
)
"""Deaths of the driver of two policies: before, within and after the first step's publications, and the commit.

Their trainers and engines are in it. Where these have processes of their own, `tests/train/backends/ranks` kills those.
A run that begins publishes once for each policy, so that its fourth publication is the second of the first step."""
MAX_RESUMPTIONS = 6
SECONDS = 240.0
"""A run that takes longer hangs."""


def fork(work: Callable[[], object], log: Path) -> int:
    """Do some work in a fork of this process; its exit status, negative where a signal ended it.

    Raises:
        TimeoutError: it took longer than `SECONDS`; it is killed.
    """
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            with open(log, "ab", buffering=0) as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
                os.setsid()
                try:
                    work()
                    code = 0
                except BaseException as error:
                    print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(code)
    deadline = time.monotonic() + SECONDS
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGUSR1)  # its stacks are in the run folder's stacks-signal.txt
            time.sleep(2)
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise TimeoutError(f"{log} has the output of a run that did not end within {SECONDS:g} s")
        time.sleep(0.02)


def plan(folder: Path, planned: Sequence[dict[str, Any]], seed: int = 0) -> str:
    """Write a plan of faults beside a run's folder."""
    file = folder.with_suffix(".yaml")
    file.write_text(yaml.safe_dump({"seed": seed, "faults": list(planned)}))
    return str(file)


def begin(folder: Path, staleness: int = 0, more: Mapping[str, Any] = MappingProxyType({})) -> None:
    """A run that was killed when its first step had its groups: its checkpoint is that of the warm start."""
    settings = {**SETTINGS, "rollout.staleness": staleness, "run_dir": str(folder), **more}
    settings["faults"] = plan(folder, [{"action": "kill", "point": "groups.taken", "nth": 1}])
    if (status := fork(lambda: agentrl.train(**settings), folder.with_suffix(".log"))) != -signal.SIGKILL:
        raise RuntimeError(f"the first run ended with {status}:\n{folder.with_suffix('.log').read_text()}")
    (folder / faults.LOG).unlink()


def resume(base: Path, folder: Path, planned: Sequence[dict[str, Any]], seed: int = 0) -> int:
    """Copy a run, and resume the copy with these faults until it ends; how often it was resumed.

    Raises:
        RuntimeError: it does not end.
    """
    shutil.copytree(base, folder, symlinks=True)
    log = folder / "log"
    settings: dict[str, Any] = {"resume": str(folder), "run_dir": str(base), "faults": plan(folder, planned, seed)}
    most = MAX_RESUMPTIONS + len(planned)
    for times in range(1, most + 1):
        if fork(lambda: agentrl.train(**settings), log) == 0:
            return times
    raise RuntimeError(f"{folder} was resumed {most} times and did not end:\n{log.read_text()[-3000:]}")


def import_all(run: Path) -> None:
    """Import here what a run imports, and load its model once, so that forks of this process need not.

    Raises:
        RuntimeError: that has left a thread, which a fork would not have.
    """
    names = run / "imported"

    def listed() -> None:
        agentrl.train(resume=str(run))  # it has ended: everything but the steps is done again
        names.write_text("\n".join(sys.modules))

    if status := fork(listed, run / "log"):
        raise RuntimeError(f"a run that had ended could not be resumed: {status}\n{(run / 'log').read_text()[-3000:]}")
    for name in names.read_text().splitlines():
        with suppress(Exception):  # parts of a package that only it can import, when it likes
            importlib.import_module(name)
    from agentrl.models.loading import load_causal_lm
    from agentrl.sessions.renderers import get_renderer
    from agentrl.train.driver import setup

    setup.quiet()  # progress bars have a thread
    get_renderer(run / "model")
    load_causal_lm(run / "model", "float32", "sdpa")
    end = time.monotonic() + 60
    while threading.active_count() > 1 and time.monotonic() < end:
        time.sleep(0.02)  # the loader's threads end by themselves, soon
    if threading.active_count() > 1:
        raise RuntimeError(f"imports have started threads: {threading.enumerate()}")


def count_points(base: Path, folder: Path) -> Counter[str]:
    """Resume a copy of a run without harm; how often each point is reached."""
    every = [
        {"action": "delay", "point": name, "chance": 1.0, "times": 10**6, "seconds": 1e-9} for name in faults.POINTS
    ]
    resume(base, folder, every)
    return Counter(row["point"] for row in faults.list_fired(folder))


def choose(reached: Counter[str], seed: int) -> list[dict[str, Any]]:
    """What happens in one try: a point and an action by the seed."""
    chance = random.Random(seed)
    name = chance.choice(sorted(reached))
    times = reached[name] if name != "store.commit" else -(-reached[name] // 2)  # how many turns share one varies
    at: dict[str, Any] = {"point": name, "nth": chance.randint(1, times)}
    roll = chance.random()
    if faults.POINTS[name].writes and roll < 0.4:
        return [{"action": "full_disk", **at}]
    if name == "checkpoint.renamed" and roll < 0.7:
        return [{"action": "garble", **at}, {"action": "kill", "point": "step.published", "nth": 1 + at["nth"]}]
    return [{"action": "kill", **at}]


def rows(run: Path) -> list[dict[str, Any]]:
    """A run's metrics without those that may differ."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if not k.startswith(LEFT_OUT)} for line in lines]


def difference(one: Path, two: Path) -> str:
    """What two synchronous runs differ in; '' where metrics, weights and sessions are the same, bit for bit."""
    for mine, other in zip_longest(rows(one), rows(two), fillvalue={}):
        if found := sorted(name for name in mine.keys() | other.keys() if mine.get(name) != other.get(name)):
            named = ", ".join(f"{name} {mine.get(name)} and {other.get(name)}" for name in found[:5])
            return f"metrics differ at step {mine.get('step', other.get('step'))}: {named}"
    ends = [run / "checkpoints" / f"step-{STEPS:06d}" for run in (one, two)]
    parts = [sorted(str(file.relative_to(end)) for file in end.rglob("model.safetensors")) for end in ends]
    if parts[0] != parts[1]:
        return f"one has weights of {parts[0]}, the other of {parts[1]}"
    for part in parts[0]:
        a, b = (load_file(end / part) for end in ends)
        if a.keys() != b.keys() or any(a[name].tobytes() != b[name].tobytes() for name in a):
            return f"weights differ ({part})"
    with Store(one / "sessions.db", read_only=True) as first, Store(two / "sessions.db", read_only=True) as second:
        sessions = [trained(store) for store in (first, second)]
        names = {name for name in {**sessions[0], **sessions[1]} if sessions[0].get(name) != sessions[1].get(name)}
        return f"sessions differ: {sorted(names)}" if names else ""


def trained(store: Store) -> dict[tuple[str, int], Any]:
    """The nodes of each trained session, but for who drew them when, by group and sample: the last of its attempts."""
    sessions = sorted(store.sessions(phase="train"), key=lambda session: session.attempt)
    drawn: dict[str, Any] = {"engines": (), "reply_id": "", "timings": {}}  # a program's replies have random ids
    return {(s.group, s.sample): [replace(node, **drawn) for node in s.nodes] for s in sessions}


def disorder(run: Path) -> str:
    """What is wrong with a run that was resumed, whatever it has drawn; '' where nothing is."""
    steps = [row["step"] for row in rows(run)]
    if steps != list(range(1, STEPS + 1)):
        return f"metrics.jsonl has the steps {steps}"
    return "; ".join(ledger.faults(run))


def main() -> None:
    """Try as many points as are requested."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--staleness", type=int, default=0)
    parser.add_argument("--adapter", type=int, default=0, metavar="RANK", help="train an adapter in the model's place")
    parser.add_argument("--team", action="store_true", help="train two policies")
    parser.add_argument("--keep", type=Path, help="keep the folders of runs that failed here")
    asked = parser.parse_args()
    if asked.team and asked.adapter:
        parser.error("--adapter and --team are tried one at a time")
    more = (
        {"lora.rank": asked.adapter, "lora.full": ["*.embed_tokens"]} if asked.adapter else TEAM if asked.team else {}
    )
    with tempfile.TemporaryDirectory() as folder:
        seeds = range(asked.first, asked.first + asked.points)
        failed = try_points(Path(folder), seeds, asked.staleness, asked.keep, more)
    sys.exit(bool(failed))


def try_points(
    folder: Path,
    seeds: Sequence[int],
    staleness: int = 0,
    keep: Path | None = None,
    more: Mapping[str, Any] = MappingProxyType({}),
) -> list[str]:
    """Try one point for each seed; what went wrong, a line each.

    Args:
        folder: an empty one, for the runs.
        seeds: of the points.
        staleness: of the runs.
        keep: where the folders of failed runs are moved to.
        more: settings besides `SETTINGS`.
    """
    import agentrl.train.driver.launch  # noqa: F401  before the first fork

    began = time.monotonic()
    base, reference = folder / "base", folder / "reference"
    begin(base, staleness, more)
    resume(base, reference, [])
    import_all(reference)
    reached = count_points(base, folder / "counted") if seeds else Counter[str]()
    print(f"points and how often each is reached: {dict(sorted(reached.items()))}", flush=True)
    wrong = survive(base, reference, folder / "survived", staleness)
    resumed = Counter[int]()
    kills = TEAM_KILLS if more is TEAM else KILLS
    tries: list[tuple[int, Sequence[dict[str, Any]]]] = [(seed, choose(reached, seed)) for seed in seeds]
    for seed, planned in [(-1, kills), *tries]:
        run = folder / f"run-{seed}"
        try:
            times = resume(base, run, planned, max(seed, 0))
            resumed[times] += 1
            fired = len({row["fault"] for row in faults.list_fired(run)})
            missing = fired < (len(planned) if planned is kills else 1)
            found = "not all faults fired" if missing else "" if staleness else difference(reference, run)
            found = found or disorder(run)
        except (RuntimeError, TimeoutError) as error:
            found = str(error)
        said = ", ".join(f"{one['action']} at {one['point']} ({one['nth']})" for one in planned)
        print(f"{seed:4d}  {said}: {found or 'the same' if not staleness else found or 'in order'}", flush=True)
        if found:
            wrong.append(f"seed {seed}, {said}: {found}")
            if keep is not None:
                shutil.move(run, keep / run.name)
        shutil.rmtree(run, ignore_errors=True)
    count, seconds = len(seeds) + 2, time.monotonic() - began
    print(f"{count - len(wrong)} of {count} ended as they should; resumed {dict(resumed)} times; {seconds:.0f} s")
    return wrong


def survive(base: Path, reference: Path, run: Path, staleness: int) -> list[str]:
    """A run with all of `SURVIVED`, which it has to end without being resumed; what went wrong."""
    times = resume(base, run, SURVIVED)
    missing = set(range(len(SURVIVED))) - {row["fault"] for row in faults.list_fired(run)}
    found = f"resumed {times} times" if times > 1 else f"faults that did not fire: {sorted(missing)}" if missing else ""
    found = found or ("" if staleness else difference(reference, run)) or disorder(run)
    print(f"faults that a run survives by itself: {found or 'the same' if not staleness else found or 'in order'}")
    return [f"survived: {found}"] if found else []


if __name__ == "__main__":
    main()
