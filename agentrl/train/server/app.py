"""The training server's web application: who asks, and which of the wire's addresses it is.

    GET  /health                     how much there is to do; needs no key
    POST /api/v1/forward_backward    a Protocol Buffers message; all others are JSON (`routes`)
    POST /api/v1/retrieve_future     the answer to a request, or 408 after a while: ask again

The key is in `X-API-Key`. Codes are chosen by what the SDK does with them: it repeats 408, 409, 429 and 5xx, so what it
can't solve by that is another one; an address that is not here is 404 and says so.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from agentrl.errors import InvalidInput
from agentrl.sessions.gateway.http.api_error import ApiError, api_error_for
from agentrl.sessions.gateway.http.app import answer
from agentrl.sessions.gateway.http.requests import json_body, key_of, read_body, validated
from agentrl.sessions.gateway.limits import Limits
from agentrl.train.server.bodies import RetrieveFuture
from agentrl.train.server.messages import read_pass_request
from agentrl.train.server.routes import ROUTES, Asked
from agentrl.train.server.served_run import Answer, Work
from agentrl.train.server.service import TrainingService
from agentrl.train.server.tenants import Tenant

logger = logging.getLogger(__name__)
PREFIX = "/api/v1"
Endpoint = Callable[[Request], Awaitable[Response]]


def create_training_app(service: TrainingService) -> FastAPI:
    """Return the application of a service."""
    limits = Limits(body_bytes=service.config.request_bytes)
    app = FastAPI(title="agentrl training server", version="1", description=__doc__, openapi_url=None)

    def add(method: str, path: str, endpoint: Endpoint) -> None:
        app.add_route(path, endpoint, methods=[method])

    async def health(request: Request) -> Response:
        return answer(service.health())

    add("GET", "/health", health)
    add("POST", f"{PREFIX}/forward_backward", _passes(service, limits))
    add("POST", f"{PREFIX}/retrieve_future", _retrieval(service, limits))
    for (method, path), handle in ROUTES.items():
        add(method, f"{PREFIX}/{path}", _json(service, limits, handle))
    app.add_exception_handler(ApiError, _failed)
    app.add_exception_handler(InvalidInput, _failed)
    app.add_exception_handler(HTTPException, _no_route)
    app.add_exception_handler(Exception, _failed)
    return app


def _tenant(service: TrainingService, request: Request) -> Tenant:
    return service.tenants.with_key(key_of(request))


def _json(service: TrainingService, limits: Limits, handle: Callable[[Asked], Any]) -> Endpoint:
    """An address whose requests and replies are JSON."""

    async def endpoint(request: Request) -> Response:
        tenant = _tenant(service, request)
        body = {} if request.method == "GET" else await json_body(request, limits, empty={})
        found = handle(Asked(service, tenant, body, request.path_params, request.query_params))
        return answer(found)

    return endpoint


def _passes(service: TrainingService, limits: Limits) -> Endpoint:
    """Where data come to be trained on."""

    async def endpoint(request: Request) -> Response:
        tenant = _tenant(service, request)
        data = await read_body(request, limits)
        asked = read_pass_request(data)
        run = tenant.run(asked.model_id)
        return answer(service.submit(tenant, run, asked.seq_id, Work("forward_backward", data)))

    return endpoint


def _retrieval(service: TrainingService, limits: Limits) -> Endpoint:
    """Where answers are."""

    async def endpoint(request: Request) -> Response:
        tenant = _tenant(service, request)
        request_id = validated(RetrieveFuture, await json_body(request, limits)).request_id
        found: Answer | None = await service.retrieve(tenant, request_id)
        if found is None:
            waits = {"type": "try_again", "request_id": request_id, "queue_state": "active"}
            return answer(waits, 408)
        return Response(found.body, media_type=found.media)

    return endpoint


async def _failed(request: Request, error: Exception) -> Response:
    found = api_error_for(error)
    if found.status == 500:
        logger.error("a request failed", exc_info=error)
    return answer(found.body("openai"), found.status, found.headers)


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what = f"{request.method} {request.url.path[:200]}"
    message = f"{what} is not served here; docs/training_server.md lists what is"
    return await _failed(
        request, ApiError(404 if error.status_code == 405 else error.status_code, message, "not_found")
    )
