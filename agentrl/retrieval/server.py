"""The retrieval server: `POST /retrieve`, with queries of concurrent requests searched together.

    agentrl retrieval serve FOLDER --port 8000

Queries that arrive while a search runs wait for the next one; equal ones are searched once, and results are kept for
later (least recently used ones are dropped). A request that has waited `timeout` seconds gets 503, and what only it
wanted is not searched any more. The request and its response are those of Search-R1's server:

    {"queries": ["who …"], "topk": 3, "return_scores": true}
    {"result": [[{"document": {"id": "7", "contents": "…"}, "score": 12.3}, …]]}      # without scores: the documents
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import orjson

from agentrl.common.foreign_errors import port_advice
from agentrl.errors import InvalidInput
from agentrl.retrieval.batches import Batches
from agentrl.retrieval.corpus import Passage
from agentrl.retrieval.index import Index

CACHED = 50_000
"""The number of results that are kept."""
TIMEOUT = 30.0
REFUSED = 3
"""The exit status of a server that can't open its index: another one could not either."""
MAX_BODY, MAX_QUERIES, MAX_QUERY, MAX_TOPK = 4 << 20, 1024, 10_000, 200
"""Limits of a request: bytes, queries, characters of a query, and passages for each."""

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class App:
    """The ASGI application."""

    def __init__(self, index: Index, cached: int = CACHED, timeout: float = TIMEOUT) -> None:
        self.index, self.timeout = index, timeout
        self.batches = Batches(self._search, cached=cached)

    async def _search(self, queries: list[str], topk: int) -> list[list[Passage]]:
        return await asyncio.to_thread(self.index.search, queries, topk)

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        status, answer = await self._answer(scope["method"], scope["path"], receive)
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": orjson.dumps(answer)})

    async def _answer(self, method: str, path: str, receive: Receive) -> tuple[int, Any]:
        if (method, path) == ("GET", "/health"):
            return 200, self._health()
        if (method, path) != ("POST", "/retrieve"):
            return 404, {"error": f"{method} {path}: there are POST /retrieve and GET /health"}
        try:
            queries, topk, scores = _request(await _body(receive))
        except InvalidInput as error:
            return 400, {"error": str(error)}
        try:
            async with asyncio.timeout(self.timeout):
                found = await self.batches.search(queries, topk)
        except TimeoutError:
            return 503, {"error": f"no result within {self.timeout:g} s"}
        except Exception as error:
            return 500, {"error": f"{type(error).__name__}: {error}"}
        return 200, {"result": [[_item(passage, scores) for passage in hits] for hits in found]}

    def _health(self) -> dict[str, Any]:
        index, batches = self.index, self.batches
        return {
            "retriever": index.retriever,
            "passages": len(index),
            "digest": index.digest,
            "searched": batches.searched,
            "from_cache": batches.from_cache,
            "batches": batches.batches,
        }


def _item(passage: Passage, scores: bool) -> dict[str, Any]:
    document = {"id": passage.id, "contents": passage.contents}
    return {"document": document, "score": passage.score} if scores else document


async def _body(receive: Receive) -> bytes:
    body, more = b"", True
    while more:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise InvalidInput("the client closed the connection")
        body, more = body + event.get("body", b""), event.get("more_body", False)
        if len(body) > MAX_BODY:
            raise InvalidInput(f"the request is larger than {MAX_BODY} bytes")
    return body


def _request(body: bytes) -> tuple[list[str], int, bool]:
    """Read a request's fields."""
    try:
        fields: Any = orjson.loads(body)
    except ValueError as error:
        raise InvalidInput(f"the request is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise InvalidInput("the request must be a JSON object with queries")
    queries, topk, scores = fields.get("queries"), fields.get("topk"), fields.get("return_scores", False)
    if not isinstance(queries, list) or not all(isinstance(query, str) for query in queries):
        raise InvalidInput("queries must be a list of texts")
    if not 0 < len(queries) <= MAX_QUERIES or any(len(query) > MAX_QUERY for query in queries):
        raise InvalidInput(f"queries: allowed are 1 to {MAX_QUERIES}, of at most {MAX_QUERY} characters each")
    topk = 3 if topk is None else topk
    if type(topk) is not int or not 0 < topk <= MAX_TOPK:
        raise InvalidInput(f"topk = {topk!r}: allowed is 1 to {MAX_TOPK}")
    if not isinstance(scores, bool):
        raise InvalidInput(f"return_scores = {scores!r}: allowed are true and false")
    return queries, topk, scores


def serve(index: Index, bound: socket.socket, *, cached: int = CACHED, timeout: float = TIMEOUT) -> None:
    """Serve on a bound socket until the process is told to end."""
    import uvicorn

    app: Any = App(index, cached, timeout)
    config = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off", ws="none")
    uvicorn.Server(config).run(sockets=[bound])


def listen(host: str, port: int) -> socket.socket:
    """A listening socket.

    Raises:
        InvalidInput: nothing can listen there.
    """
    try:
        bound = socket.create_server((host, port), backlog=1024)
    except (OSError, OverflowError) as error:
        raise InvalidInput(f"host={host} port={port}: nothing can listen there: {error}{port_advice(error)}") from None
    bound.set_inheritable(True)
    return bound
