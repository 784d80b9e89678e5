"""The rule about secrets: nothing that an agent writes is run as code, or read as a path or a variable of this machine.

A file and a variable of the checking process hold a word that nobody else has. An agent names them in every way that
tools and rewards might follow, as a path, in a shell, in Python: told that word, it could have read any file.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from agentrl.envs.base import Env
from agentrl.envs.check.subject import PRYING, Subject
from agentrl.envs.data.samples import sample
from agentrl.tools.tool import Tool
from agentrl.types import FunctionCall, Message, Session, ToolCall

SECONDS = 5.0
"""No further episodes are begun after so long."""


async def kept_secret(subject: Subject) -> AsyncIterator[str]:
    """An agent's text is neither run nor followed to files and variables."""
    canary, began = subject.monitor.canary, time.monotonic()
    if canary is None:
        return
    said = set[str]()
    for number, (text, how) in enumerate(canary.texts()):
        if time.monotonic() - began > SECONDS:
            return
        subject.prying = _policy_of(text)
        episode = await subject.play(subject.tasks[number % len(subject.tasks)], PRYING, 0)
        ran, told = canary.mark.exists(), "" if episode.session is None else _find_word(episode.session, canary.word)
        if (ran or told) and how not in said:
            said.add(how)
            yield f"{told or 'a tool or a reward'}: {how} ({text.replace(canary.word, '…')[:80]!r})"
        canary.mark.unlink(missing_ok=True)


def _find_word(session: Session, word: str) -> str:
    for node in session.nodes:
        if node.message.role != "assistant" and word in node.message.text:
            return f"tool {node.message.name!r}" if node.message.name else "a message of the environment"
    return "the session's info" if word in json.dumps(session.info, default=str) else ""


def _policy_of(text: str) -> Any:
    """Calls every tool with the text, then answers with it."""

    def policy(env: Env, messages: Sequence[Message]) -> Message:
        said = any(message.role == "assistant" for message in messages)
        tools = [tool for tool in env.tools if not tool.sandbox]  # in there code may run: `agentrl check sandbox=`
        if said or not tools:
            return Message(role="assistant", content=text)
        filled = [FunctionCall(name=tool.name, arguments=json.dumps(_fill_arguments(tool, text))) for tool in tools]
        calls = [ToolCall(id=f"pry_{number}", function=function) for number, function in enumerate(filled)]
        return Message(role="assistant", tool_calls=calls)

    return policy


def _fill_arguments(tool: Tool, text: str) -> dict[str, Any]:
    """Arguments that fit, with the text wherever one is asked for."""
    fields: Mapping[str, Any] = tool.parameters.get("properties", {})
    arguments = dict(sample(tool.parameters))
    for name, schema in fields.items():
        kinds = [schema, *schema.get("anyOf", ())]
        if any(kind.get("type") == "string" and "enum" not in kind for kind in kinds):
            arguments[name] = text
        elif schema.get("type") == "array" and schema.get("items", {}).get("type") == "string":
            arguments[name] = [text]
    return arguments
