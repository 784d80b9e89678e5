"""Turns of an episode: agents' messages are generated, then the environment answers them.

Agents that move at once are generated concurrently, each in a copy of the session as it was before all of them; when
all turns are there, they are added and answered in the agents' order. So none sees another's, and the session is the
same whichever is ready first.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Protocol

from agentrl import tracing
from agentrl.attachments import critic_view
from agentrl.common.concurrency import concurrently
from agentrl.common.pictures import url_of
from agentrl.envs import calls
from agentrl.envs.base import Env, has_critic_view
from agentrl.envs.context import Messages, context_of
from agentrl.envs.results import add_rewards, environment_call, note_answer_failed, within
from agentrl.errors import (
    AgentRLError,
    DeadlineExceeded,
    EnvError,
    InvalidInput,
    InvalidMessage,
    RenderError,
    TokenBudgetExceeded,
    ToolError,
    UnlistedTools,
)
from agentrl.sessions.tree.conversation import Conversation
from agentrl.types import FinishReason, Message, Node, Session, StepResult, ToolCall, as_messages

Act = Callable[[Conversation, Env, int, float], Awaitable[Node]]
"""`Actor.act` of the agent whose turn it is."""
TURNS = 1 << 20
"""More turns than an agent takes: those of its sub-agents have numbers, and so seeds, beyond them."""
_inside: ContextVar[bool] = ContextVar("inside a sub-agent", default=False)


class Actor(Protocol):
    """Whatever writes an agent's messages."""

    async def act(self, conversation: Conversation, env: Env, turn: int, deadline: float) -> Node:
        """Add the next assistant node to the conversation and return it.

        Args:
            conversation: the agent's.
            env: the environment.
            turn: how many turns the session's agents have taken before.
            deadline: in seconds of `time.monotonic()`.

        Raises:
            TokenBudgetExceeded: a token budget is used up.
        """


def nothing_to_record() -> None:
    """Sessions of which nothing is kept before their end."""


@dataclass(frozen=True, slots=True)
class Player:
    """One agent in an episode: its conversation, which begins at a root of its own, and what writes its messages.

    `rewarded`: whether the session's reward counts this agent's; a policy that is not trained plays for the others.
    `viewed`: whether its turns carry what the environment tells a critic. `record` is called when the session has new
    turns.
    """

    conversation: Conversation
    actor: Actor
    rewarded: bool = True
    viewed: bool = True
    record: Callable[[], None] = nothing_to_record

    async def act(self, conversation: Conversation, env: Env, turn: int, deadline: float) -> Node:
        """Add the next turn to a conversation of this agent; arguments and errors as in `Actor.act`."""
        node = await self.actor.act(conversation, env, turn, deadline)
        self.record()
        return node


def following(env: Env, order: Sequence[str], last: str | None = None) -> Sequence[str]:
    """The agents of the next turn where `StepResult.next` names nobody; `last`: who had the turn before."""
    if env.simultaneous:
        return order
    return (order[0 if last is None else (order.index(last) + 1) % len(order)],)


async def moves(env: Env, players: Sequence[Player], turn: int, deadline: float) -> list[Node]:
    """The players' next turns, of the numbers from `turn` on; where one fails no other one is added.

    Raises:
        TokenBudgetExceeded: a token budget is used up.
        AgentRLError: a player failed.
    """
    for player in players:
        if player.viewed and player.rewarded and has_critic_view(env):
            player.conversation.attached = {critic_view.NAME: await calls.critic_view(env, player.conversation.agent)}
    if len(players) == 1:
        return [await players[0].act(players[0].conversation, env, turn, deadline)]

    async def move(place: int, player: Player) -> Node:
        with tracing.scope(turn=turn + place + 1):
            return await player.actor.act(player.conversation.apart(place, len(players)), env, turn + place, deadline)

    nodes = await concurrently(move(place, player) for place, player in enumerate(players))
    for player, node in zip(players, nodes, strict=True):
        player.conversation.adopt(node)
    players[0].record()
    return nodes


async def answers(
    env: Env, session: Session, players: Mapping[str, Player], nodes: Sequence[Node], turn: int, deadline: float
) -> StepResult:
    """Have the environment answer turns one after another, up to one that ends the episode; returns the last answer.

    Args:
        env: the episode's environment.
        session: gets what is answered.
        players: by agent.
        nodes: the turns.
        turn: the number of the first one.
        deadline: of the first answer. Each of the others has as many seconds as that one has from now.

    Raises:
        AgentRLError: the environment failed.
    """
    left = deadline - time.monotonic()
    for place, node in enumerate(nodes):
        result = await _step(env, session, players, node, turn + place, time.monotonic() + left)
        if result.terminated or result.truncated:
            break
        if result.next is not None and node is not nodes[-1]:
            where = f"{type(env.unwrapped).__name__}.step"
            raise EnvError(
                f"{where}: {node.agent!r} moves at once with others; the answer to the last says who is next"
            )
    return result


async def _step(
    env: Env, session: Session, players: Mapping[str, Player], node: Node, turn: int, deadline: float
) -> StepResult:
    """Have the environment answer a turn, and put into the session what it answers."""
    player = players[node.agent]
    sub_agents = SubAgents(env, player.conversation, player.act, turn, deadline)
    context = context_of(env.unwrapped)
    context.answered = session, node  # whose tokens an adapter counts for its library
    with tracing.scope(turn=turn + 1), environment_call(session, "step") as seconds, sub_agents:
        try:
            result = await _answer(env, _name_sender(node, several=len(players) > 1), deadline)
        except AgentRLError as error:
            note_answer_failed(session, error)
            raise
        finally:
            context.answered = None
    if result.reward is not None:
        node.reward = result.reward
    add_rewards(session, result.rewards)
    session.info.update(result.info)
    if result.fresh:
        player.conversation.restart()
    inserted = [] if result.continuation is None else [player.conversation.insert(result.continuation)]
    note([*inserted, *send(players, {node.agent: result.messages, **result.others})], seconds)
    return result


def send(players: Mapping[str, Player], messages: Mapping[str, Sequence[Message]]) -> list[Node]:
    """Append each agent's messages to its conversation.

    Raises:
        InvalidMessage: one shows an image that can't be read, or the model's format has no place for one.
        UnlistedTools: the model's format does not show it the tools.
    """
    return [node for agent, own in messages.items() if own for node in _add(players[agent].conversation, own)]


def _add(conversation: Conversation, messages: Sequence[Message]) -> list[Node]:
    """Append an environment's messages to a conversation; errors as of `send`."""
    try:
        return conversation.add(messages)
    except UnlistedTools:
        raise
    except RenderError as error:
        why = _find_broken(messages) or f"the environment's message can't be written for the model: {error}"
        raise InvalidMessage(why) from None


def _find_broken(messages: Sequence[Message]) -> str:
    for message in messages:
        for url in message.images:
            try:
                url_of(url)
            except InvalidInput as error:
                return f"the environment's {message.role} message has a broken image: {error}"
    return ""


def note(nodes: Sequence[Node], seconds: Mapping[str, float]) -> None:
    """Keep how long an answer took with its first node; a last answer without any is known by the session's sum."""
    if nodes:
        nodes[0].timings = dict(seconds)


def _name_sender(node: Node, *, several: bool) -> Message:
    """The message as `step` gets it: with several agents, `name` is the one that wrote it."""
    return node.message.model_copy(update={"name": node.agent}) if several else node.message


async def _answer(env: Env, message: Message, deadline: float) -> StepResult:
    try:
        return await within(deadline - time.monotonic(), calls.step(env, message))
    except AgentRLError:
        raise
    except TimeoutError:
        raise DeadlineExceeded(
            f"{type(env.unwrapped).__name__}.step did not answer within rollout.turn_timeout"
        ) from None


@dataclass
class SubAgents:
    """Runs the sub-agents of one step: within its block the environment may begin some, by `Env.spawn`.

    A sub-agent's turns are generated as the agent's own are, in a conversation that begins at a root of its own in the
    same session, and its first message without tool calls is the result. So its paths are trained with the agent's
    reward, as those of an agent program's sub-agents are (`algo.helper_credit`). Those of a step run one after another,
    in the order of their calls: the nodes of a session have the same ids whatever the timing.

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
        _add(own, as_messages(messages))
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
            _add(own, [await self._answer(call, tools) for call in node.message.tool_calls])
        raise ToolError(f"the sub-agent came to no end in {max_turns} turns")

    async def _answer(self, call: ToolCall, tools: Sequence[str]) -> Message:
        if call.error or call.function.name in tools:
            return await self.env.tools.run(call)
        text = f"Error: there is no tool {call.function.name!r} (tools: {', '.join(tools) or 'none'})"
        return Message(role="tool", content=text, tool_call_id=call.id)
