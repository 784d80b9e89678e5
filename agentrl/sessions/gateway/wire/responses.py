"""OpenAI Responses (https://platform.openai.com/docs/api-reference/responses).

A turn is several items here (reasoning, a message, function calls); on the way in, neighbours that an
assistant generated become one message again. Replies are kept (`replies`), unless `store` says otherwise.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from agentrl.sessions.gateway.exchange import Exchange
from agentrl.sessions.gateway.http.api_error import ApiError, refuse_parameter
from agentrl.sessions.gateway.http.bodies import Body, History
from agentrl.sessions.gateway.limits import ImageLimits, Limits
from agentrl.sessions.gateway.replies.kept import KeptReply, ReplyStatus, RequestParameters
from agentrl.sessions.gateway.turn_request import TurnRequest
from agentrl.sessions.gateway.wire import custom
from agentrl.sessions.gateway.wire.chat import HARMLESS, choose_tools, distinct, form_of, sampling_of
from agentrl.sessions.gateway.wire.images import NO_IMAGES, check_number, content_at
from agentrl.sessions.gateway.wire.items import Items, output_items
from agentrl.sessions.gateway.wire.logprobs import of_content
from agentrl.sessions.gateway.wire.objects import function_of, object_at, pass_over, strict_of, text_at, texts_at
from agentrl.sessions.gateway.wire.sse import encode_json
from agentrl.sessions.gateway.wire.turns import assistant_message
from agentrl.sessions.gateway.wire.validation import Parameters
from agentrl.sessions.renderers.base import Delta, ToolSchema
from agentrl.sessions.tree.turn_generator import GeneratedTurn
from agentrl.types import FinishReason, FunctionCall, Message, ToolCall

PARAMETERS = Parameters(
    required=("model",),
    honoured=(
        *("background", "conversation", "input", "instructions", "max_output_tokens", "parallel_tool_calls"),
        *("previous_response_id", "metadata", "store", "stream_options", "temperature", "text", "tool_choice"),
        *("tools", "top_logprobs", "top_p"),
    ),
    harmless=(HARMLESS - {"store"})
    | {
        "access_programs",
        "background_options",
        "client_metadata",
        "context_management",
        "include",
        "max_tool_calls",
        "moderation",
        "reasoning.effort",
        "reasoning.generate_summary",
        "reasoning.summary",
        "text.verbosity",
        "truncation",
    },
    fixed={"reasoning.context": ("auto",), "reasoning.mode": ("standard",), **dict.fromkeys(("image", "prompt"), ())},
    inside="input",
)
_TEXTS = frozenset({"input_text", "output_text", "text"})
_READ = frozenset({"type", "role", "content", "call_id", "name", "arguments", "input", "output", "summary"})
_ECHOED = frozenset({"id", "status", "phase", "encrypted_content", "caller", "async", "namespace", "created_by"})
"""Fields that repeat our items, or say of them what is another's to know."""
_LEFT_OUT = {
    *(
        "namespace",
        "tool_search",
        "web_search",
        "web_search_2025_08_26",
        "web_search_preview",
        "web_search_preview_2025_03_11",
    )
}
"""Tools that a client offers of its own accord, and that are run elsewhere than in the client."""
_LOGPROBS = "message.output_text.logprobs"
_REPEATED = ("instructions", "metadata", "max_output_tokens", "text")
"""Parameters that a reply repeats where they were given."""
_EACH_TIME = frozenset({"input", "previous_response_id", "conversation"})
"""Parameters that differ from turn to turn."""


def read(body: Body, limits: Limits, retry: int | None, json_schema: bool) -> TurnRequest:
    """A request as a TurnRequest; ApiError where a parameter is wrong, unknown or not supported."""
    text = tuple(part for pair in zip(body.text[::2], body.text[1::2], strict=True) for part in _keep_of(pair))
    body, left_out = _drop_unavailable(body)
    given, ignored = PARAMETERS.check(body, limits)
    ignored |= left_out
    logprobs = _wants_logprobs(body, given, ignored)
    tools, force, allowed = choose_tools(_tools(given.get("tools", [])), given.get("tool_choice", "auto"))
    if custom.grammars(given.get("tools", [])):
        ignored["tools.custom.format"] = "tools.custom.format"
    said = given.get("input")
    if not isinstance(said, str | None):
        raise ApiError(400, f"input={said!r:.100} must be text, or a list of items", "invalid_value", "input")
    history = History.of([{"role": "user", "content": said}]) if isinstance(said, str) else body.history
    instructions = given.get("instructions")
    follows, conversation = given.get("previous_response_id"), _conversation(given)
    background = _background(given, ignored)
    form = form_of(given.get("text", {}).get("format"), "text.format", force, ignored)
    return TurnRequest(
        protocol="responses",
        model=given["model"],
        head=(instructions, given.get("tools"), [tool["function"]["name"] for tool in tools]),
        prelude=[Message(role="system", content=instructions)] if instructions else [],
        history=history,
        convert=functools.partial(convert, strict=limits.strict_fields, images=limits.images),
        tools=tools,
        sampling=sampling_of(given, limits, form, json_schema, "text.format"),
        stream=given.get("stream", False),
        force=force,
        allowed=allowed,
        strict=strict_of(given.get("tools", [])),
        parallel=given.get("parallel_tool_calls", True),
        previous_reply=follows.removeprefix("resp_") if follows is not None else None,
        retry=retry,
        extra={
            "asked": RequestParameters(
                text, {name: one for name, one in given.items() if name not in _EACH_TIME}, instructions
            ),
            "background": background,
            "conversation": conversation,
            "custom": custom.names_of(given.get("tools", [])),
            "logprobs": logprobs,
            "store": given.get("store", True),
        },
        ignored=ignored,
    )


def _keep_of(parameter: tuple[bytes, bytes]) -> tuple[bytes, ...]:
    return () if parameter[0].decode() in _EACH_TIME else parameter


def _conversation(given: Mapping[str, Any]) -> str | None:
    """The conversation's id."""
    conversation = given.get("conversation")
    if isinstance(conversation, dict):
        conversation = text_at(conversation, "id", "conversation")
    if not isinstance(conversation, str | None):
        raise ApiError(400, "conversation: must be an id", "invalid_value", "conversation")
    if conversation is not None and "previous_response_id" in given:
        message = "conversation and previous_response_id can't both be given"
        raise ApiError(400, message, "invalid_value", "previous_response_id")
    return conversation


def _wants_logprobs(body: Body, given: dict[str, Any], ignored: dict[str, str]) -> bool:
    """True if the text's log-probabilities are wanted; else nobody would see the most probable tokens'."""
    include = body.fields.get("include")
    if isinstance(include, list) and _LOGPROBS in include:
        if len(include) == 1:
            del ignored["include"]
        return True
    if given.pop("top_logprobs", 0):
        ignored["top_logprobs"] = "top_logprobs"
    return False


def _background(given: Mapping[str, Any], ignored: dict[str, str]) -> bool:
    """True if the reply is made in the background: a stream is sent while it is made."""
    background = given.get("background", False)
    if background and given.get("stream", False):
        ignored["background"] = "background"
        return False
    if background and not given.get("store", True):
        raise ApiError(400, "background: a reply that is fetched must be stored", "invalid_value", "store")
    return bool(background)


def _drop_unavailable(body: Body) -> tuple[Body, dict[str, str]]:
    """The request without the tools that can't be had here.

    Returns:
        It, and what was left out, each with the name that it is counted under.
    """
    tools = body.fields.get("tools")
    if not isinstance(tools, list):
        return body, {}
    kinds = [tool.get("type") if isinstance(tool, dict) else None for tool in tools]
    left_out = {f"tools.{kind}": f"tools.{kind}" for kind in kinds if isinstance(kind, str) and kind in _LEFT_OUT}
    kept = [
        {"strict": None, "parameters": None, **tool} if kind == "function" else tool  # as replies repeat it
        for kind, tool in zip(kinds, tools, strict=True)
        if f"tools.{kind}" not in left_out
    ]
    return Body({**body.fields, "tools": kept}, body.history), left_out


def _tools(tools: Sequence[Any]) -> list[ToolSchema]:
    shaped: list[ToolSchema] = []
    for place, tool in enumerate(tools):
        at = f"tools[{place}]"
        tool = object_at(tool, at)
        if tool.get("type") not in ("function", "custom"):
            what = f"{tool.get('type')!r:.100} is not run here; only function and custom"
            raise refuse_parameter(f"{at}.type", f"{what} ({', '.join(sorted(_LEFT_OUT))} are left out)")
        function = custom.as_function(tool, at) if tool["type"] == "custom" else function_of(tool, at)
        shaped.append({"type": "function", "function": function})
    return distinct(shaped)


def convert(
    items: Sequence[Any], start: int, ignored: dict[str, str], strict: bool = False, images: ImageLimits = NO_IMAGES
) -> list[Message]:
    """Messages of a conversation's messages, calls, results and reasoning, as `chat.convert` has them of messages."""
    check_number(items, images)
    messages: list[Message] = []
    parts: list[Message] = []
    for place, item in enumerate(items):
        where = f"input[{start + place}]"
        given = object_at(item, where)
        message = _message(given, where, images)
        pass_over(given, _READ, _ECHOED, where, ignored, strict)
        if message.role == "assistant":
            parts.append(message)
            continue
        messages += _join(parts)
        parts = []
        messages.append(message)
    messages += _join(parts)
    return messages


def _message(item: Mapping[str, Any], where: str, images: ImageLimits) -> Message:
    kind = item.get("type", "message")
    if kind == "message" and item.get("role") in ("user", "system", "developer", "assistant"):
        seen = images if item["role"] == "user" else NO_IMAGES
        return Message(role=item["role"], content=content_at(item, "content", where, _TEXTS, seen))
    if kind in ("function_call", "custom_tool_call"):
        custom_input = kind == "custom_tool_call"
        given = text_at(item, "input" if custom_input else "arguments", where)
        arguments = custom.arguments_of(given) if custom_input else given
        function = FunctionCall(name=text_at(item, "name", where), arguments=arguments)
        return Message(role="assistant", tool_calls=[ToolCall(id=text_at(item, "call_id", where), function=function)])
    if kind in ("function_call_output", "custom_tool_call_output"):
        output = content_at(item, "output", where, _TEXTS, images)
        return Message(role="tool", content=output, tool_call_id=text_at(item, "call_id", where))
    if kind == "reasoning":
        name = "content" if item.get("content") else "summary"
        thoughts = texts_at(item, name, where, {"reasoning_text", "summary_text", "text"}) if item.get(name) else ""
        return Message(role="assistant", reasoning_content=thoughts)
    if kind == "message":
        raise ApiError(400, f"{where}.role: {item.get('role')!r:.100} is not one of a message", "invalid_value", where)
    raise refuse_parameter(f"{where}.type", repr(kind)[:100])


def _join(parts: Sequence[Message]) -> list[Message]:
    """The items of one turn as one message."""
    if not parts:
        return []
    texts, thoughts = [one.text for one in parts], [one.reasoning_content or "" for one in parts]
    return [assistant_message(texts, thoughts, [call for one in parts for call in one.tool_calls or ()])]


# ------------------------------------------------------------------------------------------- replies


def reply(exchange: Exchange) -> bytes:
    """Return the body of a reply that is not streamed."""
    return encode_json(_finish(exchange))


async def stream(exchange: Exchange) -> AsyncIterator[bytes]:
    """The reply as server-sent events."""
    items, logprobs = Items(exchange.reply_id, exchange.request.extra["custom"]), exchange.request.extra["logprobs"]
    begun, begins = response(make_kept_reply(exchange, ReplyStatus.IN_PROGRESS), []), True
    calls: list[Delta] = []  # they end the text, whose log-probabilities are known at the turn's end
    async for _, delta in exchange.events():
        if begins:
            begins = False
            for kind in ("response.created", "response.in_progress"):
                yield items.event(kind, response=begun)
        if logprobs and delta.call is not None:
            calls.append(delta)
            continue
        for piece in items.take(delta):
            yield piece
    if begins:
        for kind in ("response.created", "response.in_progress"):
            yield items.event(kind, response=begun)
    items.logprobs = _logprobs(exchange)
    for delta in calls:
        for piece in items.take(delta):
            yield piece
    for piece in items.close():
        yield piece
    finished = _finish(exchange)
    yield items.event(f"response.{finished['status']}", response=finished)


def _finish(exchange: Exchange) -> dict[str, Any]:
    (choice,) = exchange.choices
    cut = choice.turn.finish_reason is FinishReason.LENGTH
    output = output_items(exchange.reply_id, choice.message, exchange.request.extra["custom"], _logprobs(exchange))
    return response(make_kept_reply(exchange, ReplyStatus.INCOMPLETE if cut else ReplyStatus.COMPLETED), output)


def _logprobs(exchange: Exchange) -> list[dict[str, Any]] | None:
    return of_content(exchange, exchange.choices[0]) if exchange.request.extra["logprobs"] else None


def make_kept_reply(exchange: Exchange, status: ReplyStatus, node: int | None = None) -> KeptReply:
    """Return what is kept of a reply; `node` is its turn's."""
    request, sampling = exchange.request, exchange.request.sampling
    follows, conversation = request.previous_reply, request.extra["conversation"]
    frame = {
        "id": f"resp_{exchange.reply_id}",
        "object": "response",
        "created_at": float(exchange.created),
        "model": request.model,
        "error": None,
        "parallel_tool_calls": request.parallel,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "background": request.extra["background"],
        "store": request.extra["store"],
        **({} if follows is None or conversation is not None else {"previous_response_id": f"resp_{follows}"}),
        **({} if conversation is None else {"conversation": {"id": conversation}}),
        **({"usage": _usage(exchange, exchange.choices[0])} if exchange.choices else {}),
    }
    return KeptReply(exchange.reply_id, request.extra["asked"], frame, status, node)


def response(reply: KeptReply, output: list[dict[str, Any]]) -> dict[str, Any]:
    """A response as the protocol writes it."""
    asked, cut = reply.asked.fields, reply.status is ReplyStatus.INCOMPLETE
    return {
        **reply.frame,
        "status": reply.status.value,
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": output,
        "tool_choice": asked.get("tool_choice", "auto"),
        "tools": asked.get("tools", []),
        **{name: asked[name] for name in _REPEATED if name in asked},
    }


def _usage(exchange: Exchange, choice: GeneratedTurn) -> dict[str, Any]:
    sampled = len(choice.turn.token_ids)
    return {
        "input_tokens": exchange.prompt_tokens,
        "input_tokens_details": {"cached_tokens": choice.turn.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": sampled,
        "output_tokens_details": {"reasoning_tokens": choice.reasoning_tokens},
        "total_tokens": exchange.prompt_tokens + sampled,
    }
