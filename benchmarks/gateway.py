"""What the gateway costs per turn, without an engine: `python -m benchmarks.gateway [own|http]`.

own: our part of a turn in a session whose history has 1k, 8k and 32k tokens: matching, validating what is new,
rendering, parsing, building the reply, storing. Reading the client's JSON (msgspec, orjson) is reported apart,
and so is copying the path's ids to hand them to the engine. Compared with rendering and tokenising the whole
conversation again at 32k.

http: the same over a socket, from a process of clients: p50 and p99 at 1, 16 and 64 sessions side by side.
Samples of all sizes are interleaved, and medians are compared.
"""

from __future__ import annotations

import asyncio
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import orjson

from agentrl.models.tiny import build_tokenizer
from agentrl.sessions.gateway.exchange import Exchange, Parts
from agentrl.sessions.gateway.gateway import Gateway, SessionEntry
from agentrl.sessions.gateway.http.app import create_app
from agentrl.sessions.gateway.http.bodies import Body
from agentrl.sessions.gateway.http.server import running
from agentrl.sessions.gateway.limits import Limits
from agentrl.sessions.gateway.wire import chat, chat_replies
from agentrl.sessions.renderers import Renderer, get_renderer
from agentrl.sessions.store.store import Store
from agentrl.sessions.tree.turn_generator import TurnGenerator
from agentrl.types import Message, Session, Task
from benchmarks.rendering import REPLY, RESULT, TOOLS, Canned

SIZES = (1_000, 8_000, 32_000)
SAMPLES = 60
LEVELS = (1, 16, 64)


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
        self.messages += [message, {"role": "tool", "tool_call_id": call, "content": RESULT.text}]


async def one_turn(gateway: Gateway, entry: SessionEntry, client: Client) -> dict[str, float]:
    """A turn through everything but the socket; seconds by part."""
    body = client.body()
    began = time.perf_counter()
    parsed = Body.parse(body, "messages")
    loaded = time.perf_counter()
    exchange = Exchange(gateway.parts, entry.state, chat.read(parsed, gateway.parts.limits, None, False))
    await exchange.prepare()
    async for _ in exchange.events():
        pass
    reply = chat_replies.reply(exchange)
    exchange.commit()
    exchange.end()
    await gateway.save(entry.state)
    ended = time.perf_counter()
    ids = list(exchange.prompt.token_ids)
    copied = time.perf_counter()
    client.hear(reply)
    return {"json": loaded - began, "own": ended - loaded, "copy": copied - ended, "tokens": float(len(ids))}


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
        again = [_rendered_again(format_, lines[SIZES[-1]][1]) for _ in range(7)]
        await gateway.aclose()
    medians = {size: statistics.median(sample["own"] for sample in times[size]) for size in SIZES}
    for size in SIZES:
        p99 = sorted(sample["own"] for sample in times[size])[-1 - SAMPLES // 100]
        parse, copy = (statistics.median(sample[name] for sample in times[size]) for name in ("json", "copy"))
        words = f"own part p50 {medians[size] * 1e6:.0f} us, p99 {p99 * 1e6:.0f} us"
        print(f"{size:>6} tokens: {words}; apart: JSON {parse * 1e6:.0f} us, ids {copy * 1e6:.0f} us")
    whole = statistics.median(again)
    print(f"ratio 32k / 1k of our own part: {medians[SIZES[-1]] / medians[SIZES[0]]:.2f} (aim: at most 1.5)")
    print(f"rendering and tokenising 32k again: {whole * 1e3:.1f} ms")
    print(f"ratio our own part / rendering again at 32k: {medians[SIZES[-1]] / whole:.3f} (aim: at most 0.1)")


def _rendered_again(format_: Renderer, client: Client) -> float:
    began = time.perf_counter()
    messages = [
        Message.model_validate({k: v for k, v in message.items() if v is not None}) for message in client.messages
    ]
    format_.render(messages, tools=TOOLS)
    return time.perf_counter() - began


async def http(folder: Path) -> None:
    """A turn over a socket, by the history's length and by how many speak at once."""
    with Store(folder / "http.db") as store:
        format_ = renderer()
        engine: Any = Canned(format_.turn(REPLY))
        app = create_app(engine, format_, store)
        async with running(app) as url:
            for size in SIZES:
                for level in LEVELS:
                    command = [sys.executable, "-m", "benchmarks.gateway", "client", url, str(size), str(level)]
                    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
                    out, _ = await process.communicate()
                    print(out.decode().strip(), flush=True)


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


async def speak(url: str, size: int, level: int) -> None:
    """The clients' process: `level` sessions side by side, each with a history of `size` tokens."""
    each = max(10, 200 // level)
    times: list[float] = []
    ready = asyncio.Barrier(level)
    filler_tokens = len(renderer().render([Message(role="user", content=RESULT.text)])[0])

    async def session() -> None:
        wire = await Wire.open(url)
        access = orjson.loads(await wire.post("/sessions", b"{}"))
        client, path = Client(), f"/sessions/{access['id']}/v1/chat/completions"
        client.messages += [{"role": "user", "content": RESULT.text}] * (size // filler_tokens)
        for turn in range(each + 1):
            body = client.body()
            began = time.perf_counter()
            answer = await wire.post(path, body, access["api_key"])
            ended = time.perf_counter()
            client.hear(answer)
            if turn:
                times.append(ended - began)
            else:
                await ready.wait()  # the first request brings the whole history, and is not a turn among others
        if orjson.loads(answer)["usage"]["prompt_tokens"] < size * 0.9:
            raise SystemExit("the history is shorter than it should be")
        wire.writer.close()

    await asyncio.gather(*(session() for _ in range(level)))
    times.sort()
    p50, p99 = times[len(times) // 2], times[min(len(times) - 1, len(times) * 99 // 100)]
    print(f"{size:>6} tokens, {level:>2} sessions: p50 {p50 * 1e3:.2f} ms, p99 {p99 * 1e3:.2f} ms a turn")


def main() -> None:
    what = sys.argv[1:] or ["own", "http"]
    if what[0] == "client":
        asyncio.run(speak(what[1], int(what[2]), int(what[3])))
        return
    with tempfile.TemporaryDirectory() as folder:
        for name, benchmark in (("own", own), ("http", http)):
            if name in what:
                asyncio.run(benchmark(Path(folder)))
    print(f"machine: {platform.processor() or platform.machine()}, Python {platform.python_version()}")


if __name__ == "__main__":
    main()
