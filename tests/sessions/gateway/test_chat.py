"""OpenAI Chat Completions, spoken by OpenAI's own client."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from agentrl.rollout.workers.held import sampled_tokens
from agentrl.sessions.tree import tree
from agentrl.types import FinishReason
from tests.sessions.gateway.conftest import Serve, Served
from tests.sessions.gateway.fakes import ScriptedEngine, assistant, in_turn, renderer

ADD = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
}
SUB = {"type": "function", "function": {"name": "sub", "parameters": {"type": "object"}}}
HI: Any = [{"role": "user", "content": "hi"}]


def client(access: dict[str, str], **options: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=access["base_url"], api_key=access["api_key"], **{"max_retries": 0, **options})


def engine_saw_what_is_stored(served: Served, id_: str) -> None:
    session = served.session(id_)
    paths = [tree.path_ids(session, node.id) for node in session.nodes if node.sampled]
    drawn = [[*call.input_ids, *call.turn.token_ids] for call in served.engine.calls if call.turn]
    assert sorted(paths) == sorted(drawn)


@pytest.mark.slow
async def test_a_conversation_with_tools_is_one_clean_path_of_what_the_engine_saw(serve: Serve) -> None:
    engine = ScriptedEngine(
        in_turn(assistant("let me", "hm", [("add", '{"a": 1}'), ("add", '{"a": 2}')]), assistant("3", "so"))
    )
    async with serve(engine) as served:
        access = await served.open()
        chat = client(access).chat.completions
        history: Any = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "1+2?"}]
        first = (await chat.create(model="m", messages=history, tools=[ADD])).choices[0]
        calls = first.message.tool_calls
        assert first.finish_reason == "tool_calls"
        assert [c.function.arguments for c in calls] == ['{"a": 1}', '{"a": 2}']
        assert first.message.reasoning_content == "hm"
        history.append(first.message)
        history += [{"role": "tool", "tool_call_id": c.id, "content": c.function.arguments} for c in calls]
        second = (await chat.create(model="m", messages=history, tools=[ADD])).choices[0]
        assert (second.message.content, second.finish_reason) == ("3", "stop")
        session = served.session(access["id"])
        assert [n.message.role for n in session.nodes] == ["system", "user", "assistant", "tool", "tool", "assistant"]
        assert [n.parent for n in session.nodes] == [None, 0, 1, 2, 3, 4]
        assert session.counters == {"gateway/clean": 1}
        assert len({c.id for c in calls}) == 2
        engine_saw_what_is_stored(served, access["id"])


@pytest.mark.slow
async def test_results_are_read_in_the_order_of_their_calls_in_whichever_a_client_sends_them(serve: Serve) -> None:
    """ChatML tells a result's call by its place alone: the model read the second call's result as the first one's."""
    called = assistant("", calls=[("add", '{"a": 1}'), ("add", '{"a": 2}')])
    async with serve(ScriptedEngine(in_turn(called, assistant("3"), assistant("4")))) as served:
        access = await served.open()
        chat = client(access).chat.completions
        reply = (await chat.create(model="m", messages=HI, tools=[ADD])).choices[0].message
        calls = reply.tool_calls[::-1]
        results = [{"role": "tool", "tool_call_id": c.id, "content": c.function.arguments} for c in calls]
        history: Any = [*HI, reply, *results]
        answer = (await chat.create(model="m", messages=history, tools=[ADD])).choices[0].message
        await chat.create(model="m", messages=[*history, answer, *HI], tools=[ADD])
        await chat.create(model="m", messages=[*history, answer, *HI], tools=[ADD])
        session = served.session(access["id"])
        path = tree.path(session, session.nodes[-1].id)
        assert [node.message.text for node in path if node.message.role == "tool"] == ['{"a": 1}', '{"a": 2}']
        assert session.counters["gateway/reordered"] == 2
        assert {name for name in session.counters if "branches" in name} == {"gateway/branches/resampled"}


@pytest.mark.slow
async def test_a_client_that_drops_the_reasoning_still_finds_its_node(serve: Serve) -> None:
    async with serve(ScriptedEngine(in_turn(assistant("a", "because"), assistant("b", "well")))) as served:
        access = await served.open()
        chat = client(access).chat.completions
        first = await chat.create(model="m", messages=HI)
        echo = {"role": "assistant", "content": first.choices[0].message.content}
        await chat.create(model="m", messages=[*HI, echo, *HI])
        session = served.session(access["id"])
        assert [n.parent for n in session.nodes] == [None, 0, 1, 2]
        assert session.counters == {"gateway/clean": 1, "gateway/loose": 1}
        assert "because" in renderer().tokenizer.decode(served.engine.calls[1].input_ids)


@pytest.mark.slow
@pytest.mark.parametrize("echoed", [True, False])
async def test_stripping_leaves_earlier_reasoning_on_its_own_branch_whatever_the_client_echoes(
    serve: Serve, echoed: bool
) -> None:
    words = [
        assistant("a", "because"),
        assistant("b", "well"),
        assistant("c", "so"),
        assistant("d"),
    ]
    async with serve(ScriptedEngine(in_turn(*words)), strip_reasoning=True) as served:
        access = await served.open()
        chat = client(access).chat.completions
        history: Any = list(HI)
        for turn in range(4):
            replied = (await chat.create(model="m", messages=history)).choices[0].message
            if turn == 1:  # a lost reply, asked for again
                again = await chat.create(model="m", messages=history, extra_headers={"x-stainless-retry-count": "1"})
                assert again.choices[0].message == replied
            said = {"role": "assistant", "content": replied.content}
            history += [
                {**said, "reasoning_content": getattr(replied, "reasoning_content", None)} if echoed else said,
                *HI,
            ]
            served.gateway.entries[access["id"]].state.histories.clear()  # so that it is found by walking the tree
        session = served.session(access["id"])
        prompts = [renderer().tokenizer.decode(call.input_ids) for call in served.engine.calls]
        assert len(prompts) == 4
        assert not any(thought in prompt for prompt in prompts for thought in ("because", "well", "so"))
        assert session.counters["branches/reasoning"] == session.counters["gateway/branches/reasoning"] == 3
        assert session.counters["gateway/retries"] == 1
        assert [n.message.reasoning_content for n in session.nodes if n.sampled] == ["because", "well", "so", None]
        assert [session.nodes[n.copy_of].message.text for n in session.nodes if n.copy_of is not None] == [
            "a",
            "b",
            "c",
        ]
        engine_saw_what_is_stored(served, access["id"])


@pytest.mark.slow
async def test_streams_carry_the_same_as_whole_replies(serve: Serve) -> None:
    words = assistant("hello there", "think", [("add", '{"a": 1}')])
    async with serve(ScriptedEngine(in_turn(words))) as served:
        access = await served.open()
        chat = client(access).chat.completions
        async with chat.stream(model="m", messages=HI, tools=[ADD]) as stream:
            pieces = [e.delta async for e in stream if e.type == "content.delta"]
            streamed = (await stream.get_final_completion()).choices[0]
        assert "".join(pieces) == "hello there"
        assert len(pieces) > 1
        whole = (await chat.create(model="m", messages=HI, tools=[ADD], seed=5)).choices[0]
        assert streamed.message.content == whole.message.content
        assert streamed.finish_reason == whole.finish_reason == "tool_calls"
        names = [c.message.tool_calls[0].function.name for c in (streamed, whole)]
        assert names == ["add", "add"]
        assert served.session(access["id"]).counters == {"gateway/branches/resampled": 1}


@pytest.mark.slow
async def test_choices_are_siblings_with_dice_of_their_own(serve: Serve) -> None:
    async with serve(ScriptedEngine(in_turn(assistant("a"), assistant("b"), assistant("c")))) as served:
        access = await served.open()
        reply = await client(access).chat.completions.create(model="m", messages=HI, n=3, stream_options=None)
        assert sorted(c.message.content for c in reply.choices) == ["a", "b", "c"]
        session = served.session(access["id"])
        assert [n.parent for n in session.nodes] == [None, 0, 0, 0]
        assert len({n.sampling.seed for n in session.nodes[1:]}) == 3
        second = reply.choices[1].message
        await client(access).chat.completions.create(model="m", messages=[*HI, second, *HI])
        assert session.nodes[4].parent == 2
        assert session.counters == {"gateway/branches/choices": 2, "gateway/clean": 1}


@pytest.mark.slow
async def test_streamed_choices_and_usage(serve: Serve) -> None:
    async with serve(ScriptedEngine(in_turn(assistant("one two"), assistant("three four")), latency=0.001)) as served:
        access = await served.open()
        texts, usage = {0: "", 1: ""}, None
        stream = await client(access).chat.completions.create(
            model="m", messages=HI, n=2, stream=True, stream_options={"include_usage": True}
        )
        async for chunk in stream:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
        assert sorted(texts.values()) == ["one two", "three four"]
        assert usage.completion_tokens == sum(len(call.turn.token_ids) for call in served.engine.calls)


@pytest.mark.slow
async def test_a_stop_string_ends_the_text_before_it_and_the_turn_with_it(serve: Serve) -> None:
    async with serve(ScriptedEngine(in_turn(assistant("one STOP two")))) as served:
        access = await served.open()
        chat = client(access).chat.completions
        for stream in (False, True):
            reply = await chat.create(model="m", messages=HI, stop=["STOP", "zz"], stream=stream, seed=int(stream))
            if stream:
                text = "".join([c.choices[0].delta.content or "" async for c in reply])
            else:
                text = reply.choices[0].message.content
            assert text == "one "
        node = served.session(access["id"]).nodes[1]
        assert (node.stopped_by, node.message.content) == ("STOP", "one ")
        assert renderer().tokenizer.decode(node.token_ids).endswith("STOP")
        await chat.create(model="m", messages=[*HI, {"role": "assistant", "content": "one "}, *HI])
        assert served.session(access["id"]).counters["gateway/clean"] == 1


@pytest.mark.slow
async def test_a_turn_cut_by_length_runs_no_call_and_is_continued_as_a_branch(serve: Serve) -> None:
    async with serve(ScriptedEngine(in_turn(assistant("look", None, [("add", '{"a": 1}')])))) as served:
        access = await served.open()
        chat = client(access).chat.completions
        whole = len(renderer().turn(assistant("look", None, [("add", '{"a": 1}')])))
        reply = await chat.create(model="m", messages=HI, tools=[ADD], max_completion_tokens=whole - 1)
        choice = reply.choices[0]
        assert (choice.finish_reason, choice.message.tool_calls, choice.message.content) == ("length", None, "look")
        await chat.create(model="m", messages=[*HI, choice.message, *HI], tools=[ADD])
        session = served.session(access["id"])
        assert session.nodes[1].finish_reason is FinishReason.LENGTH
        assert [n.parent for n in session.nodes] == [None, 0, 0, 2, 3]
        assert not any(session.nodes[2].trainable)
        assert session.counters["gateway/branches/cut"] == 1


@pytest.mark.slow
async def test_a_call_that_cannot_be_parsed_is_returned_as_text(serve: Serve) -> None:
    async with serve(ScriptedEngine(in_turn(assistant("fine")))) as served:
        tokenizer = renderer().tokenizer
        open_, close = "<tool_call>", "</tool_call>"
        words = f"{open_}\n{{nonsense\n{close}"
        served.engine.script = in_turn(words, assistant("ok"))
        marked = tokenizer.added.get(open_)
        if marked is not None:  # the markup has tokens of its own: write them
            ids = [marked, *tokenizer.encode("\n{nonsense\n"), tokenizer.added[close]]
            served.engine.script = in_turn(tokenizer.decode(ids), assistant("ok"))
            served.engine.limited = _as_ids(served.engine, ids)
        access = await served.open()
        chat = client(access).chat.completions
        choice = (await chat.create(model="m", messages=HI, tools=[ADD])).choices[0]
        assert choice.message.tool_calls is None
        assert "{nonsense" in choice.message.content
        await chat.create(model="m", messages=[*HI, choice.message, *HI], tools=[ADD])
        assert served.session(access["id"]).counters == {"gateway/malformed": 1, "gateway/clean": 1}


def _as_ids(engine: ScriptedEngine, ids: list[int]) -> Any:
    waiting = [[*ids, *renderer().stop_token_ids]]
    real = engine.limited

    def limited(spoken: list[int], sampling: Any) -> Any:
        return real(waiting.pop() if waiting else spoken, sampling)

    return limited


@pytest.mark.slow
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "sub"}}])
async def test_a_forced_call_begins_in_tokens_that_are_not_trained_on(serve: Serve, choice: Any) -> None:
    async with serve(ScriptedEngine()) as served:
        spoken = renderer().turn(assistant("", None, [("sub", '{"x": 5}')]))

        def rest(prompt: str) -> str:
            written = prompt.rpartition("<|im_start|>assistant\n")[2]
            return renderer().tokenizer.decode(spoken)[len(written) :].removesuffix("<|im_end|>")

        served.engine.script = lambda prompt: rest(prompt)
        served.engine.limited = _spoken_rest(served.engine, spoken)
        access = await served.open()
        reply = await client(access).chat.completions.create(
            model="m", messages=HI, tools=[ADD, SUB], tool_choice=choice
        )
        (call,) = reply.choices[0].message.tool_calls
        assert (call.function.name, call.function.arguments) == ("sub", '{"x": 5}')
        node = served.session(access["id"]).nodes[-1]
        prompt = renderer().generation_prompt(served.session(access["id"]).nodes[0])
        forced = node.trainable.index(True) - len(prompt)
        assert 0 < forced < len(spoken)
        assert all(node.trainable[len(prompt) + forced :])
        engine_saw_what_is_stored(served, access["id"])


def _spoken_rest(engine: ScriptedEngine, spoken: list[int]) -> Any:
    """The tokens of the canonical call that the prompt's own end has not written yet."""
    real = engine.limited

    def limited(ids: list[int], sampling: Any) -> Any:
        prompt = engine.calls[-1].input_ids
        for count in range(len(spoken), -1, -1):
            if prompt[len(prompt) - count :] == spoken[:count]:
                return real(spoken[count:], sampling)
        raise AssertionError

    return limited


@pytest.mark.slow
async def test_one_call_at_a_time_cuts_the_turn_behind_the_first(serve: Serve) -> None:
    words = assistant("", None, [("add", '{"a": 1}'), ("add", '{"a": 2}')])
    for chunk in (1, 3, 1000):
        async with serve(ScriptedEngine(in_turn(words), chunk=chunk)) as served:
            access = await served.open()
            chat = client(access).chat.completions
            reply = await chat.create(model="m", messages=HI, tools=[ADD], parallel_tool_calls=False)
            (call,) = reply.choices[0].message.tool_calls
            assert call.function.arguments == '{"a": 1}'
            node = served.session(access["id"]).nodes[-1]
            one = renderer().turn(assistant("", None, [("add", '{"a": 1}')]))
            assert node.token_ids[-len(one) + 1 :] == one[:-1]
            result = {"role": "tool", "tool_call_id": call.id, "content": "1"}
            await chat.create(model="m", messages=[*HI, reply.choices[0].message, result], tools=[ADD])
            session = served.session(access["id"])
            assert session.nodes[2].token_ids[0] == renderer().stop_token_ids[0]
            assert session.counters == {"gateway/clean": 1}


@pytest.mark.slow
async def test_one_call_at_a_time_leaves_a_single_call_whole(serve: Serve) -> None:
    words = assistant("x", None, [("add", '{"a": 1}')])
    async with serve(ScriptedEngine(in_turn(words))) as served:
        access = await served.open()
        await client(access).chat.completions.create(model="m", messages=HI, tools=[ADD], parallel_tool_calls=False)
        assert served.session(access["id"]).nodes[-1].token_ids[-1] == renderer().stop_token_ids[0]


class Answer(BaseModel):
    number: int


@pytest.mark.slow
async def test_structured_outputs_work_where_the_engine_can_and_are_refused_where_it_cannot(serve: Serve) -> None:
    async with serve(ScriptedEngine(in_turn(assistant('{"number": 3}')), json_schema=True)) as served:
        access = await served.open()
        parsed = await client(access).chat.completions.parse(model="m", messages=HI, response_format=Answer)
        assert parsed.choices[0].message.parsed == Answer(number=3)
        schema = json.loads(served.engine.calls[0].sampling.json_schema)
        assert schema["properties"]["number"]["type"] == "integer"
        assert not any(served.session(access["id"]).nodes[-1].trainable)
    async with serve(ScriptedEngine()) as served:
        access = await served.open()
        with pytest.raises(openai.BadRequestError, match="response_format"):
            await client(access).chat.completions.parse(model="m", messages=HI, response_format=Answer)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"extra_body": {"temprature": 1}}, "did you mean 'temperature'"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs=21"),
        ({"extra_body": {"chat_template_kwargs": {"date": "x"}}}, "chat_template_kwargs.date"),
        ({"extra_body": {"chat_template_kwargs": {"enable_thinking": 1.5}}}, "must be true or false"),
        ({"extra_body": {"structured_outputs": {"regex": "a+"}}}, "structured_outputs"),
        ({"extra_body": {"guided_json": "{"}}, "guided_json"),
        ({"extra_body": {"guided_choice": []}}, "guided_choice: choices are a list"),
        ({"extra_body": {"regex": 3}}, "regex: 3 is no regex"),
        ({"extra_body": {"structured_outputs": {"grammar": "a"}}}, "structured_outputs.*grammar; only one of json"),
        ({"extra_body": {"ebnf": "root ::= a"}}, "unknown parameter 'ebnf'"),
        ({"extra_body": {"guided_grammar": "a"}}, "unknown parameter 'guided_grammar'"),
        ({"extra_body": {"regex": "a", "guided_choice": ["b"]}}, "only one of guided_choice and regex"),
        ({"extra_body": {"top_k": 0.5}}, "top_k=0.5"),
        ({"extra_body": {"min_p": 2}}, "min_p=2"),
        ({"max_tokens": True}, "max_tokens"),
        ({"extra_body": {"max_tokens": "5"}}, "max_tokens"),
        ({"temperature": 3}, "temperature=3"),
        ({"n": 100}, "n=100"),
        ({"max_completion_tokens": 0}, "max_completion_tokens=0"),
        ({"stop": [""]}, "stop"),
        ({"tool_choice": "required"}, "there are no tools"),
        ({"tools": [ADD, ADD]}, "names must differ"),
        ({"tools": [ADD], "tool_choice": {"type": "function", "function": {"name": "nope"}}}, "nope"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"extra_body": {"logprobs": 2}}, "logprobs=2 must be true or false"),
        ({"extra_body": {"stream_options": {"include_usage": "no"}}}, "stream_options.include_usage='no' must be true"),
        ({"response_format": {}}, "response_format"),
        ({"logit_bias": {"5": "inf"}}, "logit_bias: .* between -100 and 100"),
        ({"logit_bias": {"5": 1000}}, "logit_bias: .* between -100 and 100"),
        ({"messages": []}, "at least one message"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, r"messages\[0\].role"),
        ({"messages": [*HI, {"role": "user", "content": 5}]}, r"messages\[1\].content"),
        ({"messages": [{"role": "tool", "content": "x"}]}, r"messages\[0\].tool_call_id"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "takes text only",
        ),
        ({"messages": [{"role": "user", "content": "x", "tool_call": "y"}]}, "did you mean 'tool_calls'"),
        ({"messages": [{"role": "assistant", "content": "x", "prefix": True}]}, r"messages\[0\].prefix"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "a", "type": "function"}]}]}, "function"),
    ],
)
@pytest.mark.slow
async def test_what_cannot_be_honoured_is_refused_by_name(serve: Serve, fields: dict[str, Any], named: str) -> None:
    async with serve() as served:
        access = await served.open()
        with pytest.raises(openai.BadRequestError, match=named):
            await client(access).chat.completions.create(**{"model": "m", "messages": HI, **fields})
        assert served.session(access["id"]).nodes == []


async def test_narrowed_sampling_is_stored_untrainable_and_counted(serve: Serve) -> None:
    async with serve() as served:
        access = await served.open()
        with pytest.warns(UserWarning, match="untrainable"):
            await client(access).chat.completions.create(model="m", messages=HI, top_p=0.5)
        session = served.session(access["id"])
        assert not any(session.nodes[-1].trainable)
        assert session.counters == {"untrainable/sampling": sampled_tokens(session.nodes[-1])}


@pytest.mark.slow
async def test_a_full_context_is_refused_as_openai_does_and_the_session_ends_truncated(serve: Serve) -> None:
    async with serve(ScriptedEngine(max_context=20)) as served:
        access = await served.open()
        with pytest.raises(openai.BadRequestError) as caught:
            await client(access).chat.completions.create(
                model="m", messages=[{"role": "user", "content": "long " * 50}]
            )
        assert caught.value.code == "context_length_exceeded"
        session = await served.gateway.close(access["id"], access["api_key"])
        assert session.status == "truncated"


@pytest.mark.slow
async def test_an_engines_failure_is_a_503_that_clients_repeat(serve: Serve) -> None:
    from agentrl.errors import EngineError

    async with serve(ScriptedEngine(fail=EngineError("out of memory"))) as served:
        access = await served.open()
        with pytest.raises(openai.InternalServerError, match="out of memory"):
            await client(access, max_retries=1).chat.completions.create(model="m", messages=HI)
        assert len(served.engine.calls) == 2
        assert served.session(access["id"]).counters == {"gateway/failures": 2}
