"""`model.reasoning=strip`: each user message branches off what was reasoned before it, and nothing stored changes."""

from __future__ import annotations

import copy
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from agentrl.errors import TreeError
from agentrl.sessions.renderers import ToolSchema, get_renderer
from agentrl.sessions.renderers.families.table import FAMILIES
from agentrl.sessions.renderers.proof.trials import TOOLS, conversation, kimi_id, nine_letters
from agentrl.sessions.renderers.strip import summarize_cost
from agentrl.sessions.tree import tree
from agentrl.sessions.tree.conversation import Conversation
from agentrl.sessions.tree.turn_generator import TurnGenerator
from agentrl.types import (
    Capabilities,
    Chunk,
    FinishReason,
    Group,
    Message,
    Node,
    Sampling,
    Session,
    Status,
    Task,
    Turn,
    VersionSpan,
)
from tests.sessions.renderers.references import REFERENCES
from tests.sessions.renderers.support import tokenizer

SAMPLING = Sampling(max_new_tokens=10_000)


class Reader:
    """An engine that draws what it is given next, and remembers what it saw."""

    capabilities = Capabilities("reader", 1_000_000, 1_000_000)

    def __init__(self) -> None:
        self.next: list[int] = []
        self.reason = FinishReason.STOP
        self.saw: list[tuple[list[int], list[int]]] = []

    async def generate(
        self, request_id: str, input_ids: Sequence[int], sampling: Sampling, deadline: float | None = None
    ) -> AsyncIterator[Chunk | Turn]:
        ids = tuple(self.next)
        self.saw.append((list(input_ids), list(ids)))
        yield Turn(ids, (-0.5,) * len(ids), (VersionSpan(0, 0, len(ids)),), self.reason, ids[-1])


def played(seed: int, family: str = "qwen3", tools: bool = True, reasoning: float = 0.8) -> list[Message]:
    """A conversation whose assistants mostly reason."""
    ids = kimi_id if family.startswith("kimi") else nine_letters
    rng = random.Random(f"{family}/{seed}")
    return conversation(rng, FAMILIES[family].expresses, tools=tools, reasoning=reasoning, rounds=4, call_id=ids)


async def replay(
    messages: Sequence[Message],
    family: str = "qwen3",
    *,
    strip: bool = True,
    together: bool = True,
    tools: Sequence[ToolSchema] = TOOLS,
) -> AsyncIterator[tuple[int, Conversation]]:
    """Play these messages as a session, the assistants' as drawn turns; yields before each turn and at the end."""
    renderer = get_renderer(tokenizer(family), family)
    engine: Any = Reader()
    talk = Conversation(Session("s", Task(id="t")), TurnGenerator(renderer, engine, strip_reasoning=strip), tools=tools)
    waiting: list[Message] = []
    for place, message in enumerate(messages):
        if message.role != "assistant":
            waiting.append(message)
            continue
        for new in [waiting] if together else [[one] for one in waiting]:
            talk.add(new)
        waiting = []
        yield place, talk
        engine.next = renderer.turn(message)
        node = await talk.generate(SAMPLING, time.monotonic() + 60)
        assert engine.saw[-1][0] + engine.saw[-1][1] == tree.path_ids(talk.session, node.id)
    yield len(messages), talk


async def through(messages: Sequence[Message], **options: Any) -> Conversation:
    return [talk async for _, talk in replay(messages, **options)][-1]


STRIPPING = {
    "qwen3": ("", True),
    "qwen3.5": ("", True),
    "qwen3.6": ("", True),
    "glm-4.5": ("", True),
    "glm-4.6": ("", True),
    "glm-5": ("", True),
    "minimax-m2": ("Be kind.", True),
    "gemma-4": ("", True),
    "deepseek-v3.1-thinking": ("", False),
    "deepseek-v4-thinking": ("", False),
    "deepseek-r1": ("", False),
}
"""Families whose templates strip: a system message where revisions differ in the default; whether tools are called."""


async def equals_the_template(family: str, seeds: range) -> int:
    """How many branches there were; each path was what the template makes of the messages with all their reasoning."""
    reference = REFERENCES[family]
    whole = (reference.stripping or reference.make)(tokenizer(family))
    system, tools = STRIPPING[family]
    opens = getattr(get_renderer(tokenizer(family), family), "thinks_in_prompt", False)
    branches = 0
    for seed in seeds:
        messages = played(seed, family, tools, 1.0 if opens else 0.8)
        if system and messages[0].role != "system":
            messages.insert(0, Message(role="system", content=system))
        async for place, talk in replay(messages, family, tools=TOOLS if tools else ()):
            if place == len(messages):
                branches += talk.session.counters.get("branches/reasoning", 0)
                continue
            path = talk.token_ids + talk.generator.renderer.generation_prompt(talk.head)
            theirs = whole(messages[:place], TOOLS if tools else (), True)
            decode = talk.generator.renderer.tokenizer.decode
            assert path == theirs, f"{seed}:\n{decode(path)}\n--- template ---\n{decode(theirs)}"
    return branches


@pytest.mark.parametrize("family", STRIPPING)
@pytest.mark.slow
async def test_before_every_turn_the_path_is_the_templates_own_stripped_rendering(family: str) -> None:
    """Hundreds of conversations over all families."""
    assert await equals_the_template(family, range(20)) > 8


@pytest.mark.slow
@pytest.mark.parametrize("together", [True, False])
async def test_what_was_sampled_stays_as_it_was_and_is_trained_once(together: bool) -> None:
    for seed in range(8):
        messages = played(seed)
        stored: list[Node] = []
        async for _, talk in replay(messages, together=together):
            nodes = talk.session.nodes
            assert nodes[: len(stored)] == stored  # nothing that was stored is ever rewritten
            stored = copy.deepcopy(nodes)
        session = talk.session
        tree.check(session)
        drawn = [token for _, ids in talk.generator.engine.saw for token in ids]  # type: ignore[union-attr]
        trained = [t for node in session.nodes for t, on in zip(node.token_ids, node.trainable, strict=True) if on]
        assert trained == drawn
        for node in session.nodes:
            if node.copy_of is not None:
                assert not any(node.trainable)
                assert not node.message.reasoning_content
                assert session.nodes[node.copy_of].message.text == node.message.text
        assert [m.text for m in talk.messages] == [m.text for m in messages]  # the path tells the same conversation


async def test_the_forest_trains_each_sampled_token_once_and_holds_shared_ones_once() -> None:
    pytest.importorskip("torch")
    from agentrl.train.algorithms import make_algorithm
    from agentrl.train.algorithms.advantages.grpo import GrpoConfig
    from agentrl.train.forest.packing import pack

    algo = GrpoConfig(normalize="token", scale_by_std=False)
    sessions = [(await through(played(seed))).session for seed in range(4)]
    for place, session in enumerate(sessions):
        session.id, session.reward, session.status = f"s{place}", float(place % 2), Status.COMPLETED
    groups = [Group(f"g{n}", Task(id=f"t{n}"), sessions[n : n + 2]) for n in (0, 2)]
    forests = pack(groups, make_algorithm(algo).credit(groups), 100_000)
    drawn = Counter(
        token for s in sessions for n in s.nodes for token, on in zip(n.token_ids, n.trainable, strict=True) if on
    )
    trained: Counter[int] = Counter()
    for forest in forests:
        trained.update(int(t) for t in forest.token_ids[forest.weight > 0])
    assert trained == drawn


async def test_kept_reasoning_makes_no_branch_and_costs_nothing() -> None:
    for seed in range(8):
        session = (await through(played(seed), strip=False)).session
        assert [node.parent for node in session.nodes] == [None, *range(len(session.nodes) - 1)]
        assert session.counters == {}


async def test_the_counters_have_what_an_engine_computes_again_and_what_the_path_saves() -> None:
    messages = [
        Message(role="user", content="one"),
        Message(role="assistant", content="1", reasoning_content="let me think about one"),
        Message(role="user", content="two"),
        Message(role="assistant", content="2"),
        Message(role="user", content="three"),
        Message(role="assistant", content="3", reasoning_content="hm"),
    ]
    kept, stripped = await through(messages, strip=False), await through(messages)
    again = [node for node in stripped.session.nodes if node.copy_of is not None]
    assert [node.copy_of for node in again] == [1]
    cost = stripped.session.counters
    assert cost["branches/reasoning"] == 1  # the second turn had nothing to lose, the third is not followed
    assert cost["reasoning/recomputed_tokens"] == sum(len(node.token_ids) for node in again)
    assert cost["reasoning/saved_tokens"] == len(kept.token_ids) - len(stripped.token_ids) > 0
    assert "1 branches" in summarize_cost([{f"count/{name}": float(n) for name, n in cost.items()}, {}])


@pytest.mark.parametrize(
    "family",
    ["deepseek-v3.1-thinking", "deepseek-v4-thinking", "glm-4.5", "kimi-k2.5", "minimax-m2", "qwen3.5", "gpt-oss"],
)
@pytest.mark.slow
async def test_other_families_lose_their_reasoning_on_the_branch_and_nothing_else(family: str) -> None:
    renderer = get_renderer(tokenizer(family), family)
    for seed in range(6):
        messages = played(seed, family)
        secret = [m.model_copy(update={"reasoning_content": "SECRET"}) if m.reasoning_content else m for m in messages]
        talk = await through(secret, family=family)
        tree.check(talk.session)
        last = max(n for n, m in enumerate(talk.messages) if m.role == "user")
        nodes = tree.path(talk.session, talk.head.id)  # type: ignore[union-attr]
        earlier = renderer.tokenizer.decode([t for node in nodes[:last] for t in node.token_ids])
        assert "SECRET" not in earlier
        assert [m.text for m in talk.messages] == [m.text for m in messages]


async def test_a_turn_without_its_end_token_is_ended_once_on_the_branch() -> None:
    renderer = get_renderer(tokenizer("qwen3"), "qwen3")
    engine: Any = Reader()
    talk = Conversation(Session("s", Task(id="t")), TurnGenerator(renderer, engine, strip_reasoning=True))
    talk.add("one")
    engine.next = renderer.turn(Message(role="assistant", content="1", reasoning_content="hm"))[:-1]
    await talk.generate(SAMPLING, time.monotonic() + 60)
    talk.add([Message(role="tool", content="r", tool_call_id="c"), Message(role="user", content="two")])
    assert renderer.tokenizer.decode(talk.token_ids).count("<|im_end|><|im_end|>") == 0
    assert "\n1<|im_end|>\n" in renderer.tokenizer.decode(talk.token_ids)


async def test_a_turn_that_a_length_limit_cut_is_not_continued_by_way_of_a_branch() -> None:
    renderer = get_renderer(tokenizer("qwen3"), "qwen3")
    engine: Any = Reader()
    engine.reason = FinishReason.LENGTH
    talk = Conversation(Session("s", Task(id="t")), TurnGenerator(renderer, engine, strip_reasoning=True))
    talk.add("one")
    engine.next = renderer.turn(Message(role="assistant", content="1", reasoning_content="hm"))[:-1]
    await talk.generate(SAMPLING, time.monotonic() + 60)
    with pytest.raises(TreeError, match="length limit"):
        talk.add("two")


@pytest.mark.slow
async def test_rewards_of_later_steps_reach_the_turns_before_the_branch() -> None:
    from agentrl.train.algorithms.returns import step_returns

    session = (await through(played(3))).session
    turns = [node for node in session.nodes if node.sampled]
    for node in turns:
        node.reward = 1.0
    [path] = step_returns(session)
    assert path == {node.id: float(len(turns) - place) for place, node in enumerate(turns)}
