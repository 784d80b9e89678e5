"""Prompts of which only what is new is sent: the receiver has them whole, whatever either side has forgotten."""

from __future__ import annotations

import asyncio
import pickle
from array import array
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.cluster import connect
from agentrl.cluster.wire import frames
from agentrl.cluster.wire.calls import Listener
from agentrl.rollout.episodes.policies import Policy
from agentrl.rollout.workers.distant_engine import DistantEngine, EngineCalls
from agentrl.rollout.workers.engine_access import EngineAccess
from agentrl.rollout.workers.prompts import ForgottenPrompt, PromptReceiver, PromptSender
from agentrl.sessions.renderers.families.null import NullRenderer
from agentrl.types import MAIN, Capabilities, Engine, FinishReason, Sampling, Turn, VersionSpan, collect

TOKENS = st.lists(st.integers(0, 3), max_size=12)
SENT = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 12), TOKENS), max_size=30)


@given(SENT, st.integers(0, 60), st.integers(0, 60))
@pytest.mark.slow
def test_every_prompt_arrives_whole_where_it_is_sent_whole_after_it_was_forgotten(
    sent: list[tuple[str, int, list[int]]], here: int, there: int
) -> None:
    sender, receiver, paths = PromptSender(here), PromptReceiver(there), dict[str, list[int]]()
    for session, kept, rest in sent:
        path = paths[session] = paths.get(session, [])[:kept] + rest
        try:
            found = receiver.restored(session, sender.shortened(session, path))
        except ForgottenPrompt:
            found = receiver.restored(session, sender.shortened(session, path, whole=True))
        assert found.tolist() == path


def test_a_prompt_that_another_one_overtook_is_asked_for_again() -> None:
    sender, receiver = PromptSender(), PromptReceiver()
    first, second = sender.shortened("s", [1, 2]), sender.shortened("s", [1, 2, 3])
    with pytest.raises(ForgottenPrompt):
        receiver.restored("s", second)
    assert receiver.restored("s", first) == array("i", [1, 2])


def test_what_is_sent_for_a_session_grows_with_its_length_and_not_with_its_square() -> None:
    def sent(turns: int) -> int:
        sender, path, total = PromptSender(), list[int](), 0
        for turn in range(turns):
            path += range(turn, turn + 200)
            total += len(pickle.dumps(sender.shortened("s", path)))
        return total

    assert sent(64) < 1.1 * 8 * sent(8)


class Seen:
    """An engine that notes its prompts, and answers each with a token."""

    def __init__(self) -> None:
        self.prompts: list[list[int]] = []

    async def generate(self, request_id: str, input_ids: list[int], sampling: Sampling, deadline: None) -> Any:
        self.prompts.append(input_ids)
        yield Turn((1,), (-0.5,), (VersionSpan(0, 0, 1),), FinishReason.LENGTH)


@pytest.mark.slow
@pytest.mark.parametrize("kept", [1 << 20, 0])
async def test_an_engine_gets_the_whole_prompt_of_each_turn_whose_new_tokens_alone_cross_the_connection(
    kept: int,
) -> None:
    engine, path, sent, bytes_of = Seen(), list[int](), list[list[int]](), list[int]()
    access = EngineAccess(lambda: {MAIN: Policy(NullRenderer(), cast(Engine, engine))})
    access._prompts = PromptReceiver(kept)
    async with Listener(access, "engines", "engines", "127.0.0.1", b"k" * 32) as address:
        calls = EngineCalls(address)
        distant = DistantEngine(calls, Capabilities("seen", 1 << 20, 1 << 20))
        calls._connection = await asyncio.to_thread(connect, address)  # which answers in this loop
        for turn in range(20):
            path += range(turn, turn + 200)
            sent.append(list(path))
            before = frames.traffic["sent"]
            assert (await collect(distant.generate(f"s/{turn}", path, Sampling()))).token_ids == (1,)
            bytes_of.append(frames.traffic["sent"] - before)
        await distant.close()
    assert engine.prompts == sent
    if kept:
        assert bytes_of[19] < 1.1 * bytes_of[1]
