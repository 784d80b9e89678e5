"""Chat Completions on the way out: whole replies and streams."""

from __future__ import annotations

from collections.abc import AsyncIterator, Set
from typing import Any

from agentrl.sessions.gateway.exchange import Exchange
from agentrl.sessions.gateway.wire import custom
from agentrl.sessions.gateway.wire.logprobs import of_content
from agentrl.sessions.gateway.wire.sse import encode_json, event
from agentrl.sessions.renderers.base import Delta
from agentrl.sessions.tree.turn_generator import GeneratedTurn
from agentrl.types import FinishReason, Message


def reply(exchange: Exchange) -> bytes:
    """Return the body of a reply that is not streamed."""
    choices = []
    for place, choice in enumerate(exchange.choices):
        choices.append(
            {
                "index": place,
                "message": _message(choice.message, exchange.request.extra["custom"]),
                "finish_reason": finish(choice),
                "logprobs": _logprobs(exchange, choice) if exchange.request.extra["logprobs"] else None,
            }
        )
    return encode_json({**_frame(exchange, "chat.completion"), "choices": choices, "usage": usage(exchange)})


async def stream(exchange: Exchange) -> AsyncIterator[bytes]:
    """The reply as server-sent events."""
    frame = _frame(exchange, "chat.completion.chunk")

    def chunk(place: int, delta: dict[str, Any], **fields: Any) -> bytes:
        choice = {"index": place, "delta": delta, "finish_reason": None, **fields}
        return event(encode_json({**frame, "choices": [choice]}))

    begun: set[int] = set()
    async for place, delta in exchange.events():
        if place not in begun:
            begun.add(place)
            yield chunk(place, {"role": "assistant", "content": ""})
        yield chunk(place, _delta(delta, exchange.request.extra["custom"]))
    for place, choice in enumerate(exchange.choices):
        if place not in begun:
            yield chunk(place, {"role": "assistant", "content": ""})
        if exchange.request.extra["logprobs"]:
            yield chunk(place, {}, logprobs=_logprobs(exchange, choice))
        yield chunk(place, {}, finish_reason=finish(choice))
    if exchange.request.extra["usage"]:
        yield event(encode_json({**frame, "choices": [], "usage": usage(exchange)}))
    yield event(b"[DONE]")


def _frame(exchange: Exchange, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{exchange.reply_id}",
        "object": kind,
        "created": exchange.created,
        "model": exchange.request.model,
    }


def _message(message: Message, customs: Set[str]) -> dict[str, Any]:
    data: dict[str, Any] = {"role": "assistant", "content": message.content}
    if message.reasoning_content is not None:
        data["reasoning_content"] = message.reasoning_content
    if message.tool_calls is not None:
        data["tool_calls"] = [
            {"id": call.id, **_write_call(call.function.name, call.function.arguments, customs)}
            for call in message.tool_calls
        ]
    return data


def _delta(delta: Delta, customs: Set[str]) -> dict[str, Any]:
    if delta.call is not None:
        called = _write_call(delta.name or "", delta.arguments or "", customs)
        return {"tool_calls": [{"index": delta.call, "id": delta.id, **called}]}
    return {"reasoning_content": delta.reasoning} if delta.reasoning else {"content": delta.content}


def _write_call(name: str, arguments: str, customs: Set[str]) -> dict[str, Any]:
    """A call of a function, or of a custom tool."""
    if name in customs:
        return {"type": "custom", "custom": {"name": name, "input": custom.input_of(arguments)}}
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def finish(choice: GeneratedTurn) -> str:
    """Return the reason why the turn ended, in OpenAI's words."""
    if choice.turn.finish_reason is FinishReason.LENGTH:
        return "length"
    return "tool_calls" if choice.message.tool_calls else "stop"


def usage(exchange: Exchange) -> dict[str, Any]:
    """Return the numbers of tokens in and out."""
    sampled = sum(len(choice.turn.token_ids) for choice in exchange.choices)
    cached = max((choice.turn.cached_tokens for choice in exchange.choices), default=0)
    return {
        "prompt_tokens": exchange.prompt_tokens,
        "completion_tokens": sampled,
        "total_tokens": exchange.prompt_tokens + sampled,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": sum(one.reasoning_tokens for one in exchange.choices)},
    }


def _logprobs(exchange: Exchange, choice: GeneratedTurn) -> dict[str, Any]:
    return {"content": of_content(exchange, choice), "refusal": None}
