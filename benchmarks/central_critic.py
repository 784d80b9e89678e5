"""What a central critic explains that an agent's own can't: a part of `python -m benchmarks.teams critic`.

In `Suits` two agents see a suit each, and what both can earn depends on whether the suits are the same. Either suit
alone says nothing of that. Two policies with tiny models and trainers of their own learn it by `maac`, once with
critics of joint paths and once with critics of the agents' own.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console

import agentrl
from agentrl.envs.base import Env, reward
from agentrl.overrides import merge, spread
from agentrl.train.display.console import Display
from agentrl.types import Message, Session, StepResult, Task

SUITS = ("red", "black")
DIFFERENT = 0.2
"""What a right name is worth where the suits differ; 1 where they are the same."""
APART = 0.3
"""The difference in explained variance that is claimed."""
LAST = 5
"""The steps at the end over which means are taken."""


class Suits(Env):
    """Both agents say their suit; each right name earns the team a half, or a tenth where the suits differ."""

    agents = ("left", "right")
    teams: Mapping[str, tuple[str, ...]] = {"pair": ("left", "right")}
    simultaneous = True

    @classmethod
    def recipe(cls, model: str) -> dict[str, Any]:
        """Enough imitation to say a suit, whichever."""
        return {
            "warm_start.steps": 25,
            "warm_start.demos": 256,
            "rollout.groups_per_step": 16,
            "rollout.group_size": 2,
            "rollout.turn_tokens": 8,
            "eval.tasks": 4,
        }

    def tasks(self, split: str = "train") -> Iterator[Task]:
        """The four pairs of suits in turn, endless."""
        for number in count():
            pair = [SUITS[number % 2], SUITS[number // 2 % 2]]
            yield Task(id=f"{split}-{number}", data={"suits": pair})

    def reset(self, task: Task, *, seed: int | None = None) -> dict[str, str]:
        """Each agent's suit."""
        self._suits, self._said = dict(zip(self.agents, task["suits"], strict=True)), dict[str, str]()
        return {agent: f"Your suit is {suit}. Which?" for agent, suit in self._suits.items()}

    def step(self, message: Message) -> StepResult:
        """Note what was said."""
        self._said[message.name or ""] = message.text.strip()
        return StepResult(terminated=len(self._said) == len(self.agents))

    def demonstrate(self, messages: Sequence[Message], rng: random.Random) -> str:
        """Any suit."""
        return rng.choice(SUITS)

    def expert(self, messages: Sequence[Message]) -> str:
        """The suit."""
        return next(suit for suit in SUITS if suit in messages[0].text)

    @reward
    def named(self, session: Session) -> dict[str, float]:
        """The share of right names, of 1 where the suits are the same and of `DIFFERENT` elsewhere."""
        worth = 1.0 if len({*self._suits.values()}) == 1 else DIFFERENT
        return {"pair": worth * fmean(self._said.get(agent) == suit for agent, suit in self._suits.items())}


def play(folder: Path, path: str, seed: int, more: Mapping[str, Any]) -> list[dict[str, float]]:
    """Train both policies with critics of one kind; the metrics of each step."""
    algo = {"name": "maac", "value_path": path, "value_trunk": "own", "value_trunk_lr": 2e-3, "value_epochs": 8}
    settings: dict[str, Any] = {"steps": 20, "seed": seed, "algo": algo, "eval.every": None}
    settings |= {"agents.right": "other", "policies.other.algo": algo}
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".log").open("w") as log:
        given = merge(spread(settings), spread(more))
        result = agentrl.train(Suits, **given, run_dir=str(folder), display=Display(Console(file=log)))
    return [dict(row) for row in result.metrics]


def compare(seed: int, folder: Path, small: bool, more: Mapping[str, Any]) -> Iterator[tuple[bool, str]]:
    """Train with critics of joint paths and with the agents' own, and say what they explained and what was earned.

    Args:
        seed: of both runs.
        folder: of theirs.
        small: claim nothing.
        more: settings besides.
    """
    explained: dict[str, float] = {}
    for path in ("joint", "agent"):
        rows = play(folder / f"suits-{path}-{seed}", path, seed, more)
        by_policy = {
            policy: [row.get(f"{prefix}critic/explained_variance", 0.0) for row in rows]
            for policy, prefix in (("main", ""), ("other", "other/"))
        }
        last = {policy: fmean(each[-LAST:]) for policy, each in by_policy.items()}
        explained[path] = min(last.values()) if path == "joint" else max(last.values())
        rewards = [row["reward/mean"] for row in rows]
        words = ", ".join(f"{policy} {value:.2f}" for policy, value in last.items())
        curve = " ".join(f"{value:.2f}" for value in by_policy["main"])
        yield True, f"value_path={path}: explained {words} in the last {LAST} steps; main by step {curve}"
        first, end = fmean(rewards[:LAST]), fmean(rewards[-LAST:])
        yield True, f"value_path={path}: reward {first:.3f} in the first {LAST} steps, {end:.3f} in the last"
    apart = explained["joint"] - explained["agent"]
    yield small or apart > APART, f"the worse central critic explains {apart:.2f} more than the better other one"
