"""The addresses of Google's API under a session's own.

    POST {session}/v1beta/models/{model}:generateContent         a reply
    POST {session}/v1beta/models/{model}:streamGenerateContent   the same as events (?alt=sse)
    POST {session}/v1beta/models/{model}:countTokens
    GET  {session}/v1beta/models, …/{model}

Requests for turns may have `v1` in place of `v1beta`, which newer clients send.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from agentrl.sessions.gateway.delivery import Delivery
from agentrl.sessions.gateway.exchange import Exchange
from agentrl.sessions.gateway.gateway import Gateway
from agentrl.sessions.gateway.google import requests
from agentrl.sessions.gateway.http import openapi
from agentrl.sessions.gateway.http.api_error import ApiError
from agentrl.sessions.gateway.http.bodies import Body
from agentrl.sessions.gateway.http.requests import authorized_body, key_of, retry_count
from agentrl.sessions.gateway.turn_parts import deltas_of
from agentrl.sessions.gateway.wire.chat_replies import usage
from agentrl.sessions.gateway.wire.logprobs import bytes_of, candidates, places_of_content
from agentrl.sessions.gateway.wire.sse import encode_json, event
from agentrl.sessions.renderers.base import Delta
from agentrl.sessions.tree.turn_generator import GeneratedTurn
from agentrl.types import FinishReason, Message

METHODS = ("generateContent", "streamGenerateContent", "countTokens")
_PATH = "/sessions/{session_id}/v1beta/models"


def add_google(app: FastAPI, gateway: Gateway) -> None:
    """Add the addresses to a gateway's application."""
    codes = (200, 400, 401, 404, 408, 410, 413, 415, 429, 500, 503)

    described = openapi.protocol_request(METHODS[0], *codes)

    @app.post(f"{_PATH}/{{call}}", **described)
    @app.post(f"{_PATH.replace('v1beta', 'v1')}/{{call}}", name="call_v1", **described)
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
        asked.excluded = gateway.parts.exclusion.by_header(request.headers)
        exchange = Exchange(speaker.parts, entry.state, asked)
        if method == "countTokens":
            return JSONResponse({"totalTokens": await exchange.count()})
        return Delivery(gateway, entry, exchange, write_reply, stream_reply, "google")

    @app.get(_PATH, responses=openapi.answers(200, 401, 410))
    async def models(session_id: str, request: Request) -> Response:
        """The models behind this gateway."""
        names = gateway.entry(session_id, key_of(request)).models(gateway.model)
        return JSONResponse({"models": [_describe(name) for name in names]})

    @app.get(f"{_PATH}/{{model}}", responses=openapi.answers(200, 401, 410))
    async def model(session_id: str, model: str, request: Request) -> Response:
        """The same, by whatever name its client calls it."""
        gateway.entry(session_id, key_of(request))
        return JSONResponse(_describe(model))


def _read_counted(body: Body) -> Body:
    """The conversation, or the whole request, that is to be counted."""
    whole = body.fields.get("generateContentRequest")
    if not isinstance(whole, dict):
        return body
    fields = {name: value for name, value in whole.items() if name != requests.CONTENTS}
    contents = whole.get(requests.CONTENTS)
    return Body({**fields, **({} if contents is None else {requests.CONTENTS: contents})}, None)


def _describe(name: str) -> dict[str, Any]:
    return {"name": f"models/{name}", "displayName": name, "version": "1", "supportedGenerationMethods": list(METHODS)}


def write_reply(exchange: Exchange) -> bytes:
    """Return the body of a reply that is not streamed."""
    thinking = exchange.request.extra["thinking"]
    ended = [
        _end(exchange, place, _parts(choice.message, thinking), choice) for place, choice in enumerate(exchange.choices)
    ]
    return encode_json(_frame(exchange, ended, _usage(exchange)))


async def stream_reply(exchange: Exchange) -> AsyncIterator[bytes]:
    """The reply as server-sent events; the last part of each candidate comes with the reason why it ended."""
    waiting: dict[int, list[dict[str, Any]]] = {}
    async for place, delta in exchange.events():
        if delta.call is None and not delta.content and not exchange.request.extra["thinking"]:
            continue
        if place in waiting:
            yield event(encode_json(_frame(exchange, [_candidate(place, waiting[place])], _prompt_usage(exchange))))
        waiting[place] = [_part(delta)]
    for place, choice in enumerate(exchange.choices):
        ended = _end(exchange, place, waiting.get(place, []), choice)
        yield event(encode_json(_frame(exchange, [ended], _usage(exchange))))


def _frame(exchange: Exchange, candidates: list[dict[str, Any]], tokens: dict[str, int]) -> dict[str, Any]:
    about = {"modelVersion": exchange.request.model, "responseId": exchange.reply_id}
    return {"candidates": candidates, "usageMetadata": tokens, **about}


def _candidate(place: int, parts: list[dict[str, Any]]) -> dict[str, Any]:
    return {"content": {"role": "model", "parts": parts}, "index": place}


def _end(exchange: Exchange, place: int, parts: list[dict[str, Any]], choice: GeneratedTurn) -> dict[str, Any]:
    """A candidate with what is known at its end."""
    cut = choice.turn.finish_reason is FinishReason.LENGTH
    candidate = {**_candidate(place, parts), "finishReason": "MAX_TOKENS" if cut else "STOP"}
    if exchange.request.extra["logprobs"]:
        candidate["logprobsResult"] = _logprobs(exchange, choice)
    return candidate


def _logprobs(exchange: Exchange, choice: GeneratedTurn) -> dict[str, Any]:
    """The log-probabilities of the text's tokens and, where they are wanted, of the most probable ones."""
    tokenizer, turn = exchange.parts.renderer.tokenizer, choice.turn

    def entries(tokens: Iterable[tuple[int, float]]) -> list[dict[str, Any]]:
        named = ((bytes_of(tokenizer, token).decode(errors="replace"), token, logp) for token, logp in tokens)
        return [{"token": text, "tokenId": token, "logProbability": logp} for text, token, logp in named]

    places = places_of_content(exchange, choice)
    chosen = [(turn.token_ids[place], turn.logprobs[place]) for place in places]
    result = {"chosenCandidates": entries(chosen), "logProbabilitySum": sum(logp for _, logp in chosen)}
    if exchange.request.sampling.top_logprobs:
        best = [{"candidates": entries(candidates(exchange, choice, place))} for place in places]
        result["topCandidates"] = best
    return result


def _parts(message: Message, thinking: bool) -> list[dict[str, Any]]:
    return [_part(delta) for delta in deltas_of(message) if thinking or not delta.reasoning]


def _part(delta: Delta) -> dict[str, Any]:
    if delta.call is not None:
        arguments = json.loads(delta.arguments or "{}")
        return {"functionCall": {"id": delta.id, "name": delta.name, "args": arguments}}
    return {"text": delta.content} if delta.content else {"text": delta.reasoning, "thought": True}


def _prompt_usage(exchange: Exchange) -> dict[str, int]:
    return {"promptTokenCount": exchange.prompt_tokens, "totalTokenCount": exchange.prompt_tokens}


def _usage(exchange: Exchange) -> dict[str, int]:
    counted = usage(exchange)
    thoughts = counted["completion_tokens_details"]["reasoning_tokens"]
    return {
        "promptTokenCount": counted["prompt_tokens"],
        "candidatesTokenCount": counted["completion_tokens"] - thoughts,
        "thoughtsTokenCount": thoughts,
        "totalTokenCount": counted["total_tokens"],
        "cachedContentTokenCount": counted["prompt_tokens_details"]["cached_tokens"],
    }
