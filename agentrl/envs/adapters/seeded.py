"""Adapters of libraries whose episodes a seed begins: their tasks, and turns that are one action each."""

from __future__ import annotations

from typing import Any

from agentrl.envs.base import Env
from agentrl.errors import EnvError
from agentrl.tools.schema import show_value
from agentrl.types import Message, StepResult

EVAL_SEEDS = 2**31
"""The first seed of the split `eval`; training's begin at 0."""
EVAL_TASKS = 200


class SeededEnv(Env):
    """An environment whose tasks are seeds, `episodes` of them for training."""

    episodes: int
    _renderer: Any = None

    def tasks(self, split: str = "train") -> list[dict[str, Any]]:
        seeds = range(EVAL_SEEDS, EVAL_SEEDS + EVAL_TASKS) if split == "eval" else range(self.episodes)
        return [{"id": f"seed-{seed}", "seed": seed} for seed in seeds]

    def _render(self, *seen: Any) -> str:
        found = self._renderer(*seen)
        if not isinstance(found, str):
            raise EnvError(f"env.renderer returned {show_value(found)}, which is no text")
        return found


class ActionEnv(SeededEnv):
    """One whose turn is an action: the call of a tool, or with `form="text"` the message's text."""

    form: str
    idle_reward: float

    async def step(self, message: Message) -> StepResult:
        if self.form == "text":
            result = await self._take_text(message.text)
        elif message.tool_calls:
            result = await self.run_tools(message)
        else:
            names = " or ".join(map(repr, self.tools.names))
            result = StepResult([say(f"Error: each turn is a call of the tool {names}")])
        if result.reward is None:
            result.reward = self.idle_reward
        return result

    async def _take_text(self, text: str) -> StepResult:
        raise NotImplementedError


def say(text: str) -> Message:
    """Return a message to the agent."""
    return Message(role="user", content=text)
