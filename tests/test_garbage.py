"""The garbage collector during a run, and after it."""

from __future__ import annotations

import asyncio
import gc
import weakref
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import agentrl
from agentrl import garbage
from agentrl.train.display import Display


class Cycle:
    def __init__(self) -> None:
        self.itself = self


def test_what_a_run_leaves_in_cycles_is_found_during_it_and_the_collector_is_as_before_after_it() -> None:
    before = gc.get_threshold()
    with garbage.seldom():
        assert gc.get_threshold() != before
        assert gc.get_freeze_count()
        cycle = weakref.ref(Cycle())
        kept = [[] for _ in range(25 * garbage.THRESHOLDS[0])]
        assert cycle() is None, f"not found among {len(kept)} objects"
    assert gc.get_threshold() == before
    assert not gc.get_freeze_count()


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


@pytest.mark.slow
def test_calls_one_after_the_other_leave_no_tensors_in_the_process(tmp_path: Path) -> None:
    """Engine and trainer are in cycles, and the collector found them too seldom: the 21st call found no memory."""
    (tmp_path / "world.py").write_text(WORLD)
    env = f"{tmp_path}/world.py:Letters"
    display = Display(Console(file=StringIO()))
    small: dict[str, Any] = {"rollout.groups_per_step": 1, "rollout.group_size": 2, "rollout.turn_tokens": 8}

    def train(number: int) -> None:
        agentrl.train(env, display=display, steps=1, run_dir=str(tmp_path / f"{number}"), **small, **{"eval.tasks": 1})

    def evaluate(number: int) -> None:
        model = str(tmp_path / "0" / "model")
        agentrl.evaluate(
            env, display=display, model=model, run_dir=str(tmp_path / f"eval-{number}"), **{"eval.tasks": 1}
        )

    def rollouts(number: int) -> None:
        async def play() -> None:
            async with agentrl.rollouts(env, display=display, steps=1, **small) as run:
                async for _ in run:
                    pass

        asyncio.run(play())

    for call in (train, evaluate, rollouts):
        call(0)
        before = tensor_bytes()
        for number in range(1, 4):
            call(number)
        assert tensor_bytes() <= before, call.__name__


def tensor_bytes() -> int:
    """Bytes of the tensors that Python's collector knows, without collecting first."""
    import torch

    return sum(one.nbytes for one in gc.get_objects() if isinstance(one, torch.Tensor))
