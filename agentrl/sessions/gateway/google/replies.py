"""Replies of Google's API: whole, and as server-sent events."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable
from typing import Any

from agentrl.sessions.gateway.exchange import Exchange
from agentrl.sessions.gateway.turn_parts import deltas_of
from agentrl.sessions.gateway.wire.chat_replies import usage
from agentrl.sessions.gateway.wire.logprobs import bytes_of, candidates, places_of_content
from agentrl.sessions.gateway.wire.sse import encode_json, event
from agentrl.sessions.renderers.base import Delta
from agentrl.sessions.tree.turn_generator import GeneratedTurn
from agentrl.types import FinishReason, Message


def reply(exchange: Exchange) -> bytes:
    """Return the body of a reply that is not streamed."""
    thinking = exchange.request.extra["thinking"]
    ended = [
        _end(exchange, place, _parts(choice.message, thinking), choice) for place, choice in enumerate(exchange.choices)
    ]
    return encode_json(_frame(exchange, ended, _usage(exchange)))


async def stream(exchange: Exchange) -> AsyncIterator[bytes]:
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
    return {
        "promptTokenCount": counted["prompt_tokens"],
        "candidatesTokenCount": counted["completion_tokens"],
        "totalTokenCount": counted["total_tokens"],
        "cachedContentTokenCount": counted["prompt_tokens_details"]["cached_tokens"],
    }
