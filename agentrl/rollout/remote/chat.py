"""OpenAI's Chat Completions (https://platform.openai.com/docs/api-reference/chat), which most servers speak."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import openai

from agentrl.rollout.remote.reply import Api, Reply
from agentrl.rollout.stream.usage import Usage
from agentrl.sessions.renderers.base import ToolSchema
from agentrl.types import FinishReason, FunctionCall, Message, ToolCall


class Chat(Api):
    """A client of an OpenAI-compatible server."""

    path = "/chat/completions"
    answer = "a completion"
    refused, failed = openai.APIStatusError, openai.OpenAIError

    def __init__(self, url: str, model: str, key: str, retries: int, extra: Mapping[str, Any]) -> None:
        super().__init__(url, model, openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=retries), extra)

    def body(self, messages: Sequence[Message], tools: Sequence[ToolSchema], limit: int | None) -> dict[str, Any]:
        offered = {"tools": list(tools)} if tools else {}
        return {
            "messages": [to_chat_message(message) for message in messages],
            "max_completion_tokens": limit,
        } | offered

    @staticmethod
    def read(answer: Mapping[str, Any]) -> Reply:
        choice = answer["choices"][0]
        given, used = choice["message"], answer.get("usage") or {}
        calls = [
            ToolCall(
                id=str(call.get("id") or f"call_{place}"),
                function=FunctionCall(
                    name=call["function"]["name"], arguments=call["function"].get("arguments") or "{}"
                ),
            )
            for place, call in enumerate(given.get("tool_calls") or ())
        ]
        message = Message(
            role="assistant",
            content=given.get("content") or (None if calls else ""),
            reasoning_content=given.get("reasoning_content") or given.get("reasoning") or None,
            tool_calls=calls or None,
        )
        cached = (used.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        spent = Usage(int(used.get("prompt_tokens") or 0), int(used.get("completion_tokens") or 0), int(cached))
        return Reply(
            message, FinishReason.LENGTH if choice.get("finish_reason") == "length" else FinishReason.STOP, spent
        )


def to_chat_message(message: Message) -> dict[str, Any]:
    """A message as the protocol has it; a malformed call's own error is ours, and reasoning is not sent back."""
    data = message.model_dump(exclude_none=True, exclude={"reasoning_content"})
    for call in data.get("tool_calls", ()):
        call.pop("error", None)
    if message.role == "assistant" and not message.tool_calls:
        data.setdefault("content", "")
    return data
