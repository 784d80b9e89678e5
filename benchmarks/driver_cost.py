"""What the driver itself costs: CPU time of a turn, and memory of a session that waits, with a simulated engine.

    python -m benchmarks.driver_cost [--sessions 100 1000 10000] [--turns 4] [--rate 250] [--profile FILE]

Stream, groups, episodes, conversations, renderer, parser and session store are a run's own; the engine sleeps for a
time from a lognormal distribution and answers 64 tokens. It is slower with more sessions, so that at most `--rate`
turns end in a second; with few the process wakes for each of them, and what it needs is in no cache any more. CPU time
is the whole process's, the store's thread included, from the first session's beginning to the last one's end, divided
by the turns; each number of sessions has a process of its own. What engine and environment need without a driver, as
bare asyncio tasks, is measured in the same process afterwards: its CPU time is in the first number, and is no cost of
the driver's, and its seconds are what the driver's are compared with. Memory is the growth
of the process's resident pages to their maximum, with all sessions open, divided by the sessions; up to 32 MiB of it
are pages of the store.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any

from agentrl.common import garbage
from agentrl.config import RolloutConfig
from agentrl.envs.base import Env
from agentrl.models import tiny
from agentrl.models.tokenizers import load_tokenizer
from agentrl.rollout.engines.managed import ManagedEngine
from agentrl.rollout.episodes.groups import Rollouts
from agentrl.rollout.episodes.policies import ModelActor, Policy
from agentrl.rollout.stream.buffer import Gate
from agentrl.rollout.stream.stream import Stream
from agentrl.rollout.stream.tasks import TaskStream
from agentrl.sessions.renderers import get_renderer
from agentrl.sessions.store.recorder import Recorder
from agentrl.sessions.store.store import Store
from agentrl.types import (
    Capabilities,
    Chunk,
    FinishReason,
    Health,
    Message,
    PauseMode,
    Sampling,
    StepResult,
    Task,
    Tokenizer,
    Turn,
    VersionSpan,
    collect,
)
from benchmarks.machine import machine

GROUP_SIZE = 4
SIGMA = 0.7
ANSWER = 64
"""Tokens of a turn."""
QUESTION = "The observation that follows the last action is a line of text of ordinary length, number {number}."


class World(Env):
    """A conversation of so many turns, without tools."""

    def __init__(self, turns: int = 4) -> None:
        self.turns, self.max_turns = turns, turns

    def tasks(self, split: str = "train") -> Iterable[Task]:
        """A hundred tasks without content."""
        return [Task(id=str(number)) for number in range(100)]

    async def reset(self, task: Task, *, seed: int | None = None) -> str:
        """The opening."""
        self.taken = 0
        return QUESTION.format(number=task.id)

    async def step(self, message: Message) -> StepResult:
        """One turn more."""
        self.taken += 1
        answer = Message(role="user", content=QUESTION.format(number=self.taken))
        return StepResult([answer], terminated=self.taken == self.turns)


class Simulated(ManagedEngine):
    """An engine that computes nothing."""

    def __init__(self, mean: float, tokenizer: Tokenizer) -> None:
        self.mean, self.rng, self.turns = mean, random.Random(0), 0
        self.answer = tuple(tokenizer.encode("".join(self.rng.choices("acdfgjkmpqvwxz ", k=4 * ANSWER)))[: ANSWER - 1])
        self.capabilities = Capabilities("simulated", max_context=1 << 20, vocab_size=tokenizer.vocab_size)

    async def generate(
        self, request_id: str, input_ids: Sequence[int], sampling: Sampling, deadline: float | None = None
    ) -> AsyncIterator[Chunk | Turn]:
        """Wait; then the same tokens as always."""
        await self.wait()
        ids, logprobs, stop = self.answer, (-0.5,) * ANSWER, sampling.stop_token_ids[0]
        self.turns += 1
        yield Chunk((*ids, stop), logprobs, 0)
        yield Turn((*ids, stop), logprobs, (VersionSpan(0, 0, ANSWER),), FinishReason.STOP, stopped_by=stop)

    async def wait(self) -> None:
        """As long as a turn takes."""
        await asyncio.sleep(self.mean * self.rng.lognormvariate(-(SIGMA**2) / 2, SIGMA))

    async def score(self, input_ids: Sequence[int], temperature: float = 1.0) -> list[float]:
        """Nothing asks for it."""
        raise NotImplementedError

    async def publish(self, weights: Iterable[tuple[str, Any]], version: int) -> None:
        """It has no weights."""

    async def pause(self, mode: PauseMode = PauseMode.DRAIN) -> None:
        """Nothing is published."""

    async def resume(self) -> None:
        """Nothing was paused."""

    def version(self) -> int:
        """Always the same."""
        return 0

    async def health(self) -> Health:
        """Well."""
        return Health(ok=True)

    async def close(self) -> None:
        """There is nothing to end."""


def resident() -> int:
    """Bytes of this process's resident pages."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def watched(most: list[int]) -> None:
    """Note the largest memory."""
    while True:
        most[0] = max(most[0], resident())
        await asyncio.sleep(0.5)  # reading it costs CPU time, which is measured


async def without_driver(engine: Simulated, turns: int) -> None:
    """What engine and environment do in a session, without the driver."""
    env, sampling = World(turns), Sampling(stop_token_ids=(0,))
    await env.reset(Task(id="0"))
    for _ in range(turns):
        await collect(engine.generate("", (), sampling))
        await env.step(Message(role="assistant", content=""))


async def measure(sessions: int, turns: int, rate: float, profile: str | None) -> str:
    """Generate so many sessions at once; a row of the table."""
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder) / "sessions.db") as store, Recorder(store) as rec:
        model = tiny.build(Path(folder) / "model", [f"<|im_start|>user\n{QUESTION}<|im_end|>\n"] * 50)
        renderer = get_renderer(model)
        engine = Simulated(sessions / rate, load_tokenizer(model))
        limits = RolloutConfig(
            groups_per_step=sessions // GROUP_SIZE,
            group_size=GROUP_SIZE,
            concurrency=sessions,
            turn_timeout=3000.0,
            timeout=9000.0,
        )
        rollouts = Rollouts(lambda: World(turns), Policy(renderer, engine), limits, 0, recorder=rec)
        gate, tasks = Gate(limits.groups_per_step, 1), TaskStream(World(turns), "train", 0)
        most, before = [0], resident()
        watcher = asyncio.create_task(watched(most))
        profiler = cProfile.Profile()
        wall, cpu, loop = time.monotonic(), time.process_time(), time.thread_time()
        if profile:
            profiler.enable()
        actor = ModelActor(Sampling(max_new_tokens=ANSWER))
        with garbage.collect_less_often(limits.concurrency):  # as in a run
            async with Stream(rollouts, tasks, actor, group_size=GROUP_SIZE, gate=gate) as stream:
                groups = await stream.take(limits.groups_per_step)
        profiler.disable()
        took = [after - start for after, start in ((time.process_time(), cpu), (time.thread_time(), loop))]
        wall = time.monotonic() - wall
        watcher.cancel()
        statuses = {str(session.status) for group in groups for session in group.sessions}
        assert statuses == {"completed"}, statuses
        if profile:
            profiler.dump_stats(profile)
        count = engine.turns
        engine.rng.seed(0)  # the same waits, if for other turns
        simulation, bare = time.process_time(), time.monotonic()
        await asyncio.gather(*(without_driver(engine, turns) for _ in range(sessions)))
        took.append(time.process_time() - simulation)
        bare = time.monotonic() - bare
    per_turn, of_loop, simulated = (seconds / count * 1e3 for seconds in took)
    memory = (most[0] - before) / sessions / 1024
    columns = f"{per_turn:12.2f} {of_loop:16.2f} {simulated:15.2f} {took[0] / wall:12.2f} {memory:18.0f}"
    columns += f" {wall:9.2f} {bare:16.2f}"
    return f"{sessions:9,} {count:8,} {columns}"


async def echo(requests: int = 5000) -> float:
    """CPU milliseconds of a line to an asyncio server and back, both in this process: what machines are compared by."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        began = time.process_time()
        for _ in range(requests):
            writer.write(b"a line\n")
            await asyncio.wait_for(reader.readline(), 60.0)
        took = time.process_time() - began
        writer.write_eof()
        await asyncio.wait_for(reader.read(), 60.0)
        writer.close()
    return took / requests * 1e3


def main() -> None:
    """Measure each number of sessions in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, nargs="+", default=[100, 1000, 10000])
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--rate", type=float, default=250.0, help="turns that end in a second")
    parser.add_argument("--profile", help="of the event loop's thread, for a single number of sessions")
    words = parser.parse_args()
    if len(words.sessions) == 1:
        print(asyncio.run(measure(words.sessions[0], words.turns, words.rate, words.profile)), flush=True)
        return
    print(machine())
    print(f"an asyncio echo takes {asyncio.run(echo()):.3f} ms of CPU time a request here")
    heads = "CPU ms/turn  event loop's ms  simulation's ms  CPU / wall  memory KiB/session   seconds  of bare asyncio"
    print(f"sessions    turns  {heads}", flush=True)
    for count in words.sessions:
        command = [
            sys.executable,
            "-m",
            "benchmarks.driver_cost",
            "--sessions",
            str(count),
            "--turns",
            str(words.turns),
            "--rate",
            str(words.rate),
        ]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
