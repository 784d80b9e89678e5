"""The texts of turns and users' messages are what their tokens say, whatever a format writes around them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.config import START, ModelConfig, PolicyConfig
from agentrl.sessions.gateway.reading import Reading
from agentrl.sessions.gateway.turn_request import TurnRequest
from agentrl.sessions.renderers import get_renderer
from agentrl.sessions.renderers.base import Renderer, parse
from agentrl.train.record.verify.report import Check
from agentrl.train.record.verify.texts import ANOTHERS, NO_TOKENIZER, Texts, models_apart
from agentrl.types import MAIN, FinishReason, FunctionCall, Message, Node, Sampling, Session, Task, ToolCall
from tests.train.verified.clean import make_base

PIECES = (
    *("hello", "  ", "\n", "é", "日本語", "👩‍👩‍👧", "\u200b", "don't .", "x<|y", "ﬁ", "İ", "\ufffd", " .", "1 2"),
    *("</think>", "<think>", "<tool_call>", "</tool_call>", '{"name": "look_up", "arguments": {"q": "a\\nb"}}'),
)
WORDS = st.lists(st.sampled_from(PIECES), min_size=1, max_size=12).map("".join)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("texts"))


@pytest.fixture(scope="module")
def renderer(model: Path) -> Renderer:
    return get_renderer(model)


def sampled(message: Message, ids: list[int]) -> Node:
    return Node(0, None, message, ids, [True] * len(ids), [0.0] * len(ids), sampling=Sampling(), policy=MAIN)


def faults(model: Path, node: Node) -> list[str]:
    check = Check("texts", "")
    Texts(model, check).add(Session("s", Task(id="t"), nodes=[node]))
    assert check.examined["texts"] == 1 or check.unknown
    return [fault.what for fault in check.faults]


@pytest.mark.slow
@given(text=WORDS, seed=st.integers(0, 10**6))
@settings(deadline=None, max_examples=60)
def test_what_a_parser_reads_is_in_the_tokens_and_what_was_put_in_is_not(
    text: str, seed: int, model: Path, renderer: Renderer
) -> None:
    rng = random.Random(seed)
    noise = [rng.randrange(250) for _ in range(rng.randint(0, 20))]
    ids = [*renderer.tokenizer.encode(text), *noise, renderer.stop_token_ids[0]]
    message = parse(renderer, ids).message
    assert not faults(model, sampled(message, ids))
    changed = message.model_copy(update={"content": f"{message.text} zebra"})
    [what] = faults(model, sampled(changed, ids))
    assert "zebra" in what


@given(text=WORDS)
@settings(deadline=None, max_examples=60)
@pytest.mark.slow
def test_what_a_gateway_replies_is_in_the_tokens_and_what_was_put_in_is_not(
    text: str, model: Path, renderer: Renderer
) -> None:
    """A call that can't be read is text behind what follows it: a run with one did not pass."""
    call = ToolCall(id="call_0", function=FunctionCall(name="a", arguments="{}"))
    opening, *_, closing, end = renderer.turn(Message(role="assistant", tool_calls=[call]))
    encode = renderer.tokenizer.encode
    ids = [*encode(text), opening, *encode("once"), closing, *encode(f" upon {text}"), end]
    reading = Reading(renderer, TurnRequest("chat", "m", None, None, lambda *_: [], Sampling()), (), "call_")
    reading.feed(ids)
    _, message = reading.finish(FinishReason.STOP)
    node = sampled(message, ids)
    node.reply_id = "a"
    assert not faults(model, node)
    node.message = message.model_copy(update={"content": f"zebra {message.text}"})
    assert "zebra" in faults(model, node)[0]


@given(text=WORDS)
@settings(deadline=None, max_examples=60)
@pytest.mark.slow
def test_a_users_message_is_in_its_tokens(text: str, model: Path, renderer: Renderer) -> None:
    message = Message(role="user", content=text)
    [ids] = renderer.render([message])
    node = Node(0, None, message, ids, [False] * len(ids), [0.0] * len(ids))
    assert not faults(model, node)
    node.message = Message(role="user", content="zebra")
    assert faults(model, node) == ["its text has 'zebra', and its tokens don't"]


def test_a_text_that_could_be_matched_in_many_ways_is_compared_in_a_few(model: Path, renderer: Renderer) -> None:
    """Every way of splitting a word was tried, 2 to the power of its length."""
    ids = renderer.tokenizer.encode("a<a[" * 300)
    [what] = faults(model, sampled(Message(role="assistant", content="a" * 300 + "b"), ids))
    assert "its text has" in what


def test_a_demonstration_to_an_agent_of_another_model_is_not_compared_by_the_runs_tokenizer(model: Path) -> None:
    """A run of two tokenizers with a warm start did not pass: demonstrations do not say whose policy they are for."""
    for agent, unknown in {"left": {}, "right": {ANOTHERS: 1}, "right/reader": {ANOTHERS: 1}}.items():
        check = Check("texts", "")
        node = Node(0, None, Message(role="user", content="hello"), [7], [False], [0.0], agent=agent)
        said = Texts(model, check, frozenset({"rival"}), {"right": "rival"})
        said.add(Session("demo-0.0-0", Task(id="t"), phase="demo", nodes=[node]))
        assert (len(check.faults), dict(check.unknown)) == (not unknown, unknown)


def test_what_a_policy_by_rules_is_told_has_no_tokens_and_is_no_fault(model: Path) -> None:
    """A run with such a partner did not pass: its messages were looked for in tokens that it does not have."""
    policies = {"rules": PolicyConfig(name="expert"), "old": PolicyConfig(name="past"), "same": PolicyConfig()}
    same = policies["same"].model_copy(update={"model": ModelConfig(name=START)})
    assert models_apart({**policies, "same": same}) == {"rules"}
    for player, expected in {"rules": (0, {}), "main": (1, {})}.items():
        check = Check("texts", "")
        node = Node(0, None, Message(role="user", content="hello"), [], [], [], agent="left")
        said = Texts(model, check, models_apart({"rules": policies["rules"]}), {"left": player})
        said.add(Session("demo-0.0-0", Task(id="t"), phase="demo", nodes=[node]))
        assert (len(check.faults), dict(check.unknown)) == expected


def test_without_a_tokenizer_texts_are_unknown(tmp_path: Path) -> None:
    check = Check("texts", "")
    Texts(tmp_path, check).add(Session("s", Task(id="t")))
    assert dict(check.unknown) == {NO_TOKENIZER: 1}
