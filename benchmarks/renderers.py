"""How fast renderers and parsers are: `python -m benchmarks.renderers`.

Three proofs, each a ratio against a baseline of the same run, or a rate:

- rendering a turn into a long session costs what it costs in a short one (at most 1.5 times);
- a parser that is fed token by token keeps up with any engine (at least 50,000 tokens a second);
- a conversation of 100 turns costs at most a twentieth of rendering it anew for every turn.

The families' real tokenizers are fetched as the tests fetch them.
"""

from __future__ import annotations

import gc
import os
import platform
import statistics
import time
from collections.abc import Callable

from agentrl.sessions.renderers import get_renderer
from agentrl.sessions.renderers.base import Renderer
from agentrl.sessions.renderers.families.table import FAMILIES
from agentrl.sessions.renderers.proof.trials import TOOLS
from agentrl.sessions.renderers.template import template_whole
from agentrl.types import FunctionCall, Message, Node, ToolCall
from tests.sessions.renderers.support import tokenizer

EXTENDED = ("qwen2.5", "qwen3", "llama-3", "deepseek-v3")
PARSED = ("qwen2.5", "qwen3", "qwen3-coder", "llama-3", "mistral", "deepseek-v3", "kimi-k2", "glm-4.5", "gpt-oss")
PROSE = "The customer asks whether the parcel, sent on 3 May, has arrived; naïve 東京. " * 6


def seconds(work: Callable[[], object]) -> float:
    """How long one run of `work` takes, without the collector's pauses."""
    gc.disable()
    start = time.perf_counter()
    work()
    taken = time.perf_counter() - start
    gc.enable()
    return taken


def exchange(family: str, turn: int) -> list[Message]:
    """A turn that calls a tool, its result, an answer and the next question."""
    call = ToolCall(
        id=f"call{turn:05d}", function=FunctionCall(name="search", arguments='{"query": "tea", "limit": 3}')
    )
    return [
        Message(role="assistant", content="", tool_calls=[call]),
        Message(role="tool", content=f"{turn}: {PROSE}", tool_call_id=call.id, name="search"),
    ]


def grow(renderer: Renderer, family: str, tokens: int) -> Node:
    """The last node of a session of about this many tokens."""
    opening = renderer.render([Message(role="user", content="Where is it?")], tools=TOOLS)
    after = Node(0, None, Message(role="user", content="Where is it?"), opening[0], [], [])
    length, turn = len(opening[0]), 0
    while length < tokens:
        call, result = exchange(family, turn)
        ids = renderer.generation_prompt(after) + renderer.turn(call)
        after = Node(turn, after.id, call, ids, [], [])
        [delta] = renderer.render([result], after=after)
        after = Node(turn, after.id, result, delta, [], [])
        length += len(ids) + len(delta)
        turn += 1
    return after


def long_against_short(family: str) -> float:
    """Median cost of a turn in a 32k session over that in a 1k session."""
    renderer = get_renderer(tokenizer(family), family)
    ends = {length: grow(renderer, family, length) for length in (1_000, 32_000)}
    taken: dict[int, list[float]] = {length: [] for length in ends}
    for _ in range(60):
        for length, end in ends.items():

            def turn(end: Node = end) -> None:
                for _ in range(5):
                    [delta] = renderer.render([Message(role="user", content=PROSE)], after=end)
                    renderer.generation_prompt(Node(0, 0, Message(role="user", content=PROSE), delta, [], []))

            taken[length].append(seconds(turn))
    return statistics.median(taken[32_000]) / statistics.median(taken[1_000])


def extending_against_anew(family: str, turns: int = 100) -> float:
    """Total cost of rendering a conversation anew at every turn over that of extending it."""
    renderer = get_renderer(tokenizer(family), family)
    whole = template_whole(renderer.tokenizer) if family != "deepseek-v3" else renderer.whole  # type: ignore[attr-defined]
    messages = [Message(role="user", content="Where is it?")]
    conversation = [*messages]
    sampled = []
    for turn in range(turns):
        call, result = exchange(family, turn)
        sampled.append(renderer.turn(call))
        conversation += [call, result]

    def extend() -> None:
        [ids] = renderer.render(messages, tools=TOOLS)
        after = Node(0, None, messages[0], ids, [], [])
        for turn in range(turns):
            call, result = conversation[1 + 2 * turn], conversation[2 + 2 * turn]
            ids = renderer.generation_prompt(after) + sampled[turn]
            after = Node(turn, 0, call, ids, [], [])
            [ids] = renderer.render([result], after=after)
            after = Node(turn, 0, result, ids, [], [])

    def anew() -> None:
        for turn in range(turns):
            whole(conversation[: 1 + 2 * turn], TOOLS, True)

    return statistics.median(seconds(anew) / seconds(extend) for _ in range(3))


def streaming_rate(family: str) -> float:
    """Tokens a second through a parser that is fed one at a time."""
    renderer = get_renderer(tokenizer(family), family)
    able = FAMILIES[family].expresses
    call = ToolCall(
        id="functions.search:0", function=FunctionCall(name="search", arguments='{"query": "tea", "limit": 3}')
    )
    message = Message(
        role="assistant",
        content=PROSE.strip() * 3 if able.content_with_calls else None,
        reasoning_content=PROSE.strip() * 2 if able.reasoning else None,
        tool_calls=[call] * (3 if able.parallel else 1),
    )
    if not able.content_with_calls:
        message = message.model_copy(update={"content": PROSE.strip() * 5, "tool_calls": None})
    ids = renderer.turn(message)
    ids = (ids[:-1] * (4_000 // len(ids) + 1))[:4_000]

    def stream() -> None:
        parser = renderer.parser(TOOLS)
        for index in ids:
            parser.feed((index,))
        parser.finish()

    stream()
    return len(ids) / statistics.median(seconds(stream) for _ in range(15))


def main() -> None:
    """Print the proofs and whether each holds."""
    load = os.getloadavg()[0]
    machine = platform.processor() or platform.machine()
    print(f"{machine}, {os.cpu_count()} cores, load {load:.1f}, Python {platform.python_version()}")
    for family in EXTENDED:
        ratio, saved = long_against_short(family), extending_against_anew(family)
        print(f"{family:14} turn at 32k / 1k: {ratio:5.2f} (at most 1.5: {ratio <= 1.5})", end="   ")
        print(f"100 turns anew / extended: {saved:6.1f} (at least 20: {saved >= 20})")
    for family in PARSED:
        rate = streaming_rate(family)
        print(f"{family:14} streaming parse: {rate:10,.0f} tokens/s (at least 50,000: {rate >= 50_000})")


if __name__ == "__main__":
    main()
