"""Requests of Google's API (https://ai.google.dev/api/generate-content) as `TurnRequest`s.

Model and streaming are in the address. A call's id is the gateway's; where a client leaves it out, calls are told by
their names and arguments. Reasoning is returned, as parts with `thought`, where the request includes thoughts.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentrl.sessions.gateway.google.fields import camel, keep, rename_fields
from agentrl.sessions.gateway.google.tools import choice, json_schema, read_tools
from agentrl.sessions.gateway.http.api_error import ApiError, refuse_parameter
from agentrl.sessions.gateway.http.bodies import Body, History
from agentrl.sessions.gateway.limits import ImageLimits, Limits
from agentrl.sessions.gateway.turn_request import TurnRequest
from agentrl.sessions.gateway.wire.chat import form_of, sampling_of
from agentrl.sessions.gateway.wire.fields import SAMPLING
from agentrl.sessions.gateway.wire.images import INLINE, NO_IMAGES, Content, check_number, join_pieces, read_part
from agentrl.sessions.gateway.wire.objects import object_at, text_at
from agentrl.sessions.gateway.wire.turns import add_piece, add_turn, assistant_message
from agentrl.sessions.gateway.wire.validation import flag, number
from agentrl.types import FunctionCall, Message, Part, ToolCall

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
_WHOLE = frozenset({"max_completion_tokens", "n", "seed", "top_k", "top_logprobs"})
_FORMS = frozenset({"responseFormat", "responseJsonSchema", "responseMimeType", "responseSchema"})
_CONFIGURED = frozenset({*_FORMS, *_GENERATION, "responseLogprobs", "responseModalities", "thinkingConfig"})
_UNHEARD = frozenset({"audioTimestamp", "enableAffectiveDialog", "mediaResolution", "speechConfig"})
_PARTS = frozenset({"text", "thought", "functionCall", "functionResponse", INLINE})
_ECHOED = frozenset({"thoughtSignature", "partMetadata"})
_NOT_TEXT = frozenset({"fileData", "executableCode", "codeExecutionResult", "videoMetadata"})


def read(body: Body, limits: Limits, model: str, stream: bool, retry: int | None, json_schema: bool) -> TurnRequest:
    """A request as a TurnRequest.

    Raises:
        ApiError: a parameter is wrong, unknown or not supported.
    """
    ignored, strict = dict[str, str](), limits.strict_fields
    fields = rename_fields(body.fields, "body")
    if (misplaced := next((name for name in fields if name in _CONFIGURED), None)) is not None:
        hint = f"did you mean 'generationConfig.{misplaced}'?"
        raise ApiError(400, f"unknown parameter {misplaced!r}; {hint}", "unknown_parameter", misplaced)
    given = keep(fields, _READ, _HARMLESS, _REFUSED, "", ignored, strict, generates=True)
    tools = read_tools(given.get("tools", []), ignored, strict)
    force, offered, allowed = choice(given.get("toolConfig", {}), tools, ignored, strict)
    config = rename_fields(given.get("generationConfig", {}), "generationConfig")
    own = frozenset(map(camel, SAMPLING)) if limits.sampling == "run" and not strict else frozenset[str]()
    config = keep(config, _CONFIGURED, _UNHEARD | own, frozenset(), "generationConfig", ignored, strict, generates=True)
    drawn, thoughts = (
        _read_sampling(config, limits, ignored),
        _thoughts(config.get("thinkingConfig", {}), ignored, strict),
    )
    form = form_of(_form(config), "generationConfig.responseSchema", force, ignored)
    with _names_as_sent():
        sampling = sampling_of(drawn, limits, form, json_schema)
        choices = number(drawn, "n", 1, 1, limits.choices, whole=True)
    system = _texts(given["systemInstruction"], "systemInstruction") if "systemInstruction" in given else ""
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
        convert=functools.partial(convert, strict=strict, images=limits.images),
        tools=tools if offered else (),
        sampling=sampling,
        n=choices,
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
    given = {plain: _whole(config[name], plain) for name, plain in _GENERATION.items() if name in config}
    stops = given.get("stop", [])
    if not isinstance(stops, list):
        raise ApiError(400, "generationConfig.stopSequences: must be a list", "invalid_value", "stopSequences")
    if limits.sampling == "run":
        own = {**SAMPLING, **limits.drawn}
        ignored |= {name: name for name, value in given.items() if name in own and value != own[name]}
        given = {name: value for name, value in given.items() if name not in own}
    return given


def _whole(value: Any, name: str) -> Any:
    """A parameter's value: packages write whole numbers with a point (`topK`)."""
    return int(value) if name in _WHOLE and isinstance(value, float) and value.is_integer() else value


@contextlib.contextmanager
def _names_as_sent() -> Iterator[None]:
    """Give errors of the block the name that Google's API has for the parameter."""
    try:
        yield
    except ApiError as error:
        name = next((name for name, plain in _GENERATION.items() if plain == error.param), None)
        if name is None:
            raise
        place = f"generationConfig.{name}"
        raise replace(error, message=error.message.replace(error.param or "", place, 1), param=place) from None


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
        if form := next((name for name in ("responseJsonSchema", "responseSchema") if name in config), None):
            why = "needs generationConfig.responseMimeType to be application/json"
            raise ApiError(400, f"generationConfig.{form}: {why}", "invalid_value", f"generationConfig.{form}")
        return None
    if "responseJsonSchema" in config:
        schema = dict(object_at(config["responseJsonSchema"], "generationConfig.responseJsonSchema"))
    elif "responseSchema" in config:
        schema = json_schema(config["responseSchema"], "generationConfig.responseSchema")
    else:
        return {"type": "json_object"}
    return {"type": "json_schema", "json_schema": {"schema": schema}}


def convert(
    items: Sequence[Any], start: int, ignored: dict[str, str], strict: bool = False, images: ImageLimits = NO_IMAGES
) -> list[Message]:
    """Validated messages, from item `start` on; a user's function responses become tool messages.

    Clients keep the parts of a stream apart: the model's contents in a row are one message.

    Raises:
        ApiError: one can't be read; it names the item.
    """
    messages: list[Message] = []
    check_number(_list_shown(items), images)
    for place, item in enumerate(items):
        where = f"contents[{start + place}]"
        given = keep(
            rename_fields(item, where), frozenset({"role", "parts"}), frozenset(), frozenset(), where, ignored, strict
        )
        seen = dict[str, str]()
        parts = [
            keep(one, _PARTS, _ECHOED, _NOT_TEXT, f"{where}.parts[{number}]", seen, strict)
            for number, one in enumerate(_parts(given, where))
        ]
        ignored |= {name: why for name, why in seen.items() if why == "unknown"}
        role = given.get("role", "user")
        if role == "model":
            add_turn(messages, _model(parts, where, start + place))
        elif role in ("user", "function", "tool"):
            messages += _user(parts, where, images)
        else:
            raise ApiError(400, f"{where}.role: {role!r:.100} is not user or model", "invalid_value", where)
    return messages


def _list_shown(contents: Sequence[Any]) -> list[Any]:
    """The images of contents, however a client spells them."""
    shown = list[Any]()
    for content in contents:
        held = content.get("parts") if isinstance(content, dict) else None
        parts = [
            {camel(name): one for name, one in part.items()}
            for part in (held if isinstance(held, list) else [held])
            if isinstance(part, dict)
        ]
        shown += [{"type": INLINE} for part in parts if INLINE in part]
        shown += _list_shown([part.get("functionResponse") for part in parts])
    return shown


def _image(part: Mapping[str, Any], where: str, images: ImageLimits) -> str | Part:
    where = f"{where}.{INLINE}"
    return read_part({**rename_fields(part[INLINE], where), "type": INLINE}, where, frozenset(), images)


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


def _texts(content: Any, where: str) -> str:
    return "".join(text_at(part, "text", f"{where}.parts[{i}]") for i, part in enumerate(_parts(content, where)))


def _model(parts: Sequence[Mapping[str, Any]], where: str, item: int) -> Message:
    texts, thoughts, calls = list[str](), list[str](), list[ToolCall]()
    for place, part in enumerate(parts):
        at = f"{where}.parts[{place}]"
        if "functionCall" in part:
            call = rename_fields(part["functionCall"], at)
            arguments = json.dumps(object_at(call.get("args", {}), f"{at}.functionCall.args"), ensure_ascii=False)
            function = FunctionCall(name=text_at(call, "name", f"{at}.functionCall"), arguments=arguments)
            calls.append(ToolCall(id=str(call.get("id") or f"call_{item}_{place}"), function=function))
        elif INLINE in part:
            raise refuse_parameter(f"{at}.{INLINE}", "an image of the model's")
        elif "text" in part:
            (thoughts if part.get("thought") is True else texts).append(text_at(part, "text", at))
    return assistant_message(texts, thoughts, calls)


def _user(parts: Sequence[Mapping[str, Any]], where: str, images: ImageLimits) -> list[Message]:
    messages: list[Message] = []
    for place, part in enumerate(parts):
        at = f"{where}.parts[{place}]"
        if "functionResponse" in part:
            given = rename_fields(part["functionResponse"], at)
            name = text_at(given, "name", f"{at}.functionResponse")
            content = _response(given, f"{at}.functionResponse", images)
            messages.append(Message(role="tool", content=content, tool_call_id=str(given.get("id") or name), name=name))
        elif INLINE in part:
            add_piece(messages, _image(part, at, images))
        else:
            add_piece(messages, text_at(part, "text", at))
    return messages or [Message(role="user", content="")]


def _response(given: Mapping[str, Any], where: str, images: ImageLimits) -> Content:
    """A function's response: its text, and the images beside it."""
    text = _result(object_at(given.get("response", {}), f"{where}.response"))
    shown = list[str | Part]()
    for place, part in enumerate(_parts(given, where)):
        at = f"{where}.parts[{place}]"
        if INLINE not in part:
            raise refuse_parameter(f"{at}.{next(iter(part), '')[:100]}", f"only {INLINE}: an image")
        shown.append(_image(part, at, images))
    return join_pieces([text, *shown]) if shown else text


def _result(response: Mapping[str, Any]) -> str:
    """The text of a response that the model reads: its `output`, its `error`, or all of it."""
    if response.keys() == {"output"}:
        return _plain(response["output"])
    if response.keys() == {"error"}:
        return f"Error: {_plain(response['error'])}"
    return _plain(dict(response))


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
