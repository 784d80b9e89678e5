"""Requests of Google's API (https://ai.google.dev/api/generate-content) as `TurnRequest`s.

Model and streaming are in the address. A call's id is the gateway's; where a client leaves it out, calls are told by
their names and arguments. Reasoning is returned, as parts with `thought`, where the request includes thoughts.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.sessions.gateway.google.fields import keep, rename_fields
from agentrl.sessions.gateway.google.tools import choice, json_schema, read_tools
from agentrl.sessions.gateway.http.api_error import ApiError, refuse_parameter
from agentrl.sessions.gateway.http.bodies import Body, History
from agentrl.sessions.gateway.limits import Limits
from agentrl.sessions.gateway.turn_request import TurnRequest
from agentrl.sessions.gateway.wire.chat import form_of, sampling_of
from agentrl.sessions.gateway.wire.fields import SAMPLING
from agentrl.sessions.gateway.wire.objects import object_at, text_at
from agentrl.sessions.gateway.wire.turns import add_piece, add_turn, assistant_message
from agentrl.sessions.gateway.wire.validation import flag, number
from agentrl.types import FunctionCall, Message, ToolCall

CONTENTS = "contents"
_READ = frozenset({CONTENTS, "generationConfig", "model", "systemInstruction", "toolConfig", "tools"})
_HARMLESS = frozenset({"labels", "safetySettings", "serviceTier", "store"})
_REFUSED = frozenset({"cachedContent"})
_GENERATION = {
    "candidateCount": "n",
    "frequencyPenalty": "frequency_penalty",
    "logprobs": "top_logprobs",
    "maxOutputTokens": "max_completion_tokens",
    "presencePenalty": "presence_penalty",
    "seed": "seed",
    "stopSequences": "stop",
    "temperature": "temperature",
    "topK": "top_k",
    "topP": "top_p",
}
"""Google's names of sampling parameters, and OpenAI's."""
_FORMS = frozenset({"responseFormat", "responseJsonSchema", "responseMimeType", "responseSchema"})
_CONFIGURED = frozenset({*_FORMS, *_GENERATION, "responseLogprobs", "responseModalities", "thinkingConfig"})
_UNHEARD = frozenset({"audioTimestamp", "enableAffectiveDialog", "mediaResolution", "speechConfig"})
_PARTS = frozenset({"text", "thought", "functionCall", "functionResponse"})
_ECHOED = frozenset({"thoughtSignature", "partMetadata"})
_NOT_TEXT = frozenset({"inlineData", "fileData", "executableCode", "codeExecutionResult", "videoMetadata"})


def read(body: Body, limits: Limits, model: str, stream: bool, retry: int | None, json_schema: bool) -> TurnRequest:
    """A request as a TurnRequest.

    Args:
        body: the request.
        limits: bounds of the turn, and whose sampling it has.
        model: the address has it.
        stream: whether the address wants a stream.
        retry: how often the client has tried before.
        json_schema: whether the engine can keep to a schema.

    Raises:
        ApiError: a parameter is wrong, unknown or not supported.
    """
    ignored, strict = dict[str, str](), limits.strict_fields
    given = keep(rename_fields(body.fields, "body"), _READ, _HARMLESS, _REFUSED, "", ignored, strict)
    tools = read_tools(given.get("tools", []), ignored, strict)
    force, offered, allowed = choice(given.get("toolConfig", {}), tools, ignored, strict)
    config = rename_fields(given.get("generationConfig", {}), "generationConfig")
    config = keep(config, _CONFIGURED, _UNHEARD, frozenset(), "generationConfig", ignored, strict)
    drawn, thoughts = (
        _read_sampling(config, limits, ignored),
        _thoughts(config.get("thinkingConfig", {}), ignored, strict),
    )
    system = _texts(_parts(given["systemInstruction"], "systemInstruction")) if "systemInstruction" in given else ""
    history = body.history
    if history is None and CONTENTS in given:
        contents = given[CONTENTS]
        history = History.of(contents if isinstance(contents, list) else [contents])
    return TurnRequest(
        protocol="google",
        model=model,
        head=(given.get("systemInstruction"), given.get("tools"), offered),
        prelude=[Message(role="system", content=system)] if system else [],
        history=history,
        convert=functools.partial(convert, strict=strict),
        tools=tools if offered else (),
        sampling=sampling_of(
            drawn, limits, form_of(_form(config), "generationConfig.responseSchema", force, ignored), json_schema
        ),
        n=number(drawn, "n", 1, 1, limits.choices, whole=True),
        stream=stream,
        force=force,
        allowed=allowed,
        retry=retry,
        extra={"thinking": thoughts, "logprobs": flag(config, "responseLogprobs", "generationConfig.")},
        ignored=ignored,
    )


def _read_sampling(config: Mapping[str, Any], limits: Limits, ignored: dict[str, str]) -> dict[str, Any]:
    """The sampling parameters in OpenAI's words, without those that the run decides."""
    if config.get("logprobs") and not config.get("responseLogprobs", False):
        raise ApiError(400, "generationConfig.logprobs: needs responseLogprobs to be true", "invalid_value", "logprobs")
    if [str(one).upper() for one in config.get("responseModalities", [])] not in ([], ["TEXT"]):
        raise refuse_parameter("generationConfig.responseModalities", "only TEXT")
    given = {plain: config[name] for name, plain in _GENERATION.items() if name in config}
    stops = given.get("stop", [])
    if not isinstance(stops, list):
        raise ApiError(400, "generationConfig.stopSequences: must be a list", "invalid_value", "stopSequences")
    if limits.sampling == "run":
        own = {**SAMPLING, **limits.drawn}
        ignored |= {name: name for name, value in given.items() if name in own and value != own[name]}
        given = {name: value for name, value in given.items() if name not in own}
    whole = {"n", "max_completion_tokens"} & given.keys()
    return given | {name: number(given, name, None, 1, 2**31, whole=True) for name in whole}


def _thoughts(config: Any, ignored: dict[str, str], strict: bool) -> bool:
    where, effort = "generationConfig.thinkingConfig", frozenset({"thinkingBudget", "thinkingLevel"})
    given = keep(
        rename_fields(config, where), frozenset({"includeThoughts"}), effort, frozenset(), where, ignored, strict
    )
    return given.get("includeThoughts") is True


def _form(config: Mapping[str, Any]) -> Any:
    """The form of the text, in OpenAI's words."""
    kind = config.get("responseMimeType", "text/plain")
    if "responseFormat" in config or kind not in ("text/plain", "application/json"):
        raise refuse_parameter("generationConfig.responseMimeType", "only text/plain and application/json")
    if kind == "text/plain":
        return None
    if "responseJsonSchema" in config:
        schema = dict(object_at(config["responseJsonSchema"], "generationConfig.responseJsonSchema"))
    elif "responseSchema" in config:
        schema = json_schema(config["responseSchema"], "generationConfig.responseSchema")
    else:
        return {"type": "json_object"}
    return {"type": "json_schema", "json_schema": {"schema": schema}}


def convert(items: Sequence[Any], start: int, ignored: dict[str, str], strict: bool = False) -> list[Message]:
    """Validated messages, from item `start` on; a user's function responses become tool messages.

    Clients keep the parts of a stream apart: the model's contents in a row are one message.

    Raises:
        ApiError: one can't be read; it names the item.
    """
    messages: list[Message] = []
    for place, item in enumerate(items):
        where = f"contents[{start + place}]"
        given = keep(
            rename_fields(item, where), frozenset({"role", "parts"}), frozenset(), frozenset(), where, ignored, strict
        )
        parts = [
            keep(one, _PARTS, _ECHOED, _NOT_TEXT, f"{where}.parts[{number}]", {}, strict)
            for number, one in enumerate(_parts(given, where))
        ]
        role = given.get("role", "user")
        if role == "model":
            add_turn(messages, _model(parts, where, start + place))
        elif role in ("user", "function", "tool"):
            messages += _user(parts, where)
        else:
            raise ApiError(400, f"{where}.role: {role!r:.100} is not user or model", "invalid_value", where)
    return messages


def _parts(content: Any, where: str) -> list[dict[str, Any]]:
    """A content's parts; text stands for a single one."""
    if isinstance(content, str):
        return [{"text": content}]
    parts = rename_fields(content, where).get("parts", [])
    if isinstance(parts, dict):
        parts = [parts]
    if not isinstance(parts, list):
        raise ApiError(400, f"{where}.parts: must be a list", "invalid_value", where)
    return [rename_fields(part, f"{where}.parts[{place}]") for place, part in enumerate(parts)]


def _texts(parts: Sequence[Mapping[str, Any]]) -> str:
    return "".join(text_at(part, "text", "parts") for part in parts)


def _model(parts: Sequence[Mapping[str, Any]], where: str, item: int) -> Message:
    texts, thoughts, calls = list[str](), list[str](), list[ToolCall]()
    for place, part in enumerate(parts):
        at = f"{where}.parts[{place}]"
        if "functionCall" in part:
            call = rename_fields(part["functionCall"], at)
            arguments = json.dumps(object_at(call.get("args", {}), f"{at}.functionCall.args"), ensure_ascii=False)
            function = FunctionCall(name=text_at(call, "name", f"{at}.functionCall"), arguments=arguments)
            calls.append(ToolCall(id=str(call.get("id") or f"call_{item}_{place}"), function=function))
        elif "text" in part:
            (thoughts if part.get("thought") is True else texts).append(text_at(part, "text", at))
    return assistant_message(texts, thoughts, calls)


def _user(parts: Sequence[Mapping[str, Any]], where: str) -> list[Message]:
    messages: list[Message] = []
    for place, part in enumerate(parts):
        at = f"{where}.parts[{place}]"
        if "functionResponse" in part:
            given = rename_fields(part["functionResponse"], at)
            name = text_at(given, "name", f"{at}.functionResponse")
            text = _result(object_at(given.get("response", {}), f"{at}.functionResponse.response"))
            messages.append(Message(role="tool", content=text, tool_call_id=str(given.get("id") or name), name=name))
        else:
            add_piece(messages, text_at(part, "text", at))
    return messages or [Message(role="user", content="")]


def _result(response: Mapping[str, Any]) -> str:
    """The text of a response that the model reads: its `output`, its `error`, or all of it."""
    if response.keys() == {"output"}:
        return _plain(response["output"])
    if response.keys() == {"error"}:
        return f"Error: {_plain(response['error'])}"
    return _plain(dict(response))


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
