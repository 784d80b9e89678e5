"""The items that a turn is in the Responses protocol, whole and as a stream of events."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from agentrl.sessions.gateway.wire import custom
from agentrl.sessions.gateway.wire.sse import encode_json, event
from agentrl.sessions.renderers.base import Delta
from agentrl.types import Message, ToolCall

Logprobs = list[dict[str, Any]]


def output_items(
    reply_id: str, message: Message, customs: Set[str] = frozenset(), logprobs: Logprobs | None = None
) -> list[dict[str, Any]]:
    """A turn's items, numbered in their order."""
    items: list[dict[str, Any]] = []
    if message.reasoning_content:
        items.append(_reasoning(reply_id, 0, message.reasoning_content))
    if message.text or not message.tool_calls:
        items.append(_message(reply_id, len(items), message.text, logprobs=logprobs))
    for call in message.tool_calls or ():
        is_custom = call.function.name in customs
        place = len(items)
        items.append(custom.item(f"ctc_{reply_id}{place}", call) if is_custom else _call(reply_id, place, call))
    return items


def _reasoning(reply_id: str, place: int, text: str) -> dict[str, Any]:
    content = [{"type": "reasoning_text", "text": text}]
    return {"id": f"rs_{reply_id}{place}", "type": "reasoning", "summary": [], "content": content}


def _message(
    reply_id: str, place: int, text: str, status: str = "completed", logprobs: Logprobs | None = None
) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": [], **({"logprobs": logprobs} if logprobs else {})}]
    return {
        "id": f"msg_{reply_id}{place}",
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": content if status == "completed" else [],
    }


def _call(reply_id: str, place: int, call: ToolCall, status: str = "completed") -> dict[str, Any]:
    return {
        "id": f"fc_{reply_id}{place}",
        "type": "function_call",
        "call_id": call.id,
        "name": call.function.name,
        "arguments": call.function.arguments if status == "completed" else "",
        "status": status,
    }


class Items:
    """Writes a turn's items as events while they come in: one item is open at a time.

    Attributes:
        logprobs: of the text's tokens, where they are wanted; known at the turn's end.
    """

    def __init__(self, reply_id: str, customs: Set[str] = frozenset()) -> None:
        self._reply_id, self._customs = reply_id, customs
        self._sequence = -1
        self._place = -1
        self._kind: str | None = None
        self._text = ""
        self._anything = False
        self.logprobs: Logprobs | None = None

    def event(self, kind: str, **fields: Any) -> bytes:
        """One event with the next sequence number."""
        self._sequence += 1
        data = {"type": kind, "sequence_number": self._sequence, **fields}
        return event(encode_json(data), kind)

    def take(self, delta: Delta) -> list[bytes]:
        """The events of a delta."""
        if delta.call is not None:
            return [*self._end(), *self._whole_call(delta)]
        kind = "message" if delta.content else "reasoning"
        pieces = [] if kind == self._kind else [*self._end(), *self._begin(kind)]
        text = delta.content or delta.reasoning
        self._text += text
        name = "response.output_text.delta" if kind == "message" else "response.reasoning_text.delta"
        more: dict[str, Any] = {"logprobs": []} if kind == "message" else {}
        return [*pieces, self.event(name, **self._where(), content_index=0, delta=text, **more)]

    def close(self) -> list[bytes]:
        """End what is open; a turn without content is an empty message."""
        if not self._anything:
            return [*self._begin("message"), *self._end()]
        return self._end()

    def _begin(self, kind: str) -> list[bytes]:
        self._kind, self._text, self._place, self._anything = kind, "", self._place + 1, True
        if kind == "reasoning":
            item: dict[str, Any] = {**_reasoning(self._reply_id, self._place, ""), "content": []}
            part: dict[str, Any] = {"type": "reasoning_text", "text": ""}
        else:
            item = _message(self._reply_id, self._place, "", "in_progress")
            part = {"type": "output_text", "text": "", "annotations": []}
        added = self.event("response.output_item.added", output_index=self._place, item=item)
        return [added, self.event("response.content_part.added", **self._where(), content_index=0, part=part)]

    def _end(self) -> list[bytes]:
        if self._kind is None:
            return []
        kind, where = self._kind, self._where()
        self._kind = None
        if kind == "reasoning":
            item = _reasoning(self._reply_id, self._place, self._text)
            name = "response.reasoning_text.done"
        else:
            item = _message(self._reply_id, self._place, self._text, logprobs=self.logprobs)
            name = "response.output_text.done"
        more: dict[str, Any] = {} if kind == "reasoning" else {"logprobs": self.logprobs or []}
        return [
            self.event(name, **where, content_index=0, text=self._text, **more),
            self.event("response.content_part.done", **where, content_index=0, part=item["content"][0]),
            self.event("response.output_item.done", output_index=self._place, item=item),
        ]

    def _whole_call(self, delta: Delta) -> list[bytes]:
        self._place, self._anything = self._place + 1, True
        function = {"name": delta.name, "arguments": delta.arguments}
        call = ToolCall.model_validate({"id": delta.id, "function": function})
        if call.function.name in self._customs:
            return self._custom_call(call)
        done = _call(self._reply_id, self._place, call)
        where = {"item_id": done["id"], "output_index": self._place}
        name = "response.function_call_arguments"
        begun = _call(self._reply_id, self._place, call, "in_progress")
        return [
            self.event("response.output_item.added", output_index=self._place, item=begun),
            self.event(f"{name}.delta", **where, delta=delta.arguments),
            self.event(f"{name}.done", **where, name=delta.name, arguments=delta.arguments),
            self.event("response.output_item.done", output_index=self._place, item=done),
        ]

    def _custom_call(self, call: ToolCall) -> list[bytes]:
        item_id = f"ctc_{self._reply_id}{self._place}"
        done = custom.item(item_id, call)
        begun, where = custom.item(item_id, call, begun=True), {"item_id": item_id, "output_index": self._place}
        name = "response.custom_tool_call_input"
        return [
            self.event("response.output_item.added", output_index=self._place, item=begun),
            self.event(f"{name}.delta", **where, delta=done["input"]),
            self.event(f"{name}.done", **where, input=done["input"]),
            self.event("response.output_item.done", output_index=self._place, item=done),
        ]

    def _where(self) -> dict[str, Any]:
        prefix = "rs" if self._kind == "reasoning" else "msg"
        return {"item_id": f"{prefix}_{self._reply_id}{self._place}", "output_index": self._place}
