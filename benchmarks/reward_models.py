"""A reward model learns planted preferences, and a policy that is trained against it gains the true reward.

    python -m benchmarks.reward_models            # three seeds, PPO and GRPO
    python -m benchmarks.reward_models --seeds 1 --algorithms grpo

The true reward of an answer is its share of digits; the policy never sees it. Pairs of random answers are ordered by
it, a tenth of them the wrong way round, and `algo=reward_model` learns from them. Printed are its held-out accuracy,
against the true order, and the policy's true reward on held-out tasks before and after its steps against the learned
one. It ends with 1 where an accuracy is not over 0.9, or the true reward does not rise by 0.15.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import agentrl
from agentrl import Env, Message, StepResult, Task
from agentrl.types import Session
from benchmarks.algorithms import CHARACTERS, COMMON, MARGIN, WARM_START, digits, quiet
from benchmarks.machine import machine

ACCURACY = 0.9
"""What a held-out accuracy has to be over."""
NOISE = 0.1
"""The share of training pairs that are the wrong way round."""
LENGTH = 4
"""Characters of a demonstrated answer."""
LENGTHS = (1, 10)
"""Fewest and most characters of the answers that are compared: a policy finds what a reward model has never seen."""


class HiddenDigits(Env):
    """Say something: the share of digits is the true reward, which is logged and weighs nothing."""

    def tasks(self, split: str = "train") -> list[dict[str, Any]]:
        """Rounds that differ in their number; every fourth is held out."""
        return [{"n": n} for n in range(256) if (n % 4 == 0) == (split == "eval")]

    def reset(self, task: Task, *, seed: int | None = None) -> str:
        """Name the round."""
        self.n = task["n"]
        return prompt(self.n)

    def step(self, message: Message) -> StepResult:
        """One turn."""
        return StepResult(terminated=True)

    @agentrl.reward(weight=0.0)
    def true(self, session: Session) -> float:
        """The share of digits."""
        return digits(session.answer)

    def demonstrate(self, messages: Sequence[Message]) -> str:
        """Any characters."""
        return answer(random.Random(f"demonstration {self.n}"), LENGTH)


KL = 0.05
"""Weight of the divergence from the policy before: it holds a policy to what the reward model has seen."""
GAP = 0.3
"""By how much the true rewards of a pair differ at least."""


def prompt(number: int) -> str:
    """What a round begins with."""
    return f"Say something in round {number}."


def answer(rng: random.Random, length: int) -> str:
    """Random characters."""
    return "".join(rng.choice(CHARACTERS) for _ in range(length))


def write_pairs(file: Path, count: int, rng: random.Random, noise: float) -> Path:
    """Write pairs of different true rewards; a share of them is the wrong way round."""
    with file.open("w") as opened:
        for _ in range(count):
            one, other = (answer(rng, rng.randint(*LENGTHS)) for _ in range(2))
            while abs(digits(one) - digits(other)) < GAP:
                other = answer(rng, rng.randint(*LENGTHS))
            order = (digits(one) > digits(other)) != (rng.random() < noise)
            better, worse = (one, other) if order else (other, one)
            row = {"prompt": prompt(rng.randrange(256)), "chosen": better, "rejected": worse}
            opened.write(json.dumps(row) + "\n")
    return file


def learn_reward(start: str, folder: Path, *, pairs: int, steps: int, seed: int) -> tuple[Path, float]:
    """Train a reward model; its folder, and its accuracy on held-out pairs in the true order."""
    rng = random.Random(seed)
    data = write_pairs(folder / "pairs.jsonl", pairs, rng, NOISE)
    held_out = write_pairs(folder / "held_out.jsonl", 200, rng, 0.0)
    run = folder / "reward_model"
    settings = {
        **{"data": str(data), "data.held_out": str(held_out), "data.strings": "chat", "algo": "reward_model"},
        **{
            "model": start,
            "algo.lr": 1.5e-3,
            "algo.warmup_steps": 0,
            "rollout.groups_per_step": 24,
            "eval.tasks": 256,
            "trainer.proof": False,
        },
    }
    result = agentrl.train(steps=steps, seed=seed, run_dir=str(run), display=quiet(), **settings)
    assert result.after is not None
    return run / "checkpoints" / f"step-{steps:06}", result.after.metrics["accuracy"]


def imitate(folder: Path, seed: int) -> str:
    """A model that has imitated the demonstrator, so that its turns end."""
    settings = COMMON | WARM_START | {"steps": 1, "checkpoint_every": 1, "eval.tasks": 4}
    agentrl.train(HiddenDigits, seed=seed, run_dir=str(folder / "start"), display=quiet(), **settings)
    return str(folder / "start" / "checkpoints" / "step-000000")


def reinforce(algo: str, start: str, reward: Path, folder: Path, *, steps: int, seed: int) -> tuple[float, float]:
    """Train a policy against the learned reward alone; its true reward on held-out tasks before and after."""
    own = {"rewards.learned": "reward_model", "rewards.learned.model": str(reward), "rewards.learned.squash": True}
    own |= {"algo.kl_coef": KL}
    settings = {**COMMON, "steps": steps, "model": start, "warm_start.steps": 0, "algo": algo, **own}
    run = agentrl.train(HiddenDigits, seed=seed, run_dir=str(folder / algo), display=quiet(), **settings)
    assert run.before is not None
    assert run.after is not None
    return run.before.metrics["reward/true"], run.after.metrics["reward/true"]


def main() -> int:
    """Print a line for each seed and algorithm."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--algorithms", nargs="*", default=["ppo", "grpo"])
    parser.add_argument("--pairs", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=12)
    words = parser.parse_args()
    print(machine())
    print("| seed | held-out accuracy | algo | true reward before | after | seconds |")
    print("|---|---|---|---|---|---|", flush=True)
    short = False
    for seed in range(words.seeds):
        with TemporaryDirectory() as name:
            folder, began = Path(name), time.monotonic()
            start = imitate(folder, seed)
            model, accuracy = learn_reward(start, folder, pairs=words.pairs, steps=40, seed=seed)
            short |= not accuracy > ACCURACY
            for algo in words.algorithms:
                before, after = reinforce(algo, start, model, folder, steps=words.steps, seed=seed)
                short |= after - before < MARGIN
                seconds = time.monotonic() - began
                print(f"| {seed} | {accuracy:.3f} | {algo} | {before:.3f} | {after:.3f} | {seconds:.0f} |", flush=True)
    return int(short)


if __name__ == "__main__":
    sys.exit(main())
