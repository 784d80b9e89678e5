"""OpenAI's legacy Completions (https://platform.openai.com/docs/api-reference/completions): text that is continued."""

from __future__ import annotations

import codecs
from collections.abc import AsyncIterator
from typing import Any

from agentrl.sessions.gateway.exchange import Exchange
from agentrl.sessions.gateway.http.api_error import ApiError, refuse_parameter
from agentrl.sessions.gateway.http.bodies import Body
from agentrl.sessions.gateway.limits import Limits
from agentrl.sessions.gateway.turn_request import TurnRequest
from agentrl.sessions.gateway.wire.chat import sampling_of
from agentrl.sessions.gateway.wire.chat_replies import usage
from agentrl.sessions.gateway.wire.logprobs import bytes_of, candidates
from agentrl.sessions.gateway.wire.sse import encode_json, event
from agentrl.sessions.gateway.wire.validation import Parameters, flag, number
from agentrl.sessions.tree.turn_generator import GeneratedTurn
from agentrl.types import MOST_PROBABLE, FinishReason, Message

PARAMETERS = Parameters(
    required=("model", "prompt"),
    honoured=(
        *("frequency_penalty", "presence_penalty", "logit_bias", "logprobs", "max_tokens", "n", "seed", "stop"),
        *("stream_options", "temperature", "top_p", "prompt"),
    ),
    harmless=("user", "metadata", "store", "service_tier", "prompt_cache_key", "safety_identifier"),
    fixed={"best_of": (1,), "echo": (False,), "suffix": ("",)},
    servers=("return_token_ids",),
    inside="prompt",
)


def read(body: Body, limits: Limits, retry: int | None, json_schema: bool) -> TurnRequest:
    """A request as a TurnRequest; the prompt is in `extra`.

    Raises:
        ApiError: a parameter is wrong, unknown or not supported.
    """
    given, ignored = PARAMETERS.check(body, limits)
    best = {"top_logprobs": number(given, "logprobs", 0, 0, MOST_PROBABLE, whole=True)}
    return TurnRequest(
        protocol="completions",
        model=given["model"],
        head=None,
        history=None,
        convert=_no_messages,
        sampling=sampling_of({"max_tokens": 16, **given, **best}, limits, None, False),
        n=number(given, "n", 1, 1, limits.choices, whole=True),
        stream=given.get("stream", False),
        retry=retry,
        extra={
            "prompt": _prompt(body.history.items() if body.history is not None else given.get("prompt")),
            "logprobs": "logprobs" in given,
            "token_ids": flag(given, "return_token_ids"),
            "usage": flag(given.get("stream_options", {}), "include_usage", "stream_options."),
        },
        ignored=ignored,
    )


def _no_messages(items: Any, start: int, ignored: dict[str, str]) -> list[Message]:
    return []


def _prompt(prompt: Any) -> str | list[int]:
    """One prompt: text, token ids, or a list of just one of them."""
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        if len(prompt) > 1:
            raise refuse_parameter("prompt", "several prompts at once; send one request for each")
        prompt = prompt[0]
    if not isinstance(prompt, str | list) or not prompt:
        raise ApiError(400, "prompt: must be text or token ids, and not empty", "invalid_value", "prompt")
    if isinstance(prompt, list) and not all(type(i) is int for i in prompt):
        raise ApiError(400, "prompt: token ids must be whole numbers", "invalid_value", "prompt")
    return prompt


def reply(exchange: Exchange) -> bytes:
    """Return the body of a reply that is not streamed."""
    choices = [_choice(exchange, place, choice.message.text, choice) for place, choice in enumerate(exchange.choices)]
    return encode_json({**_frame(exchange), "choices": choices, "usage": usage(exchange)})


async def stream(exchange: Exchange) -> AsyncIterator[bytes]:
    """The reply as server-sent events."""
    frame = _frame(exchange)
    async for place, delta in exchange.events():
        choice = {"index": place, "text": delta.content, "finish_reason": None, "logprobs": None}
        yield event(encode_json({**frame, "choices": [choice]}))
    for place, generated in enumerate(exchange.choices):
        last = _choice(exchange, place, "", generated)
        yield event(encode_json({**frame, "choices": [last]}))
    if exchange.request.extra["usage"]:
        yield event(encode_json({**frame, "choices": [], "usage": usage(exchange)}))
    yield event(b"[DONE]")


def _choice(exchange: Exchange, place: int, text: str, choice: GeneratedTurn) -> dict[str, Any]:
    reason = "length" if choice.turn.finish_reason is FinishReason.LENGTH else "stop"
    logprobs = _logprobs(exchange, choice) if exchange.request.extra["logprobs"] else None
    sampled = {"token_ids": list(choice.turn.token_ids)} if exchange.request.extra["token_ids"] else {}
    return {"index": place, "text": text, "finish_reason": reason, "logprobs": logprobs, **sampled}


def _logprobs(exchange: Exchange, choice: GeneratedTurn) -> dict[str, Any]:
    tokenizer = exchange.parts.renderer.tokenizer
    tokens = [bytes_of(tokenizer, token) for token in choice.turn.token_ids]
    written, offsets, length = codecs.getincrementaldecoder("utf-8")("replace"), list[int](), 0
    for token in tokens:
        offsets.append(length)
        length += len(written.decode(token))
    best: list[dict[str, float]] | None = None
    if exchange.request.sampling.top_logprobs:
        places = (candidates(exchange, choice, place, sampled=True) for place in range(len(tokens)))
        # of tokens with one text the best counts
        best = [{_name(bytes_of(tokenizer, token)): logp for token, logp in reversed(place)} for place in places]
    logprobs = list(choice.turn.logprobs)
    return {"tokens": [*map(_name, tokens)], "token_logprobs": logprobs, "text_offset": offsets, "top_logprobs": best}


def _name(token: bytes) -> str:
    """A token's text; a part of a character as OpenAI writes it, by its bytes."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)


def _frame(exchange: Exchange) -> dict[str, Any]:
    return {
        "id": f"cmpl-{exchange.reply_id}",
        "object": "text_completion",
        "created": exchange.created,
        "model": exchange.request.model,
    }
