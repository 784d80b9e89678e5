"""What is new or not used is passed over in every protocol alike; one table says what is done with what."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any, get_type_hints

import anthropic
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.sessions.gateway.google import requests as google
from agentrl.sessions.gateway.http.api_error import ApiError
from agentrl.sessions.gateway.http.bodies import Body
from agentrl.sessions.gateway.limits import Limits
from agentrl.sessions.gateway.reading import Reading
from agentrl.sessions.gateway.turn_request import TurnRequest
from agentrl.sessions.gateway.wire import chat, messages, responses
from agentrl.types import FinishReason, Message
from tests.sessions.gateway.conftest import Serve
from tests.sessions.gateway.fakes import ScriptedEngine, assistant, in_turn, renderer
from tests.sessions.gateway.meanings import MEANINGS, Meaning, Treatment, table
from tests.sessions.gateway.test_chat import client
from tests.sessions.gateway.test_other_protocols import claude

HI = [{"role": "user", "content": "hi"}]
SHAPE: dict[str, Any] = {"type": "object", "properties": {}}
TOOLS: dict[str, Any] = {
    "chat": [{"type": "function", "function": {"name": "add", "parameters": SHAPE}}],
    "responses": [{"type": "function", "name": "add", "parameters": SHAPE}],
    "messages": [{"name": "add", "input_schema": SHAPE}],
}
GOOGLES: Any = [{"functionDeclarations": [{"name": "add", "parameters": SHAPE}, {"name": "subtract"}, {"name": "x"}]}]
SENT: dict[str, dict[str, Any]] = {
    "parallel_tool_calls": {"parallel_tool_calls": False},
    "disable_parallel_tool_use": {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
    "tool_choice": {"tool_choice": "required"},
    "tools.custom": {"tools": [{"type": "custom", "name": "patch"}]},
    "previous_response_id": {"previous_response_id": "resp_a"},
    "thread": {"thread": {"type": "continue", "previous_message_id": "msg_a"}},
    "reasoning_effort": {"reasoning_effort": "high"},
    "reasoning.effort": {"reasoning": {"effort": "high"}},
    "output_config.effort": {"output_config": {"effort": "high"}},
    "web_search_options": {"web_search_options": {}},
    "truncation": {"truncation": "auto"},
    "trace": {"trace": "x"},
    "temprature": {"temprature": 1},
    "mcp_servers": {"mcp_servers": [{"type": "url", "url": "https://a.example", "name": "a"}]},
    "prompt": {"prompt": {"id": "pmpt_a"}},
    "context_management": {"context_management": [{"type": "compaction", "compact_threshold": 1000}]},
    "max_tool_calls": {"max_tool_calls": 3},
    "moderation": {"moderation": {"model": "a"}},
    "tools.bash_20250124": {"tools": [{"type": "bash_20250124", "name": "bash"}]},
    "structured_outputs": {"structured_outputs": {"json": {"type": "object"}}},
    "chat_template_kwargs": {"chat_template_kwargs": {"enable_thinking": False}},
    "background": {"background": True},
    "conversation": {"conversation": "conv_a"},
    "store": {"store": False},
    "top_logprobs": {"logprobs": True, "top_logprobs": 3},
}


def asked(protocol: str, limits: Limits | None = None, **fields: Any) -> tuple[TurnRequest, list[Message]]:
    """A request of a protocol, and its messages."""
    if protocol == "google":
        whole = {"contents": [{"parts": [{"text": "hi"}]}], "tools": GOOGLES, **fields}
        request = google.read(Body.parse(orjson.dumps(whole), "contents"), limits or Limits(), "m", False, None, True)
        assert request.history is not None
        return request, request.convert(request.history.items(), 0, request.ignored)
    read, conversation = {
        "chat": (chat.read, "messages"),
        "responses": (responses.read, "input"),
        "messages": (messages.read, "messages"),
    }[protocol]
    most = {"max_tokens": 50} if protocol == "messages" else {}
    given = {"model": "m", conversation: HI, "tools": TOOLS[protocol], **most, **fields}
    request = read(Body.parse(orjson.dumps(given), conversation), limits or Limits(), None, True)
    assert request.history is not None
    return request, request.convert(request.history.items(), 0, request.ignored)


def sent(protocol: str, name: str) -> dict[str, Any]:
    """The fields that a name of the table stands for."""
    conversation = "input" if protocol == "responses" else "messages"
    googles: dict[str, dict[str, Any]] = {
        "toolConfig": {"toolConfig": {"functionCallingConfig": {"mode": "ANY"}}},
        "thinkingConfig": {"generationConfig": {"thinkingConfig": {"thinkingLevel": "HIGH"}}},
        "googleSearch": {"tools": [*GOOGLES, {"googleSearch": {}}]},
        "trace": {"trace": "x"},
        "mood": {"contents": [{"parts": [{"text": "hi"}], "mood": "good"}]},
        "temprature": {"generationConfig": {"temprature": 1}},
        "part": {"contents": [{"part": [{"text": "hi"}]}]},
        "allowedFunctionNames": {
            "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["add", "x"]}}
        },
        "codeExecution": {"tools": [{"codeExecution": {}}]},
        "logprobs": {"generationConfig": {"responseLogprobs": True, "logprobs": 3}},
    }
    special: dict[tuple[str, str], dict[str, Any]] = {
        ("top_logprobs", "responses"): {"top_logprobs": 3, "include": ["message.output_text.logprobs"]},
        ("mood", protocol): {conversation: [{**HI[0], "mood": "good"}]},
        ("contents", protocol): {conversation: [{**HI[0], "contents": "x"}]},
        ("prefill", "messages"): {"messages": [*HI, {"role": "assistant", "content": "so"}]},
        ("tool_choice", "messages"): {"tool_choice": {"type": "any"}},
        ("tools.web_search", "responses"): {"tools": [*TOOLS["responses"], {"type": "web_search"}]},
        ("tools.web_search", "messages"): {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
        ("tools.custom", "chat"): {"tools": [{"type": "custom", "custom": {"name": "patch"}}]},
        ("allowed_tools", "chat"): {
            "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": TOOLS["chat"]}}
        },
        ("allowed_tools", "responses"): {
            "tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "add"}]}
        },
    }
    if protocol == "google":
        return googles[name]
    if (name, protocol) not in special and name not in SENT and name.startswith("tools."):
        return {"tools": [*TOOLS[protocol], {"type": name.removeprefix("tools."), "name": "theirs"}]}
    return special.get((name, protocol)) or SENT[name]


CASES = [(m, p) for m in MEANINGS for p in ("chat", "responses", "messages", "google") if getattr(m, p)]


@pytest.mark.parametrize(("meaning", "protocol"), CASES, ids=[f"{m.thing}-{p}" for m, p in CASES])
def test_the_table_says_what_is_done(meaning: Meaning, protocol: str) -> None:
    name = getattr(meaning, protocol)
    if meaning.treatment is Treatment.REFUSED:
        with pytest.raises(ApiError) as refused:
            asked(protocol, **sent(protocol, name))
        assert refused.value.status == 400
        assert refused.value.param is not None
        if name.startswith("tools."):
            assert refused.value.param.startswith("tools[")
            assert re.search("only (function|tools)", refused.value.message)
        return
    request, _ = asked(protocol, **sent(protocol, name))
    assert any(name in one for one in request.ignored) == (meaning.treatment is Treatment.IGNORED)
    if meaning.treatment is Treatment.HONOURED:
        (plain, read), (_, said) = asked(protocol), asked(protocol, **sent(protocol, name))
        changed = ("parallel", "force", "allowed", "tools", "previous_reply", "sampling", "thinking")
        kept = ("background", "conversation", "custom", "store")
        assert (
            said != read
            or any(getattr(request, field) != getattr(plain, field) for field in changed)
            or any(request.extra.get(field) != plain.extra.get(field) for field in kept)
        )


def test_the_docs_print_the_table() -> None:
    assert table() in (Path(__file__).parents[3] / "docs/agents.md").read_text()


@pytest.mark.parametrize(
    "item",
    [
        {"role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a", "annotations": []}]},
        {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
        {"type": "message", "role": "assistant", "status": None, "content": [{"type": "text", "text": "a"}]},
        {"role": "assistant", "content": "a", "status": "completed", "phase": "final_answer"},
    ],
)
def test_an_assistants_item_needs_neither_status_nor_annotations(item: Any) -> None:
    """langchain-openai, openhands-sdk and the AI SDK leave them out: their second request was refused."""
    request, read = asked("responses", input=[*HI, item, *HI])
    assert [(one.role, one.text) for one in read] == [("user", "hi"), ("assistant", "a"), ("user", "hi")]
    assert request.ignored == {}


@pytest.mark.parametrize(
    "block",
    [
        {"type": "thinking", "thinking": "so", "newer": 1},
        {"type": "tool_use", "id": "a", "name": "add", "input": {"x": None}, "caller": {"type": "newer"}},
        {"type": "text", "text": "a", "citations": [{"type": "newer"}]},
    ],
)
def test_of_a_block_what_is_used_is_enough(block: Any) -> None:
    history = [*HI, {"role": "assistant", "content": [block], "usage": {"input_tokens": 1}}, *HI]
    request, (_, echo, _) = asked("messages", messages=history)
    calls = [call.function.arguments for call in echo.tool_calls or ()]
    assert (echo.reasoning_content, echo.text, calls) in (("so", "", []), (None, "", ['{"x": null}']), (None, "a", []))
    assert request.ignored == {}


@pytest.mark.parametrize("protocol", ["chat", "responses", "messages"])
def test_unknown_fields_of_messages_are_counted_or_with_the_strict_setting_refused(protocol: str) -> None:
    conversation = "input" if protocol == "responses" else "messages"
    history = [{**HI[0], "mood": "good", "wölkchen": 1, "empty": None}]
    request, read = asked(protocol, **{conversation: history})
    assert ([one.text for one in read], request.ignored) == (["hi"], {"mood": "unknown", "unknown": "unknown"})
    with pytest.raises(ApiError, match=r"\[0\]"):
        asked(protocol, Limits(strict_fields=True), **{conversation: history})


@pytest.mark.parametrize("protocol", ["chat", "responses", "messages"])
def test_messages_with_a_great_many_fields_are_refused_before_each_is_looked_up(protocol: str) -> None:
    conversation = "input" if protocol == "responses" else "messages"
    history = [{**HI[0], **{f"field_{number}": 1 for number in range(5000)}}]
    with pytest.raises(ApiError, match="field_"):
        asked(protocol, **{conversation: history})


@pytest.mark.slow
async def test_anthropics_tool_runner_goes_on_in_a_thread(serve: Serve) -> None:
    """From its second request on it sends what is new alone, without system prompt and tools: it was refused."""

    @anthropic.beta_async_tool
    async def add(a: int, b: int) -> str:
        """Add two numbers.

        Args:
            a: one
            b: another
        """
        return str(a + b)

    words = [assistant("", None, [("add", '{"a": 1, "b": 2}')]), assistant("", None, [("add", "{}")]), assistant("3")]
    async with serve(ScriptedEngine(in_turn(*words))) as served:
        access = await served.open()
        run = claude(access).beta.messages.tool_runner(
            model="m", max_tokens=500, system="be kind", tools=[add], messages=[{"role": "user", "content": "1 + 2?"}]
        )
        final = await run.until_done()
        assert final.content[0].type == "text"
        session = served.session(access["id"])
        assert [node.parent for node in session.nodes] == [None, *range(len(session.nodes) - 1)]
        assert [node.message.role for node in session.nodes[:5]] == ["system", "user", "assistant", "tool", "assistant"]
        assert session.counters["gateway/clean"] == 2


@pytest.mark.slow
async def test_a_thread_that_is_not_known_is_refused_so_that_its_client_sends_everything(serve: Serve) -> None:
    async with serve() as served:
        access = await served.open()
        thread: Any = {"type": "continue", "previous_message_id": "msg_lost"}
        with pytest.raises(anthropic.NotFoundError) as caught:
            await claude(access).beta.messages.create(model="m", max_tokens=9, messages=HI, thread=thread)
        assert caught.value.body["error"]["details"]["error_code"] == "thread_not_found"


@pytest.mark.parametrize("protocol", ["chat", "responses"])
def test_tools_that_are_not_allowed_stay_in_the_prompt(protocol: str) -> None:
    own: Any = {"type": "function", "name": "sub"}
    choice: Any = {"type": "allowed_tools", "mode": "auto", "tools": [own, {"type": "web_search"}]}
    if protocol == "chat":
        own = {"type": "function", "function": {"name": "sub"}}
        choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [own, {"type": "web_search"}]}}
    request, _ = asked(protocol, tools=[*TOOLS[protocol], own], tool_choice=choice)
    assert [tool["function"]["name"] for tool in request.tools] == ["add", "sub"]
    assert (request.force, request.allowed) == (None, {"sub"})
    assert request.head == asked(protocol, tools=[*TOOLS[protocol], own])[0].head


NO_CALL: dict[str, dict[str, Any]] = {
    "chat": {"tool_choice": "none"},
    "responses": {"tool_choice": "none"},
    "messages": {"tool_choice": {"type": "none"}},
    "google": {"toolConfig": {"functionCallingConfig": {"mode": "NONE"}}},
}


@pytest.mark.parametrize("protocol", NO_CALL)
def test_where_no_call_is_wanted_none_is_returned(protocol: str) -> None:
    """A model may call all the same: its client was handed a call, and the tools were left out of the prompt alone."""
    request, _ = asked(protocol, **NO_CALL[protocol])
    assert (list(request.tools), request.may_call("add")) == ([], False)
    reading = Reading(renderer(), request, (), "call_")
    reading.feed(renderer().turn(assistant("so", None, [("add", '{"a": 1}')])))
    _, message = reading.finish(FinishReason.STOP)
    assert (message.text, message.tool_calls, reading.not_allowed) == ("soadd", None, 1)


@pytest.mark.slow
async def test_another_choice_of_allowed_tools_goes_on_the_path_and_others_calls_are_text(serve: Serve) -> None:
    """Each choice began a root, since what was not allowed was left out of the prompt."""
    add, sub = TOOLS["chat"][0], {"type": "function", "function": {"name": "sub", "parameters": SHAPE}}
    both = [("sub", "{}"), ("add", '{"a": 1}')]
    async with serve(ScriptedEngine(in_turn(assistant("so", None, both), assistant("3")))) as served:
        access = await served.open()
        create, history = client(access).chat.completions.create, list[Any](HI)
        for allowed in ([add], [sub], None):
            choice: Any = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": allowed}}
            fields: Any = {} if allowed is None else {"tool_choice": choice}
            reply = await create(model="m", messages=history, tools=[add, sub], **fields)
            message = reply.choices[0].message.model_dump(exclude_none=True)
            calls = message.get("tool_calls", ())
            history += [message, *({"role": "tool", "tool_call_id": one["id"], "content": "3"} for one in calls)]
            history += [{"role": "user", "content": "and?"}]
        session = served.session(access["id"])
        assert [node.parent for node in session.nodes] == [None, *range(len(session.nodes) - 1)]
        turn = session.nodes[1].message
        assert [one.function.name for one in turn.tool_calls or ()] == ["add"]
        assert turn.text == "sosub"
        assert session.counters["gateway/not_allowed"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_custom_tool_of_chat_is_called_with_text_and_its_result_goes_on_the_path(
    serve: Serve, streamed: bool
) -> None:
    form = {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: /a+/"}}
    tool: Any = {"type": "custom", "custom": {"name": "patch", "description": "Patch.", "format": form}}
    engine = ScriptedEngine(in_turn(assistant("", None, [("patch", '{"input":  "aa"}')]), assistant("done")))
    async with serve(engine) as served:
        access = await served.open()
        create = client(access).chat.completions.create
        if streamed:
            chunks = [chunk async for chunk in await create(model="m", messages=HI, tools=[tool], stream=True)]
            (call,) = (one for chunk in chunks for one in chunk.choices[0].delta.tool_calls or ())
            sent_back = {"id": call.id, "type": "custom", "custom": call.custom}
        else:
            (call,) = (await create(model="m", messages=HI, tools=[tool])).choices[0].message.tool_calls
            sent_back = call.model_dump()
        assert (sent_back["type"], sent_back["custom"]) == ("custom", {"name": "patch", "input": "aa"})
        echo = {"role": "assistant", "content": None, "tool_calls": [sent_back]}
        result = {"role": "tool", "tool_call_id": call.id, "content": "ok"}
        await create(model="m", messages=[*HI, echo, result], tools=[tool])
        session = served.session(access["id"])
        assert [node.parent for node in session.nodes] == [None, 0, 1, 2]
        assert "start: /a+/" in renderer().tokenizer.decode(engine.calls[0].input_ids)


@pytest.mark.parametrize("protocol", ["chat", "responses", "messages"])
def test_fields_and_values_that_are_newer_than_the_sdk_are_no_error_where_they_change_nothing(protocol: str) -> None:
    (tool,) = TOOLS[protocol]
    if protocol == "chat":
        tool = {**tool, "newer": 1, "function": {**tool["function"], "strict": "perhaps", "newer": [1]}}
    newer: dict[str, Any] = {
        "chat": {"service_tier": "newer", "reasoning_effort": "utmost", "stream_options": {"newer": 1}},
        "responses": {
            **{"include": ["newer"], "metadata": {"a": 1}, "truncation": "newer", "stream_options": {"newer": 1}},
            **{"reasoning": {"effort": "utmost", "summary": "newer"}, "text": {"verbosity": "newer", "newer": 1}},
        },
        "messages": {
            **{"thinking": {"type": "newer", "newer": 1}, "output_config": {"effort": "utmost", "newer": 1}},
            **{"service_tier": "newer", "system": [{"type": "text", "text": "a", "newer": 1}]},
        },
    }[protocol]
    request, _ = asked(protocol, tools=[{**tool, "newer": {"a": 1}}], **newer)
    assert [set(tool["function"]) for tool in request.tools] == [{"name", "parameters"}]


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats(-2, 2)
    | st.sampled_from(["", "auto", "add", "function"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "name", "function", "tools", "format", "mode"]), inner, max_size=4)
    ),
    max_leaves=8,
)


def test_every_parameter_that_is_named_here_is_the_sdks_or_told_of() -> None:
    """The tables are ours, since the SDKs take two seconds to import; a name that is spelt wrong would do nothing."""
    from anthropic.types import beta, message_create_params
    from openai.types.chat import completion_create_params
    from openai.types.responses import response_create_params

    def names(*kinds: Any) -> set[str]:
        return {name for kind in kinds for name in get_type_hints(kind)}

    ours = {"stream", "client_metadata"}
    chats = names(completion_create_params.CompletionCreateParamsNonStreaming)
    asked = names(response_create_params.ResponseCreateParamsNonStreaming)
    said = names(
        message_create_params.MessageCreateParamsNonStreaming,
        beta.message_create_params.MessageCreateParamsNonStreaming,
    )
    sampled = {"temperature", "top_p", "top_k"}
    assert chat.PARAMETERS.known - chats - ours == set()
    assert responses.PARAMETERS.known - asked - ours == set()
    assert messages.PARAMETERS.known - said - ours - sampled == set()


@pytest.mark.slow
def test_serving_imports_neither_openais_nor_anthropics_sdk() -> None:
    code = "import sys, agentrl.sessions.gateway.http.app; print(sorted({'openai', 'anthropic'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("protocol", ["chat", "responses", "messages"])
def test_whatever_a_parameter_holds_is_read_or_refused_by_its_name(protocol: str, data: st.DataObject) -> None:
    parameters = {"chat": chat.PARAMETERS, "responses": responses.PARAMETERS, "messages": messages.PARAMETERS}[protocol]
    names = sorted(parameters.known - {"messages", "input"})
    fields = {name: data.draw(JSON) for name in data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=3))}
    refusal = refused_by(protocol, fields)
    assert refusal is None or refusal.status == 400
    named = None if refusal is None else refusal.param
    assert named is None or named.split(".")[0].split("[")[0] in fields


def refused_by(protocol: str, fields: dict[str, Any]) -> ApiError | None:
    """How a request with these fields is refused, if it is."""
    try:
        asked(protocol, **fields)
    except ApiError as refusal:
        return refusal
    return None
