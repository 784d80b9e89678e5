"""The addresses of Google's API under a session's own.

    POST {session}/v1beta/models/{model}:generateContent         a reply
    POST {session}/v1beta/models/{model}:streamGenerateContent   the same as events (?alt=sse)
    POST {session}/v1beta/models/{model}:countTokens
    GET  {session}/v1beta/models, …/{model}

Requests for turns may have `v1` in place of `v1beta`, which newer clients send.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from agentrl.sessions.gateway.delivery import Delivery
from agentrl.sessions.gateway.exchange import Exchange
from agentrl.sessions.gateway.gateway import Gateway
from agentrl.sessions.gateway.google import replies, requests
from agentrl.sessions.gateway.http import openapi
from agentrl.sessions.gateway.http.api_error import ApiError
from agentrl.sessions.gateway.http.bodies import Body
from agentrl.sessions.gateway.http.requests import authorized_body, key_of, note_headers, retry_count

METHODS = ("generateContent", "streamGenerateContent", "countTokens")
_PATH = "/sessions/{session_id}/v1beta/models"


def add_google(app: FastAPI, gateway: Gateway) -> None:
    """Add the addresses to a gateway's application."""
    codes = (200, 400, 401, 404, 408, 410, 413, 415, 429, 500, 503)

    described = openapi.protocol_request(METHODS[0], *codes)

    @app.post(f"{_PATH}/{{call:path}}", **described)
    @app.post(f"{_PATH.replace('v1beta', 'v1')}/{{call:path}}", name="call_v1", **described)
    async def call(session_id: str, call: str, request: Request) -> Response:
        """A turn, or how many tokens its prompt has."""
        model, _, method = call.rpartition(":")
        if method not in METHODS or not model:
            gateway.entry(session_id, key_of(request))
            raise ApiError(404, f"{call!r:.200}: the methods of a model are {', '.join(METHODS)}", "not_found")
        stream = method == "streamGenerateContent"
        if stream and request.query_params.get("alt") != "sse":
            raise ApiError(400, "streamGenerateContent needs ?alt=sse", "unsupported_parameter", "alt")
        entry, body = await authorized_body(gateway, session_id, request, requests.CONTENTS)
        if method == "countTokens":
            body = _read_counted(body)
        speaker = entry.speaker(model)
        can = speaker.parts.engine.capabilities.json_schema
        asked = requests.read(body, speaker.limits, model, stream, retry_count(request), can)
        asked.agent = speaker.agent
        note_headers(asked, request, gateway, entry)
        exchange = Exchange(speaker.parts, entry.state, asked)
        if method == "countTokens":
            return JSONResponse({"totalTokens": await exchange.count()})
        return Delivery(gateway, entry, exchange, replies.reply, replies.stream, "google")

    @app.get(_PATH, responses=openapi.answers(200, 401, 410))
    async def models(session_id: str, request: Request) -> Response:
        """The models behind this gateway."""
        names = gateway.entry(session_id, key_of(request)).models(gateway.model)
        return JSONResponse({"models": [describe_model(name) for name in names]})

    @app.get(f"{_PATH}/{{model:path}}", responses=openapi.answers(200, 401, 410))
    async def model(session_id: str, model: str, request: Request) -> Response:
        """The same, by whatever name its client calls it."""
        gateway.entry(session_id, key_of(request))
        return JSONResponse(describe_model(model))


def _read_counted(body: Body) -> Body:
    """The conversation, or the whole request, that is to be counted."""
    whole = body.fields.get("generateContentRequest")
    if not isinstance(whole, dict):
        return body
    fields = {name: value for name, value in whole.items() if name != requests.CONTENTS}
    contents = whole.get(requests.CONTENTS)
    return Body({**fields, **({} if contents is None else {requests.CONTENTS: contents})}, None)


def describe_model(name: str) -> dict[str, Any]:
    """A model as Google's API describes it."""
    return {"name": f"models/{name}", "displayName": name, "version": "1", "supportedGenerationMethods": list(METHODS)}
