"""Calls of agentrl in one process: prints how many bytes of tensors it holds after each; see `test_garbage`."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

import agentrl
from agentrl.train.display.console import Display

WORLD = """
import agentrl


class Letters(agentrl.Env):
    max_turns = 1

    def tasks(self, split="train"):
        return [agentrl.Task(id=str(number)) for number in range(4)]

    async def reset(self, task, *, seed=None):
        return f"Write something about {task.id}."

    @agentrl.reward
    def letters(self, session) -> float:
        return sum(map(ord, session.answer)) % 11 / 10
"""


SMALL: dict[str, Any] = {"rollout.groups_per_step": 1, "rollout.group_size": 2, "rollout.turn_tokens": 8}


def tensor_bytes() -> int:
    """Bytes of the tensors that Python's collector knows, without collecting first."""
    return sum(one.nbytes for one in gc.get_objects() if type(one) in (torch.Tensor, torch.nn.Parameter))


def main(folder: Path) -> None:
    """Three calls of each kind."""
    (folder / "world.py").write_text(WORLD)
    env, display = f"{folder}/world.py:Letters", Display(Console(file=StringIO()))

    def train(number: int) -> None:
        agentrl.train(env, display=display, steps=1, run_dir=str(folder / f"{number}"), **SMALL, **{"eval.tasks": 1})

    def evaluate(number: int) -> None:
        model, run = str(folder / "0" / "model"), str(folder / f"eval-{number}")
        agentrl.evaluate(env, display=display, model=model, run_dir=run, **{"eval.tasks": 1})

    def rollouts(number: int) -> None:
        async def play() -> None:
            async with agentrl.rollouts(env, display=display, steps=1, **SMALL) as run:
                async for _ in run:
                    pass

        asyncio.run(play())

    calls: tuple[Callable[[int], None], ...] = (train, evaluate, rollouts)
    held: dict[str, list[int]] = {}
    for call in calls:
        for number in range(3):
            call(number)
            held.setdefault(call.__name__, []).append(tensor_bytes())
    print(json.dumps(held))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
