"""A turn whose beginning the client wrote (prefill, no reasoning): that is in the prompt, untrained, and one path."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from agentrl.errors import RenderError
from agentrl.sessions.gateway.http.api_error import ApiError
from agentrl.sessions.gateway.limits import Limits
from agentrl.sessions.gateway.reading import forced_tokens
from agentrl.sessions.tree import tree
from tests.sessions.gateway.conftest import Serve
from tests.sessions.gateway.fakes import ScriptedEngine, renderer
from tests.sessions.gateway.inside import turn_request
from tests.sessions.gateway.test_chat import HI, client
from tests.sessions.gateway.test_other_protocols import claude

PREFILL: Any = {"role": "assistant", "content": "The answer is"}
MORE: Any = {"role": "user", "content": "more"}


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("apart", [False, True])
async def test_a_prefilled_turn_is_sampled_behind_its_beginning_and_goes_on_as_one(
    serve: Serve, stream: bool, apart: bool
) -> None:
    async with serve(ScriptedEngine(lambda prompt: " 42." if prompt.endswith("is") else "yes")) as served:
        access = await served.open()
        async with claude(access) as anthropic:
            if stream:
                async with anthropic.messages.stream(model="m", max_tokens=50, messages=[*HI, PREFILL]) as events:
                    reply: Any = await events.get_final_message()
            else:
                reply = await anthropic.messages.create(model="m", max_tokens=50, messages=[*HI, PREFILL])
            assert [block.text for block in reply.content if block.type == "text"] == [" 42."]
            whole: Any = {"role": "assistant", "content": "The answer is 42."}
            echoed: Any = [PREFILL, {"role": "assistant", "content": reply.content}] if apart else [whole]
            await anthropic.messages.create(model="m", max_tokens=50, messages=[*HI, *echoed, MORE])
        session = served.session(access["id"])
    _, turn, _, last = session.nodes
    assert [node.parent for node in session.nodes] == [None, 0, 1, 2]
    assert session.counters == {"gateway/clean": 1}
    assert turn.message.text == "The answer is 42."
    decode = renderer().tokenizer.decode
    assert decode([t for t, own in zip(turn.token_ids, turn.trainable, strict=True) if own]).startswith(" 42.")
    first, second = served.engine.calls
    assert decode(first.input_ids).endswith("The answer is")
    assert tree.path_ids(session, last.id)[: len(second.input_ids)] == second.input_ids


@pytest.mark.slow
async def test_the_beginning_counts_as_prompt(serve: Serve) -> None:
    async with serve() as served:
        access = await served.open()
        async with claude(access) as anthropic:
            counted = await anthropic.messages.count_tokens(model="m", messages=[*HI, PREFILL])
            reply = await anthropic.messages.create(model="m", max_tokens=50, messages=[*HI, PREFILL])
    assert counted.input_tokens == reply.usage.input_tokens == len(served.engine.calls[0].input_ids)


class Thinker:
    """A format whose turns say whether they have reasoning."""

    name, stop_token_ids = "thinker", (9,)

    def turn(self, message: Any) -> list[int]:
        return [*([1, 5, 2] if message.reasoning_content else [1, 2]), *map(ord, message.text), 9]


class Plain(Thinker):
    """A format without reasoning."""

    def turn(self, message: Any) -> list[int]:
        if message.reasoning_content:
            raise RenderError("no place")
        return [*map(ord, message.text), 9]


def test_a_turn_without_reasoning_begins_with_what_the_format_writes_there() -> None:
    def begun(format_: Any, wanted: bool) -> list[int]:
        return forced_tokens(format_, turn_request(HI, chat_template_kwargs={"enable_thinking": wanted}))

    assert begun(Thinker(), False) == [1, 2]
    assert begun(Thinker(), True) == []
    assert begun(Plain(), False) == []
    with pytest.raises(ApiError, match="has no reasoning"):
        begun(Plain(), True)
    with pytest.raises(ApiError, match="no mark"):
        begun(renderer(), False)  # ChatML's turns without reasoning begin with their text


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:turns sampled with:UserWarning")
async def test_fields_of_other_servers_are_honoured_where_the_client_decides(serve: Serve) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    async with serve(ScriptedEngine(json_schema=True), limits=Limits(sampling="client")) as served:
        access = await served.open()
        async with client(access) as openai:
            for fields in (
                {"top_k": 5, "min_p": 0.1, "guided_json": schema},
                {"top_k": -1, "structured_outputs": {"json": schema}, "chat_template_kwargs": {}},
                {"json_schema": json.dumps(schema)},
                {"structured_outputs": {"json_object": True}},
                {"guided_regex": "a+|b"},
                {"regex": "a+|b"},
                {"guided_choice": ["1.5 (no)", r"a\b"]},
                {"structured_outputs": {"choice": ["yes", "no"]}},
            ):
                await openai.chat.completions.create(model="m", messages=HI, extra_body=fields)
    first, second, *others = (call.sampling for call in served.engine.calls)
    assert (first.top_k, first.min_p, second.top_k, second.min_p) == (5, 0.1, None, 0.0)
    assert first.json_schema == second.json_schema == '{"properties": {"a": {"type": "integer"}}, "type": "object"}'
    assert [own.json_schema for own in others[:2]] == [first.json_schema, '{"type": "object"}']
    expressions = [own.regex for own in others[2:]]
    assert expressions[:2] == ["a+|b"] * 2
    assert [re.findall(one, r"a.b 1x5 (no) 1.5 (no) a\b yes no") for one in expressions[2:]] == [
        ["1.5 (no)", r"a\b"], ["no", "no", "yes", "no"]
    ]  # fmt: skip
