"""Anthropic Messages (https://docs.anthropic.com/en/api/messages).

The model's reasoning is returned as thinking blocks where the request enables thinking; their signature is
the reply's id. `budget_tokens` is part of `max_tokens`, which alone is enforced. Marks for a prompt cache
(`cache_control`) may be on every block, tool and system text: the engine keeps what it has computed anyway.
A tool with `defer_loading` is not in the prompt: its definition is put where a tool's result refers to it
(`tool_reference`), so that a search for tools adds to the conversation and leaves its beginning as it was.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.sessions.gateway.http.api_error import ApiError, refuse_parameter
from agentrl.sessions.gateway.http.bodies import Body
from agentrl.sessions.gateway.limits import ImageLimits, Limits
from agentrl.sessions.gateway.turn_request import TurnRequest
from agentrl.sessions.gateway.wire.chat import distinct, form_of, schema_of, stops_of
from agentrl.sessions.gateway.wire.client_tools import CLIENT_TOOLS, as_function
from agentrl.sessions.gateway.wire.images import NO_IMAGES, Content, check_number, join_pieces, read_part
from agentrl.sessions.gateway.wire.objects import function_of, object_at, pass_over, strict_of, text_at, texts_at
from agentrl.sessions.gateway.wire.turns import add_piece, add_turn, assistant_message
from agentrl.sessions.gateway.wire.validation import Parameters, number, temperature_of
from agentrl.sessions.renderers.base import ToolSchema
from agentrl.types import FunctionCall, Message, Sampling, ToolCall

_COMMON: dict[str, Any] = {
    "honoured": (
        *("max_tokens", "stop_sequences", "system", "temperature", "thinking", "tool_choice", "tools"),
        *("top_p", "top_k", "context_management", "output_config", "thread"),
    ),
    "harmless": (
        *("betas", "billing_policy", "cache_control", "diagnostics", "fallback_credit_token", "inference_geo"),
        *("metadata", "output_config.effort", "service_tier", "speed", "thinking.block_binding", "thinking.display"),
        *("user_profile_id", "workspace_id"),
    ),
    "fixed": {
        **dict.fromkeys(("compaction", "container", "output_config.task_budget"), ()),
        **dict.fromkeys(("fallbacks", "mcp_servers"), ([],)),
    },
    "inside": "messages",
}
_NEEDED = ("model", "max_tokens", "messages")
PARAMETERS = Parameters(required=_NEEDED, **_COMMON)
COUNTING = Parameters(required=("model", "messages"), **_COMMON)
_READ = frozenset({"role", "content"})
_ECHOED = frozenset({"id", "type", "model", "stop_reason", "stop_sequence", "stop_details", "usage", "container"})
"""Further fields of a reply, which clients send back whole."""
_MARKED = ("system", "tools")


def read(body: Body, limits: Limits, retry: int | None, json_schema: bool) -> TurnRequest:
    """A request as a TurnRequest; ApiError where a parameter is wrong, unknown or not supported."""
    return _ask(PARAMETERS, body, limits, retry, json_schema)


def read_counting(body: Body, limits: Limits) -> TurnRequest:
    """A request to count a prompt's tokens."""
    fields = {name: value for name, value in body.fields.items() if name != "max_tokens"}
    return _ask(COUNTING, Body(fields, body.history), limits, None, True)


def _ask(parameters: Parameters, body: Body, limits: Limits, retry: int | None, json_schema: bool) -> TurnRequest:
    marks = dict[str, str]()
    fields = {name: _drop_marks(value, marks) if name in _MARKED else value for name, value in body.fields.items()}
    fields, left_out = _with_tools(fields)
    given, ignored = parameters.check(Body(fields, body.history), limits)
    ignored |= marks | left_out
    follows = _find_followed(given.get("thread"))
    _keeps_all(given.get("context_management", {}))
    choice = object_at(given.get("tool_choice", {"type": "auto"}), "tool_choice")
    kind = text_at(choice, "type", "tool_choice")
    if kind not in ("auto", "any", "tool", "none"):
        raise refuse_parameter("tool_choice", f"{kind!r:.100}; only auto, any, tool and none")
    offered = kind != "none"
    declared = [object_at(tool, f"tools[{place}]") for place, tool in enumerate(given.get("tools", []))]
    prompted = [tool for tool in declared if not tool.get("defer_loading")]
    tools = _tools(prompted) if offered else []
    deferred = _tools([tool for tool in declared if tool.get("defer_loading")])
    force = text_at(choice, "name", "tool_choice") if kind == "tool" else {"any": ""}.get(kind)
    if force is not None and not tools and follows is None:
        raise ApiError(400, "tool_choice demands a call, but there are no tools", "invalid_value", "tool_choice")
    thinking = given.get("thinking", {"type": "disabled"})
    if "budget_tokens" in thinking:
        ignored["thinking.budget_tokens"] = "thinking.budget_tokens"
    most = number(given, "max_tokens", 1, 1, 2**62, whole=True)
    form = form_of(given.get("output_config", {}).get("format"), "output_config.format", force, ignored)
    system = given.get("system")
    prompt = "" if system is None else texts_at(given, "system", "", {"text"})
    return TurnRequest(
        protocol="messages",
        model=given["model"],
        head=(system, prompted, offered),
        prelude=[Message(role="system", content=prompt)] if prompt else [],
        history=body.history,
        convert=functools.partial(
            convert, tools=[*tools, *deferred], strict=limits.strict_fields, images=limits.images
        ),
        tools=tools,
        deferred=deferred if offered else (),
        sampling=Sampling(
            temperature=temperature_of(given, limits),
            top_p=number(given, "top_p", limits.top_p, 1e-6, 1),
            top_k=number(given, "top_k", limits.top_k, 1, 1 << 20, whole=True),
            min_p=limits.min_p,
            repetition_penalty=limits.repetition_penalty,
            max_new_tokens=most,
            stop=stops_of(given.get("stop_sequences", []), "stop_sequences"),
            json_schema=schema_of(form, json_schema, "output_config.format"),
        ),
        stream=given.get("stream", False),
        force=force,
        allowed=None if offered or not declared else frozenset(),
        strict=strict_of(declared),
        parallel=choice.get("disable_parallel_tool_use") is not True,
        previous_reply=follows,
        in_thread=follows is not None,
        prefills=True,
        retry=retry,
        extra={"thinking": text_at(thinking, "type", "thinking") != "disabled"},
        ignored=ignored,
    )


def _find_followed(thread: Any) -> str | None:
    """The reply that a thread continues: its system prompt, its tools and all before it stay, whatever began it."""
    kind = thread.get("type") if isinstance(thread, dict) else None
    if thread is None or kind == "create":
        return None  # every reply can be continued
    if kind != "continue":
        raise ApiError(400, "thread.type: must be 'create' or 'continue'", "invalid_value", "thread.type")
    return text_at(thread, "previous_message_id", "thread").removeprefix("msg_")


def _with_tools(fields: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The request without the web search, which its provider would run, and what was left out; tools as functions."""
    tools = fields.get("tools")
    if not isinstance(tools, list):
        return fields, {}
    kept = [tool for tool in tools if not (isinstance(tool, dict) and str(tool.get("type")).startswith("web_search_"))]
    left_out = {"tools.web_search": "tools.web_search"} if len(kept) < len(tools) else {}
    return {**fields, "tools": [as_function(tool) for tool in kept]}, left_out


def _drop_marks(blocks: Any, ignored: dict[str, str]) -> Any:
    """Blocks, tools or system texts without their marks for a prompt cache; what a tool is called with stays whole."""
    if not isinstance(blocks, list):
        return blocks
    plain = []
    for block in blocks:
        if isinstance(block, dict):
            if "cache_control" in block:
                ignored["cache_control"] = "cache_control"
            block = {name: value for name, value in block.items() if name != "cache_control"}
            if "content" in block:
                block["content"] = _drop_marks(block["content"], ignored)
        plain.append(block)
    return plain


def _keeps_all(management: Any) -> None:
    """Refuse what would take something out of the conversation."""
    edits = management.get("edits") or [] if isinstance(management, dict) else management
    if not isinstance(edits, list):
        raise ApiError(400, "context_management: must be an object with edits", "invalid_value", "context_management")
    for place, edit in enumerate(edits):
        keep = edit.get("keep") if isinstance(edit, dict) else None
        kind = edit.get("type") if isinstance(edit, dict) else edit
        if kind != "clear_thinking_20251015" or keep not in ("all", {"type": "all"}):
            where = f"context_management.edits[{place}]"
            raise refuse_parameter(
                where, "only clear_thinking_20251015 that keeps 'all': a session's turns stay as they are"
            )


def _tools(tools: Sequence[Mapping[str, Any]]) -> list[ToolSchema]:
    shaped: list[ToolSchema] = []
    for place, tool in enumerate(tools):
        at = f"tools[{place}]"
        if tool.get("type") not in (None, "custom"):
            what = f"{tool['type']!r:.100} is not run here; only tools with an input_schema"
            raise refuse_parameter(f"{at}.type", f"{what}, and {', '.join(CLIENT_TOOLS)}")
        shaped.append({"type": "function", "function": function_of(tool, at, "input_schema")})
    return distinct(shaped)


def convert(
    items: Sequence[Any],
    start: int,
    ignored: dict[str, str],
    tools: Sequence[ToolSchema] = (),
    strict: bool = False,
    images: ImageLimits = NO_IMAGES,
) -> list[Message]:
    """Validated messages, from item `start` on; a user's tool results become tool messages, and may refer to `tools`.

    For the others see `chat.convert`.

    Raises:
        ApiError: one can't be read, or refers to a tool that is not declared; it names the item.
    """
    check_number(items, images)
    messages: list[Message] = []
    definitions = {tool["function"]["name"]: json.dumps(tool, ensure_ascii=False) for tool in tools}
    for place, item in enumerate(items):
        where = f"messages[{start + place}]"
        (item,) = _drop_marks([item], ignored)
        given = object_at(item, where)
        role = given.get("role")
        if role not in ("user", "assistant", "system"):
            raise ApiError(400, f"{where}.role: {role!r:.100} is not one of a message", "invalid_value", where)
        pass_over(given, _READ, _ECHOED, where, ignored, strict)
        blocks = _blocks(given, where)
        if role == "assistant":
            add_turn(messages, _assistant(blocks, where))
        elif role == "user":
            messages += _user(blocks, where, definitions, images)
        else:
            messages.append(Message(role="system", content=_texts(blocks, f"{where}.content")))
    return messages


def _blocks(item: Mapping[str, Any], where: str) -> list[Mapping[str, Any]]:
    content, place = item.get("content"), f"{where}.content"
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise ApiError(400, f"{place}: must be text, or a list of blocks", "invalid_value", place)
    return [object_at(block, f"{place}[{number}]") for number, block in enumerate(content)]


def _assistant(blocks: Sequence[Mapping[str, Any]], where: str) -> Message:
    texts, thoughts, calls = [], [], []
    for place, block in enumerate(blocks):
        at, kind = f"{where}.content[{place}]", block.get("type")
        if kind == "text":
            texts.append(text_at(block, "text", at))
        elif kind == "thinking":
            thoughts.append(text_at(block, "thinking", at))
        elif kind == "tool_use":
            if not isinstance(block.get("input"), dict):
                raise ApiError(400, f"{at}.input: must be an object", "invalid_value", f"{at}.input")
            arguments = json.dumps(block["input"], ensure_ascii=False)
            function = FunctionCall(name=text_at(block, "name", at), arguments=arguments)
            calls.append(ToolCall(id=text_at(block, "id", at), function=function))
        else:
            raise refuse_parameter(f"{at}.type", repr(kind)[:100])
    return assistant_message(texts, thoughts, calls)


def _user(
    blocks: Sequence[Mapping[str, Any]], where: str, definitions: Mapping[str, str], images: ImageLimits
) -> list[Message]:
    messages: list[Message] = []
    for place, block in enumerate(blocks):
        at, kind = f"{where}.content[{place}]", block.get("type")
        if kind == "tool_result":
            result = _result(block, at, definitions, images)
            messages.append(Message(role="tool", content=result, tool_call_id=text_at(block, "tool_use_id", at)))
        else:
            add_piece(messages, read_part(block, at, {"text"}, images))
    return messages or [Message(role="user", content="")]


def _result(block: Mapping[str, Any], where: str, definitions: Mapping[str, str], images: ImageLimits) -> Content:
    blocks = _blocks(block, where) if "content" in block else []
    places = [f"{where}.content[{place}]" for place in range(len(blocks))]
    parts = [_definition(part, at, definitions) for part, at in zip(blocks, places, strict=True)]
    pieces = [read_part(part, at, {"text"}, images) for part, at in zip(parts, places, strict=True)]
    return join_pieces(["Error: ", *pieces] if block.get("is_error") else pieces)


def _definition(block: Mapping[str, Any], where: str, definitions: Mapping[str, str]) -> Mapping[str, Any]:
    """A reference to a tool as the text that defines it, a line of JSON; any other block as it is."""
    if block.get("type") != "tool_reference":
        return block
    name = text_at(block, "tool_name", where)
    if name not in definitions:
        raise ApiError(
            400, f"{where}.tool_name={name!r:.100} is none of the tools", "invalid_value", f"{where}.tool_name"
        )
    return {"type": "text", "text": definitions[name] + "\n"}


def _texts(blocks: Sequence[Mapping[str, Any]], where: str) -> str:
    for place, block in enumerate(blocks):
        if block.get("type") != "text":
            raise refuse_parameter(f"{where}[{place}].type", f"{block.get('type')!r:.100}; this model takes text only")
    return "".join(text_at(block, "text", f"{where}[{place}]") for place, block in enumerate(blocks))
