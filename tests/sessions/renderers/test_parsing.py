"""What every family's parser promises: it reads back what was written, whole or in pieces, and never gives up."""

from __future__ import annotations

import json
import random
import unicodedata
from functools import lru_cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.sessions.renderers import SpanKind, get_renderer, parse
from agentrl.sessions.renderers.base import Delta, Parsed, Renderer
from agentrl.sessions.renderers.calls import canonical
from agentrl.sessions.renderers.families.table import FAMILIES
from agentrl.sessions.renderers.grammars import GRAMMARS
from agentrl.sessions.renderers.parsing import Bound
from agentrl.types import FunctionCall, Message, ToolCall
from tests.sessions.renderers.support import tokenizer, trained

FAMILY_NAMES = [*FAMILIES, "chatml-text"]
UNQUOTED = ("glm-4.5", "glm-4.6", "glm-5", "qwen3-coder", "qwen3.5", "qwen3.5-instruct", "qwen3.6", "minimax-m2")
"""Formats whose arguments are text unless the tool's schema says otherwise."""


@lru_cache(maxsize=32)
def renderer_of(family: str) -> Renderer:
    return get_renderer(tokenizer(family), "chatml" if family == "chatml-text" else family)


def _text(family: str, *, min_size: int = 0) -> st.SearchStrategy[str]:
    """Any text in normal form (Qwen's tokenizers normalise), markup of the format included."""
    markup = sorted(renderer_of(family).tokenizer.added)[:40]
    letters = st.characters(exclude_categories=("Cs", "Mn", "Mc", "Me", "Cn", "Co"))
    pieces = st.one_of(
        st.text(letters, max_size=8),
        st.sampled_from([*markup, "\n", "\n\n", " ", "{", "[", '"', "<|", "|>", "é", "東京", "🎉", "```json\n", ";"]),
    )
    joined = st.lists(pieces, min_size=min_size, max_size=5).map("".join)
    return joined.map(lambda text: unicodedata.normalize("NFC", text))


ODD = st.sampled_from(["5", "true", "null", "None", '"a"', " a ", ""])
"""Texts that are easily read back as something else: numbers, constants, texts without their white space."""


def _plain(family: str) -> st.SearchStrategy[str]:
    """Text that a format without quotes or of text delimiters can hold: nothing that reads as its markup."""
    return _text(family).filter(lambda text: not any(m in text for m in ("<", ">", "[", "{")))


@st.composite
def turns(draw: st.DrawFn, family: str) -> Message:
    """An assistant message that the family can express."""
    able = FAMILIES["chatml" if family == "chatml-text" else family].expresses
    text = _plain(family) if family in ("chatml-text", "smollm2", *UNQUOTED) else _text(family)
    if family == "smollm2":  # its vocabulary lacks some bytes
        known = renderer_of(family).tokenizer
        text = text.filter(lambda t: known.decode(known.encode(t)) == t)
    if family == "llama-3":
        text = text.filter(lambda t: not t.lstrip().startswith(("{", "[")))
    if "<think>" not in renderer_of(family).tokenizer.added:  # no token for thinking tags: text can imitate them
        text = text.filter(lambda t: "think>" not in t)
    inside = text | ODD  # of arguments, which keep their white space
    if able.stripped:
        text = text.map(str.strip)
    calls = []
    if able.tools and draw(st.sampled_from([True, True, False])):
        keys = st.sampled_from(["a", "query", "ключ", "k_1"])
        names = st.sampled_from(["search", "add_2", "get.weather"])
        unique = family in UNQUOTED  # two calls of one tool may want two types for one argument
        called = draw(st.lists(names, min_size=1, max_size=3 if able.parallel else 1, unique=unique))
        for index, name in enumerate(called):
            plain = st.one_of(st.integers(-99, 99), st.booleans(), st.none(), st.floats(-9, 9))
            if family != "llama-3":
                inner = keys if family == "gemma-4" else inside  # it writes keys without quotes
                plain = st.one_of(plain, st.lists(inside, max_size=2), st.dictionaries(inner, inside, max_size=2))
            value = st.sampled_from([ODD, text, plain]).flatmap(lambda kind: kind)  # a third each
            given = draw(st.dictionaries(keys, value, max_size=3))
            arguments = json.dumps(given, ensure_ascii=False, sort_keys=family == "gemma-4")
            calls.append(ToolCall(id=_id(family, name, index), function=FunctionCall(name=name, arguments=arguments)))
    content = draw(text) if able.content_with_calls or not calls else ""
    reasoning = draw(text.map(str.strip)) if able.reasoning and draw(st.booleans()) else None
    return Message(
        role="assistant",
        content=content if content or not calls else None,
        reasoning_content=reasoning or None,
        tool_calls=calls or None,
    )


def _id(family: str, name: str, index: int) -> str:
    kimi = f"functions.{name}:{index}"
    nine = dict.fromkeys(("mistral", "mistral-v7", "mistral-v11"), f"call0000{index}")
    return {"kimi-k2": kimi, "kimi-k2.5": kimi, **nine}.get(family, f"call_{index}")


def _schemas(message: Message) -> list[dict]:
    """Tool schemas that say which arguments are text."""
    return [
        {
            "type": "function",
            "function": {
                "name": call.function.name,
                "parameters": {
                    "type": "object",
                    "properties": {
                        key: {"type": "string"} if isinstance(value, str) else {}
                        for key, value in json.loads(call.function.arguments).items()
                    },
                },
            },
        }
        for call in reversed(message.tool_calls or [])
    ]


def streamed(renderer: Renderer, pieces: list[list[int]], tools: list[dict]) -> tuple[list[Delta], Parsed]:
    parser = renderer.parser(tools)
    deltas = [delta for piece in pieces for delta in parser.feed(piece)]
    rest, parsed = parser.finish()
    return deltas + rest, parsed


def assert_sound(deltas: list[Delta], parsed: Parsed, length: int) -> None:
    """The deltas add up to the message, and the spans cover the turn."""
    message = parsed.message
    assert "".join(d.content for d in deltas) == (message.content or "")
    assert "".join(d.reasoning for d in deltas) == (message.reasoning_content or "")
    told = [(d.id, d.name, d.arguments) for d in deltas if d.call is not None]
    assert told == [(c.id, c.function.name, c.function.arguments) for c in message.tool_calls or []]
    assert [d.call for d in deltas if d.call is not None] == list(range(len(told)))
    ends = [0, *(span.end for span in parsed.spans)]
    assert [span.start for span in parsed.spans] == ends[:-1]
    assert ends[-1] == length
    assert all(span.start < span.end for span in parsed.spans)


@pytest.fixture(scope="module", params=FAMILY_NAMES)
def loaded(request: pytest.FixtureRequest) -> str:
    """A family whose tokenizer is loaded, which takes longer than hypothesis likes to wait for an example."""
    renderer_of(request.param)
    return request.param


@pytest.mark.slow
@settings(max_examples=45, deadline=None)
@given(data=st.data())
def test_a_written_turn_reads_back_as_its_message(loaded: str, data: st.DataObject) -> None:
    family, message = loaded, data.draw(turns(loaded))
    renderer, schemas = renderer_of(family), _schemas(message)
    ids = renderer.turn(message)
    parsed = parse(renderer, ids, schemas)
    assert parsed.message == message
    assert ids[-1] in renderer.stop_token_ids
    kinds = [span.kind for span in parsed.spans]
    assert SpanKind.MALFORMED not in kinds
    assert (SpanKind.TOOL_CALL in kinds) == bool(message.tool_calls)
    one_by_one = streamed(renderer, [[index] for index in ids], schemas)
    assert one_by_one[1] == parsed
    assert_sound(*one_by_one, len(ids))


def rubbish(family: str, rng: random.Random) -> list[int]:
    """Token streams that no model should write: random ids, markup in any order, turns cut and spliced."""
    renderer = renderer_of(family)
    vocab = renderer.tokenizer.vocab_size
    marks = [*renderer.tokenizer.added.values(), *renderer.stop_token_ids]
    texts = ['{"name": "f", "arguments": {', "}}", "<tool_call>", "</tool_call>", "<think>", "</think>", "[f(a=", ")]",
             "to=functions.f", "<function=f>", "<parameter=a>", "</function>", "\n", "f", '"', "[{", "0" * 5000,
             "[" * 2000, '{"a":' * 2000, "é東🎉", "```json\n", '\\ud800"', "commentary"]  # fmt: skip
    call = ToolCall(id=_id(family, "f", 0), function=FunctionCall(name="f", arguments='{"a": "é🎉", "b": [1]}'))
    able = FAMILIES["chatml" if family == "chatml-text" else family].expresses
    message = Message(
        role="assistant",
        content="hé 🎉" if able.content_with_calls else "",
        reasoning_content="why" if able.reasoning else None,
        tool_calls=[call] if able.tools else None,
    )
    whole = renderer.turn(message)
    ids: list[int] = []
    for _ in range(rng.randint(1, 6)):
        kind = rng.randrange(5)
        if kind == 0:
            ids += [rng.randrange(vocab + 50) for _ in range(rng.randint(1, 10))]
        elif kind == 1:
            ids += [rng.choice(marks) for _ in range(rng.randint(1, 4))]
        elif kind == 2:
            ids += renderer.tokenizer.encode(rng.choice(texts))
        else:
            start = rng.choice((0, rng.randrange(len(whole))))
            piece = whole[start : rng.choice((len(whole), rng.randint(start, len(whole))))]
            ids += [index for index in piece if kind == 3 or rng.random() < 0.9]
    return ids


STREAMS = 45


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_any_token_stream_is_read_the_same_in_any_pieces(family: str) -> None:
    renderer = renderer_of(family)
    for seed in range(STREAMS):
        rng = random.Random(seed)
        ids = rubbish(family, rng)
        whole = streamed(renderer, [ids], [])
        assert_sound(*whole, len(ids))
        assert streamed(renderer, [[i] for i in ids], [])[1] == whole[1]
        cuts = range(len(ids) + 1) if len(ids) < 60 else [rng.randint(0, len(ids)) for _ in range(5)]
        for cut in cuts:
            deltas, parsed = streamed(renderer, [ids[:cut], ids[cut:]], [])
            assert parsed == whole[1]
            assert_sound(deltas, parsed, len(ids))
        for call in whole[1].message.tool_calls or []:
            assert call.error or isinstance(json.loads(call.function.arguments), dict)
            assert call.error is None or "could not be read" in call.error
        whole[1].message.model_dump_json()


def test_characters_cut_in_two_by_tokens_arrive_whole() -> None:
    renderer = renderer_of("chatml")
    ids = renderer.turn(Message(role="assistant", content="🎉東é"))
    assert len(ids) > 4  # the trained tokenizer spells them byte by byte
    deltas, _ = streamed(renderer, [[i] for i in ids], [])
    assert [d.content for d in deltas] == ["🎉", "東", "é"]


def test_a_character_that_a_turn_or_a_delimiter_cuts_off_is_a_replacement_character() -> None:
    renderer = renderer_of("chatml")
    said = renderer.turn(Message(role="assistant", content="a🎉"))[:-2]
    call = Message(role="assistant", content="", tool_calls=[ToolCall(id="call_0", function=FunctionCall(name="f"))])
    for behind in ([], renderer.stop_token_ids[:1], renderer.turn(call)):
        assert parse(renderer, [*said, *behind]).message.content == "a\ufffd"


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ('{"name": "f", "arguments": {"a": 1}', "not valid JSON"),
        ('{"arguments": {}}', '"name"'),
        ('{"name": "f", "arguments": [1]}', "not a JSON object"),
        ('{"name": 7, "arguments": {}}', '"name"'),
        ("call f please", "not valid JSON"),
    ],
)
@pytest.mark.slow
def test_a_malformed_call_says_what_is_wrong_and_keeps_the_models_words(body: str, word: str) -> None:
    renderer = renderer_of("qwen3")
    ids = renderer.tokenizer.encode_markup(f"hi\n<tool_call>\n{body}\n</tool_call><|im_end|>")
    parsed = parse(renderer, ids)
    [call] = parsed.message.tool_calls or []
    assert word in (call.error or "")
    assert call.function.arguments.strip() == body
    assert parsed.message.content == "hi"
    [span] = [span for span in parsed.spans if span.kind is SpanKind.MALFORMED]
    assert renderer.tokenizer.decode(ids[span.start : span.end]).strip() == body


def test_a_call_that_never_closes_is_malformed() -> None:
    renderer = renderer_of("qwen3")
    ids = renderer.tokenizer.encode_markup('<tool_call>\n{"name": "f", "arguments": {}}<|im_end|>')
    [call] = parse(renderer, ids).message.tool_calls or []
    assert "</tool_call>" in (call.error or "")


def test_arguments_keep_the_models_exact_text() -> None:
    renderer = renderer_of("qwen3")
    written = '{ "b":1.50,  "a" : "\\u00e9" }'
    ids = renderer.tokenizer.encode_markup(f'<tool_call>{{"name": "f", "arguments": {written}}}</tool_call>')
    [call] = parse(renderer, ids).message.tool_calls or []
    assert call.function.arguments == written
    assert canonical(written) == '{"b": 1.5, "a": "é"}'


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('[get_weather(city="Paris", days=3), f()]', ["get_weather", "f"]),
        ('{"name": "a", "parameters": {"x": 1}}; {"name": "b", "parameters": {}}', ["a", "b"]),
    ],
)
@pytest.mark.slow
def test_llama_reads_json_and_pythonic_calls(text: str, names: list[str]) -> None:
    renderer = renderer_of("llama-3")
    message = parse(renderer, renderer.tokenizer.encode(text)).message
    assert [call.function.name for call in message.tool_calls or []] == names
    assert not any(call.error for call in message.tool_calls or [])


@pytest.mark.parametrize("text", ["[1, 2]", '{"answer": 42}', "[see below]", "{x}", " plain"])
def test_llama_content_that_begins_like_a_call_stays_content(text: str) -> None:
    renderer = renderer_of("llama-3")
    message = parse(renderer, renderer.tokenizer.encode(text)).message
    assert message.content == text
    assert message.tool_calls is None


def test_unquoted_values_take_the_type_that_the_schema_says() -> None:
    renderer = renderer_of("qwen3-coder")
    values = "<parameter=s>\n5\n</parameter>\n<parameter=n>\n5\n</parameter>\n"
    text = f"<tool_call>\n<function=f>\n{values}</function>\n</tool_call>"
    schema = {
        "type": "function",
        "function": {"name": "f", "parameters": {"properties": {"s": {"type": "string"}, "n": {"type": "integer"}}}},
    }
    [call] = parse(renderer, renderer.tokenizer.encode_markup(text), [schema]).message.tool_calls or []
    assert json.loads(call.function.arguments) == {"s": "5", "n": 5}


def test_newer_mistral_calls_are_read_too() -> None:
    """Since its v11 the format names the call outside the JSON."""
    from agentrl.sessions.renderers.grammar import Mark
    from agentrl.sessions.renderers.readers import read_mistral

    body = [
        "f",
        Mark("[CALL_ID]"),
        "abcdefghi",
        Mark("[ARGS]"),
        '{"a": 1}',
        Mark("[TOOL_CALLS]"),
        "g",
        Mark("[ARGS]"),
        "{}",
    ]
    calls = read_mistral(body, 0, ())
    assert [(c.function.name, c.function.arguments, c.error) for c in calls] == [
        ("f", '{"a": 1}', None),
        ("g", "{}", None),
    ]
    assert calls[0].id == "abcdefghi"


OLMO = trained(("<|im_start|>", "<|im_end|>", "<function_calls>", "</function_calls>"))


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ('[f(a=1, b="x"), g()]', [("f", {"a": 1, "b": "x"}), ("g", {})]),
        ('<function_calls>f(a=[1, null], b=true)\ng(c={"k": false})</function_calls>',
         [("f", {"a": [1, None], "b": True}), ("g", {"c": {"k": False}})]),
        ('<|python_start|>[a.b(x=-1.5)]<|python_end|>', [("a.b", {"x": -1.5})]),
        ("<|tool_call_start|>[f(q='one\ntwo \\'x\\'', n=None)]<|tool_call_end|>",
         [("f", {"q": "one\ntwo 'x'", "n": None})]),
    ],
    ids=["bare list", "a line each", "llama 4", "lfm2"],
)  # fmt: skip
def test_calls_spelt_as_python_are_read_with_pythons_constants_or_jsons(text: str, calls: list) -> None:
    read = _pythonic("I look. " * (not text.startswith("[")) + text)
    assert [(c.function.name, json.loads(c.function.arguments)) for c in read.tool_calls or []] == calls
    assert not any(c.error for c in read.tool_calls or [])


@pytest.mark.parametrize("text", ["[1, 2] are numbers", "[link](f)", "f(a=1) is a call", "[ ]"])
def test_content_that_begins_like_a_pythonic_call_stays_content(text: str) -> None:
    assert (_pythonic(text).content, _pythonic(text).tool_calls) == (text, None)


@pytest.mark.slow
@pytest.mark.parametrize("body", ["f(1)", "f(a=g())", "x = f()", "f(a=b)", "", "f(a=1", "import os", "f(**{})", "é("])
def test_a_tagged_call_that_is_no_python_call_is_malformed_and_says_so(body: str) -> None:
    read = _pythonic(f"<function_calls>{body}</function_calls>")
    assert [bool(c.error) for c in read.tool_calls or []] == [True]


def _pythonic(text: str) -> Message:
    """The text read whole; token by token it must read the same."""
    ids = [*OLMO.encode_markup(text), OLMO.special("<|im_end|>")]
    bound = Bound(GRAMMARS["pythonic"], OLMO, ids[-1:])
    whole, pieces = bound.parser(), bound.parser()
    whole.feed(ids)
    for token in ids:
        pieces.feed([token])
    read = whole.finish()[1]
    assert pieces.finish()[1] == read
    return read.message
