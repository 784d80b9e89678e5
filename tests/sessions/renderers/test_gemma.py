"""Gemma 4: a turn that goes on through the results of its calls, and values without quotes."""

from __future__ import annotations

import json

import pytest

from agentrl.errors import RenderError
from agentrl.sessions.renderers import parse
from agentrl.types import FunctionCall, Message, ToolCall
from tests.sessions.renderers.support import tokenizer
from tests.sessions.renderers.test_boundaries import calling, node, results
from tests.sessions.renderers.test_parsing import renderer_of


def gemma(path: list[int]) -> str:
    return tokenizer("gemma-4").decode(path)


def test_gemmas_turn_continues_through_results_and_the_token_that_opens_one_is_written_once() -> None:
    renderer = renderer_of("gemma-4")
    call = calling("gemma-4", 2)
    asking = node(call, renderer.generation_prompt() + renderer.turn(call))
    assert gemma(asking.token_ids).endswith(
        "<|tool_call>call:f{}<tool_call|><|tool_call>call:f{}<tool_call|><|tool_response>"
    )
    first, second = renderer.render(results(call), after=asking)
    assert gemma(first) == 'response:f{value:<|"|>r0<|"|>}<tool_response|>'
    assert gemma(second) == '<|tool_response>response:f{value:<|"|>r1<|"|>}<tool_response|>'
    last = node(results(call)[1], second)
    assert renderer.generation_prompt(last) == []
    [user] = renderer.render([Message(role="user", content="and now?")], after=last)
    assert gemma(user) == "<turn|>\n<|turn>user\nand now?<turn|>\n"


@pytest.mark.parametrize("ended", ["<turn|>", None])
def test_gemmas_first_result_opens_itself_where_the_model_did_not_open_it(ended: str | None) -> None:
    renderer = renderer_of("gemma-4")
    call = calling("gemma-4")
    ids = [*renderer.turn(call)[:-1], *([renderer.tokenizer.added[ended]] if ended else [])]  # type: ignore[attr-defined]
    nameless = [result.model_copy(update={"name": None}) for result in results(call)]
    [result] = renderer.render(nameless, after=node(call, renderer.generation_prompt() + ids))
    assert gemma(result).startswith("<|tool_response>response:f{value:")


def test_gemma_refuses_keys_that_its_notation_can_not_hold() -> None:
    renderer = renderer_of("gemma-4")
    for key in ("a:b", "", " a", "{", 'say "hi"'):
        arguments = json.dumps({"list": [{key: 1}]})
        message = Message(
            role="assistant", tool_calls=[ToolCall(id="c", function=FunctionCall(name="f", arguments=arguments))]
        )
        with pytest.raises(RenderError, match="has no place for"):
            renderer.turn(message)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "arguments", "says"),
    [
        (
            'call:f{a:<|"|>x:1,{<|"|>,b:[1,true,null,{c d:-2.5}]}',
            {"a": "x:1,{", "b": [1, True, None, {"c d": -2.5}]},
            None,
        ),
        ('call:f { <|"|>a<|"|> : <|"|><|"|> , }', None, "can't be read"),
        ('call:f{<|"|>a b<|"|>:1}', {"a b": 1}, None),
        ("call:f{a:paris}", None, "can't be read"),
        ('call:f{a:"paris"}', None, "text stands between"),
        ('call:f{a:<|"|>paris}', None, "text stands between"),
        ("call:f{a:NaN}", None, "NaN"),
        ("call:f{a:1}}", None, "can't be read"),
        ("f{a:1}", None, "a call is call:NAME"),
        ("call:f(1)", None, "a call is call:NAME"),
        ("call:two words{}", None, "is not the name of a tool"),
    ],
)
def test_gemmas_notation_is_read_strictly(call: str, arguments: dict | None, says: str | None) -> None:
    renderer = renderer_of("gemma-4")
    ids = renderer.tokenizer.encode_markup(f"<|tool_call>{call}<tool_call|>")  # type: ignore[attr-defined]
    [read] = parse(renderer, ids).message.tool_calls or []
    assert (read.error is None) == (says is None)
    if says:
        assert says in (read.error or "")
    else:
        assert json.loads(read.function.arguments) == arguments
