"""The gateway's web application: sessions, and the protocols under each session's own address.

    POST /sessions                          a session: {id, base_url, anthropic_base_url, google_base_url, api_key}
    GET  /sessions/{id}                     its tree
    POST /sessions/{id}/reward, …/close
    …    /sessions/{id}/v1/…                the endpoints of OpenAI's and Anthropic's APIs
    …    /sessions/{id}/v1beta/…            those of Google's (`google`)

The session's key is in `Authorization: Bearer` or `x-api-key`, whichever the client uses.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import weakref
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, cast
from urllib.parse import quote

import orjson
from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from agentrl.config.gateway import ONE_TURN, ForwardConfig
from agentrl.errors import InvalidInput, brief
from agentrl.prometheus import TYPE, page
from agentrl.sessions.gateway.completion_exchange import CompletionExchange
from agentrl.sessions.gateway.delivery import Delivery, Reply, Stream
from agentrl.sessions.gateway.exchange import Exchange, Parts
from agentrl.sessions.gateway.exclusion import Exclusion
from agentrl.sessions.gateway.gateway import Gateway
from agentrl.sessions.gateway.google.routes import add_google
from agentrl.sessions.gateway.http import openapi
from agentrl.sessions.gateway.http.addresses import DEPLOYMENT, deployment_in, plain_path
from agentrl.sessions.gateway.http.api_error import ApiError, Style, api_error_for
from agentrl.sessions.gateway.http.bodies import Body as RequestBody
from agentrl.sessions.gateway.http.forwarding import Forwarding
from agentrl.sessions.gateway.http.requests import (
    authorized_body,
    json_body,
    key_of,
    note_headers,
    retry_count,
    validate_body,
)
from agentrl.sessions.gateway.limits import Limits
from agentrl.sessions.gateway.replies.background import ReplyDelivery
from agentrl.sessions.gateway.replies.exchange import ReplyExchange
from agentrl.sessions.gateway.replies.routes import add_routes, described_model
from agentrl.sessions.gateway.retries import RetryDetection
from agentrl.sessions.gateway.rewards import CloseBody, OpenBody, RewardBody
from agentrl.sessions.gateway.sizes import check_length, check_text
from agentrl.sessions.gateway.turn_request import MAX_TEXT, Read, TurnRequest, cache_reader
from agentrl.sessions.gateway.wire import chat, chat_replies, completions, messages, messages_replies, responses
from agentrl.sessions.gateway.workers import SessionShard, client_style, new_session_id, redirect, session_in, style_of
from agentrl.sessions.renderers.base import Renderer
from agentrl.sessions.store.export import session_dict
from agentrl.sessions.store.store import Store
from agentrl.sessions.tree.turn_generator import TurnGenerator
from agentrl.types import Engine, RewardState, Session, Task

CONVERSATION_FIELD = {
    "chat/completions": "messages",
    "responses": "input",
    "completions": "prompt",
    "messages": "messages",
}
"""The parameter that holds the conversation, by path."""
log = logging.getLogger("agentrl.gateway")
Handle = Callable[[str, Request], Awaitable[Response]]


class GatewayApp(FastAPI):
    """FastAPI, except for the endpoints that generate turns: `turns` has their handlers, by the last part of the path.

    FastAPI's routing takes a third of a turn's time, so requests for turns bypass it. They are routes all the same, for
    the API's description and for applications with middleware. Requests for sessions
    that belong to another worker are redirected there. Addresses are as `plain_path` has them.
    """

    turns: dict[str, Handle]
    shard: SessionShard | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (path := plain_path(scope["path"])) != scope["path"]:
            named = {DEPLOYMENT: deployment_in(scope["path"])}
            scope = {**scope, **named, "path": path, "raw_path": quote(path).encode()}
        if scope["type"] == "http" and self.shard is not None:
            session_id = session_in(scope["path"])
            if session_id is not None and not self.shard.has(session_id):
                await redirect(Request(scope), session_id, self.shard.port_of(session_id))(scope, receive, send)
                return
        if scope["type"] == "http" and scope["method"] == "POST" and not self.user_middleware:
            parts = scope["path"].split("/", 4)  # "", "sessions", its id, "v1", and the protocol's own address
            if len(parts) == 5 and parts[0] == "" and parts[1] == "sessions" and parts[2] and parts[3] == "v1":
                handle = self.turns.get(parts[4])
                if handle is not None:
                    request = Request(scope, receive, send)
                    try:
                        response = await handle(parts[2], request)
                    except Exception as failure:  # what goes wrong while it is read; a `Delivery` has its own
                        response = _answer_failure(request, failure)
                    await response(scope, receive, send)
                    return
        await super().__call__(scope, receive, send)


def create_app(
    engine: Engine,
    renderer: Renderer,
    store: Store,
    *,
    model: str = "agentrl",
    limits: Limits | None = None,
    session_tokens: int | None = None,
    context_tokens: int | None = None,
    retry_detection: RetryDetection = "lost",
    strip_reasoning: bool = False,
    strict_calls: bool = False,
    exclude: tuple[str, ...] = (ONE_TURN,),
    forward: ForwardConfig | None = None,
    admin_key: str | None = None,
    url: str | None = None,
    secret: bytes | None = None,
    shard: SessionShard | None = None,
    score: Callable[[Session], Awaitable[None]] | None = None,
) -> FastAPI:
    """The application over an engine; `app.state.gateway` is the `Gateway`, for code in the same process.

    Args:
        engine: generates the turns.
        renderer: the model's conversation format.
        store: where sessions are kept; sessions that are open there are continued.
        model: the name that `/v1/models` lists.
        limits: sizes, numbers and seconds.
        session_tokens: all of a session's tokens together.
        context_tokens: the longest path, where that is less than the engine's own limit.
        retry_detection: which identical requests are retries; see `RetryDetection`.
        strip_reasoning: see `TurnGenerator`.
        strict_calls: whether all tools are as strict as those that a client calls so.
        forward: where requests for other models are sent; None: nowhere.
        exclude: which roots are not trained on; see `GatewayConfig.exclude`.
        admin_key: what opening a session needs; None allows everyone who reaches the address.
        url: the address that clients are given; None takes it from the request.
        secret: what sessions' keys follow from; see `Gateway`.
        shard: which sessions belong to this process, where several serve together; None means all.
        score: sets a closed session's rewards, where its client gave none; see `Gateway`.
    """
    generator = TurnGenerator(
        renderer, engine, context_tokens, session_tokens, strip_reasoning, strict_calls=strict_calls
    )
    parts = Parts(generator, (limits or Limits()).of_model(renderer.tokenizer), retry_detection, Exclusion(exclude))
    check_length(renderer.tokenizer, 0, 1)  # reads the vocabulary now, not during a request
    check_text(renderer.tokenizer, "", 1)
    forwarding = Forwarding(forward or ForwardConfig())
    gateway = Gateway(parts, store, model, secret, score)
    gateway.closing.append(forwarding.close)
    app = GatewayApp(title="agentrl gateway", version="1", description=__doc__)
    app.state.gateway, app.state.url, app.shard = gateway, url, shard
    # FastAPI caches every endpoint's function for the life of the process: they must not keep the engine with it.
    routed = cast(GatewayApp, weakref.proxy(app))
    _sessions(routed, weakref.proxy(gateway), admin_key)
    _protocols(routed, weakref.proxy(gateway), forwarding)
    _errors(app)
    return app


def _sessions(app: GatewayApp, gateway: Gateway, admin_key: str | None) -> None:
    @app.get("/health", responses=openapi.answers(200, 503))
    async def health() -> Response:
        """Return whether the engine answers, why not, and whether it has failed permanently (`gone`)."""
        state = await gateway.parts.engine.health()
        busy = {"running": state.running, "waiting": state.waiting, "in_flight": gateway.in_flight}
        report = {"ok": state.ok, **busy, "gone": state.gone, "detail": brief(state.detail)}
        return answer(report, 200 if state.ok else 503)

    @app.get("/metrics", include_in_schema=False)
    async def metrics() -> Response:
        """Return the numbers of /health for Prometheus; neither needs a key."""
        state = await gateway.parts.engine.health()
        numbers = {
            "gateway/open_sessions": gateway.open_sessions,
            "gateway/in_flight": gateway.in_flight,
            "engine/ok": state.ok,
            "engine/running": state.running,
            "engine/waiting": state.waiting,
            "engine/version": gateway.parts.engine.version(),
        }
        return Response(page(numbers, {"model": gateway.model}), media_type=TYPE)

    @app.post("/sessions", status_code=201, **openapi.body(OpenBody, 201, 400, 401, 413, 415, 429))
    async def open_session(request: Request) -> Response:
        """Open a session."""
        if admin_key is not None and not hmac.compare_digest(key_of(request).encode(), admin_key.encode()):
            raise ApiError(401, "opening a session needs the gateway's key", "invalid_api_key")
        given = validate_body(OpenBody, await json_body(request, gateway.parts.limits, empty={}))
        session_id = new_session_id(app.shard)
        session = Session(session_id, Task.of(given.task), group=given.group, sample=given.sample, seed=given.seed)
        access = await gateway.open(session)
        return answer({"id": access.id, "api_key": access.api_key, **addresses(request, access.id)}, 201)

    @app.get("/sessions/{session_id}", responses=openapi.answers(200, 401))
    async def read_session(session_id: str, request: Request) -> Response:
        """The session's tree."""
        return answer(public(gateway.read(session_id, key_of(request))))

    @app.post("/sessions/{session_id}/reward", **openapi.body(RewardBody, 200, 400, 401, 404, 410, 413, 415))
    async def reward(session_id: str, request: Request) -> Response:
        """Give a reward: final, by name, or for one turn."""
        gateway.entry(session_id, key_of(request))
        given = validate_body(RewardBody, await json_body(request, gateway.parts.limits))
        return answer(summary(await gateway.reward(session_id, key_of(request), given)))

    @app.post("/sessions/{session_id}/close", **openapi.body(CloseBody, 200, 400, 401, 410, 413, 415))
    async def close(session_id: str, request: Request) -> Response:
        """End the session; rewards may come with it."""
        gateway.entry(session_id, key_of(request))
        given = validate_body(CloseBody, await json_body(request, gateway.parts.limits, empty={}))
        return answer(summary(await gateway.close(session_id, key_of(request), given)))


REQUEST_CODES = (200, 400, 401, 404, 408, 410, 413, 415)
"""Statuses that the description names for every request of a protocol."""


def _protocols(app: GatewayApp, gateway: Gateway, forwarding: Forwarding) -> None:
    app.turns = {}

    def add_protocol(path: str, read: Read, reply: Reply, stream: Stream, style: Style, kind: type[Exchange]) -> None:
        async def handle(session_id: str, request: Request) -> Response:
            entry, body = await authorized_body(gateway, session_id, request, CONVERSATION_FIELD[path])
            if forwarding.takes(body):
                return forwarding.reply(gateway, entry, path, body, CONVERSATION_FIELD[path])
            speaker = entry.speaker(body.fields.get("model"))
            can = speaker.parts.engine.capabilities.json_schema
            reading = partial(read, body, speaker.limits, retry_count(request), can)
            large = sum(map(len, body.text)) > MAX_TEXT
            turn_request = await asyncio.to_thread(reading) if large else reading()
            turn_request.agent = speaker.agent
            note_headers(turn_request, request, gateway, entry)
            exchange = kind(speaker.parts, entry.state, turn_request)
            delivery = ReplyDelivery if isinstance(exchange, ReplyExchange) else Delivery
            return delivery(gateway, entry, exchange, reply, stream, style)

        name = path.replace("/", "_")
        all_codes = (*REQUEST_CODES, 429, 500, 503)
        app.post(f"/sessions/{{session_id}}/v1/{path}", name=name, **openapi.protocol_request(path, *all_codes))(handle)
        app.turns[path] = handle

    add_protocol(
        "chat/completions", cache_reader(chat.read), chat_replies.reply, chat_replies.stream, "openai", Exchange
    )
    add_protocol("responses", responses.read, responses.reply, responses.stream, "openai", ReplyExchange)
    add_protocol("completions", completions.read, completions.reply, completions.stream, "openai", CompletionExchange)
    add_protocol("messages", messages.read, messages_replies.reply, messages_replies.stream, "anthropic", Exchange)

    @app.post("/sessions/{session_id}/v1/embeddings", **openapi.protocol_request("embeddings", *REQUEST_CODES))
    async def embeddings(session_id: str, request: Request) -> Response:
        """Embeddings of another server."""
        entry, body = await authorized_body(gateway, session_id, request, "input")
        if not forwarding.takes(body):
            raise ApiError(404, "this model has no embeddings: gateway.forward names a server and models that do")
        return forwarding.reply(gateway, entry, "embeddings", body, "input")

    _counts_and_models(app, gateway)
    add_routes(app, gateway)
    add_google(app, gateway)


def _counts_and_models(app: GatewayApp, gateway: Gateway) -> None:
    Counting = Callable[[RequestBody, Limits], TurnRequest]

    async def count(session_id: str, request: Request, path: str, read: Counting, kind: type[Exchange]) -> int:
        entry, body = await authorized_body(gateway, session_id, request, CONVERSATION_FIELD[path])
        speaker = entry.speaker(body.fields.get("model"))
        counted = read(body, speaker.limits)
        counted.agent = speaker.agent
        return await kind(speaker.parts, entry.state, counted).count()

    @app.post("/sessions/{session_id}/v1/messages/count_tokens", **openapi.protocol_request("messages", *REQUEST_CODES))
    async def count_messages(session_id: str, request: Request) -> Response:
        """Count the tokens of an Anthropic request's prompt."""
        tokens = await count(session_id, request, "messages", messages.read_counting, Exchange)
        return answer({"input_tokens": tokens})

    @app.post(
        "/sessions/{session_id}/v1/responses/input_tokens", **openapi.protocol_request("responses", *REQUEST_CODES)
    )
    async def count_responses(session_id: str, request: Request) -> Response:
        """Count the tokens of a Responses request's prompt."""
        reading: Counting = partial(responses.read, retry=None, json_schema=True)
        tokens = await count(session_id, request, "responses", reading, ReplyExchange)
        return answer({"object": "response.input_tokens", "input_tokens": tokens})

    @app.get("/sessions/{session_id}/v1/models", responses=openapi.answers(200, 401, 410))
    async def models(session_id: str, request: Request) -> Response:
        """The models behind this gateway."""
        names = gateway.entry(session_id, key_of(request)).models(gateway.model)
        style = client_style(request)
        each = [described_model(name, style) for name in names]
        if style == "google":
            return answer({"models": each})
        if style == "anthropic":
            return answer({"data": each, "has_more": False, "first_id": names[0], "last_id": names[-1]})
        return answer({"object": "list", "data": each})


def _errors(app: FastAPI) -> None:
    async def failed(request: Request, error: Exception) -> Response:
        return _answer_failure(request, error)

    async def no_route(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        what = f"{request.method} {request.url.path[:200]}"
        if error.status_code == 405:
            message, code = f"{what}: this address has another method", "method_not_allowed"
        else:
            endpoints = ", ".join(f"{{base_url}}/{path}" for path in CONVERSATION_FIELD)
            message, code = f"{what}: there is no such address; the endpoints are {endpoints}", "not_found"
        return _error(request, ApiError(error.status_code, message, code), error.headers)

    app.add_exception_handler(ApiError, failed)
    app.add_exception_handler(InvalidInput, failed)
    app.add_exception_handler(HTTPException, no_route)
    app.add_exception_handler(Exception, failed)


def _answer_failure(request: Request, failure: Exception) -> Response:
    """The answer to a request that could not be read or routed."""
    error = api_error_for(failure)
    if error.status == 500:
        log.error("a request failed", exc_info=failure)
    return _error(request, error)


def _error(request: Request, error: ApiError, headers: Mapping[str, str] | None = None) -> Response:
    return answer(error.body(style_of(request)), error.status, {**error.headers, **(headers or {})})


def answer(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return a value as a JSON response."""
    return Response(orjson.dumps(value), status, headers, "application/json")


def addresses(request: Request, session_id: str) -> dict[str, str]:
    """The base URLs of a session's endpoints."""
    root = (request.app.state.url or str(request.base_url)).rstrip("/")
    own = f"{root}/sessions/{session_id}"
    return {"base_url": f"{own}/v1", "anthropic_base_url": own, "google_base_url": own}


def public(session: Session) -> dict[str, Any]:
    """A session for its client: without the nonce of its key."""
    data = session_dict(session)
    del data["nonce"]
    return data


def summary(session: Session) -> dict[str, Any]:
    """A session's status, rewards and counters."""
    return {
        "id": session.id,
        "status": session.status.value,
        "sealed": session.reward_state is RewardState.SEALED,
        "reward": session.reward,
        "rewards": session.rewards,
        "counters": session.counters,
    }
