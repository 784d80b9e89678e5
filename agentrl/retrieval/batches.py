"""Searches of concurrent callers, many queries at once.

The server searches its index so, and a client sends its requests so: what a request costs (a thread's wake-up there,
HTTP and JSON on both sides) is several times what a query costs.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from agentrl.retrieval.corpus import Passage

BATCH = 256
"""Queries that are searched at once."""

Query = tuple[str, int]
"""A text, and how many passages are wanted."""
Search = Callable[[list[str], int], Awaitable[list[list[Passage]]]]
"""Finds the passages of several queries, so many for each."""


class Batches:
    """Searches for concurrent callers, many queries at once; for one event loop.

    Queries that arrive while `at_once` searches run wait for the next one; equal ones are searched once. What nobody
    waits for any more is not searched.

    Args:
        search: finds the passages.
        cached: results that are kept for later; the least recently used are dropped.
        at_once: searches that may run at the same time.

    Attributes:
        searched: queries that were searched.
        from_cache: queries that were answered without.
        batches: searches.
    """

    def __init__(self, search: Search, *, cached: int = 0, at_once: int = 1) -> None:
        self.searched, self.from_cache, self.batches = 0, 0, 0
        self._search, self._cached, self._at_once = search, cached, at_once
        self._cache: OrderedDict[Query, list[Passage]] = OrderedDict()
        self._waiting: OrderedDict[Query, asyncio.Future[list[Passage]]] = OrderedDict()
        self._callers: dict[asyncio.Future[list[Passage]], int] = {}
        self._runners: set[asyncio.Task[None]] = set()

    async def search(self, queries: list[str], topk: int) -> list[list[Passage]]:
        """The passages of each query."""
        futures = [self._future((query, topk)) for query in queries]
        for future in futures:
            self._callers[future] = self._callers.get(future, 0) + 1
        try:
            return [await asyncio.shield(future) for future in futures]
        finally:
            for future in futures:
                self._release(future)

    def _future(self, query: Query) -> asyncio.Future[list[Passage]]:
        """The future that gets a query's passages, or has them."""
        if query in self._waiting:
            return self._waiting[query]
        future: asyncio.Future[list[Passage]] = asyncio.get_running_loop().create_future()
        if query in self._cache:
            self._cache.move_to_end(query)
            self.from_cache += 1
            future.set_result(self._cache[query])
            return future
        self._waiting[query] = future
        if len(self._runners) < self._at_once:
            self._runners.add(asyncio.create_task(self._run()))
        return future

    def _release(self, future: asyncio.Future[list[Passage]]) -> None:
        self._callers[future] -= 1
        if not self._callers[future]:
            del self._callers[future]

    async def _run(self) -> None:
        await asyncio.sleep(0)  # queries that are here already join the first batch
        while batch := self._next():
            self.batches += 1
            try:
                found = await self._search([text for text, _ in batch], next(iter(batch))[1])
                answered = list(zip(batch.items(), found, strict=True))
            except Exception as error:
                for future in batch.values():
                    future.set_exception(error)
                    future.exception()  # its callers may have gone
                continue
            self.searched += len(batch)
            for (query, future), hits in answered:
                future.set_result(hits)
                self._cache[query] = hits
            while len(self._cache) > self._cached:
                self._cache.popitem(last=False)
        self._runners.discard(asyncio.current_task())  # at once: the next query starts another

    def _next(self) -> dict[Query, asyncio.Future[list[Passage]]]:
        """The queries that are searched next: they have callers, and want as many passages as the first of them."""
        self._waiting = OrderedDict(item for item in self._waiting.items() if item[1] in self._callers)
        topk = next((query[1] for query in self._waiting), 0)
        chosen = [query for query in self._waiting if query[1] == topk][:BATCH]
        return {query: self._waiting.pop(query) for query in chosen}
