"""Asynchronous runs train on sessions as they were dispatched, not on those that were quick.

Sessions sleep on a clock of the test's own, which jumps to the next event, so nothing here depends on the machine.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Iterable, Sequence

import pytest

from agentrl.config import RolloutConfig
from agentrl.envs.base import Env
from agentrl.envs.episode import NOOP
from agentrl.rollout.episodes.groups import Rollouts
from agentrl.rollout.episodes.policies import Policy
from agentrl.rollout.stream.buffer import Gate, Order
from agentrl.rollout.stream.stream import Stream
from agentrl.rollout.stream.tasks import TaskStream
from agentrl.sessions.renderers.families.null import NullRenderer
from agentrl.types import Group, Message, StepResult, Task

LONGEST = 6
"""Turns of a session are 1 to this, each as likely."""
MEAN = 10.0
"""Of a turn's seconds, which are exponentially distributed."""
STEPS, PER_STEP, TRAINING = 60, 4, 20.0
BOUND = 1.95 / math.sqrt(STEPS * PER_STEP)
"""What the Kolmogorov-Smirnov distance of as many draws exceeds once in a thousand times."""


class Loop(asyncio.SelectorEventLoop):
    """A loop whose clock goes on to the next event where nothing else is to be done."""

    now = 0.0

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]
            self.now = max(self.now, self._scheduled[0].when())  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]


def drawn(seed: int) -> list[float]:
    """The seconds of each of a session's turns."""
    dice = random.Random(seed)
    return [dice.expovariate(1 / MEAN) for _ in range(dice.randint(1, LONGEST))]


class Sleepy(Env):
    """Sessions whose length and latency are drawn from their seed; `dispatched` has the seeds in order."""

    dispatched: list[int]
    max_turns = LONGEST

    def tasks(self, split: str = "train") -> Iterable[Task]:
        return [Task(id=str(n)) for n in range(50)]

    async def reset(self, task: Task, *, seed: int | None = None) -> str:
        assert seed is not None
        self.left = drawn(seed)
        self.dispatched.append(seed)
        return "go"

    async def step(self, message: Message) -> StepResult:
        await asyncio.sleep(self.left.pop())
        return StepResult([Message(role="user", content="on")], terminated=not self.left, reward=0.0)


def run(staleness: int, order: Order, oversample: float = 0.0) -> tuple[list[int], list[list[int]]]:
    """A run's dispatched seeds, and those that each step trained."""
    begun: list[int] = []
    kind = type("Own", (Sleepy,), {"dispatched": begun})
    limits = RolloutConfig(timeout=1e9, turn_timeout=1e8, tool_timeout=1e7, max_turns=LONGEST, concurrency=12)
    rollouts = Rollouts(kind, Policy(NullRenderer()), limits, seed=5)
    gate = Gate(PER_STEP, STEPS, staleness, oversample)

    async def play() -> list[list[int]]:
        trained = []
        tasks = TaskStream(kind(), "train", 5)
        async with Stream(rollouts, tasks, NOOP, group_size=1, gate=gate, order=order) as groups:
            for _ in range(STEPS):
                taken = await groups.take(PER_STEP)
                await asyncio.sleep(TRAINING)
                groups.published(taken)
                trained.append([seed_of(group) for group in taken])
        return trained

    loop = Loop()
    try:
        return begun, loop.run_until_complete(play())
    finally:
        loop.close()


def seed_of(group: Group) -> int:
    (session,) = group.sessions
    assert session.turns == len(drawn(session.seed or 0)), "a session is as long as it was dispatched"
    return session.seed or 0


def distance(values: Sequence[float], below: Callable[[float], float]) -> float:
    """The Kolmogorov-Smirnov distance of a sample from a distribution function."""
    ordered, n = sorted(values), len(values)
    return max(abs(place / n - below(x)) for i, x in enumerate(ordered) for place in (i, i + 1))


def latency_apart(seeds: Sequence[int]) -> float:
    """The distance of the sessions' latencies from the distribution that they were drawn from."""
    return distance([sum(drawn(seed)) for seed in seeds], latency_below)


def latency_below(x: float) -> float:
    """The chance that a session takes at most so long: a mixture of Erlang distributions."""
    return math.fsum(erlang(turns, x / MEAN) for turns in range(1, LONGEST + 1)) / LONGEST


def erlang(k: int, x: float) -> float:
    return 1 - math.exp(-x) * math.fsum(x**n / math.factorial(n) for n in range(k))


def length_apart(seeds: Sequence[int]) -> float:
    """The largest distance of the lengths' cumulated shares from those of equal chances."""
    lengths = [len(drawn(seed)) for seed in seeds]
    return max(abs(sum(n <= k for n in lengths) / len(lengths) - k / LONGEST) for k in range(1, LONGEST + 1))


@pytest.mark.slow
@pytest.mark.parametrize("staleness", [0, 1, 4])
def test_latency_and_length_of_what_is_trained_are_those_of_what_was_dispatched(staleness: int) -> None:
    begun, steps = run(staleness, "number")
    trained = [seed for step in steps for seed in step]
    assert sorted(trained) == sorted(begun), "a session that was dispatched was not trained, or twice"
    assert latency_apart(trained) < BOUND
    assert length_apart(trained) < BOUND
    early = trained[: len(trained) // 4]  # no less at the beginning, when the quick ones are done first
    assert latency_apart(early) < 2 * BOUND


@pytest.mark.slow
@pytest.mark.parametrize("oversample", [0.0, 1.0])
def test_groups_that_overtake_others_change_when_they_are_trained_and_not_which(oversample: float) -> None:
    """What is left behind is dispatched again, as another attempt of its number."""
    begun, steps = run(2, "ready", oversample)
    trained = [seed for step in steps for seed in step]
    assert len(trained) == len(set(trained))
    assert set(trained) <= set(begun)
    assert latency_apart(trained) < BOUND
    assert length_apart(trained) < BOUND


@pytest.mark.slow
def test_the_measure_sees_it_where_a_fifth_of_the_sessions_is_missing_the_slowest() -> None:
    begun, _ = run(0, "number")
    quick = sorted(begun, key=lambda seed: sum(drawn(seed)))[: len(begun) * 4 // 5]
    assert latency_apart(quick) > BOUND
    short = sorted(begun, key=lambda seed: len(drawn(seed)))[: len(begun) * 4 // 5]
    assert length_apart(short) > BOUND
