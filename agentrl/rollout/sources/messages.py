"""A conversation as data sets write it, read into messages: OpenAI's, TRL's, verl's and ShareGPT's fields.

Whatever is not read is counted by its name, to be told.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from agentrl.tools.schema import show_value
from agentrl.types import Message, order_results

SHAREGPT = {
    **{"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "model": "assistant"},
    **{"chatgpt": "assistant", "bing": "assistant", "bard": "assistant", "system": "system"},
    **{"tool": "tool", "observation": "tool", "function_response": "tool", "function_call": "assistant"},
}
"""The names that ShareGPT's files have for roles."""
ROLES = {"function": "tool", "ipython": "tool", "model": "assistant", "human": "user", "gpt": "assistant"}
PARTS = ("text", "image_url", "image")
REASONING = ("reasoning_content", "reasoning", "thinking")
TRAINED = ("weight", "train", "training", "loss")
"""Fields by which a message says itself whether it is trained on: OpenAI's `weight`, and what others call it."""
Span = tuple[str, bool]
"""The text of a part of a message, and whether it is trained on."""
SPEAKERS = {"Human": "user", "Assistant": "assistant"}
_TURN = re.compile(r"(?:^|\n\n)(Human|Assistant): ?")
READ = {"role", "content", "from", "value", "tool_calls", "function_call", "tool_call_id", "name"}


@dataclass(frozen=True, slots=True)
class Example:
    """A conversation to learn from.

    Attributes:
        place: where it stands, in words, for messages.
        messages: the conversation.
        tools: on offer in it.
        trained: of each message whether it is trained on; None: as the settings say.
        spans: of each message whose parts say themselves whether they are trained on, their texts with that.
        plain: the messages' texts follow each other as they are, without the model's chat format.
        reward: of a conversation that is compared with others; None: it is imitated.
    """

    place: str
    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] = ()
    trained: tuple[bool | None, ...] = ()
    plain: bool = False
    reward: float | None = None
    spans: tuple[tuple[Span, ...], ...] = ()


@dataclass
class MessageReader:
    """Reads messages.

    Attributes:
        unread: how many messages had a field that is not read, by its name.
    """

    unread: Counter[str] = field(default_factory=Counter)

    def example(self, place: str, rows: Any, tools: Any = None, *, plain: bool = False) -> Example:
        """A conversation; results of parallel calls in the order of the calls, as the gateway reads them.

        Args:
            place: where it stands.
            rows: its messages: mappings, or JSON of them.
            tools: on offer: schemas, or JSON of them.
            plain: see `Example`.

        Raises:
            ValueError: they are none.
        """
        rows = parse_json(rows)
        if isinstance(rows, str) and rows.strip():
            raise ValueError(f"the messages are text, and no JSON list of them: {show_value(rows)}")
        if not isinstance(rows, Sequence) or not rows:
            raise ValueError("there are no messages")
        messages: list[Message] = []
        trained: list[bool | None] = []
        spans: list[tuple[Span, ...]] = []
        for number, row in enumerate(rows):
            row = parse_json(row)
            if not isinstance(row, Mapping):
                raise ValueError(f"message {number + 1} is {type(row).__name__}, no mapping")
            row, own = _without_marks({k: v for k, v in row.items() if v is not None})
            messages.append(self._message(row, number, messages))
            spans.append(own)
            marks = [bool(row[name]) for name in TRAINED if row.get(name) is not None]
            trained.append(marks[0] if marks else None)
        if (ordered := order_results(None, messages)) != messages:
            places = {id(message): number for number, message in enumerate(messages)}
            order = [places[id(message)] for message in ordered]
            trained, spans = [trained[number] for number in order], [spans[number] for number in order]
        return Example(
            place, tuple(ordered), _tools(tools), tuple(trained), plain, spans=tuple(spans) if any(spans) else ()
        )

    def _message(self, row: dict[str, Any], number: int, before: Sequence[Message]) -> Message:
        for name in row.keys() - READ - {*REASONING, *TRAINED}:
            self.unread[name] += 1
        said = row.get("role", row.get("from"))
        if not isinstance(said, str):
            raise ValueError(f"message {number + 1} has no role (its fields: {', '.join(row)})")
        role = SHAREGPT.get(said, said) if "role" not in row else ROLES.get(said, said)
        content = row.get("content", row.get("value"))
        calls = parse_json(row.get("tool_calls")) or []
        if one := parse_json(row.get("function_call")):
            calls = [*calls, one]
        if said == "function_call" and "value" in row:
            found = parse_json(content)
            calls, content = found if isinstance(found, list) else [found], None
        data: dict[str, Any] = {"role": role, "content": content}
        if calls:
            data["tool_calls"] = [_call(call, f"call_{number}_{place}") for place, call in enumerate(calls)]
        if reasoning := next((row[name] for name in REASONING if row.get(name)), None):
            data["reasoning_content"] = reasoning
        if role == "tool":
            data["tool_call_id"] = row.get("tool_call_id") or _find_answered(before)
            data["name"] = row.get("name")
            if content is not None and not isinstance(content, str | list):
                data["content"] = json.dumps(content, ensure_ascii=False)
        try:
            return Message.model_validate(data)
        except ValidationError as error:
            parts = content if isinstance(content, list) else []
            kinds = [part.get("type") for part in parts if isinstance(part, Mapping)]
            if unknown := [kind for kind in kinds if kind not in PARTS]:
                known = ", ".join(PARTS)
                words = f"message {number + 1} has a part of the type {unknown[0]!r} (known: {known})"
                raise ValueError(words) from None
            detail = error.errors()[0]
            where = ".".join(map(str, detail["loc"]))
            raise ValueError(f"message {number + 1}, {where}: {detail['msg']} ({detail['input']!r})") from None


def _without_marks(row: dict[str, Any]) -> tuple[dict[str, Any], tuple[Span, ...]]:
    """A message without what its parts say of their training, and that; nothing where no part says so."""
    content = row.get("content")
    if not isinstance(content, list) or not all(isinstance(part, Mapping) for part in content):
        return row, ()
    marks = [next((bool(part[name]) for name in TRAINED if part.get(name) is not None), None) for part in content]
    parts = [{k: v for k, v in part.items() if k not in TRAINED and v is not None} for part in content]
    found = tuple((str(part.get("text") or ""), mark is not False) for part, mark in zip(parts, marks, strict=True))
    return {**row, "content": parts}, found if any(mark is not None for mark in marks) else ()


def _call(call: Any, unnamed: str) -> dict[str, Any]:
    """A tool call in OpenAI's shape; arguments that are a mapping become JSON, without columns that are empty."""
    call = parse_json(call)
    if not isinstance(call, Mapping):
        raise ValueError(f"a tool call is {call!r}")
    function = call.get("function") or call
    if not isinstance(function, Mapping) or "name" not in function:
        raise ValueError(f"a tool call has no name: {dict(call)!r}")
    arguments = function.get("arguments", function.get("parameters")) or {}
    if not isinstance(arguments, str):
        kept = {name: value for name, value in dict(arguments).items() if value is not None}
        arguments = json.dumps(kept, ensure_ascii=False)
    return {"id": str(call.get("id") or unnamed), "function": {"name": function["name"], "arguments": arguments}}


def _find_answered(before: Sequence[Message]) -> str | None:
    """The id of the call that a result without one answers: the first that has no answer yet."""
    given = {message.tool_call_id for message in before if message.role == "tool"}
    calls = [call.id for message in before for call in message.tool_calls or ()]
    return next((call for call in calls if call not in given), None)


def _tools(tools: Any) -> tuple[dict[str, Any], ...]:
    found = parse_json(tools) or ()
    if not isinstance(found, Sequence) or isinstance(found, str):
        raise ValueError(f"tools are {type(found).__name__}, no list")
    schemas = [dict(parse_json(tool)) for tool in found]
    return tuple(each if "function" in each else {"type": "function", "function": each} for each in schemas)


def transcript(text: Any) -> list[dict[str, str]]:
    """The messages of a conversation that is one text, with its speakers: Human, Assistant; none where it is not."""
    if not isinstance(text, str) or not _TURN.match(text):
        return []
    parts = _TURN.split(text)[1:]
    return [{"role": SPEAKERS[who], "content": said.strip()} for who, said in zip(parts[::2], parts[1::2], strict=True)]


def parse_json(value: Any) -> Any:
    """Return JSON in a string, as its value; anything else, and text that is no JSON list or object, as it is."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value
