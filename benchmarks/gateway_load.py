"""What the gateway costs under load, against a bare FastAPI echo: `python -m benchmarks.gateway_load`.

The gateway is `agentrl serve` with a fleet and a real tokenizer; its inference server answers at once. Each server is
a process of its own (`benchmarks.gateway_servers`), the clients are this one. The gateway's bodies are recorded and
sent to the echo again, in rounds that alternate. Parts, each by its name (all by default):

    cpu     CPU time of the server's process per turn, histories of 1k tokens, one request at a time
    wait    p50 and p99 with 16 sessions side by side, 1k tokens
    rate    turns a second at 64 sessions, with one worker and with two, and what their threads wait for
    profile where the CPU time of a turn goes, with 16 sessions side by side (`benchmarks.gateway_parts`)
    floor   what the parts of a turn that it can't do without cost by themselves
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
import gc
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from benchmarks.gateway import Wire
from benchmarks.gateway_clients import SIDE_BY_SIDE, TURNS, ClientSession, Size, echoed, speak
from benchmarks.gateway_parts import floor as bare_costs
from benchmarks.gateway_parts import print_floor, print_threads, profile, thread_times
from benchmarks.gateway_servers import Server, gateway, litellm, model_folder, own
from benchmarks.machine import machine

MANY = 64
PARTS = ("cpu", "wait", "rate", "profile", "floor", "beside", "large", "memory")
ALONE = {"rate", "profile"}
"""Parts that start servers of their own; they come first."""
SMALL = ("cpu", "wait", "rate", "profile", "floor", "memory")


SIZE = Size()


def _at(times: Sequence[float], share: float) -> float:
    return sorted(times)[min(len(times) - 1, int(len(times) * share))]


async def cpu(gateway: Server, echo: Server) -> None:
    """CPU time of a turn, by the process's own clock."""
    _print_cpu("one session at a time", *await _costs(gateway, echo))


async def _costs(gateway: Server, echo: Server) -> tuple[list[float], list[float]]:
    """CPU milliseconds of a turn and of an echo, in rounds."""
    ours, its = list[float](), list[float]()
    for round_ in range(10 * SIZE.rounds):
        sessions = [await ClientSession.open(gateway.url, 1000) for _ in range(8)]
        began = gateway.cpu()
        for session in sessions:
            for _ in range(TURNS):
                await session.turn()
        used = gateway.cpu() - began
        began = echo.cpu()
        await echoed(echo, sessions, together=False)
        if round_ >= SIZE.rounds:  # the first ones warm both up
            ours.append(used / (8 * TURNS) * 1e3)
            its.append((echo.cpu() - began) / (8 * TURNS) * 1e3)
        for session in sessions:
            await session.close()
    return ours, its


async def floor(gateway: Server, echo: Server, model: Path, folder: Path) -> None:
    """The gateway's turn against what its parts cost bare, in one run."""
    ours, its = await _costs(gateway, echo)
    assert gateway.engine is not None
    print_floor(await bare_costs(model, gateway.engine, folder), its, ours)


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
            await asyncio.gather(*(speak(session, mine) for session in sessions))
            bare += await echoed(echo, sessions, together=True)
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


async def rate(model: Path, folder: Path, size: Size) -> None:
    """Turns a second with many sessions, by the number of workers; the clients use the same cores."""
    for workers in (1, 2):
        async with gateway(model, folder / f"rate{workers}.db", workers) as server:
            assert server.engine is not None
            rates, costs, others = list[float](), list[float](), list[float]()
            threads: tuple[Any, ...] = ()
            for round_ in range(size.rounds + 1):
                sessions = [await ClientSession.open(server.url, 1000) for _ in range(MANY)]
                before = thread_times(server)
                used, beside, began = server.cpu(), time.process_time() + server.engine.cpu(), time.perf_counter()
                await asyncio.gather(*(speak(session, []) for session in sessions))
                if round_:
                    threads = before, thread_times(server), time.perf_counter() - began
                    rates.append(MANY * TURNS / threads[2])
                    costs.append((server.cpu() - used) / (MANY * TURNS) * 1e3)
                    others.append((time.process_time() + server.engine.cpu() - beside) / (MANY * TURNS) * 1e3)
                for session in sessions:
                    await session.close()
            numbers = f"{statistics.median(rates):.0f} turns/s, at most {max(rates):.0f} (aim: 1,000)"
            cost, other = statistics.median(costs), statistics.median(others)
            print(f"{MANY} sessions, 1k tokens, workers={workers}: {numbers}")
            print(f"CPU ms per turn {cost:.2f}, of the clients and the inference server {other:.2f}:", end=" ")
            print(f"at most {2000 / (cost + other):.0f} turns/s with two cores for all of them", flush=True)
            print_threads(*threads, MANY * TURNS, workers)


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
                await asyncio.gather(*(speak(session, times) for session in sessions))
            else:
                times = await echoed(server, sessions, together=True)
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

    async def go_on(session: ClientSession) -> None:
        while True:
            await session.turn()
            await asyncio.sleep(1.0)  # an agent's tool works for a while

    await turns(200)
    alone = await turns(2000)
    sessions = [await ClientSession.open(gateway.url, 128_000) for _ in range(8)]
    speaking = [asyncio.ensure_future(go_on(session)) for session in sessions]
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
        for name in names:
            if name in ALONE:
                await {"rate": rate, "profile": profile}[name](model, folder, SIZE)
        if python is None and not set(names) - ALONE:
            return
        async with gateway(model, folder / "load.db") as server, own("echo") as echo:
            for name in names:
                match name:
                    case "cpu" | "wait":
                        await {"cpu": cpu, "wait": wait}[name](server, echo)
                    case "floor":
                        await floor(server, echo, model, folder)
                    case "beside" | "large" | "memory":
                        await {"beside": beside, "large": large, "memory": memory}[name](server)
            if python is not None:
                async with litellm(python, name) as other:
                    await proxy(server, echo, other)


def main() -> None:
    words, python = sys.argv[1:], None
    if small := "--small" in words:
        words.remove("--small")
        SIZE.rounds, SIZE.memory_turns, SIZE.profiled = 1, 2_400, 32
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
