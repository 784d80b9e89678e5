"""Google's generateContent: conversations with tools are one path, streams, errors in its form, what is ignored."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import orjson
import pytest

from agentrl.sessions.gateway.google.requests import read
from agentrl.sessions.gateway.google.tools import json_schema
from agentrl.sessions.gateway.http.api_error import ApiError
from agentrl.sessions.gateway.http.bodies import Body
from agentrl.sessions.gateway.limits import Limits
from agentrl.sessions.gateway.turn_request import TurnRequest
from agentrl.types import Message
from tests.sessions.gateway.conftest import Serve, Served
from tests.sessions.gateway.fakes import ScriptedEngine, assistant, in_turn
from tests.sessions.gateway.test_chat import engine_saw_what_is_stored

HI: Any = [{"role": "user", "parts": [{"text": "hi"}]}]
ADD: Any = {
    "name": "add",
    "description": "Add two numbers.",
    "parameters": {
        "type": "OBJECT",
        "properties": {"a": {"type": "INTEGER"}, "b": {"type": "INTEGER", "nullable": True}},
        "required": ["a"],
        "propertyOrdering": ["a", "b"],
    },
}
TOOLS: Any = [{"functionDeclarations": [ADD]}]


def asked(limits: Limits | None = None, **fields: Any) -> tuple[TurnRequest, list[Message]]:
    """A request, and its messages."""
    body = Body.parse(orjson.dumps({"contents": HI, **fields}), "contents")
    request = read(body, limits or Limits(), "m", False, None, True)
    assert request.history is not None
    return request, request.convert(request.history.items(), 0, request.ignored)


async def sent(access: dict[str, str], body: Any, method: str = "generateContent", **headers: str) -> httpx.Response:
    key = headers or {"x-goog-api-key": access["api_key"]}
    async with httpx.AsyncClient(timeout=60) as http:
        return await http.post(f"{access['google_base_url']}/v1beta/models/m:{method}", json=body, headers=key)


async def events(access: dict[str, str], body: Any) -> list[dict[str, Any]]:
    reply = await sent(access, body, "streamGenerateContent?alt=sse")
    assert reply.headers["content-type"] == "text/event-stream"
    return [json.loads(line.removeprefix("data: ")) for line in reply.text.splitlines() if line]


async def conversation(served: Served, access: dict[str, str], stream: bool) -> AsyncIterator[dict[str, Any]]:
    """Two turns with a call between them; yields each candidate, with the parts of its stream put together."""
    history = [*HI]
    config = {"thinkingConfig": {"includeThoughts": True}, "maxOutputTokens": 200}
    system = {"parts": [{"text": "Be kind."}]}
    for _ in range(2):
        body = {"contents": history, "tools": TOOLS, "systemInstruction": system, "generationConfig": config}
        if stream:
            pieces = await events(access, body)
            parts = [part for piece in pieces for part in piece["candidates"][0]["content"]["parts"]]
            candidate = {**pieces[-1]["candidates"][0], "content": {"role": "model", "parts": parts}}
        else:
            reply = await sent(access, body)
            assert reply.status_code == 200, reply.text
            candidate = reply.json()["candidates"][0]
        yield candidate
        calls = [part["functionCall"] for part in candidate["content"]["parts"] if "functionCall" in part]
        results = [{"functionResponse": {"id": c["id"], "name": c["name"], "response": {"output": "5"}}} for c in calls]
        history += [candidate["content"], {"role": "user", "parts": [*results, {"text": "go on"}]}]


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
async def test_a_conversation_with_calls_is_one_clean_path_of_what_the_engine_saw(serve: Serve, stream: bool) -> None:
    words = in_turn(assistant("I add.", "two and three", [("add", '{"a": 2, "b": 3}')]), assistant("5"))
    async with serve(ScriptedEngine(words)) as served:
        access = await served.open()
        first, second = [candidate async for candidate in conversation(served, access, stream)]
        said = first["content"]["parts"]
        assert "".join(p["text"] for p in said if p.get("thought")) == "two and three"
        assert "".join(p["text"] for p in said if "text" in p and not p.get("thought")) == "I add."
        (call,) = [part["functionCall"] for part in said if "functionCall" in part]
        assert (call["name"], call["args"]) == ("add", {"a": 2, "b": 3})
        assert first["finishReason"] == second["finishReason"] == "STOP"
        session = served.session(access["id"])
        assert session.counters == {"gateway/clean": 1}
        assert [node.message.role for node in session.nodes] == [
            *("system", "user", "assistant", "tool", "user", "assistant")
        ]
        assert session.nodes[0].tools[0]["function"]["parameters"]["properties"]["b"] == {"type": ["integer", "null"]}
        engine_saw_what_is_stored(served, access["id"])


@pytest.mark.slow
async def test_calls_are_known_without_the_ids_and_thoughts_that_a_client_leaves_out(serve: Serve) -> None:
    words = in_turn(assistant("", "hm", [("add", '{"a": 2}')]), assistant("2"))
    async with serve(ScriptedEngine(words)) as served:
        access = await served.open()
        first = (await sent(access, {"contents": HI, "tools": TOOLS})).json()["candidates"][0]["content"]
        assert not any(part.get("thought") for part in first["parts"])
        for part in first["parts"]:
            del part["functionCall"]["id"]
        result = {"functionResponse": {"name": "add", "response": {"result": 2}}}
        history = [*HI, first, {"role": "function", "parts": [result]}]
        await sent(access, {"contents": history, "tools": TOOLS})
        session = served.session(access["id"])
        assert session.counters == {"gateway/clean": 1, "gateway/loose": 1}
        assert session.nodes[2].message.text == '{"result": 2}'


@pytest.mark.slow
async def test_replies_have_usage_ends_and_several_candidates(serve: Serve) -> None:
    async with serve(ScriptedEngine(in_turn(assistant("one"), assistant("two")))) as served:
        access = await served.open()
        body = {"contents": HI, "generationConfig": {"candidateCount": 2, "maxOutputTokens": 1}}
        reply = (await sent(access, body)).json()
        assert [(c["index"], c["finishReason"]) for c in reply["candidates"]] == [(0, "MAX_TOKENS"), (1, "MAX_TOKENS")]
        usage, prompt = reply["usageMetadata"], len(served.engine.calls[0].input_ids)
        assert (usage["promptTokenCount"], usage["candidatesTokenCount"]) == (prompt, 2)
        counted = await sent(access, {"contents": HI}, "countTokens")
        whole = await sent(access, {"generateContentRequest": {"model": "models/m", "contents": HI}}, "countTokens")
        assert counted.json() == whole.json() == {"totalTokens": prompt}
        assert reply["responseId"] == served.session(access["id"]).nodes[1].reply_id


@pytest.mark.slow
async def test_errors_are_in_googles_form_with_a_status_that_its_clients_know(serve: Serve) -> None:
    async with serve() as served:
        access = await served.open()
        for body, method, headers, status in (
            ({"contents": [{"role": "x"}]}, "generateContent", {}, (400, "INVALID_ARGUMENT")),
            ({"contents": HI}, "generateContent", {"x-goog-api-key": "wrong"}, (401, "UNAUTHENTICATED")),
            ({"contents": HI}, "embedContent", {}, (404, "NOT_FOUND")),
            ({"contents": HI}, "streamGenerateContent", {}, (400, "INVALID_ARGUMENT")),
        ):
            reply = await sent(access, body, method, **headers)
            error = reply.json()["error"]
            assert (reply.status_code, error["status"]) == status
            assert error["code"] == reply.status_code
        async with httpx.AsyncClient(timeout=60) as http:
            listed = await http.get(f"{access['google_base_url']}/v1beta/models?key={access['api_key']}")
        assert listed.json()["models"][0]["name"] == "models/agentrl"


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"cachedContent": "x"}, "cachedContent"),
        ({"contentz": HI}, "did you mean 'contents'"),
        ({"generationConfig": {"temprature": 1}}, "did you mean 'temperature'"),
        ({"generationConfig": {"temperature": "1"}}, "temperature"),
        ({"generationConfig": {"maxOutputTokens": True}}, r"^generationConfig\.maxOutputTokens=True"),
        ({"generationConfig": {"topK": 2.5}}, r"^generationConfig\.topK=2.5"),
        ({"generationConfig": {"stop": ["x"]}}, "did you mean 'stopSequences'"),
        ({"generationConfig": {"max_tokens": 3}}, "did you mean 'maxOutputTokens'"),
        ({"generationConfig": {"min_p": 0.1}}, "unknown parameter 'generationConfig.minP'"),
        ({"temperature": 0.5}, r"did you mean 'generationConfig\.temperature'"),
        ({"messages": []}, "unknown parameter 'messages'"),
        ({"generationConfig": {"responseSchema": {"type": "OBJECT"}}}, "needs generationConfig.responseMimeType"),
        ({"systemInstruction": {"parts": [{}]}}, r"systemInstruction\.parts\[0\]\.text"),
        ({"generationConfig": {"stopSequences": "x"}}, "stopSequences"),
        ({"generationConfig": {"logprobs": 2}}, "responseLogprobs"),
        ({"generationConfig": {"responseLogprobs": True, "logprobs": 21}}, "logprobs"),
        ({"generationConfig": {"responseModalities": ["AUDIO"]}}, "responseModalities"),
        ({"generationConfig": {"responseMimeType": "text/x.enum"}}, "responseMimeType"),
        ({"tools": [{"codeExecution": {}}]}, "codeExecution"),
        ({"tools": TOOLS, "toolConfig": {"functionCallingConfig": {"mode": "SOME"}}}, "mode"),
        ({"toolConfig": {"functionCallingConfig": {"mode": "ANY"}}}, "there are no tools"),
        ({"contents": [{"role": "user", "parts": [{"inlineData": {}}]}]}, "inlineData.*takes text only"),
        ({"contents": [{"role": "model", "parts": [{"inlineData": {}}]}]}, "an image of the model's"),
        (
            {"contents": [{"parts": [{"functionResponse": {"name": "a", "parts": [{"inlineData": {}}]}}]}]},
            r"functionResponse\.parts",
        ),
        ({"contents": [{"role": "user", "parts": [{"text": 1}]}]}, "must be text"),
        ({"contents": [{"role": "model", "parts": [{"functionCall": {"args": {}}}]}]}, "name"),
        ({"contents": 5}, "must be an object"),
        ({"contents": [{"parts": 5}]}, "must be a list"),
        ({"contents": [{"parts": [5]}]}, "must be an object"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(ApiError, match=named):
        asked(**fields)


def test_names_may_have_underscores_and_what_changes_nothing_is_ignored_and_counted() -> None:
    request, (message,) = asked(
        system_instruction={"parts": [{"text": "a"}, {"text": "b"}]},
        generation_config={
            "max_output_tokens": 7,
            "thinking_config": {"thinking_budget": 5},
            "media_resolution": "LOW",
        },
        safety_settings=[],
        tools=[*TOOLS, {"google_search": {}}],
        newer={"x": 1},
        contents=[{"parts": [{"text": "hi", "thought_signature": "x", "newest": 1}], "mood": "good"}],
    )
    assert (message, request.prelude[0].text) == (Message(role="user", content="hi"), "ab")
    assert request.sampling.max_new_tokens == 7
    config = "generationConfig"
    assert request.ignored == {
        **{name: name for name in ("safetySettings", "tools.googleSearch", f"{config}.mediaResolution")},
        **{f"{config}.thinkingConfig.thinkingBudget": f"{config}.thinkingConfig.thinkingBudget"},
        **{"newer": "unknown", "mood": "unknown", "newest": "unknown"},
    }


def test_sampling_follows_the_rule_of_the_gateway() -> None:
    config = {"temperature": 0.3, "topP": 0.5, "topK": 4.0, "seed": 5, "stopSequences": ["x"]}
    own, _ = asked(generationConfig=config)
    assert (own.sampling.temperature, own.sampling.top_p, own.sampling.top_k, own.sampling.seed) == (0.3, 0.5, 4, 5)
    runs, _ = asked(Limits(sampling="run", temperature=0.7), generationConfig=config)
    assert (runs.sampling.temperature, runs.sampling.top_p, runs.sampling.top_k, runs.sampling.seed) == (
        0.7,
        1,
        None,
        None,
    )
    assert runs.sampling.stop == own.sampling.stop == ("x",)
    assert set(runs.ignored) == {"temperature", "top_p", "top_k", "seed"}


def test_a_schema_in_googles_form_is_the_json_schema_that_it_stands_for() -> None:
    found = json_schema(
        {
            "type": "ARRAY",
            "minItems": "2",
            "items": {"anyOf": [{"type": "STRING", "enum": ["A"]}, {"type": "OBJECT", "nullable": True}]},
        },
        "s",
    )
    items = {"anyOf": [{"type": "string", "enum": ["A"]}, {"type": ["object", "null"]}]}
    assert found == {"type": "array", "minItems": 2, "items": items}
    form = {"responseMimeType": "application/json", "responseSchema": {"type": "OBJECT"}}
    assert asked(generationConfig=form)[0].sampling.json_schema == '{"type": "object"}'


@pytest.mark.parametrize(
    ("calling", "forced", "offered", "allowed"),
    [
        ({}, None, True, None),
        ({"mode": "NONE"}, None, False, set()),
        ({"mode": "ANY"}, "", True, None),
        ({"mode": "any", "allowedFunctionNames": ["add"]}, "", True, None),
        ({"mode": "VALIDATED", "allowedFunctionNames": ["sub"]}, None, True, {"sub"}),
    ],
)
def test_a_choice_of_tools_is_kept(calling: Any, forced: str | None, offered: bool, allowed: Any) -> None:
    request, _ = asked(tools=TOOLS, toolConfig={"functionCallingConfig": calling})
    assert (request.force, bool(request.tools), request.allowed) == (forced, offered, allowed)


@pytest.mark.slow
async def test_a_stream_that_a_client_sends_back_piece_by_piece_is_one_turn(serve: Serve) -> None:
    """google-genai keeps a content for each event."""
    words = in_turn(assistant("some words, and a call", None, [("add", '{"a": 2}')]), assistant("2"))
    async with serve(ScriptedEngine(words)) as served:
        access = await served.open()
        pieces = [piece["candidates"][0] for piece in await events(access, {"contents": HI, "tools": TOOLS})]
        assert len(pieces) > 2
        assert all(piece["content"]["parts"] for piece in pieces)
        assert [piece.get("finishReason") for piece in pieces] == [None] * (len(pieces) - 1) + ["STOP"]
        result = {"functionResponse": {"name": "add", "response": {"output": "2"}}}
        history = [*HI, *(piece["content"] for piece in pieces), {"role": "user", "parts": [result]}]
        await sent(access, {"contents": history, "tools": TOOLS})
        assert served.session(access["id"]).counters["gateway/clean"] == 1
