"""A run that `agentrl.train` itself made, of sessions as small as they can be."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console

import agentrl
from agentrl.train.display.console import Display

STEPS = 41
WORLD = '''
import agentrl
from agentrl.errors import ToolError
from agentrl.types import FunctionCall, Message, ToolCall


class Doors(agentrl.Env):
    """Every door is locked, and whoever does not try one earns something."""

    max_turns = 2

    def tasks(self, split="train"):
        return [agentrl.Task(id=f"{split} {number}", data={"door": number % 3}) for number in range(12)]

    async def reset(self, task, *, seed=None):
        self.door = task.data["door"]
        return str(self.door)

    @agentrl.tool
    def open(self, d: int) -> str:
        """Open a door.

        Args:
            d: its number.
        """
        raise ToolError(f"door {d} is locked")

    async def expert(self, messages):
        if len(messages) > 1:
            return "in"
        call = FunctionCall(name="open", arguments=f'{{"d": {self.door}}}')
        return Message(role="assistant", tool_calls=[ToolCall(id="call_1", function=call)])

    @agentrl.reward
    def letters(self, session) -> float:
        return 0.0 if session.counters.get("tool_errors") else 0.1 + sum(map(ord, session.answer)) % 10 / 10
'''
"""A policy that imitated the expert calls the tool in most sessions, and the call fails."""
SETTINGS: dict[str, Any] = {
    **{"warm_start.steps": 10, "warm_start.demos": 24, "warm_start.batch": 8, "warm_start.lr": 1e-2, "algo.lr": 1e-6},
    **{"rollout.groups_per_step": 1, "rollout.group_size": 3, "rollout.turn_tokens": 24, "eval.tasks": 1},
    **{"steps": STEPS, "checkpoint_every": 20, "keep_checkpoints": 3, "record_logprobs": True, "metrics": ()},
}


def train_run(folder: Path) -> Path:
    """Train in a folder; the environment's file is beside it."""
    world = folder.with_suffix(".py")
    world.write_text(WORLD)
    display = Display(Console(file=StringIO(), width=200))
    agentrl.train(env=f"{world}:Doors", display=display, **SETTINGS, run_dir=str(folder))
    return folder
