"""How late `/health` is while a gateway reads very many short messages: `python -m benchmarks.many_messages`.

A gateway in a process of its own gets one request after another, and another process asks for `/health` all the time.
Printed for each number of messages: the seconds of the request, and the slowest answer of `/health` meanwhile, beside
that of a gateway that has nothing to do, as medians of rounds. More messages than a gateway takes by default are
tried with that limit (413) and without.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import orjson

from agentrl.sessions.gateway.http.app import create_app
from agentrl.sessions.gateway.http.server import running
from agentrl.sessions.gateway.limits import Limits
from agentrl.sessions.store.store import Store
from agentrl.types import Health
from benchmarks.gateway import REPLY, Canned, renderer

CASES = [(10_000, Limits().messages), (100_000, Limits().messages), (100_000, 1_000_000)]
ROUNDS = 3


class Healthy(Canned):
    """Says that it is well."""

    async def health(self) -> Health:
        """Return that it is."""
        return Health(ok=True)


async def serve(most: int) -> None:
    """Serve until the input ends."""
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder) / "sessions.db") as store:
        format_ = renderer()
        engine: Any = Healthy(format_.turn(REPLY))
        app = create_app(engine, format_, store, limits=Limits(messages=most))
        async with running(app) as url:
            print(url, flush=True)
            await asyncio.to_thread(sys.stdin.read)


def slowest(url: str, ended: threading.Event, found: list[float]) -> None:
    """Ask for `/health` until it has ended."""
    with httpx.Client(timeout=120) as client:
        while not ended.is_set():
            began = time.perf_counter()
            assert client.get(f"{url}/health").status_code == 200
            found.append(time.perf_counter() - began)
            time.sleep(0.005)


def measure(url: str, body: bytes | None) -> tuple[float, float, int]:
    """Seconds of a request (or of half a second without one), the slowest `/health` meanwhile, and the status."""
    ended, found, status = threading.Event(), list[float](), 0
    watch = threading.Thread(target=slowest, args=(url, ended, found))
    watch.start()
    began = time.perf_counter()
    if body is None:
        time.sleep(0.5)
    else:
        access = httpx.post(f"{url}/sessions", json={}, timeout=120).json()
        headers = {"authorization": f"Bearer {access['api_key']}", "content-type": "application/json"}
        address = f"{access['base_url']}/chat/completions"
        status = httpx.post(address, content=body, headers=headers, timeout=600).status_code
    seconds = time.perf_counter() - began
    ended.set()
    watch.join()
    return seconds, max(found), status


def main() -> None:
    """Run all cases."""
    if len(sys.argv) > 1:
        asyncio.run(serve(int(sys.argv[1])))
        return
    for count, most in CASES:
        command = [sys.executable, "-m", "benchmarks.many_messages", str(most)]
        body = orjson.dumps({"model": "m", "messages": [{"role": "user", "content": "a"}] * count})
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            idle = statistics.median(measure(url, None)[1] for _ in range(ROUNDS))
            rows = [measure(url, body) for _ in range(ROUNDS)]
            process.stdin.close()
        late = [each[1] for each in rows]
        seconds, middle = statistics.median(each[0] for each in rows), statistics.median(late)
        print(f"{count:,} messages of at most {most:,}: status {rows[0][2]}, {seconds:.2f} s;", end=" ")
        worst = max(late) * 1000
        print(f"/health after {middle * 1000:.0f} ms at the latest (worst {worst:.0f}), idle {idle * 1000:.0f} ms")


if __name__ == "__main__":
    main()
