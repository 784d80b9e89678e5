"""HTTP to an inference server: JSON in, JSON or server-sent events out, every failure an `EngineError`.

A request has no timeout of its own while it generates (the caller's deadline ends it), but a connection must
come about within seconds, and control calls say how long they may take.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

import orjson

from agentrl import faults
from agentrl.errors import EngineError, InvalidInput
from agentrl.rollout.engines.servers.connections import ConnectionPool, HttpConnection

PROBE_SECONDS = 5.0
"""Seconds for calls that are made again where no answer comes."""
CONTROL_SECONDS = 300.0
"""Seconds for calls that may have to wait for a forward pass or for weights to be loaded."""
_DONE = b"data: [DONE]"
KEEP_ALIVE = "600"
"""Seconds after which a server of ours closes an idle connection: by then nobody uses it, however busy both are."""


class Http:
    """A pool of connections to one server.

    Args:
        url: its address, without a path; empty where it is not known yet (`set_url`).
        api_key: what it wants as a bearer token; None where it wants nothing.
    """

    def __init__(self, url: str, api_key: str | None = None) -> None:
        self.url = url.rstrip("/")
        self.connections = ConnectionPool(self.url, {"authorization": f"Bearer {api_key}"} if api_key else {})

    def set_url(self, url: str) -> None:
        """Call the server at another address from now on."""
        self.url = url.rstrip("/")
        self.connections.set_url(self.url)

    async def get(self, path: str, timeout: float = CONTROL_SECONDS) -> Any:
        """The JSON that a GET answers."""
        return await self._call("GET", path, None, timeout)

    async def post(
        self, path: str, body: Mapping[str, Any] | None = None, timeout: float | None = CONTROL_SECONDS
    ) -> Any:
        """The JSON that a POST answers; None where it answers nothing.

        Raises:
            InvalidInput: the server says that the request is wrong (400, 422).
            EngineError: it can't be reached, failed, or answered something else.
        """
        return await self._call("POST", path, body or {}, timeout)

    async def do(self, path: str, body: Mapping[str, Any] | None = None) -> None:
        """A control call: whatever it refuses is the server's failure, and not its caller's mistake.

        Raises:
            EngineError: it refused, or failed.
        """
        try:
            answer = await self.post(path, body)
        except InvalidInput as error:
            raise EngineError(str(error)) from None
        if isinstance(answer, dict) and answer.get("success") is False:
            raise EngineError(f"POST {self.url}{path} refused: {answer.get('message', answer)}")

    async def _call(self, method: str, path: str, body: Mapping[str, Any] | None, timeout: float | None) -> Any:
        where, content = f"{method} {self.url}{path}", b"" if body is None else orjson.dumps(body)
        try:
            async with asyncio.timeout(timeout), self.connections.request(method, path, content) as answer:
                found = await answer.whole()
        except TimeoutError:
            raise EngineError(f"{where}: no answer within {timeout:g} s") from None
        except OSError as error:
            raise EngineError(f"{where}: {type(error).__name__}: {error}") from error
        _check(answer.status, found, where)
        return _json(found, where) if found[:1] in (b"{", b"[") else None

    async def healthy(self, timeout: float = PROBE_SECONDS) -> bool:
        """Return whether the server says that it lives: vLLM without, SGLang after a token, unless it is paused."""
        try:
            await self.get("/health", timeout)
        except (EngineError, InvalidInput):
            return False
        return True

    async def events(
        self, path: str, body: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> AsyncGenerator[list[Any], None]:
        """The JSON of the server-sent events that a POST answers; leaving the iterator closes the connection.

        Those that have come together are one list: a gateway that is busy has more of them at once.

        Raises:
            InvalidInput: the server says that the request is wrong (400, 422).
            EngineError: it can't be reached, failed, hung up early, or sent something else.
        """
        where = f"POST {self.url}{path}"
        try:
            async with self.connections.request("POST", path, orjson.dumps(body), headers) as answer:
                if answer.status != 200:
                    _check(answer.status, await answer.whole(), where)
                done = False
                async with aclosing(_lines(answer)) as pieces:  # to the very end, or it can't be used again
                    async for lines in pieces:
                        done = done or _DONE in lines
                        data = [line[5:] for line in lines if line.startswith(b"data:") and line != _DONE]
                        if data:
                            yield [_json(faults.point("engine.response", one), where) for one in data]
                if done:
                    return
        except OSError as error:
            raise EngineError(f"{where}: {type(error).__name__}: {error}") from error
        raise EngineError(f"{where}: the stream broke off")

    async def close(self) -> None:
        self.connections.close()


async def _lines(answer: HttpConnection) -> AsyncGenerator[list[bytes], None]:
    """Lines as they come, ended as servers end them: models write other things that Unicode takes for an end."""
    rest = b""
    while piece := await answer.piece():
        *lines, rest = (rest + piece).split(b"\n")
        yield [line.removesuffix(b"\r") for line in lines]
    if rest:
        yield [rest]


def _check(status: int, content: bytes, where: str) -> None:
    if status < 300:
        return
    text = f"{where} answered {status}: {content[:2000].decode(errors='replace')}"
    raise InvalidInput(text) if status in (400, 422) else EngineError(text)


def _json(content: bytes | str, where: str) -> Any:
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        text = content.decode(errors="replace") if isinstance(content, bytes) else content
        raise EngineError(f"{where}: not JSON: {text[:200]!r}") from None
