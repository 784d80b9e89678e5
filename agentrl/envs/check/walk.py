"""An episode that is played again step by step, and what it changes that is not its own."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from agentrl.envs import calls
from agentrl.envs.base import Env
from agentrl.sessions.tree.codec import same_task
from agentrl.tools.schema import show_value
from agentrl.types import Message, Session, Task


@dataclass
class Walk:
    """An episode that is stepped through with recorded messages, each of which is compared afterwards.

    Attributes:
        task: what was changed in the task, in words; "" where nothing was.
        given: the same of the messages that `step` was given.
        sent: the same of messages that it had returned before.
        tools: the same of the tools.
    """

    task: str = ""
    given: str = ""
    sent: str = ""
    tools: str = ""
    _kept: list[tuple[Message, Message]] = field(default_factory=list)

    async def through(self, env: Env, said: Sequence[Message], session: Session, task: Task, seed: int) -> None:
        """Play a session's episode again, whose agents wrote `said`, and compare."""
        before = copy.deepcopy(task)
        openings = await calls.openings(env, task, seed=seed)
        opened = sum(map(len, openings.values()))
        self._keep([message for messages in openings.values() for message in messages])
        schemas = copy.deepcopy(env.tools.schemas())
        turns = (one for one in session.nodes[opened:] if one.message.role == "assistant")
        for turn, (node, written) in enumerate(zip(turns, said, strict=False), 1):
            named = {"name": node.agent} if len(env.agents) > 1 else {}
            message = written.model_copy(deep=True, update=named)
            result = await calls.step(env, message)
            wanted = written.model_copy(update=named)
            self.given = self.given or (f"of turn {turn}: {_difference(wanted, message)}" if message != wanted else "")
            self.sent = self.sent or self._find_change(turn)
            if not self.task and not same_task(task, before):
                self.task = f"in turn {turn}: {_show(before)} became {_show(task)}"
            self.tools = self.tools or _new_tools(schemas, env.tools.schemas(), turn)
            if result.terminated or result.truncated:
                return
            self._keep([*result.messages, *(one for others in result.others.values() for one in others)])

    def _keep(self, messages: list[Message]) -> None:
        self._kept += [(message, message.model_copy(deep=True)) for message in messages]

    def _find_change(self, turn: int) -> str:
        for now, before in self._kept:
            if now != before:
                return f"in turn {turn}: {_difference(before, now)}"
        return ""


def _new_tools(before: list[dict[str, Any]], after: list[dict[str, Any]], turn: int) -> str:
    if before == after:
        return ""
    names = {schema["function"]["name"] for schema in after if schema not in before}
    gone = {schema["function"]["name"] for schema in before if schema not in after} - names
    return f"in turn {turn}: {', '.join([*sorted(names), *(f'no {name}' for name in sorted(gone))])}"


def _difference(before: Message, after: Message) -> str:
    for name in type(before).model_fields:
        one, other = getattr(before, name), getattr(after, name)
        if one != other:
            return f"its {name} was {show_value(one, 80)} and is {show_value(other, 80)}"
    return ""


def _show(task: Task) -> str:
    return show_value(task.data, 80)
