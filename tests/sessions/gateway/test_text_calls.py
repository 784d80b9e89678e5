"""Calls without tools are text, and thoughts are counted, in every protocol."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from agentrl.sessions.renderers.grammars import GRAMMARS
from agentrl.sessions.renderers.parsing import Bound
from tests.sessions.gateway.conftest import Serve
from tests.sessions.gateway.fakes import ScriptedEngine, assistant, in_turn, renderer

HI: Any = [{"role": "user", "content": "hi"}]
PROTOCOLS: Any = {
    "v1/chat/completions": {"model": "m", "messages": HI},
    "v1/responses": {"model": "m", "input": HI},
    "v1/messages": {"model": "m", "messages": HI, "max_tokens": 500},
    "v1beta/models/m:generateContent": {"contents": [{"parts": [{"text": "hi"}]}]},
}
WROTE = 'let me\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
NO_TOOLS: Any = {"v1/chat/completions": {"tool_choice": "none"}, "v1/messages": {"tool_choice": {"type": "none"}}}


async def sent(access: dict[str, str], path: str, body: dict[str, Any], **headers: str) -> dict[str, Any]:
    async with httpx.AsyncClient(timeout=60) as http:
        url, key = f"{access['google_base_url']}/{path}", {"x-api-key": access["api_key"]}
        reply = await http.post(url, json=body, headers={**key, **headers})
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


def said(path: str, reply: dict[str, Any]) -> tuple[str, int, int]:
    """The text, how many tokens were thought, and how many were sampled."""
    if "choices" in reply:
        usage = reply["usage"]
        thoughts = usage["completion_tokens_details"]["reasoning_tokens"]
        return reply["choices"][0]["message"]["content"], thoughts, usage["completion_tokens"]
    if "candidates" in reply:
        usage = reply["usageMetadata"]
        assert usage["totalTokenCount"] == sum(
            usage[f"{name}TokenCount"] for name in ("prompt", "candidates", "thoughts")
        )
        (part,) = reply["candidates"][0]["content"]["parts"]
        return part["text"], usage["thoughtsTokenCount"], usage["totalTokenCount"] - usage["promptTokenCount"]
    details, usage = reply["usage"]["output_tokens_details"], reply["usage"]
    if "output" in reply:
        return reply["output"][-1]["content"][0]["text"], details["reasoning_tokens"], usage["output_tokens"]
    (block,) = reply["content"]
    return block["text"], details["thinking_tokens"], usage["output_tokens"]


@pytest.mark.slow
@pytest.mark.parametrize("path", PROTOCOLS)
async def test_a_call_is_text_where_no_tools_are_on_offer_and_thoughts_are_counted(serve: Serve, path: str) -> None:
    """Agents that describe their tools in the prompt got a call without the text that they read it from."""
    turn = assistant("let me", "hm hm", [("add", '{"a": 1}')])
    async with serve(ScriptedEngine(lambda prompt: turn)) as served:
        thoughts = len(renderer().tokenizer.encode("hm hm"))
        for more in ({}, NO_TOOLS.get(path, {})):
            access = await served.open()
            body = {**PROTOCOLS[path], **more}
            reply = await sent(access, path, body)
            again = await sent(access, path, body, **{"x-stainless-retry-count": "1"})
            sampled = served.engine.calls[-1].turn.token_ids
            assert said(path, reply) == said(path, again) == (WROTE, thoughts, len(sampled))
            assert "gateway/malformed" not in served.session(access["id"]).counters


@pytest.mark.slow
async def test_a_call_that_was_sent_as_text_is_continued_token_for_token(serve: Serve) -> None:
    words = in_turn(assistant("", None, [("add", '{"a": 1}')]), assistant("2"))
    async with serve(ScriptedEngine(words)) as served:
        access, path = await served.open(), "v1/chat/completions"
        message = (await sent(access, path, PROTOCOLS[path]))["choices"][0]["message"]
        assert json.loads(message["content"].splitlines()[1]) == {"name": "add", "arguments": {"a": 1}}
        await sent(access, path, {"model": "m", "messages": [*HI, message, *HI]})
        assert served.session(access["id"]).counters == {"gateway/clean": 1}


@pytest.mark.parametrize(
    ("grammar", "text"),
    [
        ("llama", '{"name": "a", "parameters": {}}'),
        ("pythonic", "[a(x=1)]"),
        ("mistral", 'so[TOOL_CALLS][{"name": "a", "arguments": {}}]'),
        ("gemma", "so<|tool_call>call:a{}<tool_call|> and"),
        (
            "kimi",
            "so<|tool_calls_section_begin|><|tool_call_begin|>functions.a:0<|tool_call_argument_begin|>{}"
            "<|tool_call_end|><|tool_calls_section_end|>",
        ),
    ],
)
def test_a_format_reads_a_call_as_its_text_and_the_same_in_any_pieces(grammar: str, text: str) -> None:
    bound = Bound(GRAMMARS[grammar], renderer().tokenizer, ())
    tokens = renderer().tokenizer.encode(text)
    assert bound.parser().finish()[1].message.tool_calls is None
    with_calls = bound.parser()
    with_calls.feed(tokens)
    assert with_calls.finish()[1].message.tool_calls
    whole, pieces = bound.parser().without_calls(), bound.parser().without_calls()
    whole.feed(tokens)
    for token in tokens:
        pieces.feed([token])
    read = whole.finish()[1]
    assert (read.message.content, read.message.tool_calls) == (text, None)
    assert pieces.finish()[1] == read
