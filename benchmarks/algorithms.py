"""Whether every algorithm and every policy loss raises the reward: `python -m benchmarks.algorithms [NAME ...]`.

The tiny model says a few characters and is rewarded for the share of digits in them, in the form that suits the
algorithm: one turn, several that begin in the same state (`gigpo`, `ppo`, and `vine`, which forks them), two named
rewards (`gdpo`), two agents of which one wins more easily (`rae`). It has imitated, for a few steps, a demonstrator
that says random characters, so that its turns end; `sft` is this imitation itself, compared with random weights. Each
algorithm then takes `--steps` with its own defaults; each loss as `grpo`'s, with two updates a step, so that ratios
leave 1. Rewards are means of held-out sessions before and after. Exits with 1 where one rises by less than `--margin`.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

import agentrl
from agentrl import Env, Message, StepResult, Task
from agentrl.train.algorithms import ALGORITHMS
from agentrl.train.algorithms.policy_losses import LOSSES
from agentrl.train.display.console import Display
from agentrl.types import Session
from benchmarks.machine import machine

CHARACTERS = "0123456789" + "abcdefgh" * 3
"""What the demonstrator chooses from: a third of it digits."""
LENGTH = 4
"""Characters that it says."""
MARGIN = 0.15
"""The least rise of the mean reward."""


class Turns(Env):
    """Say digits in each of a few turns: a turn earns its share of them."""

    turns = 3

    def tasks(self, split: str = "train") -> list[dict[str, Any]]:
        """Rounds that differ in their number alone; every fourth is held out."""
        return [{"n": n} for n in range(256) if (n % 4 == 0) == (split == "eval")]

    def reset(self, task: Task, *, seed: int | None = None) -> str | dict[str, str]:
        """The same words in each round."""
        self.n, self.taken = task["n"], 0
        return "Digits."

    def step(self, message: Message) -> StepResult:
        """What a turn earned; each begins as the first did."""
        self.taken += 1
        earned = digits(message.text) / self.turns
        if self.taken == self.turns:
            return StepResult(reward=earned, terminated=True)
        return StepResult([Message(role="user", content="Digits.")], reward=earned)

    def demonstrate(self, messages: Sequence[Message]) -> str:
        """Any characters."""
        rng = random.Random(f"{self.n} {len(messages)} {self.taken}")
        return "".join(rng.choice(CHARACTERS) for _ in range(LENGTH))

    def state(self) -> dict[str, Any]:
        """How many turns were taken."""
        return {"taken": self.taken}

    def restore(self, task: Task, state: dict[str, Any]) -> None:
        """Continue after them."""
        self.n, self.taken = task["n"], state["taken"]


class Turn(Turns):
    """One turn of it."""

    turns = 1


class Named(Turns):
    """One turn with two rewards, the share of digits and of those the fives or more, on scales of their own."""

    turns = 1

    def step(self, message: Message) -> StepResult:
        """Nothing is earned before the end."""
        return StepResult(terminated=True)

    @agentrl.reward(weight=0.9)
    def digits(self, session: Session) -> float:
        """The share of digits."""
        return digits(session.answer)

    @agentrl.reward(weight=0.1)
    def high(self, session: Session) -> float:
        """The share of high digits."""
        return digits(session.answer, "56789")


class Agents(Turns):
    """Two agents with a turn each: the second is to say digits, the first anything but `a`, which is easier."""

    agents = ("easy", "hard")

    def reset(self, task: Task, *, seed: int | None = None) -> dict[str, str]:
        """Both hear which one they are."""
        super().reset(task, seed=seed)
        self.said: dict[str, str] = {}
        return {"easy": "Anything.", "hard": "Digits."}

    def step(self, message: Message) -> StepResult:
        """Over when both have spoken."""
        assert message.name is not None
        self.said[message.name] = message.text
        return StepResult(terminated=len(self.said) == len(self.agents))

    @agentrl.reward
    def share(self, session: Session) -> dict[str, float]:
        """Each agent's share of what it should say."""
        wanted = {"easy": "0123456789bcdefgh", "hard": "0123456789"}
        return {agent: digits(self.said.get(agent, ""), wanted[agent]) for agent in self.agents}


def digits(text: str, wanted: str = "0123456789") -> float:
    """The share of a text's characters that are wanted; 0 of an empty text."""
    return sum(letter in wanted for letter in text) / max(len(text), 1)


@dataclass(frozen=True, slots=True)
class Case:
    """What an algorithm or a loss is measured with.

    Attributes:
        env: the environment that suits it.
        settings: besides the ones that all have.
    """

    env: type[Env] = Turn
    settings: Mapping[str, Any] = field(default_factory=dict)


FORKED = {"rollout.branch": "every", "rollout.branch.continuations": 2, "rollout.branch.trained": False}
CASES: dict[str, Case] = {
    "gdpo": Case(Named),
    "gigpo": Case(Turns),
    "ppo": Case(Turns),
    "rae": Case(Agents),
    "remax": Case(Named),  # a greedy turn that does not end has a reward there
    "vine": Case(Turns, FORKED | {"rollout.group_size": 4}),
}
"""Algorithms that need another environment than `Turn`, by name."""
WARM_START: dict[str, Any] = {
    "warm_start.steps": 30,
    "warm_start.batch": 32,
    "warm_start.demos": 256,
    "warm_start.lr": 4e-3,
}
COMMON: dict[str, Any] = {
    "rollout.groups_per_step": 8,
    "rollout.group_size": 8,
    "rollout.turn_tokens": 8,
    "rollout.session_tokens": 200,
    "eval.tasks": 64,
    "algo.lr": 2e-3,
    "algo.warmup_steps": 0,
    "algo.kl_coef": 0.0,
    "engine.proof": False,
    "trainer.proof": False,
}


ONLY_TRAINING = {key for key in COMMON if key.startswith(("algo", "trainer", "rollout.group"))}
"""What `evaluate` refuses."""


def quiet() -> Display:
    """Shows nothing: the table is what counts."""
    return Display(Console(quiet=True))


@dataclass(frozen=True, slots=True)
class Outcome:
    """The mean held-out reward before and after, and what it took."""

    start: float
    end: float
    steps: int
    seconds: float

    @property
    def rise(self) -> float:
        """By how much the reward rose."""
        return self.end - self.start


class Matrix:
    """Measures algorithms and losses; environments' starting models are made once.

    Args:
        folder: where runs are written.
        steps: of reinforcement learning.
        seed: of every run.
    """

    def __init__(self, folder: Path, steps: int, seed: int = 0) -> None:
        self.folder, self.steps, self.seed = folder, steps, seed
        self._starts: dict[str, tuple[str, Outcome]] = {}

    def measure(self, algo: str, loss: str | None = None) -> Outcome:
        """Train with an algorithm, or with a loss besides."""
        case = CASES.get(algo, Case())
        if algo == "sft":
            return self.imitated(case.env)[1]
        start, _ = self.imitated(case.env)
        settings = {**COMMON, "steps": self.steps, "model": start, "warm_start.steps": 0, "algo": algo, **case.settings}
        if loss is not None:
            settings |= {"algo.loss": loss, "algo.epochs": 2}
        return self._train(case.env, f"{algo} {loss}", settings)

    def _train(self, env: type[Env], name: str, settings: Mapping[str, Any]) -> Outcome:
        began = time.monotonic()
        run = agentrl.train(
            env, seed=self.seed, run_dir=str(self.folder / name), display=Display(Console(quiet=True)), **settings
        )
        assert run.before
        assert run.after
        return Outcome(run.before.mean, run.after.mean, len(run.metrics), time.monotonic() - began)

    def imitated(self, env: type[Env]) -> tuple[str, Outcome]:
        """The folder of a model that has imitated the demonstrator, and how that changed its reward."""
        if env.__name__ in self._starts:
            return self._starts[env.__name__]
        own = {key: value for key, value in COMMON.items() if key not in ONLY_TRAINING}
        untrained = self.folder / f"{env.__name__} untrained"
        before = agentrl.evaluate(env, seed=self.seed, run_dir=str(untrained), display=quiet(), model="tiny", **own)
        name = f"{env.__name__} start"
        after = self._train(env, name, COMMON | WARM_START | {"steps": 1, "checkpoint_every": 1})
        folder = self.folder / name / "checkpoints" / "step-000000"
        start = 0.0 if math.isnan(before.mean) else before.mean  # cut turns earn nothing
        found = str(folder), Outcome(start, after.start, WARM_START["warm_start.steps"], after.seconds)
        self._starts[env.__name__] = found
        return found


def main() -> int:
    """Measure all of them, or those that are named; print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="algorithms, and losses as loss=NAME; all by default")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--margin", type=float, default=MARGIN)
    words = parser.parse_args()
    played = [name for name in sorted(ALGORITHMS.known()) if ALGORITHMS.find(name)().needs.head is None]
    names = words.names or [*played, *(f"loss={name}" for name in sorted(LOSSES.known()))]
    print(machine())
    short = []
    with TemporaryDirectory() as folder:
        matrix = Matrix(Path(folder), words.steps, words.seed)
        print(f"{'algorithm':26}{'environment':14}{'start':>7}{'end':>7}{'steps':>7}{'seconds':>9}")
        for name in names:
            algo, loss = ("grpo", name.removeprefix("loss=")) if name.startswith("loss=") else (name, None)
            compares = LOSSES.find(loss).compares if loss else None
            algo = {"pairs": "dpo", "labels": "kto"}.get(compares or "", algo)
            found = matrix.measure(algo, loss)
            env = CASES.get(algo, Case()).env.__name__
            row = f"{name:26}{env:14}{found.start:7.3f}{found.end:7.3f}{found.steps:7}{found.seconds:9.1f}"
            print(row, flush=True)
            if found.rise < words.margin:
                short.append(name)
    if short:
        print(f"rose by less than {words.margin:g}: {', '.join(short)}")
    return int(bool(short))


if __name__ == "__main__":
    sys.exit(main())
