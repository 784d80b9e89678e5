"""What our part of a gateway's turn costs, without an engine and a socket: `python -m benchmarks.gateway`.

In a session whose history has 1k, 8k and 32k tokens: matching, validating what is new, rendering, parsing, building the
reply, storing. Reading the client's JSON (msgspec, orjson) is reported apart, and so is copying the path's ids to hand
them to the engine. Compared with rendering and tokenising the whole conversation again at 32k, by CPU time of the
process and by the clock: until the reply can be sent, and until the turn is stored. No two messages are the same, and
the comparison's tokenizer remembers none. Between two turns there is a pause, as an engine takes at least so long.
Samples of all sizes are interleaved, and medians are compared. `benchmarks.gateway_load` measures the whole, over
sockets and under load.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import orjson

from agentrl.models.tiny import build_tokenizer
from agentrl.sessions.gateway.exchange import Exchange, Parts
from agentrl.sessions.gateway.gateway import Gateway, SessionEntry
from agentrl.sessions.gateway.http.bodies import Body
from agentrl.sessions.gateway.limits import Limits
from agentrl.sessions.gateway.wire import chat, chat_replies
from agentrl.sessions.gateway.writer import COMMIT_SECONDS
from agentrl.sessions.renderers import Renderer, get_renderer
from agentrl.sessions.store.store import Store
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
from benchmarks.machine import machine

SIZES = (1_000, 8_000, 32_000)
SAMPLES = 60
PAUSE = 2 * COMMIT_SECONDS
CALL = ToolCall(id="call_0", function=FunctionCall(name="search", arguments='{"query": "blue shoes", "limit": 6}'))
REPLY = Message(role="assistant", content="Let me look for something cheaper.", tool_calls=[CALL])
TOOLS = [{"type": "function", "function": {"name": "search", "description": "Find products.", "parameters": {}}}]


def result(number: int) -> str:
    """A tool's result, unlike that of any other number."""
    return json.dumps({"results": [f"item {number + i}, {number + i * 7} euros" for i in range(6)]})


RESULT = Message(role="tool", content=result(0))


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


def renderer() -> Renderer:
    """ChatML over a small tokenizer made of the benchmark's own words."""
    texts = [RESULT.text, REPLY.text, json.dumps(TOOLS)] * 50
    return get_renderer(build_tokenizer(texts, vocab=600), "chatml")


class Client:
    """Keeps a history and writes each request's body, as an SDK would."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = [
            {"role": "system", "content": "You sell shoes."},
            {"role": "user", "content": "Blue ones, please."},
        ]

    def body(self) -> bytes:
        """The next request."""
        return orjson.dumps({"model": "m", "messages": self.messages, "tools": TOOLS})

    def hear(self, reply: bytes) -> None:
        """Take the reply and a tool's answer into the history."""
        message = orjson.loads(reply)["choices"][0]["message"]
        call = message["tool_calls"][0]["id"]
        self.messages += [message, {"role": "tool", "tool_call_id": call, "content": result(len(self.messages))}]


async def one_turn(gateway: Gateway, entry: SessionEntry, client: Client) -> dict[str, float]:
    """A turn through everything but the socket; seconds by part."""
    await asyncio.sleep(PAUSE)
    body = client.body()
    began = time.perf_counter()
    parsed = Body.parse(body, "messages")
    loaded, cpu = time.perf_counter(), time.process_time()
    exchange = Exchange(gateway.parts, entry.state, chat.read(parsed, gateway.parts.limits, None, False))
    await exchange.prepare()
    async for _ in exchange.events():
        pass
    reply = chat_replies.reply(exchange)
    replied = time.perf_counter()
    exchange.commit()
    exchange.end()
    await gateway.save(entry.state)
    ended, cpu = time.perf_counter(), time.process_time() - cpu
    ids = list(exchange.prompt.token_ids)
    copied = time.perf_counter()
    client.hear(reply)
    parts = {"json": loaded - began, "reply": replied - loaded, "clock": ended - loaded, "cpu": cpu}
    parts["copy"] = copied - ended
    return parts | {"tokens": float(len(ids))}


async def own(folder: Path) -> None:
    """Our part of a turn by the history's length."""
    with Store(folder / "own.db") as store:
        format_ = renderer()
        engine: Any = Canned(format_.turn(REPLY))
        gateway = Gateway(Parts(TurnGenerator(format_, engine), Limits()), store)
        lines: dict[int, tuple[SessionEntry, Client]] = {}
        for size in SIZES:
            access = await gateway.open(Session(f"s{size}", Task(id="t")))
            entry, client = gateway.entry(access.id, access.api_key), Client()
            while (await one_turn(gateway, entry, client))["tokens"] < size:
                pass
            lines[size] = (entry, client)
        times: dict[int, list[dict[str, float]]] = {size: [] for size in SIZES}
        for _ in range(SAMPLES):
            for size in SIZES:
                times[size].append(await one_turn(gateway, *lines[size]))
        again = [_rendered_again(renderer(), lines[SIZES[-1]][1]) for _ in range(7)]
        await gateway.aclose()
    report(times, again)


def report(times: dict[int, list[dict[str, float]]], again: list[tuple[float, float]]) -> None:
    """Print medians by the history's length, and their ratios."""
    medians = {
        size: {name: statistics.median(sample[name] for sample in taken) for name in taken[0]}
        for size, taken in times.items()
    }
    for size, median in medians.items():
        words = f"own part {median['cpu'] * 1e6:.0f} us of CPU, by the clock {median['reply'] * 1e6:.0f} until the "
        words += f"reply, {median['clock'] * 1e6:.0f} until it is stored"
        print(f"{size:>6} tokens: {words}; apart: JSON {median['json'] * 1e6:.0f}, ids {median['copy'] * 1e6:.0f}")
    for name, said in (("cpu", "by CPU"), ("reply", "by the clock, until the reply"), ("clock", "until it is stored")):
        first, last = medians[SIZES[0]][name], medians[SIZES[-1]][name]
        whole = statistics.median(each[name != "cpu"] for each in again)
        print(f"{said}: 32k / 1k of our own part {last / first:.2f} (aim: at most 1.5); ", end="")
        print(f"over rendering and tokenising 32k again, {whole * 1e3:.1f} ms: {last / whole:.3f} (aim: at most 0.1)")


def _rendered_again(format_: Renderer, client: Client) -> tuple[float, float]:
    """Return the seconds of CPU and by the clock."""
    cpu, began = time.process_time(), time.perf_counter()
    messages = [
        Message.model_validate({k: v for k, v in message.items() if v is not None}) for message in client.messages
    ]
    format_.render(messages, tools=TOOLS)
    return time.process_time() - cpu, time.perf_counter() - began


class Wire:
    """An HTTP client that costs next to nothing, so that it is the gateway that is timed."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str) -> None:
        self.reader, self.writer, self.host = reader, writer, host

    @classmethod
    async def open(cls, url: str) -> Wire:
        """A connection to the gateway."""
        host, port = url.removeprefix("http://").split(":")
        return cls(*await asyncio.open_connection(host, int(port), limit=1 << 20), host)

    async def post(self, path: str, body: bytes, key: str = "", method: str = "POST") -> bytes:
        """Send a request; returns the answer's body."""
        head = f"{method} {path} HTTP/1.1\r\nhost: {self.host}\r\ncontent-type: application/json\r\n"
        head += f"authorization: Bearer {key}\r\n"
        self.writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        headers = (await self.reader.readuntil(b"\r\n\r\n")).lower()
        length = int(headers.partition(b"\r\ncontent-length:")[2].split(b"\r\n")[0])
        return await self.reader.readexactly(length)


def main() -> None:
    """Print our part of a turn."""
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(own(Path(folder)))
    print(machine())


if __name__ == "__main__":
    main()
