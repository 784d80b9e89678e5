"""Servers that answer garbage: whatever they send, a turn is of tokens with probabilities, or an engine's error."""

from __future__ import annotations

import asyncio
import copy
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from agentrl.errors import AgentRLError, EngineError
from agentrl.rollout.engines.servers.server_engine import ServerInfo
from agentrl.rollout.engines.servers.server_settings import ServerConfig
from agentrl.rollout.engines.servers.sglang import SGLangEngine
from agentrl.rollout.engines.servers.vllm import VLLMEngine
from agentrl.types import Sampling, Turn, collect
from tests.rollout.engines.test_remote import END, HEAD, LENGTH, fake, piece

WRONG: list[Any] = [None, "x", -1, 10**9, 1.5, [], {}, [[]], True, "NaN"]
META = {
    "finish_reason": LENGTH,
    "weight_version": "0",
    "cached_tokens": 1,
    "output_token_logprobs": [[-1.5, 5, None], [-0.5, 6, None]],
    "weight_versions": [{"version": "0", "start": 0, "end": 1}, {"version": "1", "start": 1, "end": 2}],
}
EVENT = {"output_ids": [5, 6], "meta_info": META}
EMPTY = {"output_ids": [], "meta_info": {"weight_version": "0", "output_token_logprobs": []}}
"""What is joined with an event that comes together with it."""


def places(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in nested data, the whole among them."""
    yield path
    for key in data if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else ():
        yield from places(data[key], (*path, key))


def changed(data: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    whole = copy.deepcopy(data)
    inner = whole
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return whole


def require_sound(turn: Turn, vocab: int) -> None:
    assert all(type(token) is int and 0 <= token < vocab for token in turn.token_ids)
    assert len(turn.logprobs) == len(turn.token_ids) <= 2
    assert all(math.isfinite(logprob) and logprob <= 0 for logprob in turn.logprobs)
    covered = [place for span in turn.versions for place in range(span.start, span.end)]
    assert covered == list(range(len(turn.token_ids)))
    assert all(span.version >= 0 for span in turn.versions)


@pytest.mark.slow
@pytest.mark.parametrize("before", [b"", piece(b"data: " + orjson.dumps(EMPTY) + b"\n\n")])
async def test_an_event_that_is_wrong_anywhere_gives_a_sound_turn_or_an_engines_error(
    before: bytes, folder: Path
) -> None:
    """Tokens outside the vocabulary, probabilities above 1 and versions of other tokens were stored and trained on."""
    sent: dict[str, Any] = {}

    async def reply(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + before + piece(b"data: " + orjson.dumps(sent["event"]) + b"\n\n") + END)

    refused = 0
    async with fake(folder, reply) as (engine, _):
        for path in places(EVENT):
            for value in WRONG:
                sent["event"] = changed(EVENT, path, value)
                try:
                    turn = await collect(engine.generate("s/0", [1], Sampling(max_new_tokens=2)))
                except EngineError:
                    refused += 1
                else:
                    require_sound(turn, engine.capabilities.vocab_size)
        sent["event"] = EVENT
        assert len((await collect(engine.generate("s/0", [1], Sampling(max_new_tokens=2)))).versions) == 2
    assert refused > 100


@pytest.mark.parametrize("kind", [SGLangEngine, VLLMEngine])
@pytest.mark.parametrize("answer", [b"[]", b"null", b"{}", b"<html>", b'{"data": 3}'])
async def test_calls_that_are_answered_with_garbage_are_engines_errors(folder: Path, kind: Any, answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0] or 0))
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s" % (len(answer), answer))
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        engine = kind(folder, ServerConfig(url=url, device="cpu"))
        if kind is VLLMEngine:  # SGLang's is not ready before it answers sense
            with pytest.raises(AgentRLError):
                await engine.start()
        engine.assume_ready(ServerInfo(None, "0"))
        with pytest.raises(EngineError):
            await engine.score([1, 2, 3])
        await engine.health()
        await engine.close()
