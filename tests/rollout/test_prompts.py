"""Prompts for an engine that the run's process alone can call: they cross the connection whole."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from agentrl.cluster import connect
from agentrl.cluster.wire import frames
from agentrl.cluster.wire.calls import Listener
from agentrl.rollout.episodes.policies import Policy
from agentrl.rollout.workers.distant_engine import DistantEngine, EngineCalls
from agentrl.rollout.workers.engine_access import EngineAccess
from agentrl.sessions.renderers.families.null import NullRenderer
from agentrl.types import MAIN, Capabilities, Engine, FinishReason, Sampling, Turn, VersionSpan, collect


class Seen:
    """An engine that notes its prompts, and answers each with a token."""

    def __init__(self) -> None:
        self.prompts: list[list[int]] = []

    async def generate(self, request_id: str, input_ids: list[int], sampling: Sampling, deadline: None) -> Any:
        self.prompts.append(input_ids)
        yield Turn((1,), (-0.5,), (VersionSpan(0, 0, 1),), FinishReason.LENGTH)


async def test_an_engine_gets_the_whole_prompt_of_each_turn_in_four_bytes_a_token() -> None:
    engine, path, sent, bytes_of = Seen(), list[int](), list[list[int]](), list[int]()
    access = EngineAccess(lambda: {MAIN: Policy(NullRenderer(), cast(Engine, engine))})
    async with Listener(access, "engines", "engines", "127.0.0.1", b"k" * 32) as address:
        calls = EngineCalls(address)
        distant = DistantEngine(calls, Capabilities("seen", 1 << 20, 1 << 20))
        calls._connection = await asyncio.to_thread(connect, address)  # which answers in this loop
        for turn in range(5):
            path += range(100_000 + turn, 100_200 + turn)
            sent.append(list(path))
            before = frames.traffic["sent"]
            assert (await collect(distant.generate(f"s/{turn}", path, Sampling()))).token_ids == (1,)
            bytes_of.append(frames.traffic["sent"] - before)
        await distant.close()
    assert engine.prompts == sent
    assert bytes_of[4] - bytes_of[1] < 1.1 * 4 * 600
