"""The same promises with nothing faked: tiny Llama, its tokenizer, the ChatML renderer, the local engine."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from agentrl.sessions.tree import tree
from agentrl.sessions.tree.conversation import Conversation
from agentrl.sessions.tree.turn_generator import TurnGenerator
from agentrl.types import Chunk, FinishReason, Message, PauseMode, Sampling, Session, Task, Turn

TOOLS = [{"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}}]
WORDS = ["what is", "12 + 30?", "tell me", "<|im_end|>", "é🙂", "\n\n", "<tool_call>", "more", "please", ""]


class Recording:
    """The engine, with every call written down."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.calls: list[tuple[list[int], Turn | None]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def generate(
        self, request_id: str, input_ids: Sequence[int], sampling: Sampling, deadline: float | None = None
    ) -> AsyncIterator[Chunk | Turn]:
        place = len(self.calls)
        self.calls.append((list(input_ids), None))
        async for item in self._engine.generate(request_id, input_ids, sampling, deadline):
            if isinstance(item, Turn):
                self.calls[place] = (self.calls[place][0], item)
            yield item


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    from agentrl.models import tiny

    text = "<|im_start|>user\nwhat is 12 + 30?<|im_end|>\n<|im_start|>assistant\n42<|im_end|>\n"
    return tiny.build(tmp_path_factory.mktemp("models") / "tiny", [text] * 20)


@pytest.mark.slow
async def test_what_the_local_engine_read_and_sampled_is_the_stored_path_token_for_token(folder: Path) -> None:
    from agentrl.config import EngineConfig
    from agentrl.rollout.engines.local.engine import LocalEngine
    from agentrl.sessions.renderers import get_renderer

    engine = Recording(LocalEngine(folder, EngineConfig(max_batch=8)))
    renderer = get_renderer(folder)
    try:
        played = [play(engine, renderer, number) for number in range(6)]
        sessions = await asyncio.gather(*played)
        for session in sessions:
            tree.check(session)
            for node in session.nodes:
                if node.sampled:
                    await is_what_was_drawn(engine, session, node.id)
        assert sum(node.sampled for session in sessions for node in session.nodes) >= 18
    finally:
        await engine.close()


async def play(engine: Recording, renderer: Any, number: int) -> Session:
    dice = random.Random(number)
    session = Session(f"s{number}", Task(id="t"), seed=number)
    conversation = Conversation(session, TurnGenerator(renderer, engine), tools=TOOLS if number % 2 else ())
    for turn in range(4):
        if conversation.head is not None and conversation.head.finish_reason is FinishReason.LENGTH:
            fork = conversation.head.parent  # what was cut can't be continued: branch off before it
            conversation = Conversation(session, TurnGenerator(renderer, engine), head=fork)
        role = "tool" if turn and dice.random() < 0.5 else "user"
        said = " ".join(dice.choices(WORDS, k=4))
        conversation.add([Message(role=role, content=said)] * dice.choice([1, 1, 2]))  # type: ignore[arg-type]
        sampling = Sampling(temperature=dice.choice([1.0, 0.7]), max_new_tokens=60, seed=dice.getrandbits(40))
        await conversation.generate(sampling, time.monotonic() + 300)
    return session


async def is_what_was_drawn(engine: Recording, session: Session, node_id: int) -> None:
    node = session.nodes[node_id]
    path = tree.path_ids(session, node_id)
    drawn = next(t for ids, t in engine.calls if t is not None and [*ids, *t.token_ids] == path)
    assert [i for i, trained in zip(node.token_ids, node.trainable, strict=True) if trained] == list(drawn.token_ids)
    assert node.sampling is not None
    scores = await engine.score(path, node.sampling.temperature)
    for scored, stored, trained in zip(scores[-len(node.token_ids) :], node.logprobs, node.trainable, strict=True):
        assert not trained or stored == pytest.approx(scored, abs=1e-4)


@pytest.mark.slow
async def test_new_weights_in_the_middle_of_a_turn_split_it_into_versions_of_one_node(folder: Path) -> None:
    from agentrl.config import EngineConfig
    from agentrl.rollout.engines.local.engine import LocalEngine
    from agentrl.sessions.renderers import get_renderer
    from tests.rollout.engines.conftest import pause_amid_turns

    engine = LocalEngine(folder, EngineConfig())
    try:
        conversation = Conversation(Session("s", Task(id="t")), TurnGenerator(get_renderer(folder), engine))
        conversation.add("tell me")
        sampling = Sampling(max_new_tokens=300, logit_bias=((engine_end(folder), -100.0),), seed=3)
        asking = asyncio.create_task(conversation.generate(sampling, time.monotonic() + 300))
        await pause_amid_turns(engine, PauseMode.ABORT)
        await engine.publish(weights(folder), 7)
        await engine.resume()
        node = await asking
        assert [span.version for span in node.versions] == [0, 7]
        assert all(node.trainable[node.versions[0].start :]), "both attempts recorded what their tokens were drawn from"
        tree.check(conversation.session)
    finally:
        await engine.close()


def weights(folder: Path) -> list[tuple[str, Any]]:
    from transformers import AutoModelForCausalLM

    return list(AutoModelForCausalLM.from_pretrained(folder).named_parameters())


def engine_end(folder: Path) -> int:
    from agentrl.sessions.renderers import get_renderer

    return get_renderer(folder).stop_token_ids[0]
