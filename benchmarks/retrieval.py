"""Searches a minute by 64 sessions, with a server over 20,000 passages: `agentrl bench retrieval`.

The passages are made of 30,000 words with the frequencies of a language (Zipf). Every query is new, so the cache never
answers. The CPU that a search takes is stated too, as a rate on a busy machine says little. `--passages 1000000` states
what building and searching a large index costs.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import resource
import tempfile
import time
from pathlib import Path

from agentrl.retrieval import Client, Service, build

WORDS, LENGTH = 30_000, 100


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--passages", type=int, default=20_000)
    parser.add_argument("--shard", type=int, default=1_000_000)
    parser.add_argument("--sessions", type=int, default=64)
    parser.add_argument("--searches", type=int, default=30)
    given = parser.parse_args()
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(3, 9))) for _ in range(WORDS)]
    frequencies = list(itertools.accumulate(1 / (rank + 20) for rank in range(WORDS)))

    def text(count: int) -> str:
        return " ".join(rng.choices(words, cum_weights=frequencies, k=count))

    with tempfile.TemporaryDirectory() as name:
        corpus, index = Path(name) / "corpus.jsonl", Path(name) / "index"
        with corpus.open("w") as file:
            for number in range(given.passages):
                file.write(json.dumps({"id": str(number), "contents": f"title {number}\n{text(LENGTH)}"}) + "\n")
        began = time.monotonic()
        build(corpus, index, shard=given.shard)
        size = sum(path.stat().st_size for path in index.rglob("*"))
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        print(f"built {given.passages} passages in {time.monotonic() - began:.1f} s, {size / 1e6:.1f} MB on disk, ")
        print(f"at most {memory:.2f} GB of memory; the corpus has {corpus.stat().st_size / 1e6:.1f} MB")
        server = Service(index)
        try:
            asyncio.run(_measure(server, text, given.sessions, given.searches))
            status = Path(f"/proc/{server.pid}/status").read_text()
            print("server: " + next(line for line in status.splitlines() if line.startswith("VmRSS")))
        finally:
            server.close()


def _cpu(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _measure(server: Service, text, sessions: int, searches: int) -> None:  # type: ignore[no-untyped-def]
    client = Client(server.url, timeout=300)
    await client.search([text(8)], 3)
    queries = [[text(8) for _ in range(searches)] for _ in range(sessions)]
    seconds: list[float] = []

    async def session(own: list[str]) -> None:
        for query in own:
            began = time.monotonic()
            await client.search([query], 3)
            seconds.append(time.monotonic() - began)

    began, used = time.monotonic(), (_cpu(server.pid), time.process_time())
    await asyncio.gather(*map(session, queries))
    whole = time.monotonic() - began
    there, here = _cpu(server.pid) - used[0], time.process_time() - used[1]
    seconds.sort()
    middle, late = seconds[len(seconds) // 2], seconds[int(len(seconds) * 0.99)]
    print(f"{len(seconds) / whole * 60:.0f} searches a minute by {sessions} sessions; ", end="")
    print(f"median {middle * 1e3:.0f} ms, p99 {late * 1e3:.0f} ms")
    each = (there / len(seconds), here / len(seconds))
    print(f"CPU of a search: {each[0] * 1e3:.2f} ms in the server, {each[1] * 1e3:.2f} ms in the clients; ", end="")
    print(f"with a core each that is {60 / max(each):.0f} a minute; the load was {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
