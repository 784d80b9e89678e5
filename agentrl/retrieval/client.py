"""Sends queries to a retrieval server, and checks what comes back.

A server that is down, slow or answers nonsense is the infrastructure's fault, never the model's: within the time that a
search may take it is tried again, and then the search fails as `RetrievalError`, which ends the session as INFRA_ERROR.

A search's first attempt shares a request with those of other sessions (see `batches`); further ones have requests of
their own, so that no session's query can fail another's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import httpx
import orjson

from agentrl.errors import RetrievalError, brief
from agentrl.retrieval.batches import Batches, Search
from agentrl.retrieval.corpus import Passage

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
"""Seconds between two attempts; the pause doubles."""
CONNECTIONS = 64
SHARED = 2
"""Shared requests at the same time: while the server searches for one, the next is on its way."""
MAX_QUERY = 10_000
"""Characters of a query that are sent: what a model wrote beyond is left out, where the server would refuse it all."""
FAULTS = (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError, TimeoutError)
"""Errors of requests to a server that is down, slow or garbled."""


class RetrievalClient:
    """A client of one server; used from any event loop.

    Args:
        url: the server's address, with or without /retrieve.
        timeout: seconds for a search, all attempts together.
        shared: whether concurrent searches share requests.
    """

    def __init__(self, url: str, timeout: float = 30.0, *, shared: bool = True) -> None:
        base = url.rstrip("/")
        self.url = base if base.endswith("/retrieve") else f"{base}/retrieve"
        self.timeout, self.shared = timeout, shared
        self._senders: WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[Search, Search]] = WeakKeyDictionary()

    async def search(self, queries: Sequence[str], topk: int) -> list[list[Passage]]:
        """The passages found for each query, best first.

        Raises:
            RetrievalError: the server did not answer properly within the time.
        """
        deadline, pause = time.monotonic() + self.timeout, FIRST_PAUSE
        asked = [_as_text(query[:MAX_QUERY]) for query in queries]
        shared, alone = self._own()
        send = shared if self.shared else alone
        while True:
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    return await send(asked, topk)
            except httpx.HTTPStatusError as error:
                status = error.response.status_code
                problem = f"it answered {status}: {brief(error.response.text)}"
                if send is alone and 400 <= status < 500 and status != 429:
                    break
            except FAULTS as error:
                problem = brief(f"{type(error).__name__}: {error}")
            if time.monotonic() + pause >= deadline:
                break
            await asyncio.sleep(pause)
            send, pause = alone, min(2 * pause, LONGEST_PAUSE)
        raise RetrievalError(f"the retrieval server {self.url} failed within {self.timeout:g} s; {problem}")

    def _own(self) -> tuple[Search, Search]:
        """The event loop's ways to send queries over its own connections: in shared requests, or each in its own."""
        loop = asyncio.get_running_loop()
        if loop not in self._senders:
            limits = httpx.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS)
            http = httpx.AsyncClient(limits=limits, trust_env=False, timeout=self.timeout)
            alone = partial(_post, http, self.url)
            self._senders[loop] = Batches(alone, at_once=SHARED).search, alone
        return self._senders[loop]


def _as_text(query: str) -> str:
    """The same with a question mark for each half of a surrogate pair, which models write in JSON's escapes."""
    return query.encode(errors="replace").decode()


async def _post(http: httpx.AsyncClient, url: str, queries: list[str], topk: int) -> list[list[Passage]]:
    """Send one request.

    Raises:
        One of `FAULTS`: it was not answered properly.
    """
    body = orjson.dumps({"queries": queries, "topk": topk, "return_scores": True})
    response = await http.post(url, content=body, headers={"content-type": "application/json"})
    return _read(response.raise_for_status().content, len(queries), topk)


def _read(content: bytes, count: int, topk: int) -> list[list[Passage]]:
    """A response's passages, the first `topk` of each query: some servers give as many as they were set to.

    Raises:
        ValueError, KeyError, TypeError: it is not a list of passages for each of `count` queries.
    """
    result: Any = orjson.loads(content)["result"]
    if not isinstance(result, list) or len(result) != count:
        raise ValueError(f"expected results of {count} queries")
    return [[_passage(item) for item in hits[:topk]] for hits in result]


def _passage(item: Any) -> Passage:
    document = item["document"]
    contents, score = document["contents"], item.get("score")
    if not isinstance(contents, str):
        raise TypeError("a document's contents are not text")
    return Passage(str(document.get("id", "")), contents, None if score is None else float(score))
