"""What the cluster layer costs: a run, short sessions over environment workers, rewards, and weights on their way.

    python -m benchmarks.cluster overhead [--steps 12] [--rounds 2]
    python -m benchmarks.cluster sessions [--sessions 10000] [--workers 4]
    python -m benchmarks.cluster rewards [--rounds 2]
    python -m benchmarks.cluster weights [--rounds 5]

- overhead: the same run with `cluster=ray` (trainer, engine and two environment workers are processes that Ray has
  started) and with `cluster=local` (everything in one process), one after the other: the difference of the medians of
  `time/step`, without the first step.
- sessions: sessions of two turns on one environment worker, a share of them, and on several, all of them; groups,
  retries, the leases of engines and the store are a run's own. The engine, a process, waits 20 ms for a turn of 64
  tokens. A step of the environment keeps its process for 10 ms, as one that computes would, but sleeps, so that more
  workers than cores can be compared. Also the bytes that the driver sends and receives for sessions of other lengths.
- rewards: sessions of two turns in the driver, each with a reward: in the driver's process, and in one and two reward
  workers. Also how late the driver's event loop wakes up meanwhile. One reward computes in pure Python for about 10 ms,
  which takes as many free cores as there are workers; the other one keeps its process for 10 ms, but sleeps.
- weights: a trainer in a process of its own publishes to two engines in theirs, through the folder that they share;
  against a bare broadcast (gloo) of the same bytes to two processes that forget them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from agentrl import cluster
from agentrl.cluster.wire import frames
from agentrl.common import garbage
from agentrl.config import ClusterConfig, EngineConfig, FleetConfig, RunConfig, WeightsConfig
from agentrl.config.cluster import ResourcesConfig, RoleResources
from agentrl.envs.registry import factory
from agentrl.envs.rewards import Reward
from agentrl.models import tiny
from agentrl.models.tokenizers import load_tokenizer
from agentrl.rollout.engines.local.process_engine import ProcessEngine
from agentrl.rollout.engines.plugin import EnginePlugin
from agentrl.rollout.episodes.groups import Rollouts
from agentrl.rollout.episodes.policies import ModelActor, Policy
from agentrl.rollout.fleet import make_engines, wait_until_started
from agentrl.rollout.weights import group
from agentrl.rollout.weights.buckets import Weights
from agentrl.rollout.weights.snapshot import read_snapshot
from agentrl.rollout.workers.environment_workers import in_workers
from agentrl.rollout.workers.reward_workers import open_reward_workers
from agentrl.sessions.renderers import get_renderer
from agentrl.sessions.store.recorder import Recorder
from agentrl.sessions.store.store import Store
from agentrl.train.driver.session_worker import holding
from agentrl.train.trainers.worker import WorkerTrainer
from agentrl.types import (
    MAIN,
    Chunk,
    FinishReason,
    Message,
    Sampling,
    Session,
    Status,
    StepResult,
    Tokenizer,
    Turn,
    VersionSpan,
)
from benchmarks import driver_cost
from benchmarks.machine import machine

HOST, TIMEOUT = "127.0.0.1", 300.0
STEP_SECONDS, TURN_SECONDS = 0.01, 0.02
AT_ONCE = 32
"""Concurrent sessions for each worker."""
SMALL = RoleResources(environments=ResourcesConfig(cpus=0.1))
"""Workers that mostly wait: more of them than cores fit on a machine."""
RUN: dict[str, Any] = {
    **{"env": "calculator", "seed": 3, "warm_start.steps": 4, "warm_start.demos": 16, "warm_start.batch": 8},
    **{"rollout.groups_per_step": 2, "rollout.group_size": 4, "eval.tasks": 2, "checkpoint_every": 1000},
}


# ------------------------------------------------------------------------------------------- overhead


def overhead(args: argparse.Namespace) -> None:
    """Print the medians of both, round by round."""
    differences = []
    for _ in range(args.rounds):
        medians = {}
        for name in ("local", "ray"):
            with tempfile.TemporaryDirectory() as folder:
                run = Path(folder) / "run"
                words = [f"{key}={value}" for key, value in RUN.items()] + [f"cluster={name}", f"steps={args.steps}"]
                words += ["cluster.environments=2"] if name == "ray" else []
                command = [sys.executable, "-m", "agentrl", "train", *words, f"run_dir={run}"]
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
                rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()][1:]
                medians[name] = {
                    part: 1000 * statistics.median(row.get(f"time/{part}", 0.0) for row in rows)
                    for part in ("step", "rollout", "train", "publish")
                }
            print(
                f"{name}: " + ", ".join(f"{part} {value:.0f} ms" for part, value in medians[name].items()), flush=True
            )
        differences.append(medians["ray"]["step"] - medians["local"]["step"])
        print(f"cluster=ray takes {differences[-1]:.0f} ms a step more (aim: at most 50)", flush=True)
    print(f"median over rounds: {statistics.median(differences):.0f} ms")


# ------------------------------------------------------------------------------------------- sessions

_BUSY = threading.Lock()


class Busy(driver_cost.World):
    """A conversation whose every step keeps the process for a while."""

    async def step(self, message: Message) -> StepResult:
        """One turn more."""
        await asyncio.to_thread(self._compute)
        return await super().step(message)

    def _compute(self) -> None:
        with _BUSY:
            time.sleep(STEP_SECONDS)


class SimulatedRole(driver_cost.Simulated):
    """The simulated engine in a process of its own; its turns have as many tokens as are asked for."""

    def __init__(self, path: Path, config: EngineConfig) -> None:
        super().__init__(TURN_SECONDS, load_tokenizer(path))

    async def generate(
        self, request_id: str, input_ids: Sequence[int], sampling: Sampling, deadline: float | None = None
    ) -> AsyncIterator[Chunk | Turn]:
        """Wait; then the same tokens as always, over and over."""
        await self.wait()
        count, stop = sampling.max_new_tokens, sampling.stop_token_ids[0]
        ids = (*(self.answer * count)[: count - 1], stop)
        yield Chunk(ids, (-0.5,) * count, 0)
        yield Turn(ids, (-0.5,) * count, (VersionSpan(0, 0, count),), FinishReason.STOP, stopped_by=stop)


class SimulatedEngine(ProcessEngine):
    """The simulated engine's process, from the driver's side."""

    role = f"{__name__}:SimulatedRole"


class SimulatedPlugin(EnginePlugin):
    """The simulated engine as `engine=…`."""

    def make(self, path: Path, config: Any, tokenizer: Tokenizer | None = None) -> SimulatedEngine:
        """See `EnginePlugin.make`."""
        return SimulatedEngine(path, config)


ENGINE = SimulatedPlugin()


async def play(base: Path, workers: int, sessions: int, turns: int, tokens: int) -> tuple[float, float, float]:
    """Sessions per second on so many workers, and the bytes that the driver receives and sends for each."""
    config = RunConfig.model_validate(
        {
            "env": {"name": f"{__file__}:Busy", "turns": turns},
            "rollout": {"concurrency": AT_ONCE * workers, "session_tokens": 1 << 17, "turn_tokens": tokens},
            "engine": {"name": f"{__file__}:ENGINE"},
            "cluster": {"name": "ray", "environments": workers},
        }
    )
    engine = make_engines(config.engine, FleetConfig(), WeightsConfig(), base)
    policy = Policy(get_renderer(base), engine, model=base)
    make_env = factory(config.env.name, **config.env.kwargs)
    actor, size = ModelActor(Sampling(max_new_tokens=tokens)), driver_cost.GROUP_SIZE
    tasks, count = list(make_env().tasks()), sessions // size
    with (
        tempfile.TemporaryDirectory() as folder,
        Store(Path(folder) / "sessions.db") as store,
        Recorder(store) as record,
    ):
        own = Rollouts(make_env, policy, config.rollout, 0, recorder=record)
        await wait_until_started(engine)
        async with (
            holding(config.learning(MAIN), config.cluster, store) as held,
            in_workers(config, own, base, holding=held) as rollouts,
        ):
            await rollouts.collect(tasks[: 2 * workers], actor, phase="warm", n=size)
            before, began = frames.traffic.copy(), time.monotonic()
            played = [tasks[number % len(tasks)] for number in range(count)]
            groups = await rollouts.collect(played, actor, phase="timed", n=size)
            seconds = time.monotonic() - began
        stored = len(store.ids(phase="timed"))
        await engine.close()
    ended = {session.status for each in groups for session in each.sessions}
    assert ended == {Status.COMPLETED}, ended
    assert stored == count * size, stored
    received, sent = ((frames.traffic[name] - before[name]) / count / size for name in ("received", "sent"))
    return count * size / seconds, received, sent


def sessions(args: argparse.Namespace) -> None:
    """Print rates and bytes."""
    ray = ClusterConfig(name="ray", resources=SMALL)
    with tempfile.TemporaryDirectory() as folder, cluster.open_cluster(ray, None), garbage.collect_less_often():
        base = tiny.build(Path(folder) / "model", [driver_cost.QUESTION])
        one, *_ = asyncio.run(play(base, 1, args.sessions // 5, 2, 64))
        print(f"1 worker: {one:.1f} sessions/s", flush=True)
        many, *_ = asyncio.run(play(base, args.workers, args.sessions, 2, 64))
        print(f"{args.workers} workers: {many:.1f} sessions/s, {args.sessions} sessions", flush=True)
        print(f"{many / one / args.workers:.2f} of {args.workers} times one worker (aim: at least 0.9)")
        for turns, tokens in ((2, 64), (2, 512), (8, 64), (8, 512), (32, 64), (32, 512)):
            _, received, sent = asyncio.run(play(base, args.workers, 64, turns, tokens))
            print(
                f"a session of {turns} turns of {tokens} tokens: the driver receives {received:.0f} bytes and sends "
                f"{sent:.0f}",
                flush=True,
            )


# -------------------------------------------------------------------------------------------- rewards

SCORED, LOOPS = 300, 200_000
"""Sessions of a round, and how far a reward counts."""


class Counting(Reward):
    """A reward that computes."""

    def compute(self, session: Session) -> float:
        """Count, in pure Python."""
        total = session.seed % 2
        for number in range(LOOPS):
            total ^= number
        return float(total % 2)


class Holding(Reward):
    """A reward that keeps its process as if it computed."""

    def compute(self, session: Session) -> float:
        """Sleep while no other one may."""
        with _BUSY:
            time.sleep(STEP_SECONDS)
        return float(session.seed % 2)


async def lateness(found: list[float]) -> None:
    """Note how many milliseconds too late this event loop continues, again and again."""
    while True:
        began = time.perf_counter()
        await asyncio.sleep(0.01)
        found.append(1000 * (time.perf_counter() - began - 0.01))


async def score(base: Path, reward: str, workers: int) -> tuple[float, list[float]]:
    """Scored sessions per second with so many reward workers, and the event loop's lateness."""
    words = {"env": {"name": f"{driver_cost.__file__}:World", "turns": 2}, "rewards": {"r": f"{__file__}:{reward}"}}
    config = RunConfig.model_validate({**words, "cluster": {"rewards": workers}})
    engine = driver_cost.Simulated(TURN_SECONDS, load_tokenizer(base))
    policy = Policy(get_renderer(base), engine, model=base)
    plain, actor = (
        factory(config.env.name, **config.env.kwargs),
        ModelActor(Sampling(max_new_tokens=driver_cost.ANSWER)),
    )
    tasks, late = list(plain().tasks()), list[float]()
    async with open_reward_workers(plain, config.rewards, config.cluster, config.sandbox) as (make_env, _):
        rollouts = Rollouts(make_env, policy, config.rollout, 0)
        await rollouts.collect(tasks[:4], actor, phase="warm", n=1)
        watching, began = asyncio.create_task(lateness(late)), time.monotonic()
        groups = await rollouts.collect(tasks, actor, phase="timed", n=SCORED // len(tasks))
        seconds = time.monotonic() - began
        watching.cancel()
    assert {each.status for group in groups for each in group.sessions} == {Status.COMPLETED}
    return SCORED / seconds, late


def rewards(args: argparse.Namespace) -> None:
    """Print rates and ratios, round by round."""
    with (
        tempfile.TemporaryDirectory() as folder,
        cluster.open_cluster(ClusterConfig(), None),
        garbage.collect_less_often(),
    ):
        base = tiny.build(Path(folder) / "model", [driver_cost.QUESTION])
        for reward in ("Holding", "Counting"):
            ratios = [ratio(base, reward) for _ in range(args.rounds)]
            print(f"{reward}: 2 reward workers are {statistics.median(ratios):.2f} times the driver (median)")


def ratio(base: Path, reward: str) -> float:
    """Print a round; returns how much faster two workers are than the driver."""
    rates = {}
    for workers in (0, 1, 2):
        rates[workers], late = asyncio.run(score(base, reward, workers))
        where = f"{workers} reward workers" if workers else "in the driver"
        print(
            f"{reward}, {where}: {rates[workers]:.1f} sessions/s; "
            f"the driver's event loop is late by {statistics.median(late):.1f} ms at the median, "
            f"{statistics.quantiles(late, n=100)[-1]:.0f} ms at the 99th percentile",
            flush=True,
        )
    return rates[2] / rates[0]


# -------------------------------------------------------------------------------------------- weights


def receive(port: int, rank: int, rounds: int, size: int) -> None:
    """The main of a process that takes broadcasts and forgets them."""
    joined = group.join(group.store_at(HOST, port), rank, 3, "bare", "gloo", TIMEOUT)
    for _ in range(rounds):
        torch.distributed.broadcast(torch.empty(size, dtype=torch.uint8), src=0, group=joined)
        torch.distributed.barrier(group=joined)


class Broadcast:
    """A bare broadcast to two processes."""

    def __init__(self, payload: torch.Tensor, rounds: int) -> None:
        store, self.payload = group.meeting_at(HOST), payload
        command = [sys.executable, "-m", "benchmarks.cluster", "--receive", str(store.port)]
        words = [str(rounds), str(payload.numel())]
        self.processes = [subprocess.Popen([*command, str(rank), *words]) for rank in (1, 2)]
        self.group = group.join(store, 0, 3, "bare", "gloo", TIMEOUT)

    def seconds(self) -> float:
        """How long one takes, until it has arrived."""
        began = time.perf_counter()
        group.send(self.group, self.payload, TIMEOUT)
        torch.distributed.barrier(group=self.group)
        return time.perf_counter() - began


def weights(args: argparse.Namespace) -> None:
    """Print both rates, round by round, and the median of their ratio."""
    with tempfile.TemporaryDirectory() as folder, cluster.open_cluster(ClusterConfig(), None):
        shape = tiny.TinyShape(layers=12, width=768, heads=12, kv_heads=4, mlp=2048)
        base = tiny.build(Path(folder) / "model", ["a few words"], shape=shape)
        asyncio.run(publish(base, Path(folder) / "weights", args.rounds))


async def publish(base: Path, folder: Path, rounds: int) -> None:
    """Measure with a trainer and two engines."""
    config = RunConfig.model_validate({"env": "calculator", "engine": {"process": "own", "proof": False}})
    fleet = config.fleet.model_copy(update={"engines": 2})
    settings = config.weights.model_copy(update={"dir": str(folder)})
    payload = torch.cat([tensor.view(-1).view(torch.uint8) for _, tensor in read_snapshot(base)])
    engine = make_engines(config.engine, fleet, settings, base)
    trainer = WorkerTrainer(config.cluster, base, config.trainer, config.algo)
    bare, ratios = await asyncio.to_thread(Broadcast, payload, rounds), []
    try:
        await wait_until_started(engine)
        for version in range(1, rounds + 1):
            await asyncio.to_thread(os.sync)
            began, before = time.perf_counter(), frames.traffic.copy()
            await engine.publish(Weights.of(trainer), version)
            ours = time.perf_counter() - began
            through = sum((frames.traffic - before).values())
            theirs = await asyncio.to_thread(bare.seconds)
            ratios.append(theirs / ours)
            print(
                f"{payload.numel() / 1e6:.0f} MB: published in {ours:.2f} s with {through} bytes through the driver, "
                f"broadcast in {theirs:.2f} s: {ratios[-1]:.2f}",
                flush=True,
            )
    finally:
        trainer.close()
        await engine.close()
    print(f"median {statistics.median(ratios):.2f} of a bare collective's rate (aim: at least 0.6)")


PARTS: dict[str, Callable[[argparse.Namespace], None]] = {
    "overhead": overhead,
    "sessions": sessions,
    "rewards": rewards,
    "weights": weights,
}


def main() -> None:
    """Measure one of `PARTS`."""
    if sys.argv[1:2] == ["--receive"]:
        receive(*map(int, sys.argv[2:]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sessions", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=4)
    asked = parser.parse_args()
    print(machine(), flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        PARTS[asked.part](asked)
    print(machine())


if __name__ == "__main__":
    main()
