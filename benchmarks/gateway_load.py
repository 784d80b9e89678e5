"""What the gateway costs under load, against a bare FastAPI echo: `python -m benchmarks.gateway_load`.

The gateway is `agentrl serve` with a fleet and a real tokenizer; its inference server answers at once. Each server is
a process of its own (`benchmarks.gateway_servers`), the clients are this one. The gateway's bodies are recorded and
sent to the echo again, in rounds that alternate. Parts, each by its name (all by default):

    cpu     CPU time of the server's process per turn, histories of 1k tokens, one request at a time
    wait    p50 and p99 with 16 sessions side by side, 1k tokens
    rate    turns a second at 64 sessions, with one worker and with two
    beside  p99.9 of a session of 1k tokens, alone and while 8 sessions of 128k tokens are under way
    large   how long a prompt of 10 MB takes to be refused, and the longest answer of /health meanwhile
    memory  the gateway's memory over 100,000 turns of sessions that are closed
    proxy   cpu and wait with the LiteLLM proxy beside, where `--litellm PYTHON` names an interpreter that has it
            (`pip install "litellm[proxy]"` in an environment of its own): unmodified, one model, default settings; its
            upstream is a server in a process of its own that answers at once

`--small` takes few rounds and turns. Wall-clock figures are worth something on a quiet machine only; CPU times on any.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from agentrl.models import resolve
from agentrl.types import Message
from benchmarks.gateway import Client, Wire
from benchmarks.gateway_servers import MASTER_KEY, MODEL, Server, gateway, litellm, model_folder, own, renderer_of
from benchmarks.machine import machine
from benchmarks.rendering import RESULT

TURNS = 8
"""Turns of a session, so that a history of 1k tokens stays one."""
SIDE_BY_SIDE, MANY = 16, 64
PARTS = ("cpu", "wait", "rate", "beside", "large", "memory")
SMALL = ("cpu", "wait", "rate", "memory")


@dataclass
class Size:
    """How much is measured."""

    rounds: int = 5
    memory_turns: int = 100_000


SIZE = Size()


# ---------------------------------------------------------------------------------------------- clients


@dataclass
class ClientSession:
    """A session and its connection; `bodies` are the requests that it sent."""

    wire: Wire
    client: Client = field(default_factory=Client)
    id: str = ""
    key: str = ""
    bodies: list[bytes] = field(default_factory=list)

    @classmethod
    async def open(cls, url: str, size: int) -> ClientSession:
        """A session whose history has `size` tokens, all of them stored."""
        session = cls(await Wire.open(url))
        access = orjson.loads(await session.wire.post("/sessions", b"{}"))
        session.id, session.key = access["id"], access["api_key"]
        if not access["base_url"].startswith(f"{url}/"):  # it is one of several workers'
            session.wire.writer.close()
            session.wire = await Wire.open(access["base_url"].partition("/sessions")[0])
        session.client.messages += [{"role": "user", "content": RESULT.text}] * (size // _filler_tokens())
        await session.turn()
        session.bodies.clear()
        return session

    @property
    def path(self) -> str:
        """Where its requests go."""
        return f"/sessions/{self.id}/v1/chat/completions"

    async def turn(self) -> float:
        """One more turn; its seconds."""
        body = self.client.body()
        self.bodies.append(body)
        began = time.perf_counter()
        answer = await self.wire.post(self.path, body, self.key)
        ended = time.perf_counter()
        self.client.hear(answer)
        return ended - began

    async def close(self) -> None:
        """Close the session, with a reward, and the connection."""
        await self.wire.post(f"/sessions/{self.id}/close", b'{"reward": 1.0}', self.key)
        self.wire.writer.close()


@functools.cache
def _filler_tokens() -> int:
    return len(renderer_of(resolve(MODEL)).render([Message(role="user", content=RESULT.text)])[0])


async def _echoed(server: Server, sessions: Sequence[ClientSession], together: bool) -> list[float]:
    """The seconds that each of these sessions' bodies takes at the echo, or at another server."""
    times: list[float] = []

    async def one(session: ClientSession) -> None:
        wire = await Wire.open(server.url)
        for body in session.bodies:
            began = time.perf_counter()
            answer = await wire.post(server.path or session.path, body, MASTER_KEY)
            assert server.path is None or b"tool_calls" in answer, answer[:300]
            times.append(time.perf_counter() - began)
        wire.writer.close()

    if together:
        await asyncio.gather(*map(one, sessions))
    else:
        for session in sessions:
            await one(session)
    return times


async def _speak(session: ClientSession, times: list[float]) -> None:
    times.extend([await session.turn() for _ in range(TURNS)])


def _at(times: Sequence[float], share: float) -> float:
    return sorted(times)[min(len(times) - 1, int(len(times) * share))]


async def cpu(gateway: Server, echo: Server) -> None:
    """CPU time of a turn, by the process's own clock."""
    ours, its = list[float](), list[float]()
    for round_ in range(10 * SIZE.rounds):
        sessions = [await ClientSession.open(gateway.url, 1000) for _ in range(8)]
        began = gateway.cpu()
        for session in sessions:
            for _ in range(TURNS):
                await session.turn()
        used = gateway.cpu() - began
        began = echo.cpu()
        await _echoed(echo, sessions, together=False)
        if round_ >= SIZE.rounds:  # the first ones warm both up
            ours.append(used / (8 * TURNS) * 1e3)
            its.append((echo.cpu() - began) / (8 * TURNS) * 1e3)
        for session in sessions:
            await session.close()
    _print_cpu("one session at a time", ours, its)


def _print_cpu(where: str, ours: Sequence[float], its: Sequence[float]) -> None:
    for name, times in (("gateway", ours), ("echo", its)):
        numbers = f"median {statistics.median(times):.2f}, least {min(times):.2f}"
        print(f"CPU ms per turn, 1k tokens, {where}, {name}: {numbers}")
    ratio = statistics.median(o / i for o, i in zip(ours, its, strict=True))
    print(f"ratio to the echo: median of rounds {ratio:.2f}, of the least {min(ours) / min(its):.2f}", end=" ")
    print("(aim: at most 1.0 ms)", flush=True)


async def wait(gateway: Server, echo: Server) -> None:
    """How long turns take with many sessions side by side, and their CPU time."""
    ours, its, p50s, p99s = list[float](), list[float](), list[float](), list[float]()
    used: tuple[list[float], list[float]] = [], []
    for round_ in range(SIZE.rounds + 1):
        mine, bare = list[float](), list[float]()
        cost = [0.0, 0.0]
        for _ in range(5):
            sessions = [await ClientSession.open(gateway.url, 1000) for _ in range(SIDE_BY_SIDE)]
            began = gateway.cpu(), echo.cpu()
            await asyncio.gather(*(_speak(session, mine) for session in sessions))
            bare += await _echoed(echo, sessions, together=True)
            cost[0] += gateway.cpu() - began[0]
            cost[1] += echo.cpu() - began[1]
            for session in sessions:
                await session.close()
        if round_ == 0:
            continue  # it warms both up
        p50s.append(_at(mine, 0.5) / _at(bare, 0.5))
        p99s.append(_at(mine, 0.99) / _at(bare, 0.99))
        ours += mine
        its += bare
        for costs, seconds in zip(used, cost, strict=True):
            costs.append(seconds / (5 * SIDE_BY_SIDE * TURNS) * 1e3)
    for name, times in (("gateway", ours), ("echo", its)):
        print(f"{SIDE_BY_SIDE} sessions, 1k tokens, {name}: p50 {_ms(times, 0.5)}, p99 {_ms(times, 0.99)}")
    ratios = f"p50s {statistics.median(p50s):.2f} (aim: at most 8), p99s {statistics.median(p99s):.2f} (at most 4)"
    print(f"ratio, median of {SIZE.rounds} rounds: {ratios}")
    _print_cpu(f"{SIDE_BY_SIDE} sessions side by side", *used)


async def rate(model: Path, folder: Path) -> None:
    """Turns a second with many sessions, by the number of workers; the clients use the same cores."""
    for workers in (1, 2):
        async with gateway(model, folder / f"rate{workers}.db", workers) as server:
            assert server.engine is not None
            rates, costs, others = list[float](), list[float](), list[float]()
            for round_ in range(SIZE.rounds + 1):
                sessions = [await ClientSession.open(server.url, 1000) for _ in range(MANY)]
                used, beside, began = server.cpu(), time.process_time() + server.engine.cpu(), time.perf_counter()
                await asyncio.gather(*(_speak(session, []) for session in sessions))
                if round_:
                    rates.append(MANY * TURNS / (time.perf_counter() - began))
                    costs.append((server.cpu() - used) / (MANY * TURNS) * 1e3)
                    others.append((time.process_time() + server.engine.cpu() - beside) / (MANY * TURNS) * 1e3)
                for session in sessions:
                    await session.close()
            numbers = f"{statistics.median(rates):.0f} turns/s, at most {max(rates):.0f} (aim: 1,000)"
            cost, other = statistics.median(costs), statistics.median(others)
            print(f"{MANY} sessions, 1k tokens, workers={workers}: {numbers}")
            print(f"CPU ms per turn {cost:.2f}, of the clients and the inference server {other:.2f}:", end=" ")
            print(f"at most {2000 / (cost + other):.0f} turns/s with two cores for all of them", flush=True)


def _ms(times: Sequence[float], share: float) -> str:
    return f"{_at(times, share) * 1e3:.1f} ms"


async def proxy(gateway: Server, echo: Server, other: Server) -> None:
    """The gateway, the echo and the LiteLLM proxy with the same bodies, in turns."""
    servers = {"gateway": gateway, "echo": echo, "LiteLLM proxy": other}
    used: dict[str, list[float]] = {name: [] for name in servers}
    waits: dict[str, list[float]] = {name: [] for name in servers}
    for round_ in range(4 * SIZE.rounds):
        sessions = [await ClientSession.open(gateway.url, 1000) for _ in range(SIDE_BY_SIDE)]
        for name, server in servers.items():
            began, times = server.cpu(), list[float]()
            if server is gateway:
                await asyncio.gather(*(_speak(session, times) for session in sessions))
            else:
                times = await _echoed(server, sessions, together=True)
            if round_ >= SIZE.rounds:  # the first ones warm all of them up
                used[name].append((server.cpu() - began) / (SIDE_BY_SIDE * TURNS) * 1e3)
                waits[name] += times
        for session in sessions:
            await session.close()
    for name in servers:
        cost = f"CPU ms per turn median {statistics.median(used[name]):.2f}, least {min(used[name]):.2f}"
        print(f"{SIDE_BY_SIDE} sessions, 1k tokens, {name}: {cost}; p99 {_ms(waits[name], 0.99)}")
    ratio = statistics.median(a / b for a, b in zip(used["LiteLLM proxy"], used["gateway"], strict=True))
    print(f"the proxy's CPU over the gateway's, median of rounds: {ratio:.1f}")


async def beside(gateway: Server) -> None:
    """What sessions with long histories do to another one."""

    async def turns(count: int) -> list[float]:
        times = []
        while len(times) < count:
            session = await ClientSession.open(gateway.url, 1000)
            times += [await session.turn() for _ in range(TURNS)]
            await session.close()
        return times

    async def speak(session: ClientSession) -> None:
        while True:
            await session.turn()
            await asyncio.sleep(1.0)  # an agent's tool works for a while

    await turns(200)
    alone = await turns(2000)
    sessions = [await ClientSession.open(gateway.url, 128_000) for _ in range(8)]
    speaking = [asyncio.ensure_future(speak(session)) for session in sessions]
    together = await turns(2000)
    for task in speaking:
        task.cancel()
    await asyncio.gather(*speaking, return_exceptions=True)
    rise = (_at(together, 0.999) - _at(alone, 0.999)) * 1e3
    print(f"p99.9 of a session: alone {_ms(alone, 0.999)}, beside 8 of 128k tokens {_ms(together, 0.999)}")
    print(f"it rises by {rise:.1f} ms (aim: at most 26)")


async def large(gateway: Server) -> None:
    """A prompt that can't fit, and who waits for its refusal."""
    session, health = await ClientSession.open(gateway.url, 1000), await Wire.open(gateway.url)
    text = "hello there, how are you? " * 400_000
    body = orjson.dumps({"model": "m", "messages": [{"role": "user", "content": text}]})
    refused, healths = list[float](), list[float]()

    async def watch() -> None:
        while True:
            began = time.perf_counter()
            await health.post("/health", b"", method="GET")
            healths.append(time.perf_counter() - began)
            await asyncio.sleep(0.001)

    watching = asyncio.ensure_future(watch())
    for _ in range(20):
        began = time.perf_counter()
        answer = await (await Wire.open(gateway.url)).post(session.path, body, session.key)
        refused.append(time.perf_counter() - began)
        assert b"context_length_exceeded" in answer, answer[:300]
        await asyncio.sleep(0.05)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    print(
        f"a prompt of {len(body) / 1e6:.1f} MB is refused in {_ms(refused, 0.5)}, at most {_ms(refused, 1)} (aim: 100)"
    )
    print(f"/health meanwhile: at most {_ms(healths, 1)} (aim: 50)")


async def memory(gateway: Server) -> None:
    """Whether closed sessions leave anything behind."""
    sizes, step = list[float](), SIZE.memory_turns // 10

    async def play(sessions: int) -> None:
        for _ in range(sessions):
            session = await ClientSession.open(gateway.url, 100)
            for _ in range(19):
                await session.turn()
            await session.close()

    for _ in range(12):
        await asyncio.gather(*(play(step // (4 * 20)) for _ in range(4)))
        sizes.append(gateway.megabytes())
    warm, last = sizes[1], sizes[-1]
    grown = (last - warm) * 2**20 / (10 * step)
    print(f"memory after {2 * step:,} turns {warm:.0f} MB, after {10 * step:,} more {last - warm:+.1f} MB", end=" ")
    print(f"({grown:.0f} bytes a turn): {[round(size) for size in sizes]}", flush=True)


async def measure(names: Sequence[str], python: str | None) -> None:
    """Start the servers and measure."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = model_folder(folder)
        gc.freeze()
        gc.disable()  # the clients' collector is nobody's business here
        async with gateway(model, folder / "load.db") as server, own("echo") as echo:
            for name in names:
                match name:
                    case "cpu" | "wait":
                        await {"cpu": cpu, "wait": wait}[name](server, echo)
                    case "rate":
                        await rate(model, folder)
                    case _:
                        await {"beside": beside, "large": large, "memory": memory}[name](server)
            if python is not None:
                async with litellm(python, name) as other:
                    await proxy(server, echo, other)


def main() -> None:
    words, python = sys.argv[1:], None
    if small := "--small" in words:
        words.remove("--small")
        SIZE.rounds, SIZE.memory_turns = 1, 2_400
    if "--litellm" in words:
        at = words.index("--litellm")
        python, words = words[at + 1], words[:at] + words[at + 2 :]
    if unknown := set(words) - set(PARTS):
        raise SystemExit(f"{', '.join(sorted(unknown))}: the parts are {', '.join(PARTS)}")
    print(machine(), flush=True)
    asyncio.run(measure(words or (SMALL if small else PARTS if python is None else ()), python))
    print(machine())


if __name__ == "__main__":
    main()
