"""Six agents that understand nothing: what they get is what an environment gives away.

They are silent, say always the same, paste every answer there is, echo what the tools say, never answer, or make random
valid calls. The constant and the pasting agent know what the expert says in other tasks (`Known`), as a model learns it
from being rewarded: an environment that they do well in rewards no skill.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentrl.envs.base import Env, has_expert
from agentrl.envs.data.samples import SAYING, random_call
from agentrl.envs.episode import ScriptedActor, ScriptedPolicy, expert_policy, noop_policy, play
from agentrl.sessions.tree.conversation import Conversation
from agentrl.types import AGENT, FunctionCall, Message, Node, Session, Task, ToolCall

SILENT, CONSTANT, PASTING = "silent agent", "constant agent", "pasting agent"
ECHOING, UNANSWERING, RANDOM = "echoing agent", "never answering agent", "random agent"
AGENTS = (SILENT, CONSTANT, PASTING, ECHOING, UNANSWERING, RANDOM)
TURNS = 30
"""Turns that one of them takes at most."""
DONE = "It is done. Is there anything else?"
"""The words of the constant agent where no expert says anything."""
THINKING = "Let me think about it."
PASTED = 20_000
"""Characters that are pasted at most."""
CHOICES = 0.34
"""Answers are choices where there are at most so many different ones for each task."""


@dataclass
class Known:
    """The expert's last words in each task, by the task's id and the agent."""

    last: dict[tuple[str, str], Message] = field(default_factory=dict)

    def add(self, session: Session) -> None:
        for node in session.nodes:
            if node.message.role == "assistant" and not node.spawned:
                self.last[session.task.id, node.agent] = node.message

    def elsewhere(self, task: Task, agent: str) -> list[Message]:
        """The agent's words in the other tasks, the most frequent first; in all of them, where answers are choices.

        Of two choices that are right equally often, the others would be the wrong one, task by task.
        """
        alike = bool(self.choices(agent))
        others = [message for (id_, who), message in self.last.items() if who == agent and (alike or id_ != task.id)]
        number = Counter(write_message(message) for message in others)
        return sorted(others, key=lambda message: -number[write_message(message)])

    def choices(self, agent: str) -> list[Message]:
        """The different last messages, where they are few."""
        own = [message for (_, who), message in self.last.items() if who == agent]
        different = {write_message(message): message for message in own}
        return list(different.values()) if len(different) <= CHOICES * len(own) else []

    def all(self, agent: str) -> list[Message]:
        """Every task's."""
        return [message for (_, who), message in self.last.items() if who == agent]


def write_message(message: Message) -> str:
    """A message's text and calls, as a key."""
    made = [(call.function.name, call.function.arguments) for call in message.tool_calls or ()]
    return json.dumps([message.text.strip(), made])


def policy(name: str, task: Task, agent: str, known: Known, seed: int = 0) -> ScriptedPolicy:
    """The policy of a trivial agent for a task."""
    if name == CONSTANT:
        message = next(iter(known.elsewhere(task, agent)), Message(role="assistant", content=DONE))
        return lambda env, messages: message.model_copy(deep=True)
    if name == PASTING:
        return lambda env, messages: _paste_answers(messages, known.all(agent))
    if name == RANDOM:
        return _random(seed, known.choices(agent))
    return {SILENT: noop_policy, ECHOING: _echo, UNANSWERING: _never_answer}[name]


@dataclass(frozen=True)
class Seated(ScriptedActor):
    """Plays one of the environment's agents by `own`, and the others by `policy`."""

    agent: str = AGENT
    own: ScriptedPolicy = noop_policy

    async def act(self, conversation: Conversation, env: Env, turn: int, deadline: float) -> Node:
        is_own = conversation.agent.partition("/")[0] == self.agent
        return await ScriptedActor(self.own if is_own else self.policy).act(conversation, env, turn, deadline)


def partner(env: Env) -> ScriptedPolicy:
    """Choose the policy of the other agents beside a trivial one."""
    return expert_policy if has_expert(env) else noop_policy


async def play_trivial(env: Env, task: Task, name: str, agent: str, known: Known, *, seed: int = 0) -> Session:
    """Play an episode with a trivial agent as one of the environment's agents.

    Raises:
        EnvError, InfraError: as `episode.play`.
    """
    actor = Seated(partner(env), agent, policy(name, task, agent, known, seed))
    return await play(env, task, actor, seed=seed, max_turns=TURNS * len(env.agents))


def score(session: Session, agent: str) -> float:
    """An agent's score; nothing given is 0."""
    if not session.agent_rewards:
        return session.score or 0.0
    views = dict(zip(session.agent_rewards, session.by_agent(), strict=True))
    return views[agent].score or 0.0


# ------------------------------------------------------------------------------------------------ their messages


def _echo(env: Env, messages: Sequence[Message]) -> Message:
    """Calls each tool once, then says what it was told."""
    said = sum(message.role == "assistant" for message in messages)
    tools = list(env.tools)
    if said < len(tools):
        return random_call(random.Random(f"echo/{said}"), tools[said], messages, f"call_{said}")
    told = [message.text for message in messages if message.role == "tool"] or [messages[-1].text]
    return Message(role="assistant", content="\n".join(told)[:PASTED])


def _never_answer(env: Env, messages: Sequence[Message]) -> Message:
    """Calls the first tool again and again; without one it thinks."""
    said = sum(message.role == "assistant" for message in messages)
    for tool in env.tools:
        return random_call(random.Random(f"never/{said}"), tool, messages, f"call_{said}")
    return Message(role="assistant", content=THINKING)


def _paste_answers(messages: Sequence[Message], answers: Sequence[Message]) -> Message:
    """All answers and the prompt, in the form in which the expert answers."""
    form = answers[0] if answers else Message(role="assistant", content="")
    texts = dict.fromkeys(text for message in answers for text in _texts(message))
    pasted = "\n".join([*texts, *(message.text for message in messages if message.role != "assistant")])[:PASTED]
    if not form.tool_calls:
        return Message(role="assistant", content=pasted)
    call = form.tool_calls[-1]
    function = FunctionCall(name=call.function.name, arguments=json.dumps(_fill(call, pasted, answers)))
    return Message(role="assistant", tool_calls=[ToolCall(id=call.id, function=function)])


def _fill(call: ToolCall, text: str, answers: Sequence[Message]) -> dict[str, Any]:
    """A call's arguments with `text` in place of each text, and all lists' items in place of each list."""
    every = [_arguments(other) for message in answers for other in message.tool_calls or ()]

    def fill(key: str, value: Any) -> Any:
        if isinstance(value, list):
            lists = [given[key] for given in every if isinstance(given.get(key), list)]
            return [item for items in lists for item in items]
        return text if isinstance(value, str) else value

    return {key: fill(key, value) for key, value in _arguments(call).items()}


def _texts(message: Message) -> list[str]:
    """A message's text, or the values in its calls."""
    values = [str(value) for call in message.tool_calls or () for value in _arguments(call).values()]
    return values or [message.text.strip()]


def _arguments(call: ToolCall) -> Mapping[str, Any]:
    try:
        given = json.loads(call.function.arguments)
    except ValueError:
        return {}
    return given if isinstance(given, dict) else {}


def _random(seed: int, choices: Sequence[Message]) -> ScriptedPolicy:
    """Makes random valid calls, and now and then answers: with one of the choices, else with a word it was told."""

    def act(env: Env, messages: Sequence[Message]) -> Message:
        said = sum(message.role == "assistant" for message in messages)
        rng = random.Random(f"{seed}/{said}/{messages[0].text}/{messages[-1].text}")
        tools = list(env.tools)
        if tools and (rng.random() >= SAYING or not said):
            return random_call(rng, rng.choice(tools), messages, f"call_{said}")
        if choices:
            return rng.choice(choices).model_copy(deep=True)
        words = [word for message in messages for word in message.text.split()] or ["a"]
        return Message(role="assistant", content=rng.choice(words))

    return act
