"""Tokens per second through the gateway and the session tree, against the bare engine's own.

32 sessions side by side, two turns of 64 tokens each. Bare: clients that speak to SGLang's `/generate` themselves,
in token ids, not streamed, without log-probabilities' use by anyone. Ours: clients that speak OpenAI's chat
protocol to the gateway, which renders, generates by `engine=sglang`, parses, stores every turn and answers.
Rounds of both are interleaved in one run against one server, and the median of the ratios counts.

Turns end at 64 tokens on both sides, so that both draw the same number of tokens.

Run as `python -m benchmarks.gateway_engine [--rounds 3] [--sessions 32] [--url URL] [python=… other=settings]`.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from agentrl.config import EngineConfig
from agentrl.models import resolve
from agentrl.overrides import parse_words
from agentrl.rollout.engines.servers.server_settings import ServerConfig
from agentrl.rollout.engines.servers.sglang import SGLangEngine
from agentrl.sessions.gateway.http.app import create_app
from agentrl.sessions.gateway.http.server import running
from agentrl.sessions.renderers import Renderer, get_renderer
from agentrl.sessions.store.store import Store
from agentrl.types import Chunk, FinishReason, Message, Sampling, Turn
from benchmarks.gateway import Wire
from benchmarks.machine import machine

TURNS, NEW = 2, 64


class Endless(SGLangEngine):
    """Turns go on to their limit and count as complete, so that every turn has the same length."""

    async def generate(
        self, request_id: str, input_ids: Sequence[int], sampling: Sampling, deadline: float | None = None
    ) -> AsyncIterator[Chunk | Turn]:
        """As the engine does, but for how it ends."""
        async for item in super().generate(request_id, input_ids, replace(sampling, stop_token_ids=()), deadline):
            yield replace(item, finish_reason=FinishReason.STOP) if isinstance(item, Turn) else item


def question(round_: int, index: int, turn: int) -> str:
    """What a session's user says; no two rounds share a prefix."""
    return f"{round_}.{index}.{turn}: tell me something about the number {1000 * round_ + 10 * index + turn}."


async def bare(url: str, format_: Renderer, round_: int, sessions: int) -> float:
    """Tokens per second of clients that speak to the server themselves."""
    params = {"max_new_tokens": NEW, "ignore_eos": True, "temperature": 1.0}

    async def session(index: int) -> int:
        wire, path, sampled = await Wire.open(url), list[int](), 0
        for turn in range(TURNS):
            (said,) = format_.render([Message(role="user", content=question(round_, index, turn))])
            path += [*said, *format_.generation_prompt(None)]
            body = {"input_ids": path, "sampling_params": params, "return_logprob": True}
            answer = orjson.loads(await wire.post("/generate", orjson.dumps(body)))
            path += answer["output_ids"]
            sampled += len(answer["output_ids"])
        wire.writer.close()
        return sampled

    return await _rate([session(index) for index in range(sessions)])


async def ours(url: str, round_: int, sessions: int) -> float:
    """Tokens per second of clients that speak to the gateway."""

    async def session(index: int) -> int:
        wire, messages, sampled = await Wire.open(url), list[Any](), 0
        access = orjson.loads(await wire.post("/sessions", b"{}"))
        for turn in range(TURNS):
            messages.append({"role": "user", "content": question(round_, index, turn)})
            body = orjson.dumps({"model": "m", "messages": messages, "max_tokens": NEW})
            path = f"/sessions/{access['id']}/v1/chat/completions"
            answer = orjson.loads(await wire.post(path, body, access["api_key"]))
            messages.append({k: v for k, v in answer["choices"][0]["message"].items() if v is not None})
            sampled += answer["usage"]["completion_tokens"]
        wire.writer.close()
        return sampled

    return await _rate([session(index) for index in range(sessions)])


async def _rate(work: list[Any]) -> float:
    began = time.perf_counter()
    sampled: int = sum(await asyncio.gather(*work))
    return sampled / (time.perf_counter() - began)


async def measure(engine: SGLangEngine, format_: Renderer, rounds: int, sessions: int, folder: Path) -> None:
    """Print both rates and their ratio."""
    pairs: list[tuple[float, float]] = []
    with Store(folder / "sessions.db") as store:
        async with running(create_app(engine, format_, store)) as url:
            await ours(url, 0, 2)
            for round_ in range(1, rounds + 1):
                its = await bare(engine.client.url, format_, 2 * round_, sessions)
                mine = await ours(url, 2 * round_ + 1, sessions)
                pairs.append((its, mine))
                print(f"round {round_}: bare {its:.0f}, ours {mine:.0f} tokens/s", flush=True)
    ratio = statistics.median(mine / its for its, mine in pairs)
    print(f"through the gateway and the tree, {sessions} sessions: {ratio:.3f} of the bare engine (aim: at least 0.95)")


async def run(given: argparse.Namespace, path: Path, config: EngineConfig) -> None:
    """Start what there is to start, and measure."""
    engine = Endless(path, config)
    try:
        await engine.start()
        with tempfile.TemporaryDirectory() as folder:
            await measure(engine, get_renderer(path), given.rounds, given.sessions, Path(folder))
    finally:
        await engine.close()


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("settings", nargs="*", help="of the engine: python=.venv-sglang/bin/python")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sessions", type=int, default=32)
    parser.add_argument("--url", help="a server that runs; None starts one")
    given = parser.parse_intermixed_args(argv)
    settings: dict[str, Any] = {"device": "cpu", "dtype": "bfloat16", "max_context": 1024, "max_batch": 64}
    settings |= {"start_timeout": 1800, "url": given.url, **parse_words(given.settings)}
    print(machine())
    asyncio.run(run(given, resolve(given.model), ServerConfig(name="sglang", **settings)))


if __name__ == "__main__":
    main()
