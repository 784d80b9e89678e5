"""Asynchronous against synchronous rollouts, where sessions have a long tail.

    python -m benchmarks.asynchronous [--steps 80] [--sigma 0.7] [--latency 0.08]

The run's own stream, buffer, driver and an environment; generation and training are waits of stated length. A turn
takes `latency` seconds on average and occupies one of 32 slots of the engine; a session's turns are slower or faster
together, by a factor with a lognormal distribution of mean 1 and shape `sigma`. The trainer takes as long for a step as
the engine needs for its turns when all slots are busy.

Printed: steps per second, their ratio to the synchronous run's, and to the best that any schedule could reach, which is
a step in max(training, turns / slots). Seeds decide the latencies, so all runs generate the same sessions.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from agentrl.config import RolloutConfig
from agentrl.envs.base import Env
from agentrl.rollout.episodes.groups import Rollouts
from agentrl.rollout.episodes.policies import Policy
from agentrl.rollout.stream.buffer import Gate, Order
from agentrl.rollout.stream.stream import Stream
from agentrl.rollout.stream.tasks import TaskStream
from agentrl.sessions.renderers.families.null import NullRenderer
from agentrl.sessions.tree.conversation import Conversation
from agentrl.types import Message, Node, StepResult, Task
from benchmarks.machine import machine

GROUPS, SAMPLES, TURNS = 8, 8, 4
SLOTS = 32
WORK = GROUPS * SAMPLES * TURNS / SLOTS
"""The mean latencies of a turn in which the engine generates a step's turns, all slots busy."""
MODES: dict[str, tuple[int, Order, float]] = {
    "synchronous": (0, "number", 0.0),
    "synchronous, ready, 25 % more groups": (0, "ready", 0.25),
    "staleness 1": (1, "number", 0.0),
    "staleness 4": (4, "number", 0.0),
    "staleness 4, ready": (4, "ready", 0.0),
}


class World(Env):
    """A conversation of `TURNS` turns."""

    def tasks(self, split: str = "train") -> Iterable[Task]:
        """A hundred tasks without content."""
        return [Task(id=str(number)) for number in range(100)]

    async def reset(self, task: Task, *, seed: int | None = None) -> str:
        """The opening."""
        self.turns = 0
        return task.id

    async def step(self, message: Message) -> StepResult:
        """One turn more."""
        self.turns += 1
        return StepResult([Message(role="user", content="go on")], terminated=self.turns == TURNS)


@dataclass
class Simulated:
    """An actor whose turns take a while in one of the engine's slots."""

    sigma: float
    latency: float
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(SLOTS))

    async def act(self, conversation: Conversation, env: Env, turn: int, deadline: float) -> Node:
        """Wait for a slot, and then as long as the turn takes."""
        session = conversation.session
        factor = random.Random(f"{session.seed}.{session.sample}").lognormvariate(-(self.sigma**2) / 2, self.sigma)
        async with self.slots:
            await asyncio.sleep(self.latency * factor)
        return conversation.demonstrate(Message(role="assistant", content="done"))


async def steps_per_second(simulated: Simulated, steps: int, staleness: int, order: Order, oversample: float) -> float:
    """Take the steps; from the second on they are timed, so that the first groups' latency is no part of it."""
    rollouts = Rollouts(World, Policy(NullRenderer()), RolloutConfig(), seed=0)
    gate = Gate(GROUPS, steps, staleness, oversample)
    tasks = TaskStream(World(), "train", 0)
    began = 0.0
    async with Stream(rollouts, tasks, simulated, group_size=SAMPLES, gate=gate, order=order) as stream:
        for step in range(steps):
            began = time.monotonic() if step == 1 else began
            groups = await stream.take(GROUPS)
            await asyncio.sleep(WORK * simulated.latency)
            stream.published(groups)
    return (steps - 1) / (time.monotonic() - began)


def main() -> None:
    """Run every mode."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--sigma", type=float, default=0.7)
    parser.add_argument("--latency", type=float, default=0.08)
    words = parser.parse_args()
    print(machine())
    best, first = 1 / (WORK * words.latency), 0.0
    print(f"{'':40} steps/s  to synchronous  to the best ({best:.2f})")
    for name, (staleness, order, oversample) in MODES.items():
        simulated = Simulated(words.sigma, words.latency)
        rate = asyncio.run(steps_per_second(simulated, words.steps, staleness, order, oversample))
        first = first or rate
        print(f"{name:40} {rate:7.2f}  {rate / first:14.2f}  {rate / best:11.2f}")


if __name__ == "__main__":
    main()
