"""Sub-agents: conversations that an environment begins within a step, written by the agent whose turn it is.

A tool, or `step`, calls `Env.spawn`. The sub-agent's turns are generated as the agent's own are, in a conversation that
begins at a root of its own in the same session, and its first message without tool calls is the result. So its paths
are trained with the agent's reward, as those of an agent program's sub-agents are (`algo.helper_credit`).

Sub-agents of a step run one after another, in the order of their calls: the nodes of a session have the same ids
whatever the timing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field

from agentrl.envs.base import Env
from agentrl.envs.context import Messages, context_of
from agentrl.errors import EnvError, TokenBudgetExceeded, ToolError
from agentrl.sessions.tree.conversation import Conversation
from agentrl.types import FinishReason, Message, Node, ToolCall, as_messages

Act = Callable[[Conversation, Env, int, float], Awaitable[Node]]
"""`Actor.act` of the agent whose turn it is."""
TURNS = 1 << 20
"""More turns than an agent takes: those of its sub-agents have numbers, and so seeds, beyond them."""
_inside: ContextVar[bool] = ContextVar("inside a sub-agent", default=False)


@dataclass
class SubAgents:
    """Runs the sub-agents of one step: within its block the environment may begin some.

    Attributes:
        env: the episode's.
        parent: the conversation of the agent whose turn it is.
        act: writes its messages.
        turn: the number of its turn.
        deadline: of the step, in seconds of `time.monotonic()`.
    """

    env: Env
    parent: Conversation
    act: Act
    turn: int
    deadline: float
    _taken: int = 0
    _one: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __enter__(self) -> None:
        context_of(self.env.unwrapped).run_sub_agent = self.run

    def __exit__(self, *raised: object) -> None:
        context_of(self.env.unwrapped).run_sub_agent = None

    async def run(self, messages: Messages, tools: Sequence[str], max_turns: int, name: str) -> str:
        """The result of a sub-agent; see `Env.spawn`."""
        where = f"{type(self.env.unwrapped).__name__}.spawn"
        if _inside.get():
            raise EnvError(f"{where}: a sub-agent's tools can't begin another one")
        known = self.env.tools.names
        if unknown := [tool for tool in tools if tool not in known]:
            raise EnvError(f"{where}: there is no tool {unknown[0]!r} (tools: {', '.join(known) or 'none'})")
        async with self._one:
            token = _inside.set(True)
            try:
                return await self._converse(messages, tools, max_turns, name)
            finally:
                _inside.reset(token)

    async def _converse(self, messages: Messages, tools: Sequence[str], max_turns: int, name: str) -> str:
        offered = [schema for schema in self.env.tools.schemas() if schema["function"]["name"] in tools]
        agent, generator = f"{self.parent.agent}/{name}", self.parent.generator
        own = Conversation(self.parent.session, generator, tools=offered, agent=agent, stop=self.parent.stop)
        own.add(as_messages(messages))
        for _ in range(max_turns):
            self._taken += 1
            try:
                node = await self.act(own, self.env, self._taken * TURNS + self.turn, self.deadline)
            except TokenBudgetExceeded as error:
                raise ToolError(f"the sub-agent came to no end: {error}") from error
            if node.finish_reason is FinishReason.LENGTH:
                raise ToolError("the sub-agent came to no end: a turn of it was cut off by its token limit")
            if not node.message.tool_calls:
                return node.message.text
            own.add([await self._answer(call, tools) for call in node.message.tool_calls])
        raise ToolError(f"the sub-agent came to no end in {max_turns} turns")

    async def _answer(self, call: ToolCall, tools: Sequence[str]) -> Message:
        if call.error or call.function.name in tools:
            return await self.env.tools.run(call)
        text = f"Error: there is no tool {call.function.name!r} (tools: {', '.join(tools) or 'none'})"
        return Message(role="tool", content=text, tool_call_id=call.id)
