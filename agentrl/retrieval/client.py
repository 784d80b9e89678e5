"""Sends queries to a retrieval server, and checks what comes back.

A server that is down, slow or answers nonsense is the infrastructure's fault, never the model's: within the time that a
search may take it is tried again, and then the search fails as `RetrievalError`, which ends the session as INFRA_ERROR.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import httpx
import orjson

from agentrl.errors import RetrievalError, brief
from agentrl.retrieval.corpus import Passage

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
"""Seconds between two attempts; the pause doubles."""
CONNECTIONS = 64


class Client:
    """A client of one server; used from any event loop.

    Args:
        url: the server's address, with or without /retrieve.
        timeout: seconds for a search, all attempts together.
    """

    def __init__(self, url: str, timeout: float = 30.0) -> None:
        base = url.rstrip("/")
        self.url = base if base.endswith("/retrieve") else f"{base}/retrieve"
        self.timeout = timeout
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient] = WeakKeyDictionary()

    async def search(self, queries: Sequence[str], topk: int) -> list[list[Passage]]:
        """The passages found for each query, best first.

        Raises:
            RetrievalError: the server did not answer properly within the time.
        """
        deadline, pause = time.monotonic() + self.timeout, FIRST_PAUSE
        body = orjson.dumps({"queries": list(queries), "topk": topk, "return_scores": True})
        while True:
            left = deadline - time.monotonic()
            try:
                response = await self._client().post(
                    self.url, content=body, timeout=max(left, 0.001), headers={"content-type": "application/json"}
                )
                if response.status_code == 200:
                    return _read(response.content, len(queries))
                problem = f"it answered {response.status_code}: {brief(response.text)}"
                if 400 <= response.status_code < 500 and response.status_code != 429:
                    break
            except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError) as error:
                problem = brief(f"{type(error).__name__}: {error}")
            if time.monotonic() + pause >= deadline:
                break
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        raise RetrievalError(f"the retrieval server {self.url} failed within {self.timeout:g} s; {problem}")

    def _client(self) -> httpx.AsyncClient:
        """The event loop's own connections."""
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            limits = httpx.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS)
            self._clients[loop] = httpx.AsyncClient(limits=limits, trust_env=False)
        return self._clients[loop]


def _read(content: bytes, count: int) -> list[list[Passage]]:
    """A response's passages.

    Raises:
        ValueError, KeyError, TypeError: it is not a list of passages for each of `count` queries.
    """
    result: Any = orjson.loads(content)["result"]
    if not isinstance(result, list) or len(result) != count:
        raise ValueError(f"expected results of {count} queries")
    return [[_passage(item) for item in hits] for hits in result]


def _passage(item: Any) -> Passage:
    document = item["document"]
    contents, score = document["contents"], item.get("score")
    if not isinstance(contents, str):
        raise TypeError("a document's contents are not text")
    return Passage(str(document.get("id", "")), contents, None if score is None else float(score))
