"""What a new turn costs in a long session, against a short one: `python -m benchmarks.rendering`.

Two sessions, one of 2 turns and one of 100, get the same new turn: a tool's answer is rendered, the generation
prompt too, an engine without any latency replies with a canned turn, the reply is parsed, both nodes are added.
Handing the path's ids to the engine (one list copy) is inside the measured time. For comparison, the same turn
with the whole conversation rendered and tokenised again. Samples are taken in turn, medians compared.
"""

from __future__ import annotations

import asyncio
import json
import platform
import statistics
import time
from collections.abc import AsyncIterator, Sequence

from agentrl.models.tiny import build_tokenizer
from agentrl.sessions.renderers import Renderer, get_renderer
from agentrl.sessions.tree.conversation import Conversation
from agentrl.sessions.tree.turn_generator import TurnGenerator
from agentrl.types import (
    Capabilities,
    Chunk,
    FinishReason,
    FunctionCall,
    Message,
    Sampling,
    Session,
    Task,
    ToolCall,
    Turn,
    VersionSpan,
)

SHORT, LONG, SAMPLES = 2, 100, 300
RESULT = Message(role="tool", content=json.dumps({"results": [f"item {i}, {i * 7} euros" for i in range(6)]}))
CALL = ToolCall(id="call_0", function=FunctionCall(name="search", arguments='{"query": "blue shoes", "limit": 6}'))
REPLY = Message(role="assistant", content="Let me look for something cheaper.", tool_calls=[CALL])
TOOLS = [{"type": "function", "function": {"name": "search", "description": "Find products.", "parameters": {}}}]


class Canned:
    """Answers every request at once with the same turn."""

    capabilities = Capabilities("canned", max_context=1 << 20, vocab_size=1 << 20)

    def __init__(self, ids: Sequence[int]) -> None:
        count = len(ids)
        span = (VersionSpan(0, 0, count),)
        self.turn = Turn(tuple(ids), (-0.5,) * count, span, FinishReason.STOP, ids[-1])

    async def generate(
        self, request_id: str, input_ids: Sequence[int], sampling: Sampling, deadline: float | None = None
    ) -> AsyncIterator[Chunk | Turn]:
        """The canned turn."""
        yield self.turn


def conversation(renderer: Renderer, turns: int) -> Conversation:
    """A session with that many turns in it."""
    engine = Canned(renderer.turn(REPLY))
    grown = Conversation(Session("s", Task(id="t")), TurnGenerator(renderer, engine), tools=TOOLS)  # type: ignore[arg-type]
    grown.add([{"role": "system", "content": "You sell shoes."}, {"role": "user", "content": "Blue ones, please."}])
    for _ in range(turns):
        asyncio.run(turn(grown, first=len(grown.session.nodes) == 2))
    return grown


async def turn(grown: Conversation, first: bool = False) -> float:
    """One more turn; returns its seconds."""
    began = time.perf_counter()
    if not first:
        grown.add(RESULT)
    await grown.generate(Sampling(), time.monotonic() + 60)
    return time.perf_counter() - began


def rendered_again(grown: Conversation) -> float:
    """Seconds to render and tokenise the whole conversation from its messages."""
    messages = grown.messages
    began = time.perf_counter()
    grown.generator.renderer.render([*messages, RESULT], tools=TOOLS)
    return time.perf_counter() - began


async def sample(grown: Conversation, count: int) -> list[float]:
    """The seconds of `count` turns, each on the same history: what was added is taken off again."""
    head, nodes, ids, messages = grown.head, len(grown.session.nodes), len(grown._ids), len(grown._messages)
    seconds = []
    for _ in range(count):
        seconds.append(await turn(grown))
        grown.head = head
        del grown.session.nodes[nodes:], grown._ids[ids:], grown._messages[messages:]
    return seconds


def main() -> None:
    texts = [RESULT.text, REPLY.text, CALL.function.arguments, json.dumps(TOOLS)] * 50
    renderer = get_renderer(build_tokenizer(texts, vocab=600), "chatml")
    short, long = conversation(renderer, SHORT), conversation(renderer, LONG)
    times: dict[str, list[float]] = {"short": [], "long": [], "again": []}
    for _ in range(SAMPLES // 10):
        times["short"] += asyncio.run(sample(short, 10))
        times["long"] += asyncio.run(sample(long, 10))
        times["again"].append(rendered_again(long))
    short_s, long_s, again_s = (statistics.median(times[name]) for name in ("short", "long", "again"))
    print(f"a new turn in a session of {SHORT} turns ({len(short.token_ids)} tokens): {short_s * 1e6:.0f} us")
    print(f"a new turn in a session of {LONG} turns ({len(long.token_ids)} tokens): {long_s * 1e6:.0f} us")
    print(f"rendering the {LONG} turns again: {again_s * 1e6:.0f} us")
    print(f"ratio {LONG} turns / {SHORT} turns: {long_s / short_s:.2f} (aim: at most 1.5)")
    print(f"ratio rendering again / new turn: {again_s / long_s:.1f}")
    print(f"machine: {platform.processor() or platform.machine()}, Python {platform.python_version()}")


if __name__ == "__main__":
    main()
