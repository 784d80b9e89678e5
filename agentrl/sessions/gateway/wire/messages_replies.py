"""Replies of Anthropic's Messages protocol: whole, and as server-sent events."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from agentrl.sessions.gateway.exchange import Exchange
from agentrl.sessions.gateway.wire.sse import encode_json, event
from agentrl.types import FinishReason


def reply(exchange: Exchange) -> bytes:
    """Return the body of a reply that is not streamed."""
    (choice,) = exchange.choices
    blocks: list[dict[str, Any]] = []
    if choice.message.reasoning_content and exchange.request.extra["thinking"]:
        thinking = choice.message.reasoning_content
        blocks.append({"type": "thinking", "thinking": thinking, "signature": exchange.reply_id})
    if text := choice.message.text.removeprefix(exchange.request.prefill):
        blocks.append({"type": "text", "text": text})
    for call in choice.message.tool_calls or ():
        given = json.loads(call.function.arguments or "{}")
        blocks.append({"type": "tool_use", "id": call.id, "name": call.function.name, "input": given})
    usage = {"input_tokens": exchange.prompt_tokens, **_count_sampled(exchange)}
    return encode_json({**_frame(exchange), **_stop(exchange), "content": blocks, "usage": usage})


async def stream(exchange: Exchange) -> AsyncIterator[bytes]:
    """The reply as server-sent events."""
    usage = {"input_tokens": exchange.prompt_tokens, "output_tokens": 0}
    message = {**_frame(exchange), "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
    blocks = _Blocks(exchange.reply_id)
    begun = False
    async for _, delta in exchange.events():
        if not begun:
            begun = True
            yield _event("message_start", message=message)
        if delta.call is not None:
            block = {"type": "tool_use", "id": delta.id, "name": delta.name, "input": {}}
            pieces = blocks.open("tool_use", block, anew=True)
            pieces.append(blocks.delta({"type": "input_json_delta", "partial_json": delta.arguments}))
        elif delta.content:
            pieces = blocks.open("text", {"type": "text", "text": ""})
            pieces.append(blocks.delta({"type": "text_delta", "text": delta.content}))
        elif exchange.request.extra["thinking"]:
            pieces = blocks.open("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            pieces.append(blocks.delta({"type": "thinking_delta", "thinking": delta.reasoning}))
        else:
            continue
        for piece in pieces:
            yield piece
    if not begun:
        yield _event("message_start", message=message)
    for piece in blocks.close():
        yield piece
    yield _event("message_delta", delta=_stop(exchange), usage=_count_sampled(exchange))
    yield _event("message_stop")


class _Blocks:
    """The content blocks of a stream: one open at a time, numbered."""

    def __init__(self, signature: str) -> None:
        self._kind: str | None = None
        self._place = -1
        self._signature = signature

    def open(self, kind: str, block: dict[str, Any], anew: bool = False) -> list[bytes]:
        """Make sure that a block of this kind is open."""
        if kind == self._kind and not anew:
            return []
        pieces = self.close()
        self._kind, self._place = kind, self._place + 1
        start = _event("content_block_start", index=self._place, content_block=block)
        return [*pieces, start]

    def delta(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", index=self._place, delta=delta)

    def close(self) -> list[bytes]:
        """End the open block, if there is one; thinking ends with its signature."""
        if self._kind is None:
            return []
        signed = self._kind == "thinking"
        pieces = [self.delta({"type": "signature_delta", "signature": self._signature})] if signed else []
        self._kind = None
        return [*pieces, _event("content_block_stop", index=self._place)]


def _event(name: str, **fields: Any) -> bytes:
    return event(encode_json({"type": name, **fields}), name)


def _frame(exchange: Exchange) -> dict[str, Any]:
    return {"id": f"msg_{exchange.reply_id}", "type": "message", "role": "assistant", "model": exchange.request.model}


def _count_sampled(exchange: Exchange) -> dict[str, Any]:
    (choice,) = exchange.choices
    thoughts = {"thinking_tokens": choice.reasoning_tokens}
    return {"output_tokens": len(choice.turn.token_ids), "output_tokens_details": thoughts}


def _stop(exchange: Exchange) -> dict[str, Any]:
    (choice,) = exchange.choices
    if choice.turn.finish_reason is FinishReason.LENGTH:
        return {"stop_reason": "max_tokens", "stop_sequence": None}
    if choice.message.tool_calls:
        return {"stop_reason": "tool_use", "stop_sequence": None}
    if isinstance(choice.turn.stopped_by, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": choice.turn.stopped_by}
    return {"stop_reason": "end_turn", "stop_sequence": None}
