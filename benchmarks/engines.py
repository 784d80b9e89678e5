"""What engines keep of a conversation, and how far they agree with the trainer.

`python -m benchmarks.engines [cache] [fidelity] [--engine sglang] [--dtype float32] [--sessions 200] [KEY=VALUE …]`

cache: a conversation of 10 turns, 64 new tokens each; which share of the tokens that a turn's path begins with, and
that the engine has seen before, comes from its cache. Several conversations run side by side.

fidelity: mean and maximum |Δ log-probability| of engine and trainer (torch, float32) over random sessions of three
turns at temperatures 0.6, 1 and 1.4, half of them branching.

Words like `python=.venv-sglang/bin/python` or `server.block_size=32` are settings of the engine.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentrl.config import EngineConfig
from agentrl.models import resolve
from agentrl.overrides import parse_words
from agentrl.rollout.engines import make_engine
from agentrl.rollout.engines.servers.server_settings import ServerConfig
from agentrl.types import Engine, Sampling, collect
from benchmarks.machine import machine

TURNS, NEW, SAID, TOGETHER = 10, 64, 16, 4


async def cached_share(engine: Engine) -> float:
    """Tokens from the cache over tokens that a path begins with, from the second turn on."""

    async def converse(index: int) -> tuple[int, int]:
        dice, path, seen, cached = random.Random(index), list[int](), 0, 0
        for turn in range(TURNS):
            prefix = len(path)
            path += dice.choices(range(engine.capabilities.vocab_size), k=SAID)
            sampled = await collect(engine.generate(f"session-{index}/{turn}", path, Sampling(max_new_tokens=NEW)))
            seen, cached = seen + prefix, cached + (min(sampled.cached_tokens, prefix) if turn else 0)
            path += sampled.token_ids
        return seen, cached

    sessions_read = await asyncio.gather(*[converse(index) for index in range(TOGETHER)])
    return sum(cached for _, cached in sessions_read) / sum(seen for seen, _ in sessions_read)


async def measure(given: argparse.Namespace, path: Path, config: EngineConfig) -> Any:
    """Print the shares; returns the sessions for the trainer, if they were requested."""
    began = time.perf_counter()
    engine = make_engine(config, path)
    try:
        await collect(engine.generate("first/0", [1, 2, 3], Sampling(max_new_tokens=1)))
        print(f"{config.name}, {config.dtype}: ready after {time.perf_counter() - began:.0f} s", flush=True)
        if "cache" in given.what:
            block = engine.capabilities.cache_block
            share = await cached_share(engine)
            print(f"{config.name}: {share:.3f} of the prefix tokens from the cache (aim: 0.9), blocks of {block}")
        if "fidelity" in given.what:
            from benchmarks.fidelity import random_sessions

            return await random_sessions(engine, given.sessions)
    finally:
        await engine.close()


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", nargs="*", default=["cache", "fidelity"], help="cache, fidelity, engine settings")
    parser.add_argument("--engine", default="local")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--sessions", type=int, default=200)
    parser.add_argument("--model", default="smollm2-135m")
    given = parser.parse_intermixed_args(argv)
    settings: dict[str, Any] = {"device": "cpu", "max_context": 1024, "max_batch": 32, "start_timeout": 1800}
    settings |= parse_words(word for word in given.what if "=" in word)
    given.what = [word for word in given.what if "=" not in word] or ["cache", "fidelity"]
    print(machine())
    path = resolve(given.model)
    config = ServerConfig(name=given.engine, dtype=given.dtype, **settings)
    sessions = asyncio.run(measure(given, path, config))
    if sessions:
        from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
        from benchmarks.fidelity import agreement

        found = agreement(TorchTrainer(path), sessions)
        print(
            f"{given.engine}, {given.dtype}, {found.sessions} sessions, {found.tokens} tokens: "
            f"mean |Δ log-probability| {found.mean:.2g}, maximum {found.max:.2g}"
        )


if __name__ == "__main__":
    main()
