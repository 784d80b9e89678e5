"""Requests for other models, embeddings above all, are sent on to one address of the settings.

What is forwarded is no turn: nothing of it is stored, trained or seen by the engine, and it is counted. The path is one
of those that the gateway has itself, the models are listed, and the key is the setting's, so that a client chooses
neither address nor account.
"""

from __future__ import annotations

import asyncio

import httpx2
import orjson
from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

from agentrl.config.gateway import ForwardConfig
from agentrl.sessions.gateway.delivery import count_request, send_error
from agentrl.sessions.gateway.entries import SessionEntry
from agentrl.sessions.gateway.gateway import Gateway
from agentrl.sessions.gateway.http.api_error import ApiError
from agentrl.sessions.gateway.http.bodies import Body

COUNTER = "gateway/forwarded"
_KEPT = ("content-type", "content-encoding", "retry-after")
_ANTHROPIC = "2023-06-01"


class Forwarding:
    """Sends requests on."""

    def __init__(self, config: ForwardConfig) -> None:
        self._config, self._client = config, None if config.url is None else httpx2.AsyncClient(follow_redirects=False)

    def takes(self, body: Body) -> bool:
        """Return whether a request is for another model."""
        return self._client is not None and body.fields.get("model") in self._config.models

    def reply(self, gateway: Gateway, entry: SessionEntry, path: str, body: Body, field: str) -> Response:
        """The other server's reply.

        Args:
            gateway: counts it among the requests in progress.
            entry: the session whose program sent it.
            path: the endpoint, below `v1`.
            body: the request.
            field: the parameter that holds its conversation.

        Raises:
            ApiError: no address is set.
        """
        if self._client is None or self._config.url is None:
            raise ApiError(404, f"{path} is not served here: gateway.forward.url names a server that does", "not_found")
        headers = {"content-type": "application/json"}
        if path == "messages":
            headers["anthropic-version"] = _ANTHROPIC
        if self._config.key is not None:
            key = self._config.key.get_secret_value()
            headers |= {"x-api-key": key} if path == "messages" else {"authorization": f"Bearer {key}"}
        url = f"{self._config.url.rstrip('/')}/{path}"
        request = self._client.build_request("POST", url, content=_text(body, field), headers=headers)
        return _Forwarded(gateway, entry, request, self._client)

    async def close(self) -> None:
        """Close the connections to other models' servers."""
        if self._client is not None:
            await self._client.aclose()


def _text(body: Body, field: str) -> bytes:
    """The request's JSON, in its client's own bytes."""
    names, values = body.text[::2], body.text[1::2]
    members = [orjson.dumps(name.decode()) + b":" + value for name, value in zip(names, values, strict=True)]
    if body.history is not None:
        members.append(orjson.dumps(field) + b":" + body.history.raw)
    return b"{" + b",".join(members) + b"}"


class _Forwarded(Response):
    """Passes a reply on as it comes."""

    def __init__(
        self, gateway: Gateway, entry: SessionEntry, request: httpx2.Request, client: httpx2.AsyncClient
    ) -> None:
        super().__init__()
        self._gateway, self._entry, self._request, self._http = gateway, entry, request, client

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the request on, and its reply back, unless there are too many in progress."""
        try:
            with count_request(self._gateway, self._entry):
                self._entry.state.session.count(COUNTER)
                await self._pass_on(send)
        except ApiError as error:
            await send_error(send, error, "openai")

    async def _pass_on(self, send: Send) -> None:
        """Send both on; a failure before the reply is an error of the gateway."""
        began = False
        try:
            async with asyncio.timeout(self._entry.turn_timeout):
                answer = await self._http.send(self._request, stream=True)
                try:
                    kept = [(n.encode(), answer.headers[n].encode()) for n in _KEPT if n in answer.headers]
                    await send({"type": "http.response.start", "status": answer.status_code, "headers": kept})
                    began = True
                    async for piece in answer.aiter_raw():
                        await send({"type": "http.response.body", "body": piece, "more_body": True})
                    await send({"type": "http.response.body", "body": b""})
                finally:
                    await answer.aclose()
        except (httpx2.HTTPError, TimeoutError) as failure:
            if began:
                raise  # the connection ends, so that the client does not take a part for the whole
            message = f"the server of gateway.forward failed: {type(failure).__name__}"
            raise ApiError(503, message, "forward_failed", retry_after=1) from failure
