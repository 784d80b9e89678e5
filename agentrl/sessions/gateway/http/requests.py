"""Reading HTTP requests: bodies within the limits, compressed or not, keys and headers."""

from __future__ import annotations

import asyncio
import functools
import zlib
from dataclasses import replace
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from agentrl.sessions.gateway.delivery import CLIENT, GatewayClient
from agentrl.sessions.gateway.entries import SessionEntry
from agentrl.sessions.gateway.gateway import Gateway
from agentrl.sessions.gateway.http.addresses import DEPLOYMENT
from agentrl.sessions.gateway.http.api_error import ApiError
from agentrl.sessions.gateway.http.bodies import Body as RequestBody
from agentrl.sessions.gateway.http.bodies import loads, nests_deeper
from agentrl.sessions.gateway.limits import Limits
from agentrl.sessions.gateway.sizes import LARGE_BODY
from agentrl.sessions.gateway.turn_request import TurnRequest
from agentrl.sessions.gateway.workers import KEY_FIELD, bearer_key
from agentrl.types import Status

Body = TypeVar("Body", bound=BaseModel)
KEY_HEADERS = ("x-api-key", "x-goog-api-key", "api-key")
"""Headers that hold the key where `Authorization` doesn't: Anthropic's, Google's, Azure's."""
ENCODINGS = ("identity", "gzip", "x-gzip", "deflate")
"""Values of Content-Encoding that are read."""


async def authorized_body(
    gateway: Gateway, session_id: str, request: Request, conversation_field: str
) -> tuple[SessionEntry, RequestBody]:
    """The session and the body of a request for one of its turns."""
    entry = gateway.entry(session_id, key_of(request))
    data = await read_body(request, gateway.parts.limits)
    parse = functools.partial(RequestBody.parse, data, conversation_field, gateway.parts.limits.depth)
    body = parse() if len(data) < LARGE_BODY else await asyncio.to_thread(parse)
    if (named := request.scope.get(DEPLOYMENT)) and body.fields.get("model") is None:
        body = replace(body, fields={**body.fields, "model": named}, text=(*body.text, named.encode()))
    if entry.state.session.status is not Status.OPEN:
        raise ApiError(410, f"session {session_id!r} is closed", "session_closed")
    if entry.state.broken is not None:
        raise ApiError(503, f"the session could not be stored: {entry.state.broken}", "store_failed")
    return entry, body


async def json_body(request: Request, limits: Limits, empty: Any = None) -> Any:
    """The parsed body, or `empty` if there is none."""
    data = await read_body(request, limits)
    if not data and empty is not None:
        return empty
    value = loads(data)
    if nests_deeper(value, limits.depth):
        raise ApiError(400, f"the body is nested deeper than {limits.depth}", "invalid_value")
    return value


async def read_body(request: Request, limits: Limits) -> bytes:
    """The body, limited in size and time."""
    too_large = ApiError(413, f"the body is larger than {limits.body_bytes} bytes", "body_too_large")
    if int(request.headers.get("content-length") or 0) > limits.body_bytes:
        raise too_large

    async def received() -> bytes:
        pieces: list[bytes] = []
        size, more = 0, True
        while more:
            message = await request.receive()
            if message["type"] == "http.disconnect":
                raise ApiError(400, "the client disconnected before its body had arrived", "disconnected")
            pieces.append(message.get("body", b""))
            size, more = size + len(pieces[-1]), message.get("more_body", False)
            if size > limits.body_bytes:
                raise too_large
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    client: GatewayClient | None = request.scope.get(CLIENT)
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ENCODINGS:
        known = "gzip and deflate are read"
        raise ApiError(415, f"the body's Content-Encoding {encoding!r:.100} is not supported; {known}", "encoding")
    if client is not None and client.complete:
        data = await received()
    else:
        try:
            async with asyncio.timeout(limits.body_timeout):
                data = await received()
        except TimeoutError:
            raise ApiError(408, "the body did not arrive in time", "body_timeout") from None
    return data if encoding == "identity" or not data else await asyncio.to_thread(_unpack, data, limits.body_bytes)


def _unpack(data: bytes, most: int) -> bytes:
    """A body that is compressed with gzip or deflate."""
    reader = zlib.decompressobj(wbits=32 + zlib.MAX_WBITS)  # it tells the two apart by their heads
    try:
        unpacked = reader.decompress(data, most + 1)
    except zlib.error as error:
        raise ApiError(400, f"the body can't be decompressed: {error}", "invalid_encoding") from None
    if len(unpacked) > most:
        raise ApiError(413, f"the decompressed body is larger than {most} bytes", "body_too_large")
    if not reader.eof or reader.unused_data:
        raise ApiError(400, "the compressed body must be one whole stream", "invalid_encoding")
    return unpacked


def validate_body(kind: type[Body], value: Any) -> Body:
    """A body as a model; an `ApiError` names the field that is wrong."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ApiError(400, f"{place or 'body'}: {first['msg']}", "invalid_value", place or None) from None


def key_of(request: Request) -> str:
    """The key: in a protocol's header, or in the query (Google's, or after a redirect); '' if there is none."""
    headers, query = request.headers, request.query_params
    given = bearer_key(request) or next(filter(None, map(headers.get, KEY_HEADERS)), "")
    return given or query.get(KEY_FIELD) or query.get("key", "")


def note_headers(asked: TurnRequest, request: Request, gateway: Gateway, entry: SessionEntry) -> None:
    """Add to a request what its headers say of it: whether its root is excluded, and that it is tried again."""
    asked.excluded = gateway.parts.exclusion.by_header(request.headers)
    asked.key = request.headers.get("idempotency-key") or None
    if asked.retry is None and entry.state.retries.find_keyed(asked) is not None:
        asked.retry = 1


def retry_count(request: Request) -> int | None:
    """Return the number of attempts that preceded this one, by the SDK's header."""
    value = request.headers.get("x-stainless-retry-count", "")
    return int(value) if value.isdecimal() and len(value) < 6 else None
