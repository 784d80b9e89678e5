"""OpenAI Chat Completions (https://platform.openai.com/docs/api-reference/chat).

Reasoning is returned as `reasoning_content`, as several providers do; clients may send it back or leave it.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.sessions.gateway.http.api_error import ApiError, refuse_parameter
from agentrl.sessions.gateway.http.bodies import Body
from agentrl.sessions.gateway.limits import ImageLimits, Limits
from agentrl.sessions.gateway.turn_request import TurnRequest
from agentrl.sessions.gateway.wire import custom
from agentrl.sessions.gateway.wire.images import NO_IMAGES, check_number, content_at
from agentrl.sessions.gateway.wire.objects import function_of, object_at, pass_over, strict_of, text_at
from agentrl.sessions.gateway.wire.validation import Parameters, flag, number, temperature_of
from agentrl.sessions.renderers.base import ToolSchema
from agentrl.types import MOST_PROBABLE, FunctionCall, Message, Sampling, ToolCall

HARMLESS = {
    *("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "safety_identifier", "service_tier"),
    *("store", "user"),
}
"""Fields of OpenAI's protocols for caching, billing and book-keeping."""
FORMS: Mapping[str, str] = {
    **{"structured_outputs": "", "guided_json": "json", "guided_regex": "regex", "guided_choice": "choice"},
    **{"json_schema": "json", "regex": "regex"},
}
"""Fields of vLLM and of SGLang that say which form a reply must have, and how; '': what it holds says that."""
SERVERS = ("chat_template_kwargs", "min_p", "repetition_penalty", "top_k", *FORMS)
"""Fields of vLLM and SGLang that are honoured."""
PARAMETERS = Parameters(
    required=("model", "messages"),
    honoured=(
        *("frequency_penalty", "presence_penalty", "logit_bias", "logprobs", "max_completion_tokens", "max_tokens"),
        *("n", "parallel_tool_calls", "response_format", "seed", "stop", "stream_options", "temperature"),
        *("tool_choice", "tools", "top_logprobs", "top_p"),
    ),
    harmless=HARMLESS | {"metadata", "moderation", "prediction", "reasoning_effort", "verbosity", "web_search_options"},
    fixed={"modalities": (["text"],), "functions": ([],), "audio": (), "function_call": ()},
    servers=SERVERS,
    inside="messages",
)
_LENGTHS = ("max_completion_tokens", "max_output_tokens", "max_tokens")
"""OpenAI's names of a turn's length; the first one that is given counts."""
_ROLES = ("system", "developer", "user", "assistant", "tool")
_TEXTS = frozenset({"text", "input_text", "output_text"})
_READ = frozenset({"role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content", "reasoning"})
_ECHOED = frozenset(
    {"annotations", "provider_specific_fields", "thinking_blocks", "reasoning_details", "cache_control"}
)
"""Fields that clients add to messages of ours that they send back: they add nothing to the message."""


def read(body: Body, limits: Limits, retry: int | None, json_schema: bool) -> TurnRequest:
    """A request as a TurnRequest.

    Args:
        body: the request.
        limits: bounds of `n` and of the turn.
        retry: how often the client has tried before.
        json_schema: whether the engine can keep to a schema.

    Raises:
        ApiError: a parameter is wrong, unknown or not supported.
    """
    given, ignored = PARAMETERS.check(body, limits)
    if given.get("top_logprobs") and not given.get("logprobs", False):
        raise ApiError(400, "top_logprobs: needs logprobs to be true", "invalid_value", "top_logprobs")
    form, named = _form(given)
    declared = given.get("tools", [])
    tools, force, allowed = choose_tools(tools_of(declared), given.get("tool_choice", "auto"))
    if custom.grammars(declared):
        ignored["tools.custom.format"] = "tools.custom.format"
    return TurnRequest(
        protocol="chat",
        model=given["model"],
        head=(declared, [tool["function"]["name"] for tool in tools]),
        history=body.history,
        convert=functools.partial(convert, strict=limits.strict_fields, images=limits.images),
        tools=tools,
        sampling=sampling_of(given, limits, form_of(form, named, force, ignored), json_schema, named),
        n=number(given, "n", 1, 1, limits.choices, whole=True),
        stream=given.get("stream", False),
        force=force,
        allowed=allowed,
        strict=strict_of(declared),
        thinking=_thinking(given.get("chat_template_kwargs", {})),
        parallel=given.get("parallel_tool_calls", True),
        retry=retry,
        extra={
            "custom": custom.names_of(declared),
            "logprobs": flag(given, "logprobs"),
            "usage": flag(given.get("stream_options", {}), "include_usage", "stream_options."),
        },
        ignored=ignored,
    )


def sampling_of(
    given: Mapping[str, Any], limits: Limits, form: Any, json_schema: bool, form_name: str = "response_format"
) -> Sampling:
    """The sampling parameters, from OpenAI's parameter names; the limits' (`Limits.drawn`) where not given."""
    length = next((name for name in _LENGTHS if name in given), _LENGTHS[-1])
    most = number(given, length, limits.turn_tokens, 1, 2**62, whole=True)
    stop = given.get("stop", [])
    most_probable = number(given, "top_k", limits.top_k, -1, 1 << 20, whole=True)
    return Sampling(
        temperature=temperature_of(given, limits),
        top_p=number(given, "top_p", limits.top_p, 1e-6, 1),
        top_k=most_probable if most_probable is not None and most_probable > 0 else None,
        min_p=number(given, "min_p", limits.min_p, 0, 1),
        repetition_penalty=number(given, "repetition_penalty", limits.repetition_penalty, 1e-3, 1e3),
        max_new_tokens=most,
        stop=stops_of([stop] if isinstance(stop, str) else stop),
        seed=number(given, "seed", None, -(2**62), 2**62, whole=True),
        presence_penalty=number(given, "presence_penalty", 0.0, -2, 2),
        frequency_penalty=number(given, "frequency_penalty", 0.0, -2, 2),
        logit_bias=_bias(given.get("logit_bias", {})),
        json_schema=schema_of(form, json_schema, form_name),
        regex=form["regex"] if form and form.get("type") == "regex" else None,
        top_logprobs=number(given, "top_logprobs", 0, 0, MOST_PROBABLE, whole=True),
    )


def _bias(given: Any) -> tuple[tuple[int, float], ...]:
    """The bias of each token that a request names."""
    try:
        pairs = tuple(sorted((int(token), float(value)) for token, value in given.items()))
    except (AttributeError, TypeError, ValueError):
        pairs = ((-1, math.nan),)
    if not all(token >= 0 and -100 <= value <= 100 for token, value in pairs):
        message = "logit_bias: must have token ids, and for each a number between -100 and 100"
        raise ApiError(400, message, "invalid_value", "logit_bias")
    return pairs


def _form(given: Mapping[str, Any]) -> tuple[Any, str]:
    """The form of the text, in OpenAI's words or in those of vLLM and SGLang, and the field that has it."""
    forms = [(name, given[name]) for name in ("response_format", *FORMS) if name in given]
    if len(forms) > 1:
        raise ApiError(400, f"only one of {' and '.join(name for name, _ in forms)}", "invalid_value", forms[1][0])
    if not forms or forms[0][0] == "response_format":
        return given.get("response_format"), "response_format"
    ((name, value),) = forms
    kind = FORMS[name]
    if not kind:
        wanted = object_at(value, name)
        if len(wanted) != 1 or not wanted.keys() <= {"json", "json_object", "regex", "choice"}:
            raise refuse_parameter(
                name, f"{', '.join(sorted(wanted))[:100]}; only one of json (a schema), json_object, regex and choice"
            )
        ((kind, value),) = wanted.items()
    if kind == "json_object" and value is True:
        return {"type": kind}, name
    if kind == "choice":
        value, kind = _any_of(value, name), "regex"
    if kind == "regex" and isinstance(value, str):
        return {"type": kind, "regex": value}, name
    if kind != "json":
        raise ApiError(400, f"{name}: {value!r:.100} is no {kind}", "invalid_value", name)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise ApiError(400, f"{name}: is no JSON", "invalid_value", name) from None
    return {"type": "json_schema", "json_schema": {"schema": dict(object_at(value, name))}}, name


def _any_of(texts: Any, name: str) -> str:
    """The regular expression of some texts, one of which a reply has to be."""
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) and text for text in texts):
        raise ApiError(400, f"{name}: choices are a list of texts, none of them empty", "invalid_value", name)
    return "|".join(re.sub(r"[][.^$*+?{}()|\\]", r"\\\g<0>", text) for text in texts)


def _thinking(template: Any) -> bool | None:
    """Read from a chat template's arguments whether turns may have reasoning; None where they don't say."""
    given = object_at(template, "chat_template_kwargs")
    other = given.keys() - {"enable_thinking", "thinking"}
    if other:
        raise refuse_parameter(f"chat_template_kwargs.{min(other)[:100]}", "only enable_thinking (thinking)")
    wanted = set(given.values())
    if not wanted <= {True, False} or len(wanted) > 1:
        raise ApiError(400, "chat_template_kwargs: enable_thinking must be true or false", "invalid_value")
    return wanted.pop() if wanted else None


def stops_of(stops: Any, name: str = "stop") -> tuple[str, ...]:
    """Stop strings; an empty one would stop at once.

    Raises:
        ApiError: the parameter of this name holds something else.
    """
    listed = isinstance(stops, list) and len(stops) <= 16
    if not listed or not all(isinstance(stop, str) and 0 < len(stop) <= 1000 for stop in stops):
        raise ApiError(400, f"{name}: at most 16 strings of 1 to 1000 characters", "invalid_value", name)
    return tuple(stops)


def form_of(form: Any, name: str, force: str | None, ignored: dict[str, str]) -> Any:
    """The form that a reply's text must have; none where a call is demanded, since it does not apply to calls.

    Args:
        form: what the client gave.
        name: what its protocol calls it.
        force: see `TurnRequest.force`.
        ignored: takes the name where it was ignored.
    """
    form = object_at(form, name) if form is not None else None
    if force is None or form is None or form.get("type") == "text":
        return form
    ignored[name] = name
    return None


def schema_of(form: Any, can: bool, name: str = "response_format") -> str | None:
    """The JSON schema that a reply must keep to."""
    kind = "text" if form is None else form.get("type")
    if kind == "text":
        return None
    if kind not in ("json_object", "json_schema", "regex"):
        raise refuse_parameter(name, f"{kind!r:.100}; only text, json_object and json_schema")
    if not can:
        why = "needs an engine that can keep to one; this one can't (engine=local can with the extra 'grammars')"
        raise refuse_parameter(name, f"{kind} {why}")
    if kind == "regex":
        return None
    place = f"{name}.json_schema" if "json_schema" in form else name
    schema = object_at(form.get("json_schema", form), place).get("schema")
    if schema is None and kind == "json_schema":
        raise ApiError(400, f"{place}.schema: is required with json_schema", "invalid_value", f"{place}.schema")
    schema = {"type": "object"} if schema is None else schema
    object_at(schema, f"{place}.schema")
    return json.dumps(schema, sort_keys=True)


def tools_of(tools: Sequence[Any]) -> list[ToolSchema]:
    """The tools on offer, as functions.

    Raises:
        ApiError: one is neither a function nor a custom tool, or two have one name.
    """
    found: list[ToolSchema] = []
    for place, tool in enumerate(tools):
        at = f"tools[{place}]"
        tool = object_at(tool, at)
        if tool.get("type") == "custom":
            function = custom.as_function(tool, f"{at}.custom")
        elif tool.get("type") == "function":
            function = function_of(object_at(tool.get("function"), f"{at}.function"), f"{at}.function")
        else:
            raise refuse_parameter(f"{at}.type", f"{tool.get('type')!r:.100}; only function and custom")
        found.append({"type": "function", "function": function})
    return distinct(found)


def distinct(tools: list[ToolSchema]) -> list[ToolSchema]:
    """Check that tools have different names, and return them; ApiError where two have one name."""
    names = [tool["function"]["name"] for tool in tools]
    if len(set(names)) < len(names):
        raise ApiError(400, f"tools: names must differ, not {names}", "invalid_value", "tools")
    return tools


def choose_tools(tools: list[ToolSchema], choice: Any) -> tuple[list[ToolSchema], str | None, frozenset[str] | None]:
    """The tools in a turn's prompt, what `tool_choice` forces, and which may be called (see `TurnRequest`).

    Raises:
        ApiError: the choice is none that is known, or demands a call of a tool that there is not.
    """
    allowed: frozenset[str] | None = None
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        allowed, choice = _read_allowed(object_at(choice.get("allowed_tools", choice), "tool_choice"))
    if choice == "none":
        return [], None, frozenset() if tools else None
    if choice == "auto":
        return tools, None, allowed
    if not any(allowed is None or tool["function"]["name"] in allowed for tool in tools):
        raise ApiError(400, "tool_choice demands a call, but there are no tools", "invalid_value", "tool_choice")
    if choice == "required":
        return tools, "", allowed
    kind = choice.get("type") if isinstance(choice, dict) else None
    if kind in ("function", "custom"):
        return tools, text_at(object_at(choice.get(kind, choice), "tool_choice"), "name", "tool_choice"), None
    raise refuse_parameter(
        "tool_choice", "only auto, none, required, allowed_tools, or a function or custom tool by name"
    )


def _read_allowed(allowed: Mapping[str, Any]) -> tuple[frozenset[str], str]:
    """The names of the tools that may be called, and whether one must be."""
    named, mode = allowed.get("tools"), allowed.get("mode", "auto")
    if not isinstance(named, list) or mode not in ("auto", "required"):
        message = "tool_choice: allowed_tools has a list of tools, and the mode auto or required"
        raise ApiError(400, message, "invalid_value", "tool_choice")
    names = set[str]()
    for place, tool in enumerate(named):
        at = f"tool_choice.tools[{place}]"
        tool = object_at(tool, at)
        if (kind := tool.get("type")) in ("function", "custom"):  # what is run elsewhere is not offered anyway
            names.add(text_at(object_at(tool.get(kind, tool), at), "name", at))
    return frozenset(names), mode


def convert(
    items: Sequence[Any], start: int, ignored: dict[str, str], strict: bool = False, images: ImageLimits = NO_IMAGES
) -> list[Message]:
    """Validated messages, from item `start` on.

    Args:
        items: the messages.
        start: the first one's place in the conversation.
        ignored: takes the fields that nothing reads, each with the name to count it under.
        strict: whether those are refused.
        images: of which images there may be how many together.

    Raises:
        ApiError: one can't be read; it names the item.
    """
    check_number(items, images)
    return [_message(item, f"messages[{start + place}]", ignored, strict, images) for place, item in enumerate(items)]


def _message(item: Any, where: str, ignored: dict[str, str], strict: bool, images: ImageLimits) -> Message:
    given = object_at(item, where)
    role = given.get("role")
    if role not in _ROLES:
        raise ApiError(400, f"{where}.role: {role!r:.100} is none of {', '.join(_ROLES)}", "invalid_value", where)
    pass_over(given, _READ, _ECHOED, where, ignored, strict)
    calls = _calls(given.get("tool_calls", ()), where) if role == "assistant" else []
    optional = role == "assistant" and "content" not in given
    seen = images if role in ("user", "tool") else NO_IMAGES
    content = None if optional else content_at(given, "content", where, _TEXTS, seen)
    thoughts = [text_at(given, name, where) for name in ("reasoning_content", "reasoning") if name in given]
    return Message(
        role=role,
        content=content if content is not None or calls else "",
        reasoning_content=thoughts[0] or None if thoughts and role == "assistant" else None,
        tool_calls=calls or None,
        tool_call_id=text_at(given, "tool_call_id", where) if role == "tool" else None,
        name=text_at(given, "name", where) if "name" in given else None,
    )


def _calls(calls: Any, where: str) -> list[ToolCall]:
    if not isinstance(calls, list | tuple):
        raise ApiError(400, f"{where}.tool_calls: must be a list", "invalid_value", where)
    found = []
    for place, one in enumerate(calls):
        at = f"{where}.tool_calls[{place}]"
        call = object_at(one, at)
        kind = call.get("type", "function")
        if kind not in ("function", "custom"):
            raise refuse_parameter(f"{at}.type", repr(kind)[:100])
        function, own = object_at(call.get(kind), f"{at}.{kind}"), "arguments" if kind == "function" else "input"
        name, arguments = (text_at(function, part, f"{at}.{kind}") for part in ("name", own))
        arguments = arguments if kind == "function" else custom.arguments_of(arguments)
        found.append(ToolCall(id=text_at(call, "id", at), function=FunctionCall(name=name, arguments=arguments)))
    return found
