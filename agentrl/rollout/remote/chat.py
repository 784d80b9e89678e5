"""OpenAI's Chat Completions (https://platform.openai.com/docs/api-reference/chat), which most servers speak."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import openai

from agentrl.errors import EngineError
from agentrl.rollout.remote.reply import Reply, refusal
from agentrl.rollout.stream.usage import Usage
from agentrl.sessions.renderers.base import ToolSchema
from agentrl.types import FinishReason, FunctionCall, Message, Sampling, ToolCall


class Chat:
    """A client of an OpenAI-compatible server."""

    def __init__(self, url: str, model: str, key: str, retries: int, extra: Mapping[str, Any]) -> None:
        self._url, self._model, self._extra = url, model, dict(extra)
        self._client = openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=retries)

    async def ask(self, messages: Sequence[Message], tools: Sequence[ToolSchema], sampling: Sampling) -> Reply:
        try:
            answer: Any = await self._client.post(
                "/chat/completions", body=self._body(messages, tools, sampling), cast_to=object
            )
        except openai.APIStatusError as error:
            raise refusal(error.status_code, self._url, error) from error
        except openai.OpenAIError as error:
            raise EngineError(f"{self._url}: {type(error).__name__}: {error.__cause__ or error}") from error
        try:
            return read(answer)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise EngineError(f"{self._url} answered with something else than a completion: {answer!r:.200}") from error

    async def close(self) -> None:
        await self._client.close()

    def _body(self, messages: Sequence[Message], tools: Sequence[ToolSchema], sampling: Sampling) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._model,
            "messages": [to_chat_message(message) for message in messages],
            "max_completion_tokens": sampling.max_new_tokens,
        }
        if tools:
            body["tools"] = list(tools)
        if sampling.temperature != 1:  # the protocol's default, and all that some models take
            body["temperature"] = sampling.temperature
        if sampling.top_p < 1:
            body["top_p"] = sampling.top_p
        return body | self._extra


def to_chat_message(message: Message) -> dict[str, Any]:
    """A message as the protocol has it; a malformed call's own error is ours, and reasoning is not sent back."""
    data = message.model_dump(exclude_none=True, exclude={"reasoning_content"})
    for call in data.get("tool_calls", ()):
        call.pop("error", None)
    if message.role == "assistant" and not message.tool_calls:
        data.setdefault("content", "")
    return data


def read(answer: Mapping[str, Any]) -> Reply:
    """The reply in a response's JSON.

    Raises:
        KeyError, IndexError, TypeError, ValueError, AttributeError: it is none.
    """
    choice = answer["choices"][0]
    given, used = choice["message"], answer.get("usage") or {}
    calls = [
        ToolCall(
            id=str(call.get("id") or f"call_{place}"),
            function=FunctionCall(name=call["function"]["name"], arguments=call["function"].get("arguments") or "{}"),
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
    return Reply(message, FinishReason.LENGTH if choice.get("finish_reason") == "length" else FinishReason.STOP, spent)
