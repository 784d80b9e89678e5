"""Where a turn's CPU time goes, on which threads, and what the same work costs bare: parts of `gateway_load`.

profile  `agentrl serve` looks at its own event loop after each millisecond of CPU time (SIGPROF), while turns run
threads  what the kernel counts of each thread (`/proc/PID/schedstat`), with one worker and with two
floor    the echo, the tokenizer, an exchange with the inference server, a commit of SQLite: each by itself
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import runpy
import signal
import sqlite3
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import orjson

from agentrl.rollout.engines.servers.connections import ConnectionPool
from agentrl.types import Message
from benchmarks.gateway import RESULT
from benchmarks.gateway_clients import SIDE_BY_SIDE, TURNS, ClientSession, Size, speak
from benchmarks.gateway_servers import Server, gateway, renderer_of

EVERY = 0.001
"""Seconds of CPU time between two looks."""
_PARTS = (
    ("the kernel: sockets written and read", ("asyncio/selector_events",)),
    ("the kernel: waiting for events", ("/selectors.py",)),
    ("asyncio's loop, tasks, queues and time-outs", ("/asyncio/",)),
    ("tokenising what is new, in Rust", ("models/tokenizers",)),
    ("parsing the reply", ("renderers/parsing", "renderers/calls", "renderers/readers", "gateway/reading")),
    ("rendering but for tokenising", ("/renderers/", "turn_generator")),
    ("the engine's side: fleet, engine, HTTP, events", ("/rollout/", "tree/generation", "types/generation")),
    ("reading the body and its parameters", ("gateway/bodies", "turn_request", "wire/chat.py", "wire/objects")),
    ("matching to the tree, attempts and seeds", ("matching", "message_comparison", "attempts", "retries", "echoes")),
    ("adding to the tree", ("sessions/tree", "session_state")),
    ("the reply's JSON", ("wire/",)),
    ("handing over to the store", ("gateway/writer", "gateway/gateway.py", "concurrent/futures", "sessions/store")),
    ("HTTP from the client: uvicorn, connection, application", ("uvicorn", "starlette", "/gateway/")),
)
"""Parts by what a file's path holds; the innermost frame that belongs to one counts."""


# ------------------------------------------------------------------------------------- in the gateway's process


class Looks:
    """Counts in which part the main thread is, from SIGUSR1 to SIGUSR2; then they are written to a file."""

    def __init__(self, file: Path) -> None:
        self._file, self._counts = file, Counter[str]()
        signal.signal(signal.SIGPROF, self._look)
        signal.signal(signal.SIGUSR1, lambda *_: signal.setitimer(signal.ITIMER_PROF, EVERY, EVERY) and None)
        signal.signal(signal.SIGUSR2, self._end)

    def _look(self, _: int, frame: FrameType | None) -> None:
        while frame is not None:
            path = frame.f_code.co_filename
            for name, files in _PARTS:
                if any(file in path for file in files):
                    self._counts[name] += 1
                    return
            frame = frame.f_back
        self._counts["all else"] += 1

    def _end(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        written = self._file.with_suffix(".new")
        written.write_bytes(orjson.dumps(self._counts))
        written.rename(self._file)


def main() -> None:
    """Run `agentrl`, and look: `python -m benchmarks.gateway_parts FILE serve …`."""
    Looks(Path(sys.argv[1]))
    sys.argv[:2] = ["agentrl"]
    runpy.run_module("agentrl", run_name="__main__")


# -------------------------------------------------------------------------------------------- in the clients'


@contextlib.contextmanager
def _looking(server: Server, found: Path) -> Iterator[Counter[str]]:
    """Meanwhile the server looks; what it saw is in the counter afterwards."""
    counts = Counter[str]()
    server.process.send_signal(signal.SIGUSR1)
    yield counts
    server.process.send_signal(signal.SIGUSR2)
    while not found.exists():
        time.sleep(0.01)
    counts.update(orjson.loads(found.read_bytes()))
    found.unlink()


def _print_profile(counts: Counter[str], loop: float, others: float) -> None:
    """Print the parts of a turn.

    Args:
        counts: looks, by part.
        loop: CPU milliseconds of a turn on the event loop's thread.
        others: on the other threads.
    """
    waiting, whole = "the kernel: waiting for events", sum(counts.values())
    counts[waiting] = max(
        0, counts[waiting] - round(whole * others / (loop + others))
    )  # the loop waits while they work
    print(f"CPU ms per turn: {loop + others:.2f}, of which ({whole} looks at the event loop):")
    for name, count in counts.most_common():
        print(f"  {count / sum(counts.values()) * loop:.2f}  {name}")
    print(f"  {others:.2f}  the store, on its thread", flush=True)


async def profile(model: Path, folder: Path, size: Size) -> None:
    """Where the CPU time of a turn goes; sessions are opened before."""
    found = folder / "looks.json"
    async with gateway(model, folder / "profile.db", module=(__name__, str(found))) as server:
        for warm in (False, True):
            sessions = [await ClientSession.open(server.url, 1000) for _ in range(size.profiled)]
            before = thread_times(server)
            with _looking(server, found) as counts:
                for at in range(0, len(sessions), SIDE_BY_SIDE):
                    await asyncio.gather(*(speak(session, []) for session in sessions[at : at + SIDE_BY_SIDE]))
            after = thread_times(server)
            if warm:
                turns = len(sessions) * TURNS
                names = ("event loops", "store's threads")
                _print_profile(counts, *((after[name][0] - before[name][0]) / turns * 1e3 for name in names))
            for session in sessions:
                await session.close()


def thread_times(server: Server) -> dict[str, tuple[float, float]]:
    """Seconds on a core, and seconds of waiting for one: of event loops, of other threads, of the front process."""
    found = {"event loops": (0.0, 0.0), "store's threads": (0.0, 0.0), "front process": (0.0, 0.0)}
    single = len(server.processes) == 1
    for process in server.processes:
        for task in Path(f"/proc/{process.pid}/task").iterdir():
            main_thread = task.name == str(process.pid)
            with contextlib.suppress(OSError):
                on, waited, _ = map(int, (task / "schedstat").read_text().split())
                name = "event loops" if main_thread else "store's threads"
                if process.pid == server.process.pid and not single:
                    name = "front process"
                before = found[name]
                found[name] = before[0] + on / 1e9, before[1] + waited / 1e9
    return found


def print_threads(
    before: dict[str, tuple[float, float]],
    after: dict[str, tuple[float, float]],
    seconds: float,
    turns: int,
    workers: int,
) -> None:
    """Print what the threads did in these seconds."""
    spent = {name: [(b - a) for a, b in zip(before[name], after[name], strict=True)] for name in before}
    on, waited = (value / seconds / workers for value in spent["event loops"])
    print(f"an event loop is on a core {on:.0%} of the time, waits for a core {waited:.0%},", end=" ")
    print(f"for all else {max(0.0, 1 - on - waited):.0%}; CPU ms per turn:", end=" ")
    print(", ".join(f"{name} {cost[0] / turns * 1e3:.2f}" for name, cost in spent.items()), flush=True)


async def floor(model: Path, engine: Server, folder: Path) -> dict[str, float]:
    """CPU milliseconds of what a turn can't do without, each by itself."""
    renderer = renderer_of(model)
    (ids,) = renderer.render([Message(role="tool", content=RESULT.text, tool_call_id="x")])
    request = orjson.dumps({"input_ids": ids * 12, "sampling_params": {}, "stream": True})
    connections = ConnectionPool(engine.url, {})

    async def exchange() -> None:
        async with connections.request("POST", "/generate", request) as answer:
            await answer.whole()

    exchanges = []
    for _ in range(7):
        began = time.process_time()
        for _ in range(200):
            await exchange()
        exchanges.append((time.process_time() - began) / 200)
    connections.close()
    return {
        "the tokenizer's call": _least(lambda: renderer.tokenizer.encode(RESULT.text)),
        "a request to the inference server and its answer": min(exchanges) * 1e3,
        "a commit of two rows": await asyncio.to_thread(_commits, folder / "floor.db", 1),
        "the same, four turns in a commit": await asyncio.to_thread(_commits, folder / "floor4.db", 4),
    }


def _least(work: Callable[[], Any], times: int = 200) -> float:
    found = []
    for _ in range(7):
        began = time.process_time()
        for _ in range(times):
            work()
        found.append((time.process_time() - began) / times)
    return min(found) * 1e3


def _commits(path: Path, together: int) -> float:
    """A turn's share of a bare commit, journalled as the store's are."""
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = NORMAL")
    database.execute("CREATE TABLE nodes (id INTEGER PRIMARY KEY, data BLOB)")
    row = os.urandom(600)

    def commit() -> None:
        database.execute("BEGIN IMMEDIATE")
        database.executemany("INSERT INTO nodes (data) VALUES (?)", [(row,)] * 2 * together)
        database.execute("COMMIT")

    found = _least(commit)
    database.close()
    return found / together


def print_floor(bare: dict[str, float], echo: list[float], ours: list[float]) -> None:
    """Print what the parts cost bare, and the gateway's turn against their sum."""
    bare = {"the echo's turn": min(echo), **bare}
    for name, cost in bare.items():
        print(f"bare CPU ms: {cost:.3f}  {name}")
    whole = sum(bare.values()) - bare["a commit of two rows"]
    print(f"together {whole:.2f} (four turns in a commit); the gateway's turn {min(ours):.2f}, median", end=" ")
    print(f"{statistics.median(ours):.2f}: {min(ours) / whole:.2f} times what can't be left out", flush=True)


if __name__ == "__main__":
    main()
