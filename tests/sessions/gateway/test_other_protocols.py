"""OpenAI Responses and legacy Completions, and Anthropic Messages, spoken by their own clients."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import httpx
import openai
import pytest

from agentrl.sessions.tree import tree
from agentrl.types import FinishReason
from tests.sessions.gateway.conftest import Serve, Served
from tests.sessions.gateway.fakes import ScriptedEngine, assistant, in_turn, renderer
from tests.sessions.gateway.test_chat import client, engine_saw_what_is_stored

TOOL: Any = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}, "strict": False}
ATOOL: Any = {"name": "add", "description": "adds", "input_schema": {"type": "object", "properties": {}}}
HI: Any = [{"role": "user", "content": "hi"}]


def claude(access: dict[str, str]) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=access["anthropic_base_url"], api_key=access["api_key"], max_retries=0)


def shape(served: Served, access: dict[str, str]) -> list[tuple[str, int | None]]:
    engine_saw_what_is_stored(served, access["id"])
    return [(node.message.role, node.parent) for node in served.session(access["id"]).nodes]


# ------------------------------------------------------------------------------------------- Responses

ROUND = (
    assistant("let me", "hm", [("add", '{"a": 1}'), ("add", '{"a": 2}')]),
    assistant("it is 3", "so"),
)


@pytest.mark.slow
async def test_responses_resent_item_by_item_make_one_path(serve: Serve) -> None:
    async with serve(ScriptedEngine(in_turn(*ROUND))) as served:
        access = await served.open()
        responses = client(access).responses
        first = await responses.create(model="m", instructions="be kind", input="1+2?", tools=[TOOL])
        assert [item.type for item in first.output] == ["reasoning", "message", "function_call", "function_call"]
        assert first.output_text == "let me"
        items: Any = [{"role": "user", "content": "1+2?"}, *(item.model_dump() for item in first.output)]
        calls = [item for item in first.output if item.type == "function_call"]
        items += [{"type": "function_call_output", "call_id": c.call_id, "output": c.arguments} for c in calls]
        second = await responses.create(model="m", instructions="be kind", input=items, tools=[TOOL])
        assert second.output_text == "it is 3"
        roles = [("system", None), ("user", 0), ("assistant", 1), ("tool", 2), ("tool", 3), ("assistant", 4)]
        assert shape(served, access) == roles
        assert served.session(access["id"]).counters == {"gateway/clean": 1}


LARK: Any = {"type": "grammar", "syntax": "lark", "definition": 'start: "*** Begin" /.+/'}
PATCH: Any = {"type": "custom", "name": "apply_patch", "description": "edits", "format": LARK}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.slow
async def test_a_custom_tool_is_called_with_text_and_its_result_goes_on_the_path(serve: Serve, streamed: bool) -> None:
    """Codex offers one to the models that it knows: it could not start."""
    words = (
        assistant("", None, [("apply_patch", '{"input": "*** Begin\\nx"}'), ("add", "{}")]),
        assistant("done"),
    )
    async with serve(ScriptedEngine(in_turn(*words))) as served:
        access = await served.open()
        responses = client(access).responses
        asked: Any = {"model": "m", "tools": [PATCH, TOOL, {"type": "tool_search"}]}
        if streamed:
            async with responses.stream(input="go", **asked) as stream:
                first = await stream.get_final_response()
        else:
            first = await responses.create(input="go", **asked)
        patch, add = first.output
        assert (patch.type, add.type) == ("custom_tool_call", "function_call")
        assert (patch.name, patch.input) == ("apply_patch", "*** Begin\nx")
        items: Any = [{"role": "user", "content": "go"}, *(item.model_dump() for item in first.output)]
        items += [
            {"type": "custom_tool_call_output", "call_id": patch.call_id, "output": "patched"},
            {"type": "function_call_output", "call_id": add.call_id, "output": "5"},
        ]
        second = await responses.create(input=items, **asked)
        assert second.output_text == "done"
        listed = (await responses.input_items.list(second.id, order="asc")).data
        # those of custom tools were functions' once
        assert [item.type for item in listed[1:]] == [item["type"] for item in items[1:]]
        session = served.session(access["id"])
        assert [(n.message.role, n.parent) for n in session.nodes] == [
            *(("user", None), ("assistant", 0), ("tool", 1), ("tool", 2), ("assistant", 3)),
        ]
        ignored = {"gateway/ignored/tools.custom.format": 2, "gateway/ignored/tools.tool_search": 2}
        assert session.counters == {"gateway/clean": 1, **ignored}
        prompt = renderer().tokenizer.decode(session.nodes[0].token_ids)
        assert "lark grammar" in prompt
        assert "tool_search" not in prompt


@pytest.mark.parametrize("arguments", ['{"input": 3}', "{}", "[]", '"x"'])
@pytest.mark.slow
async def test_a_custom_call_without_a_text_is_returned_as_it_was_written(serve: Serve, arguments: str) -> None:
    async with serve(ScriptedEngine(in_turn(assistant("", None, [("apply_patch", arguments)])))) as served:
        access = await served.open()
        reply = await client(access).responses.create(model="m", input="go", tools=[PATCH])
        (item,) = reply.output
        assert item.type in ("custom_tool_call", "message")
        if item.type == "custom_tool_call":
            assert json.loads(item.input) == json.loads(arguments)


@pytest.mark.slow
async def test_a_response_is_followed_by_its_id_and_other_instructions_begin_a_new_root(serve: Serve) -> None:
    async with serve(ScriptedEngine(in_turn(assistant("a"), assistant("b"), assistant("c")))) as served:
        access = await served.open()
        responses = client(access).responses
        first = await responses.create(model="m", instructions="one", input="hi")
        second = await responses.create(model="m", instructions="one", input="more", previous_response_id=first.id)
        assert second.previous_response_id == first.id
        await responses.create(model="m", instructions="two", input="again", previous_response_id=second.id)
        session = served.session(access["id"])
        assert [n.message.text for n in session.nodes] == [
            *("one", "hi", "a", "more", "b"),
            *("two", "hi", "a", "more", "b", "again", "c"),
        ]
        assert [n.agent for n in session.nodes] == ["agent"] * 5 + ["agent-2"] * 7
        assert sum(n.sampled for n in session.nodes) == 3
        with pytest.raises(openai.NotFoundError, match="lost"):
            await responses.create(model="m", input="x", previous_response_id="resp_lost")


@pytest.mark.slow
async def test_a_streamed_response_is_the_whole_one_in_events_that_the_sdk_accepts(serve: Serve) -> None:
    async with serve(ScriptedEngine(in_turn(ROUND[0]))) as served:
        access = await served.open()
        async with client(access).responses.stream(model="m", input="1+2?", tools=[TOOL]) as stream:
            events = [event async for event in stream]
            final = await stream.get_final_response()
        assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == "let me"
        assert [item.type for item in final.output] == ["reasoning", "message", "function_call", "function_call"]
        again = await client(access).responses.create(
            model="m", input="1+2?", tools=[TOOL], extra_headers={"x-stainless-retry-count": "1"}
        )
        assert [i.model_dump(exclude_none=True) for i in again.output] == [
            {k: v for k, v in i.model_dump(exclude_none=True).items() if k != "parsed_arguments"}
            for i in (_plain(item) for item in final.output)
        ]
        assert served.session(access["id"]).counters == {"gateway/retries": 1}


def _plain(item: Any) -> Any:
    for part in getattr(item, "content", None) or ():
        if hasattr(part, "parsed"):
            del part.parsed
    if hasattr(item, "parsed_arguments"):
        del item.parsed_arguments
    return item


@pytest.mark.slow
async def test_a_response_that_was_cut_is_incomplete(serve: Serve) -> None:
    async with serve(ScriptedEngine(in_turn(assistant("a long story without end")))) as served:
        access = await served.open()
        reply = await client(access).responses.create(model="m", input="hi", max_output_tokens=4)
        assert (reply.status, reply.incomplete_details.reason) == ("incomplete", "max_output_tokens")
        stream = await client(access).responses.create(model="m", input="hi", max_output_tokens=4, stream=True)
        assert [e.type async for e in stream][-1] == "response.incomplete"


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"background": True, "store": False}, "background"),
        ({"conversation": "conv_a", "previous_response_id": "resp_a"}, "can't both"),
        ({"include": ["message.output_text.logprobs"], "top_logprobs": 21}, "top_logprobs=21"),
        ({"reasoning": {"context": "all_turns"}}, "reasoning.context"),
        ({"extra_body": {"max_tokens": 5}}, "did you mean 'max_output_tokens'"),
        ({"extra_body": {"min_p": 0.1}}, "min_p"),
        ({"max_output_tokens": True}, "max_output_tokens"),
        ({"extra_body": {"stop": "x"}}, r"unknown parameter 'stop'\W*$"),
        ({"extra_body": {"input": {"role": "user"}}}, "input=.* must be text, or a list of items"),
        ({"reasoning": {"mode": "pro"}}, "reasoning"),
        ({"tools": [{"type": "local_shell"}]}, r"tools\[0\].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "detail": "auto"}]}]}, "takes text only"),
        ({"input": [{"type": "function_call_output", "call_id": "x"}]}, "output"),
        ({"text": {"format": {"type": "json_object"}}}, "text.format"),
    ],
)
@pytest.mark.slow
async def test_responses_parameters_that_cannot_be_honoured_are_named(
    serve: Serve, fields: dict[str, Any], named: str
) -> None:
    async with serve() as served:
        access = await served.open()
        with pytest.raises(openai.BadRequestError, match=named):
            await client(access).responses.create(**{"model": "m", "input": "hi", **fields})


# ------------------------------------------------------------------------------------------- Anthropic


@pytest.mark.slow
async def test_anthropic_turns_with_tools_and_thinking_make_one_path(serve: Serve) -> None:
    async with serve(ScriptedEngine(in_turn(*ROUND))) as served:
        access = await served.open()
        thinking: Any = {"type": "enabled", "budget_tokens": 1024}
        given: Any = {"model": "m", "max_tokens": 2000, "system": "be kind", "tools": [ATOOL], "thinking": thinking}
        history: Any = [{"role": "user", "content": "1+2?"}]
        first = await claude(access).messages.create(messages=history, **given)
        assert [block.type for block in first.content] == ["thinking", "text", "tool_use", "tool_use"]
        assert (first.stop_reason, first.content[2].input) == ("tool_use", {"a": 1})
        history.append({"role": "assistant", "content": [block.model_dump() for block in first.content]})
        uses = [block for block in first.content if block.type == "tool_use"]
        results: Any = [{"type": "tool_result", "tool_use_id": use.id, "content": str(use.input)} for use in uses]
        history.append({"role": "user", "content": results})
        second = await claude(access).messages.create(messages=history, **given)
        assert (second.content[-1].text, second.stop_reason) == ("it is 3", "end_turn")
        roles = [("system", None), ("user", 0), ("assistant", 1), ("tool", 2), ("tool", 3), ("assistant", 4)]
        assert shape(served, access) == roles
        counted = {"gateway/clean": 1, "gateway/ignored/thinking.budget_tokens": 2}
        assert served.session(access["id"]).counters == counted


@pytest.mark.slow
async def test_an_anthropic_stream_is_the_whole_reply_in_blocks(serve: Serve) -> None:
    async with serve(ScriptedEngine(in_turn(ROUND[0]))) as served:
        access = await served.open()
        given: Any = {"model": "m", "max_tokens": 2000, "messages": HI, "tools": [ATOOL]}
        given["thinking"] = {"type": "enabled", "budget_tokens": 1024}
        async with claude(access).messages.stream(**given) as stream:
            text = "".join([piece async for piece in stream.text_stream])
            final = await stream.get_final_message()
        assert text == "let me"
        whole = await claude(access).messages.create(**given, extra_headers={"x-stainless-retry-count": "1"})
        assert [b.model_dump(exclude_none=True) for b in whole.content] == [
            {k: v for k, v in b.model_dump(exclude_none=True).items() if k != "parsed_output"} for b in final.content
        ]
        assert (whole.id, whole.stop_reason, whole.usage.output_tokens) == (
            final.id,
            final.stop_reason,
            final.usage.output_tokens,
        )


@pytest.mark.slow
async def test_anthropic_clients_that_do_not_ask_for_thinking_get_none_and_find_their_node(serve: Serve) -> None:
    async with serve(ScriptedEngine(in_turn(*ROUND))) as served:
        access = await served.open()
        first = await claude(access).messages.create(model="m", max_tokens=2000, messages=HI)
        assert "thinking" not in [block.type for block in first.content]
        echo: Any = {"role": "assistant", "content": [block.model_dump() for block in first.content]}
        await claude(access).messages.create(model="m", max_tokens=2000, messages=[*HI, echo, *HI])
        assert served.session(access["id"]).counters == {"gateway/clean": 1, "gateway/loose": 1}


@pytest.mark.slow
async def test_anthropic_stop_sequences_limits_choices_and_counting(serve: Serve) -> None:
    async with serve(ScriptedEngine(in_turn(assistant("one END two"), assistant("a b c d e f g h")))) as served:
        access = await served.open()
        messages = claude(access).messages
        stopped = await messages.create(model="m", max_tokens=50, messages=HI, stop_sequences=["END"])
        assert (stopped.stop_reason, stopped.stop_sequence, stopped.content[0].text) == (
            "stop_sequence",
            "END",
            "one ",
        )
        cut = await messages.create(model="m", max_tokens=3, messages=HI)
        assert (cut.stop_reason, cut.usage.output_tokens) == ("max_tokens", 3)
        counted = await messages.count_tokens(model="m", messages=HI, system="be kind", tools=[ATOOL])
        drawn = await messages.create(model="m", max_tokens=9, messages=HI, system="be kind", tools=[ATOOL])
        assert counted.input_tokens == drawn.usage.input_tokens


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"messages": [*HI, {"role": "assistant", "content": "so "}]}, "trailing whitespace"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages"),
        ({"tools": [{"type": "web_fetch_20250910", "name": "web_fetch"}]}, r"tools\[0\].type"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"extra_body": {"temprature": 1}}, "did you mean 'temperature'"),
        ({"extra_body": {"container": "x"}}, "container"),
        ({"extra_body": {"stop": ["x"]}}, "did you mean 'stop_sequences'"),
        ({"extra_body": {"maxTokens": 3}}, "did you mean 'max_tokens'"),
        ({"extra_body": {"temperature": True}}, "temperature=True"),
        ({"extra_body": {"temperature": "0.5"}}, "temperature='0.5'"),
        ({"extra_body": {"top_k": 1.5}}, "top_k=1.5 must be a whole number"),
        ({"max_tokens": True}, "max_tokens"),
        ({"messages": [{"role": "assistant", "content": "so"}]}, "before the beginning of the reply"),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, r"tools\[0\].name='a b' must have characters"),
        (
            {"extra_body": {"output_config": {"task_budget": {"type": "tokens", "total": 9}}}},
            "output_config.task_budget",
        ),
        ({"extra_body": {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}}, r"edits\[0\]"),
        ({"extra_body": {"context_management": {"edits": [{"type": "clear_thinking_20251015"}]}}}, r"edits\[0\]"),
        ({"extra_body": {"output_config": {"format": {"type": "json_schema", "schema": {}}}}}, "output_config.format"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "tool_use_id"),
    ],
)
@pytest.mark.slow
async def test_anthropic_parameters_that_cannot_be_honoured_are_named_in_anthropics_shape(
    serve: Serve, fields: dict[str, Any], named: str
) -> None:
    async with serve() as served:
        access = await served.open()
        with pytest.raises(anthropic.BadRequestError, match=named) as caught:
            await claude(access).messages.create(**{"model": "m", "max_tokens": 9, "messages": HI, **fields})
        assert caught.value.body["type"] == "error"
        assert caught.value.body["error"]["type"] == "invalid_request_error"


@pytest.mark.slow
async def test_each_family_lists_the_model_in_its_own_shape(serve: Serve) -> None:
    """Google's newer packages ask `/v1`, as OpenAI's do, and found no model there."""
    async with serve(model="tiny") as served:
        access = await served.open()
        headers = {"x-goog-api-key": access["api_key"], "x-goog-api-client": "google-genai-sdk/3.6.1"}
        async with httpx.AsyncClient(headers=headers, timeout=60) as http:
            for version in ("v1", "v1beta"):
                models = f"{access['google_base_url']}/{version}/models"
                listed = (await http.get(models)).json()["models"]
                assert [one["name"] for one in listed] == ["models/tiny"]
                assert (await http.get(f"{models}/tiny")).json() == listed[0]
            assert (await http.get(f"{access['base_url']}/files")).json()["error"]["status"] == "NOT_FOUND"
        assert [m.id async for m in client(access).models.list()] == ["tiny"]
        assert [m.id async for m in claude(access).models.list()] == ["tiny"]


@pytest.mark.slow
async def test_two_protocols_may_be_used_in_one_session(serve: Serve) -> None:
    async with serve(ScriptedEngine(in_turn(assistant("a"), assistant("b")))) as served:
        access = await served.open()
        await client(access).chat.completions.create(model="m", messages=HI)
        echo: Any = {"role": "assistant", "content": "a"}
        await claude(access).messages.create(model="m", max_tokens=9, messages=[*HI, echo, *HI])
        assert shape(served, access) == [("user", None), ("assistant", 0), ("user", 1), ("assistant", 2)]


# ----------------------------------------------------------------------------------------- Completions


@pytest.mark.slow
async def test_completions_go_on_from_the_stored_tokens_of_what_they_repeat(serve: Serve) -> None:
    async with serve(ScriptedEngine(in_turn("upon a time", " there was"))) as served:
        access = await served.open()
        completions = client(access).completions
        first = await completions.create(model="m", prompt="once ", max_tokens=50)
        assert first.choices[0].text == "upon a time"
        prompt = "once " + first.choices[0].text + " in spring"
        stream = await completions.create(model="m", prompt=prompt, max_tokens=50, stream=True)
        assert "".join([c.choices[0].text async for c in stream]) == " there was"
        assert shape(served, access) == [("user", None), ("assistant", 0), ("user", 1), ("assistant", 2)]
        session = served.session(access["id"])
        assert session.counters == {"gateway/clean": 1}
        ids = tree.path_ids(session, 3)
        third = await completions.create(model="m", prompt=[*ids, 5, 6], max_tokens=2, logprobs=0, n=2)
        assert session.nodes[4].parent == 3
        assert session.nodes[4].token_ids == [5, 6]
        assert len(third.choices) == 2
        assert third.choices[0].logprobs.token_logprobs == [x for x in session.nodes[5].logprobs if x]
        assert session.nodes[5].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"prompt": ["a", "b"]}, "several prompts"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [10**9]}, "vocabulary"),
        ({"echo": True}, "echo"),
        ({"best_of": 3}, "best_of"),
        ({"suffix": "x"}, "suffix"),
        ({"logprobs": -1}, "logprobs"),
    ],
)
@pytest.mark.slow
async def test_completions_parameters_that_cannot_be_honoured_are_named(
    serve: Serve, fields: dict[str, Any], named: str
) -> None:
    async with serve() as served:
        access = await served.open()
        with pytest.raises(openai.BadRequestError, match=named):
            await client(access).completions.create(**{"model": "m", "prompt": "x", **fields})


@pytest.mark.slow
async def test_arguments_survive_anthropics_objects_byte_for_byte_where_they_are_plain(serve: Serve) -> None:
    words = assistant("", None, [("add", json.dumps({"text": 'ü "q" \n', "n": [1, 2.5, None]}, ensure_ascii=False))])
    async with serve(ScriptedEngine(in_turn(words, assistant("ok")))) as served:
        access = await served.open()
        first = await claude(access).messages.create(model="m", max_tokens=900, messages=HI, tools=[ATOOL])
        echo: Any = {"role": "assistant", "content": [block.model_dump() for block in first.content]}
        result: Any = {"type": "tool_result", "tool_use_id": first.content[0].id, "content": "x", "is_error": True}
        history = [*HI, echo, {"role": "user", "content": [result]}]
        await claude(access).messages.create(model="m", max_tokens=9, messages=history, tools=[ATOOL])
        session = served.session(access["id"])
        assert session.counters == {"gateway/clean": 1}
        assert session.nodes[2].message.text == "Error: x"
        assert renderer().name == "chatml"
