"""Anthropic's Messages API (https://docs.anthropic.com/en/api/messages)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import anthropic

from agentrl.errors import ToolArguments
from agentrl.rollout.remote.reply import Api, Reply
from agentrl.rollout.stream.usage import Usage
from agentrl.sessions.renderers.base import ToolSchema
from agentrl.types import FinishReason, FunctionCall, Message, Part, ToolCall
from agentrl.types.messages import parse_arguments

EMPTY = "(empty)"
"""The stand-in for a message without text, which the protocol refuses."""


class AnthropicMessages(Api):
    """A client of Anthropic's API, or of a server that speaks it; arguments as in `Chat`."""

    path = "/v1/messages"
    answer = "a message"
    refused, failed = anthropic.APIStatusError, anthropic.AnthropicError

    def __init__(self, url: str, model: str, key: str, retries: int, extra: Mapping[str, Any]) -> None:
        super().__init__(url, model, anthropic.AsyncAnthropic(base_url=url, api_key=key, max_retries=retries), extra)

    def body(self, messages: Sequence[Message], tools: Sequence[ToolSchema], limit: int | None) -> dict[str, Any]:
        instructions = [message.text for message in messages if message.role in ("system", "developer")]
        body: dict[str, Any] = {"messages": to_anthropic_messages(messages), "max_tokens": limit}
        if any(instructions):
            body["system"] = "\n\n".join(filter(None, instructions))
        if tools:
            functions = [tool["function"] for tool in tools]
            body["tools"] = [
                {"name": f["name"], "description": f.get("description", ""), "input_schema": f["parameters"]}
                for f in functions
            ]
        return body

    @staticmethod
    def read(answer: Mapping[str, Any]) -> Reply:
        text, thinking, calls = [], [], []
        for block in answer["content"]:
            match block["type"]:
                case "text":
                    text.append(block["text"])
                case "thinking":
                    thinking.append(block["thinking"])
                case "tool_use":
                    function = FunctionCall(name=block["name"], arguments=json.dumps(block["input"]))
                    calls.append(ToolCall(id=block["id"], function=function))
        message = Message(
            role="assistant",
            content="".join(text) or (None if calls else ""),
            reasoning_content="".join(thinking) or None,
            tool_calls=calls or None,
        )
        used = answer.get("usage") or {}
        cached = int(used.get("cache_read_input_tokens") or 0)
        prompt = int(used.get("input_tokens") or 0) + cached + int(used.get("cache_creation_input_tokens") or 0)
        cut = answer.get("stop_reason") in ("max_tokens", "model_context_window_exceeded")
        spent = Usage(prompt, int(used.get("output_tokens") or 0), cached)
        return Reply(message, FinishReason.LENGTH if cut else FinishReason.STOP, spent)


def to_anthropic_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as the protocol has them: roles alternate, and tool results are blocks of a user's message."""
    spoken = [message for message in messages if message.role not in ("system", "developer")]
    turns = groupby(spoken, key=lambda message: "assistant" if message.role == "assistant" else "user")
    return [
        {"role": role, "content": [block for message in together for block in _blocks(message)]}
        for role, together in turns
    ]


def _blocks(message: Message) -> Iterator[dict[str, Any]]:
    if message.role == "tool":
        yield {"type": "tool_result", "tool_use_id": message.tool_call_id or "", "content": message.text}
        return
    for part in message.content if isinstance(message.content, list) else ():
        if part.image_url is not None:
            yield _image(part)
    if message.text.strip() or not (message.tool_calls or isinstance(message.content, list)):
        yield {"type": "text", "text": message.text if message.text.strip() else EMPTY}
    for call in message.tool_calls or ():
        try:
            arguments = parse_arguments(call)
        except ToolArguments:
            arguments = {}
        yield {"type": "tool_use", "id": call.id, "name": call.function.name, "input": arguments}


def _image(part: Part) -> dict[str, Any]:
    url = str((part.image_url or {}).get("url", ""))
    kind, _, data = url.removeprefix("data:").partition(";base64,")
    if data:
        return {"type": "image", "source": {"type": "base64", "media_type": kind, "data": data}}
    return {"type": "image", "source": {"type": "url", "url": url}}
