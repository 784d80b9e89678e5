"""Log-probabilities in replies: of the sampled tokens, and of the most probable ones beside them."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.sessions.gateway.conftest import Serve
from tests.sessions.gateway.fakes import ScriptedEngine, assistant, in_turn
from tests.sessions.gateway.test_chat import HI, client
from tests.sessions.gateway.test_google import HI as CONTENTS
from tests.sessions.gateway.test_google import events, sent

LOGPROBS: Any = ["message.output_text.logprobs"]
TOOL: Any = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}, "strict": False}


@pytest.mark.slow
async def test_logprobs_are_those_of_the_contents_tokens(serve: Serve) -> None:
    async with serve(ScriptedEngine(in_turn(assistant("hello you", "hm")))) as served:
        access = await served.open()
        chat = client(access).chat.completions
        reply = await chat.create(model="m", messages=HI, logprobs=True)
        content = reply.choices[0].logprobs.content
        assert "".join(entry.token for entry in content) == "hello you"
        node = served.session(access["id"]).nodes[-1]
        assert {entry.logprob for entry in content} <= set(node.logprobs)
        stream = await chat.create(model="m", messages=HI, logprobs=True, stream=True)
        streamed = [e for c in [c async for c in stream] for e in (c.choices[0].logprobs or _NONE).content]
        assert [e.logprob for e in streamed] == [e.logprob for e in content]


@pytest.mark.slow
async def test_the_most_probable_tokens_come_with_the_contents_and_are_not_stored(serve: Serve) -> None:
    async with serve(ScriptedEngine(in_turn(assistant("hello you", "hm")))) as served:
        access = await served.open()
        chat = client(access).chat.completions
        reply = await chat.create(model="m", messages=HI, logprobs=True, top_logprobs=3, seed=5)
        content = reply.choices[0].logprobs.content
        for entry in content:
            assert [round(entry.logprob - one.logprob, 9) for one in entry.top_logprobs] == [0, 1, 2]
            assert entry.top_logprobs[0].token == entry.token
        stream = await chat.create(model="m", messages=HI, logprobs=True, top_logprobs=3, stream=True)
        streamed = [e for c in [c async for c in stream] for e in (c.choices[0].logprobs or _NONE).content]
        assert streamed == content
        stored = served.session(access["id"]).nodes[-1]
        assert (stored.sampling.top_logprobs, all(stored.trainable[-3:])) == (0, True)
        again = await chat.create(model="m", messages=HI, logprobs=True, top_logprobs=3, seed=5)  # is sent once more
        assert [len(entry.top_logprobs) for entry in again.choices[0].logprobs.content] == [1] * len(content)
        with pytest.raises(openai.BadRequestError, match="needs logprobs"):
            await chat.create(model="m", messages=HI, top_logprobs=3)


class _NONE:
    content: tuple[()] = ()


@pytest.mark.slow
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_responses_text_has_log_probabilities_where_they_are_included(serve: Serve, streamed: bool) -> None:
    """A call ends the text in a stream, before the turn's end is known: it waits."""
    words = assistant("hello you", "hm", [("add", "{}")])
    async with serve(ScriptedEngine(in_turn(words))) as served:
        responses = client(await served.open()).responses
        fields: Any = {"model": "m", "input": "hi", "tools": [TOOL], "include": LOGPROBS, "top_logprobs": 2}
        if streamed:
            events = [event async for event in await responses.create(**fields, stream=True)]
            reply = events[-1].response
            done = next(event for event in events if event.type == "response.output_text.done")
            assert "".join(one.token for one in done.logprobs) == "hello you"
        else:
            reply = await responses.create(**fields)
        _, message, call = reply.output
        assert call.type == "function_call"
        logprobs = message.content[0].logprobs
        assert "".join(one.token for one in logprobs) == "hello you"
        assert all(round(one.logprob - one.top_logprobs[1].logprob, 9) == 1 for one in logprobs)


async def test_most_probable_tokens_that_nobody_would_see_are_not_generated(serve: Serve) -> None:
    async with serve(ScriptedEngine()) as served:
        created = client(await served.open()).responses.with_raw_response
        answer = await created.create(model="m", input="hi", top_logprobs=2)
        assert answer.headers["x-agentrl-ignored"] == "top_logprobs"
        assert served.engine.calls[0].sampling.top_logprobs == 0
        assert answer.parse().output[0].content[0].logprobs is None


@pytest.mark.slow
async def test_completions_have_the_most_probable_texts_of_each_place(serve: Serve) -> None:
    async with serve(ScriptedEngine(in_turn("upon a time"))) as served:
        create = client(await served.open()).completions.create
        found = (await create(model="m", prompt="once ", logprobs=2)).choices[0].logprobs
        for token, logprob, best in zip(found.tokens, found.token_logprobs, found.top_logprobs, strict=True):
            assert best[token] == max(best.values()) == logprob
            assert len(best) <= 2
        with pytest.raises(openai.BadRequestError, match="logprobs=21"):
            await create(model="m", prompt="once ", logprobs=21)


@pytest.mark.slow
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("most", [0, 2])
async def test_googles_candidates_end_with_the_log_probabilities_of_their_text(
    serve: Serve, streamed: bool, most: int
) -> None:
    """The names are those of google-genai's `LogprobsResult`."""
    async with serve(ScriptedEngine(in_turn(assistant("hello you", "hm")))) as served:
        access = await served.open()
        config = {"responseLogprobs": True, **({"logprobs": most} if most else {})}
        body = {"contents": CONTENTS, "generationConfig": config}
        pieces = await events(access, body) if streamed else [(await sent(access, body)).json()]
        *earlier, last = [piece["candidates"][0] for piece in pieces]
        assert not any("logprobsResult" in piece for piece in earlier)
        found, node = last["logprobsResult"], served.session(access["id"]).nodes[-1]
        chosen = found["chosenCandidates"]
        assert "".join(one["token"] for one in chosen) == "hello you"
        drawn = list(zip(node.token_ids, node.logprobs, strict=True))
        assert all((one["tokenId"], one["logProbability"]) in drawn for one in chosen)
        assert found["logProbabilitySum"] == sum(one["logProbability"] for one in chosen)
        if most:
            assert [top["candidates"][0] for top in found["topCandidates"]] == chosen  # it always samples the best
            assert all(len(top["candidates"]) == most for top in found["topCandidates"])
        assert ("topCandidates" in found) == (most > 0)


@pytest.mark.slow
async def test_the_bytes_of_a_characters_parts_are_its_own(serve: Serve) -> None:
    """Decoded by itself each part was U+FFFD: what a client put together of the bytes was another text."""
    async with serve(ScriptedEngine(in_turn(assistant("é🙂 you"), "é🙂 you"))) as served:
        created = client(await served.open())
        content = (await created.chat.completions.create(model="m", messages=HI, logprobs=True)).choices[0].logprobs
        assert bytes(byte for entry in content.content for byte in entry.bytes).decode() == "é🙂 you"
        assert "\ufffd" in "".join(entry.token for entry in content.content)
        choice = (await created.completions.create(model="m", prompt="once ", logprobs=1, max_tokens=99)).choices[0]
        assert choice.text == "é🙂 you"
        assert choice.logprobs.tokens[0] == r"bytes:\xc3"
        for token, offset in zip(choice.logprobs.tokens, choice.logprobs.text_offset, strict=True):
            assert token.startswith("bytes:") or choice.text.startswith(token, offset) or token == "<|im_end|>"
