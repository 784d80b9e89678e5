"""No text that a model or a client may write takes its reader more than a time that grows with its length."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import pytest

from agentrl.sessions.gateway.http.api_error import ApiError
from agentrl.sessions.gateway.http.bodies import Body
from agentrl.sessions.gateway.limits import Limits
from agentrl.sessions.gateway.wire import chat, completions, messages, responses
from agentrl.sessions.renderers.grammar import Grammar, Mark
from agentrl.sessions.renderers.grammars import GRAMMARS
from agentrl.sessions.renderers.parsing import MOST_CALL, Bound
from tests.sessions.renderers.bombs import bombs

LENGTH = 2_000
TURN = 500
UNNOTICED = 0.005
"""Seconds that a text four times as long may take, whatever a shorter one takes."""
MOST_GROWTH = 10.0
"""Of a reader's time where the text is four times as long: 4 where it is linear, 16 where it takes the square."""


def seconds(work: Callable[[], object]) -> float:
    """The processor's seconds, so that other processes count little, without garbage collections of the whole suite."""
    gc.disable()
    began = time.thread_time()
    work()
    spent = time.thread_time() - began
    gc.enable()
    return spent


def assert_linear(name: str, short: Callable[[], object], long: Callable[[], object]) -> None:
    """Time is compared only where there is enough of it, the least of many tries: a busy machine shows no growth."""
    least_short, least_long = float("inf"), float("inf")
    for _ in range(30):
        least_long = min(least_long, seconds(long))
        if least_long < UNNOTICED:
            return
        least_short = min(least_short, seconds(short), seconds(short))  # a slow one would hide growth
        growth = least_long / max(least_short, 1e-4)
        if growth < MOST_GROWTH:
            return
    assert growth < MOST_GROWTH, f"{name}: {growth:.1f} times the time for four times the text"


@pytest.mark.parametrize("name", GRAMMARS)
@pytest.mark.slow
def test_a_reader_of_calls_takes_time_in_proportion_to_their_text(name: str) -> None:
    """Python's own parser took 3.5, 14.7 and 61.6 s for 10, 20 and 40 thousand characters, on the event loop."""
    read = GRAMMARS[name].read
    for (kind, short), (_, long) in zip(bombs(name, LENGTH), bombs(name, 4 * LENGTH), strict=True):
        assert_linear(kind, partial(read, [short], 0, ()), partial(read, [long], 0, ()))


@pytest.mark.parametrize("name", GRAMMARS)
@pytest.mark.slow
def test_a_reader_of_calls_takes_time_in_proportion_to_their_parts(name: str) -> None:
    """A stream gives a call's text token by token, with the marks that its format has within calls."""
    marks = sorted({Mark(mark) for region in GRAMMARS[name].regions.values() for mark in region.exits})
    kinds: list[Sequence[str]] = [[" "], ["a"], *([mark, "a"] for mark in marks), *([mark] for mark in marks)]
    for units in kinds:
        parts = [Mark("to=f"), *(list(units) * (4 * LENGTH // len(units)))]
        assert_linear(
            f"{units}",
            partial(GRAMMARS[name].read, parts[: len(parts) // 4], 0, ()),
            partial(GRAMMARS[name].read, parts, 0, ()),
        )


class Letters:
    """A tokenizer of characters, without added tokens: every mark is spelt out."""

    added: ClassVar[dict[str, int]] = {}

    def token_bytes(self, index: int) -> bytes:
        return chr(index).encode(errors="surrogatepass")


def turn(grammar: Grammar, text: str, step: int) -> None:
    parser = Bound(grammar, Letters(), ()).parser()  # type: ignore[arg-type]
    ids = [ord(letter) for letter in text]
    for start in range(0, len(ids), step):
        parser.feed(ids[start : start + step])
    parser.finish()


@pytest.mark.parametrize("step", [1, 100_000])
@pytest.mark.parametrize("name", GRAMMARS)
@pytest.mark.slow
def test_a_turn_is_read_in_time_in_proportion_to_its_text(name: str, step: int) -> None:
    grammar = GRAMMARS[name]
    marks = sorted({mark for region in grammar.regions.values() for mark in region.exits})
    heads = [mark[:-1] for mark in marks if len(mark) > 1]
    for unit in (" ", "\n", "a", "<", "[", "{", *marks, *heads, "".join(marks)):
        short, long = (unit * (times * TURN // len(unit) + 1) for times in (1, 4))
        assert_linear(repr(unit), partial(turn, grammar, short, step), partial(turn, grammar, long, step))


@pytest.mark.slow
def test_a_call_longer_than_any_context_is_not_read() -> None:
    parser = Bound(GRAMMARS["hermes"], Letters(), ()).parser()  # type: ignore[arg-type]
    text = "<tool_call>" + json.dumps({"name": "f", "arguments": {"a": "x" * MOST_CALL}}) + "</tool_call>"
    parser.feed([ord(letter) for letter in text])
    calls = parser.finish()[1].message.tool_calls or []
    assert len(calls) == 1
    assert "at most" in (calls[0].error or "")


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def calling(arguments: Any) -> dict[str, Any]:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


HISTORIES: dict[str, Callable[[int], Sequence[Any]]] = {
    "short messages": lambda n: [user("a")] * n,
    "messages by turns": lambda n: [user("a"), {"role": "assistant", "content": "b"}] * (n // 2),
    "a long text": lambda n: [user("a" * n)],
    "blanks": lambda n: [user(" " * n), {"role": "assistant", "content": "\n" * n}],
    "parts": lambda n: [user([{"type": "text", "text": "a"}] * n)],
    "unknown parts": lambda n: [user([{"type": "?"}] * n)],
    "deep content": lambda n: [user(json.loads("[" * 400 + "]" * 400))] * (n // 400),
    "deep arguments": lambda n: [calling("[" * n)],
    "arguments": lambda n: [calling(json.dumps({str(i): i for i in range(n // 8)}))],
    "calls": lambda n: [{**calling("{}"), "tool_calls": calling("{}")["tool_calls"] * (n // 10)}],
    "numbers": lambda n: [1] * n,
    "fields": lambda n: [{**user("a"), **{f"x{i}": i for i in range(n // 10)}}],
    "results": lambda n: [{"role": "tool", "content": "a", "tool_call_id": "c"}] * n,
}


def read(protocol: Any, field: str, items: Sequence[Any]) -> None:
    given = {"model": "m", **({"max_tokens": 9} if protocol is messages else {}), field: items}
    body = Body.parse(json.dumps(given).encode(), field, Limits().depth)
    try:
        request = protocol.read(body, Limits(), None, True)
        if request.history is not None:
            request.convert(request.history.items(), 0, request.ignored)
    except ApiError:
        pass


@pytest.mark.parametrize("kind", HISTORIES)
@pytest.mark.slow
def test_a_request_is_read_in_time_in_proportion_to_its_length(kind: str) -> None:
    for protocol, field in ((chat, "messages"), (messages, "messages"), (responses, "input"), (completions, "prompt")):
        short, long = HISTORIES[kind](1000), HISTORIES[kind](4000)
        reads = [partial(read, protocol, field, items) for items in (short, long)]
        assert_linear(f"{protocol.__name__} {kind}", *reads)
