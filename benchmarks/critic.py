"""What the critic of `algo=ppo` explains of unseen returns: `python -m benchmarks.critic [chests] [calculator]`.

Explained variance is 1 - Var(return - value) / Var(return) over a step's trained tokens, by the values from before the
step's first update, so of a fresh batch: 0 is what the best constant explains, 1 is everything.

- `chests`: the prompt says what a session can earn, so nearly all of the variance can be explained.
- `calculator`: what can be explained is little, and changes with the policy. A probe says how much: a ridge regression
  of returns on the policy's hidden states, fitted on the first batches of a policy that does not change, and evaluated
  on the last four.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

import agentrl
from agentrl.envs.base import Env, reward
from agentrl.train.driver.result import TrainResult
from agentrl.train.forest.forest import Forest
from agentrl.train.trainers.torch_trainer.batch import trunk_of
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from agentrl.types import Message, Session, Task
from benchmarks.machine import machine

STILL = 1e-12
"""A learning rate at which a policy stands still."""
HELD_OUT = 4
"""The last batches, on which the probe is evaluated and over which values are averaged."""
PENALTIES = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
"""Of the ridge regression; the best on the held-out batches counts, which flatters the probe."""


class Chests(Env):
    """A chest says how many coins it holds: who names their number gets them, who misreads it gets nothing."""

    max_turns = 1

    @classmethod
    def recipe(cls, model: str) -> dict[str, Any]:
        """Enough imitation to read a number most of the time."""
        return {
            "warm_start.steps": 60,
            "warm_start.demos": 256,
            "warm_start.batch": 32,
            "algo.lr": 1e-4,
            "rollout.groups_per_step": 32,
            "rollout.group_size": 2,
            "rollout.turn_tokens": 8,
            "eval.tasks": 8,
        }

    def tasks(self, split: str = "train") -> Iterator[Task]:
        """Chests of one to nine coins, endless."""
        for index in count():
            coins = random.Random(f"chests/{split}/{index}").randint(1, 9)
            yield Task(id=f"{split}-{index}", data={"coins": coins})

    def reset(self, task: Task, *, seed: int | None = None) -> str:
        """What the chest says."""
        self._coins = int(task["coins"])
        return f"A chest of {self._coins} coins. How many?"

    @reward
    def coins(self, session: Session) -> float:
        """A ninth for each coin, where their number was named."""
        return self._coins / 9 if session.answer.strip() == str(self._coins) else 0.0

    def expert(self, messages: Sequence[Message]) -> str:
        """The number."""
        return str(self._coins)


class Recording(TorchTrainer):
    """The torch trainer, keeping of each batch the trained rows' hidden states, returns and weights."""

    batches: list[tuple[Tensor, Tensor, Tensor]]

    def step(
        self, forests: Sequence[Forest], state: Mapping[str, Any] | None = None, value_forests: Sequence[Forest] = ()
    ) -> dict[str, float]:
        """Record, and learn."""
        if self.algorithm.needs.critic:
            with torch.no_grad():
                ready = [self.prepare(forest) for forest in forests]
                states = [self.compute_hidden(trunk_of(self.model), b)[b.rows.predictor] for b in ready]
            returns = [b.rows.returns for b in ready if b.rows.returns is not None]
            weights = [b.rows.weight for b in ready]
            type(self).batches.append((torch.cat(states), torch.cat(returns), torch.cat(weights)))
        return super().step(forests, state, value_forests)


def explained(values: Tensor, returns: Tensor, weight: Tensor) -> float:
    """The weighted explained variance of returns by values."""

    def variance(x: Tensor) -> Tensor:
        share = weight.double() / weight.sum()
        return (share * (x.double() - (share * x).sum()) ** 2).sum()

    return float(1 - variance(returns - values) / variance(returns))


def ridge(batches: Sequence[tuple[Tensor, Tensor, Tensor]], penalty: float) -> tuple[Tensor, Tensor]:
    """The row and the bias that fit all batches best under a penalty on the row's square, in float64."""
    states = torch.cat([h for h, _, _ in batches]).double()
    returns = torch.cat([r for _, r, _ in batches]).double()
    weight = torch.cat([w / w.sum() for _, _, w in batches]).double() / len(batches)
    mean, middle = weight @ states, weight @ returns
    centred = states - mean
    square = (centred * weight[:, None]).T @ centred + penalty * torch.eye(states.shape[1], dtype=torch.float64)
    row = torch.linalg.solve(square, (centred * weight[:, None]).T @ (returns - middle))
    return row, middle - mean @ row


def probe(batches: Sequence[tuple[Tensor, Tensor, Tensor]]) -> float:
    """What the hidden states of a policy that stands still explain of held-out batches, by the best of ridges."""
    fitted, held = batches[:-HELD_OUT], batches[-HELD_OUT:]

    def score(penalty: float) -> float:
        row, bias = ridge(fitted, penalty)
        return sum(explained((h.double() @ row + bias).float(), r, w) for h, r, w in held) / len(held)

    return max(map(score, PENALTIES))


def last(result: TrainResult) -> float:
    """The mean explained variance of the last steps."""
    rows = [row["critic/explained_variance"] for row in result.metrics if "critic/explained_variance" in row]
    return sum(rows[-HELD_OUT:]) / HELD_OUT


def by_step(result: TrainResult) -> str:
    """The explained variance of each step."""
    return " ".join(f"{row.get('critic/explained_variance', float('nan')):.2f}" for row in result.metrics)


def chests(folder: Path, trunk: str, steps: int = 12) -> TrainResult:
    """Train on chests, on either trunk."""
    algo = {"name": "ppo", "value_trunk": trunk}
    return agentrl.train(Chests, algo=algo, steps=steps, run_dir=str(folder / f"chests-{trunk}"))


def calculator(folder: Path) -> list[str]:
    """A policy that stands still under the critic and the probe, and one that learns."""
    warm = agentrl.train("calculator", algo="ppo", steps=15, run_dir=str(folder / "policy"), checkpoint_every=15)
    lines = [f"calculator, policy learns, policy's trunk: last steps {last(warm):.2f}; by step {by_step(warm)}"]
    begun = {
        "model": str(folder / "policy" / "checkpoints" / "step-000000"),
        "rollout": {"turn_tokens": 24, "session_tokens": 400},
        "engine.max_batch": 128,
        "trainer.token_budget": 16384,
        "eval.tasks": 8,
        "steps": 16,
    }
    for trunk in ("policy", "own"):
        Recording.batches = []
        algo = {"name": "ppo", "lr": STILL, "value_trunk": trunk, "value_trunk_lr": 5e-4}
        run_dir, trainer = str(folder / f"still-{trunk}"), "benchmarks.critic:Recording"
        result = agentrl.train("calculator", algo=algo, trainer=trainer, run_dir=run_dir, **begun)
        lines.append(f"calculator, policy still, {trunk} trunk: last {last(result):.2f}; by step {by_step(result)}")
        if trunk == "policy":
            lines.append(f"calculator, policy still, ridge regression on held-out: {probe(Recording.batches):.2f}")
    return lines


def main() -> None:
    """Run what is named, or all."""
    wanted = sys.argv[1:] or ["chests", "calculator"]
    lines = [machine()]
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        if "chests" in wanted:
            for trunk in ("policy", "own"):
                result = chests(folder, trunk)
                lines.append(f"chests, {trunk} trunk: last steps {last(result):.2f}; by step {by_step(result)}")
        if "calculator" in wanted:
            lines += calculator(folder)
    print("\n".join(lines))


if __name__ == "__main__":
    from benchmarks import critic  # under the name by which the run finds `Recording`

    critic.main()
