"""HTTP to an inference server: JSON in, JSON or server-sent events out, every failure an `EngineError`.

A request has no timeout of its own while it generates (the caller's deadline ends it), but a connection must
come about within seconds, and control calls say how long they may take.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any

import httpx
import orjson

from agentrl import faults
from agentrl.errors import EngineError, InvalidInput

CONNECT_SECONDS = 10.0
CONTROL_SECONDS = 300.0
"""For calls that may have to wait for a forward pass or for weights to be loaded."""
_IDLE_SECONDS = 2.0
"""An idle connection is not used again after them: servers close one after five (uvicorn), and a request that is sent
as it is closed is lost."""
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
        self._client = httpx.AsyncClient(
            base_url=self.url,
            headers={"authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=httpx.Timeout(None, connect=CONNECT_SECONDS),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=_IDLE_SECONDS),
            trust_env=False,
        )

    def set_url(self, url: str) -> None:
        """Call the server at another address from now on."""
        self.url = url.rstrip("/")
        self._client.base_url = httpx.URL(self.url)

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
        content = None if body is None else orjson.dumps(body)
        try:
            answer = await self._client.request(
                method, path, content=content, headers=_JSON, timeout=httpx.Timeout(timeout, connect=CONNECT_SECONDS)
            )
        except (httpx.HTTPError, RuntimeError) as error:  # RuntimeError: closed by us meanwhile
            raise EngineError(f"{method} {self.url}{path}: {type(error).__name__}: {error}") from error
        _check(answer.status_code, answer.content, f"{method} {self.url}{path}")
        return _json(answer.content, f"{method} {self.url}{path}") if answer.content[:1] in (b"{", b"[") else None

    async def events(
        self, path: str, body: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> AsyncGenerator[Any, None]:
        """The JSON of each server-sent event that a POST answers; leaving the iterator closes the connection.

        Raises:
            InvalidInput: the server says that the request is wrong (400, 422).
            EngineError: it can't be reached, failed, hung up early, or sent something else.
        """
        where = f"POST {self.url}{path}"
        try:
            async with self._client.stream(
                "POST", path, content=orjson.dumps(body), headers={**_JSON, **(headers or {})}
            ) as answer:
                if answer.status_code != 200:
                    _check(answer.status_code, await answer.aread(), where)
                done = False
                async for line in _lines(answer):  # to the very end, or the connection can't be used again
                    if line == b"data: [DONE]":
                        done = True
                    elif line.startswith(b"data:"):
                        yield _json(faults.point("engine.response", line[5:]), where)
                if done:
                    return
        except (httpx.HTTPError, RuntimeError) as error:
            raise EngineError(f"{where}: {type(error).__name__}: {error}") from error
        raise EngineError(f"{where}: the stream broke off")

    async def close(self) -> None:
        """Hang up. Idempotent."""
        await self._client.aclose()


_JSON = {"content-type": "application/json"}


async def _lines(answer: httpx.Response) -> AsyncGenerator[bytes, None]:
    """Lines as servers end them: httpx ends one at all that Unicode takes for an end, and models write such things."""
    rest = b""
    async for piece in answer.aiter_bytes():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r")
    if rest:
        yield rest


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
