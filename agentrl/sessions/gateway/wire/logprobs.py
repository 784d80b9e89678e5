"""Log-probabilities of a turn's tokens, and of the most probable ones in their places, as OpenAI's protocols have them.

All are at the sampling temperature, over the whole vocabulary. The most probable tokens are not stored: a reply that is
sent again has the sampled token alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentrl.sessions.gateway.exchange import Exchange
from agentrl.sessions.renderers.base import SpanKind
from agentrl.sessions.tree.turn_generator import GeneratedTurn
from agentrl.types import Tokenizer


def of_content(exchange: Exchange, choice: GeneratedTurn) -> list[dict[str, Any]]:
    """An entry for each of the content's tokens."""
    tokenizer, turn = exchange.parts.renderer.tokenizer, choice.turn
    content = list[dict[str, Any]]()
    for place in places_of_content(exchange, choice):
        best = [_entry(bytes_of(tokenizer, token), logp) for token, logp in candidates(exchange, choice, place)]
        sampled = _entry(bytes_of(tokenizer, turn.token_ids[place]), turn.logprobs[place])
        content.append({**sampled, "top_logprobs": best})
    return content


def bytes_of(tokenizer: Tokenizer, token: int) -> bytes:
    """A token's own bytes: decoded by itself, it may lose its blank or be a part of a character."""
    read = getattr(tokenizer, "token_bytes", None)
    return bytes(read(token)) if read is not None else tokenizer.decode([token]).encode()


def places_of_content(exchange: Exchange, choice: GeneratedTurn) -> list[int]:
    """The places of the content's tokens among the turn's."""
    spans = (span for span in exchange.spans(choice) if span.kind is SpanKind.CONTENT)
    return [place for span in spans for place in range(span.start, span.end)]


def candidates(
    exchange: Exchange, choice: GeneratedTurn, place: int, *, sampled: bool = False
) -> Sequence[tuple[int, float]]:
    """A place's most probable tokens, the best first, each with its log-probability.

    Args:
        exchange: the request, which says how many there are.
        choice: the turn.
        place: the token that was sampled there.
        sampled: whether that is one of them in any case.
    """
    if not exchange.request.sampling.top_logprobs:
        return ()
    turn = choice.turn
    own = turn.token_ids[place], turn.logprobs[place]
    best = turn.top_logprobs[place] if turn.top_logprobs else (own,)
    if sampled and own[0] not in dict(best):
        best = (*best, own)
    return best


def _entry(token: bytes, logprob: float) -> dict[str, Any]:
    return {"token": token.decode(errors="replace"), "bytes": list(token), "logprob": logprob}
