"""Searches a minute by 64 sessions, with a server over 20,000 passages: `agentrl bench retrieval`.

The passages are made of 30,000 words with the frequencies of a language (Zipf). Every query is new, so the cache never
answers. Sessions search as environments do, with concurrent queries in shared requests, and, as the baseline, with a
request for each query. Another baseline is bm25s's own `retrieve` of all queries as one batch, tokenizing included,
whose scores are compared: the aim is 0.8 of its rate in the server. The CPU that a search takes is stated too, as a
rate on a busy machine says little, and that ratio is of it.
`--passages 1000000 --shard 250000 --searches 4` states what a large index costs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from agentrl.retrieval.bm25 import K1, B
from agentrl.retrieval.client import RetrievalClient
from agentrl.retrieval.index import build, open_index
from agentrl.retrieval.service import Service

WORDS, LENGTH, QUERY = 30_000, 100, 8
BLOCK = 10_000
"""Passages that are made at once."""
TOPK = 3


class Language:
    """Texts of made words, reproducible."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)
        letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
        lengths = self._rng.integers(3, 10, WORDS)
        self._words = np.array(["".join(self._rng.choice(letters, length)) for length in lengths])
        frequencies = np.cumsum(1 / (np.arange(WORDS) + 20))
        self._cumulative = frequencies / frequencies[-1]

    def texts(self, count: int, length: int) -> Iterator[str]:
        """So many texts of so many words."""
        for start in range(0, count, BLOCK):
            chosen = np.searchsorted(self._cumulative, self._rng.random((min(BLOCK, count - start), length)))
            for row in self._words[chosen]:
                yield " ".join(row)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--passages", type=int, default=20_000)
    parser.add_argument("--shard", type=int, default=1_000_000)
    parser.add_argument("--sessions", type=int, default=64)
    parser.add_argument("--searches", type=int, default=60)
    given = parser.parse_args()
    language = Language()
    queries = list(language.texts(given.sessions * given.searches, QUERY))
    with tempfile.TemporaryDirectory() as name:
        corpus, index = Path(name) / "corpus.jsonl", Path(name) / "index"
        with corpus.open("w") as file:
            for number, text in enumerate(language.texts(given.passages, LENGTH)):
                file.write(json.dumps({"id": str(number), "contents": f"title {number}\n{text}"}) + "\n")
        _build(corpus, index, given.shard)
        _search_here(index, queries[:64])
        batch = bm25s_batch(corpus, index, queries)
        server = Service(index)
        try:
            rates = [
                asyncio.run(_measure(server, queries, given.sessions, shared)) for shared in (False, True, False, True)
            ]
            alone, shared = [rate for rate, _ in rates[::2]], rates[1::2]
            print(f"shared requests: {sum(rate for rate, _ in shared) / sum(alone):.1f} times the searches a minute")
            each = min(cpu for _, cpu in shared)
            print(f"the server's rate by CPU: {batch / each:.2f} of bm25s's own in a batch (aim: at least 0.8)")
            of = psutil.Process(server.pid)
            held = sum(each.memory_info().rss for each in (of, *of.children(recursive=True)))
            print(f"server: {held / 2**20:.0f} MiB of memory, pages of index and corpus included")
        finally:
            server.close()


def _build(corpus: Path, index: Path, shard: int) -> None:
    """Build the index, and state what that took."""
    before, began, used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic(), time.process_time()
    build(corpus, index, shard=shard)
    took, used = time.monotonic() - began, time.process_time() - used
    size = sum(path.stat().st_size for path in index.rglob("*"))
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        f"built {corpus.name} of {corpus.stat().st_size / 1e6:.0f} MB in {took:.1f} s ({used:.1f} s of CPU): ", end=""
    )
    print(f"{size / 1e6:.0f} MB on disk, at most {most / 1e6:.2f} GB of memory ({before / 1e6:.2f} before)")


def _search_here(folder: Path, queries: list[str]) -> None:
    """State the time of searches without a server."""
    began = time.monotonic()
    index = open_index(folder)
    opened = time.monotonic() - began
    index.search(queries, TOPK)
    used = time.process_time()
    index.search(queries, TOPK)
    each = (time.process_time() - used) / len(queries)
    print(f"opened in {opened:.2f} s; a query takes {each * 1e3:.2f} ms of CPU in the index, no server")


def bm25s_batch(corpus: Path, folder: Path, queries: list[str]) -> float:
    """State the rate of bm25s itself, which gets all queries as one batch.

    Returns:
        Seconds of CPU for a query.

    Raises:
        SystemExit: its best passages have other scores than those of our index.
    """
    import bm25s

    texts = [json.loads(line)["contents"] for line in corpus.open()]
    model = bm25s.BM25(k1=K1, b=B, method="lucene")
    model.index(bm25s.tokenize(texts, stopwords=None, show_progress=False), show_progress=False)

    def retrieve() -> Any:
        asked = bm25s.tokenize(queries, stopwords=None, show_progress=False)
        return model.retrieve(asked, k=TOPK, show_progress=False, n_threads=1)[1]

    retrieve()
    used = time.process_time()
    scores = retrieve()
    each = (time.process_time() - used) / len(queries)
    ours = [[passage.score for passage in found] for found in open_index(folder).search(queries[:64], TOPK)]
    pairs = zip(ours, scores.tolist()[: len(ours)], strict=True)
    apart = max(abs(a - b) for one, other in pairs for a, b in zip(one, other, strict=True))
    print(f"bm25s's own batch: {each * 1e3:.2f} ms of CPU for a query; scores differ by {apart:.1e} at most")
    if apart > 1e-3:
        raise SystemExit("the scores of the index are not bm25s's")
    return each


def _cpu(pid: int) -> float:
    """Seconds of CPU that a process and those that it started have used: the server runs below one that watches it."""
    parent = psutil.Process(pid)
    times = [process.cpu_times() for process in (parent, *parent.children(recursive=True))]
    return sum(each.user + each.system for each in times)


async def _measure(server: Service, queries: list[str], sessions: int, shared: bool) -> tuple[float, float]:
    """Search for all queries, and state the rate.

    Returns:
        Searches a minute, and the server's seconds of CPU for one.
    """
    client = RetrievalClient(server.url, timeout=300, shared=shared)
    word = "shared" if shared else "alone"
    queries = [f"{query} {word}{time.monotonic_ns()}" for query in queries]  # the cache has none of them
    await client.search([f"first {word}{time.monotonic_ns()}"], TOPK)
    seconds: list[float] = []

    async def session(own: list[str]) -> None:
        for query in own:
            began = time.monotonic()
            await client.search([query], TOPK)
            seconds.append(time.monotonic() - began)

    began, used = time.monotonic(), (_cpu(server.pid), time.process_time())
    await asyncio.gather(*(session(queries[place::sessions]) for place in range(sessions)))
    whole = time.monotonic() - began
    there, here = _cpu(server.pid) - used[0], time.process_time() - used[1]
    seconds.sort()
    count, rate = len(seconds), len(seconds) / whole * 60
    middle, late = seconds[count // 2] * 1e3, seconds[int(count * 0.99)] * 1e3
    print("shared requests" if shared else "a request each", end=": ")
    print(f"{rate:.0f} searches a minute by {sessions} sessions, median {middle:.0f} ms, p99 {late:.0f} ms; ", end="")
    print(
        f"CPU of a search {there / count * 1e3:.2f} ms in the server, {here / count * 1e3:.2f} ms in the clients; ",
        end="",
    )
    print(f"load {os.getloadavg()[0]:.1f}")
    return rate, there / count


if __name__ == "__main__":
    main()
