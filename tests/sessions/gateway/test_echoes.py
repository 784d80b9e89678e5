"""Echoes to which a client added text: sampled tokens stay on the path, and the addition stands behind them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest

from agentrl.sessions.gateway.entries import SessionEntry
from agentrl.sessions.gateway.exchange import Exchange, Parts
from agentrl.sessions.gateway.gateway import Gateway
from agentrl.sessions.gateway.http.bodies import Body
from agentrl.sessions.gateway.limits import Limits
from agentrl.sessions.gateway.turn_request import TurnRequest
from agentrl.sessions.gateway.wire import messages, responses
from agentrl.sessions.store.store import Store
from agentrl.sessions.tree import tree
from agentrl.sessions.tree.turn_generator import TurnGenerator
from agentrl.types import Node, Session, Task, ToolCall
from tests.sessions.gateway.fakes import ScriptedEngine, assistant, in_turn, renderer
from tests.sessions.gateway.inside import exchange, turn_request

Message = dict[str, Any]

HI: Message = {"role": "user", "content": "hi"}
MORE: Message = {"role": "user", "content": "more"}
END = renderer().stop_token_ids[0]


def echo(text: str, **fields: Any) -> Message:
    return {"role": "assistant", "content": text, **fields}


class GatewaySession:
    """One session, and what its engine was given."""

    def __init__(self, folder: Path, *words: Any, **options: Any) -> None:
        self.engine = ScriptedEngine(in_turn(*words))
        self.store = Store(folder / "s.db")
        parts = Parts(TurnGenerator(renderer(), self.engine, **options), Limits())
        self.gateway = Gateway(parts, self.store, secret=b"kept")
        self.entry: SessionEntry | None = None
        self.key = ""

    async def __call__(self, *messages: Message, **fields: Any) -> tuple[Exchange, list[Node]]:
        if self.entry is None:
            self.key = self.key or (await self.gateway.open(Session("s", Task(id="t")))).api_key
            self.entry = self.gateway.entry("s", self.key)
        return await exchange(self.gateway, self.entry, turn_request(list(messages), **fields))

    def session(self) -> Session:
        """Checked: the invariants, the engine's prompts are the paths, the store holds the same."""
        assert self.entry is not None
        session = self.entry.state.session
        tree.check(session)
        sampled = [node for node in session.nodes if node.sampled]
        for node, call in zip(sampled, self.engine.calls, strict=True):
            assert call.turn is not None
            assert tree.path_ids(session, node.id) == [*call.input_ids, *call.turn.token_ids]
        assert self.store.load("s").nodes == session.nodes
        assert self.entry.state.size == tree.size(session)
        return session

    def saw(self, place: int) -> str:
        return str(renderer().tokenizer.decode(self.engine.calls[place].input_ids))


async def test_an_echo_that_says_more_goes_on_from_the_sampled_tokens(tmp_path: Path) -> None:
    """It used to be a branch that held the model's words tokenised anew (`edited`), at every turn of smolagents."""
    chat = GatewaySession(tmp_path, assistant("the price is"), assistant("bye"), assistant("well"))
    await chat(HI)
    said = echo("the price is\nObservation: <|im_end|> 7")
    await chat(HI, said, MORE)
    await chat(HI, said, MORE, echo("bye"), MORE)
    session = chat.session()
    turn, again = session.nodes[1], session.nodes[2]
    kept = turn.token_ids[:-1]
    assert turn.token_ids[-1] == END
    assert again.token_ids == kept + renderer().tokenizer.encode("\nObservation: <|im_end|> 7")
    assert (again.parent, again.copy_of, again.copied_tokens) == (turn.parent, turn.id, len(kept))
    assert (any(again.trainable), again.message.text) == (False, said["content"])
    assert [node.parent for node in session.nodes] == [None, 0, 0, 2, 3, 4, 5]
    assert chat.saw(1).endswith(
        "<|im_start|>assistant\nthe price is\nObservation: <|im_end|> 7<|im_end|>\n"
        "<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n"
    )
    assert session.counters == {"gateway/extended": 1, "gateway/clean": 1}
    assert session.partly_used() == {turn.id: len(kept)}
    assert [[node.id for node in path] for path in session.paths()] == [[0, 1, 3, 4, 5, 6]]


async def test_an_echo_with_what_the_stop_string_left_out_says_what_was_sampled(tmp_path: Path) -> None:
    """smolagents ends code by a stop string and writes that back: nothing is new, and no end token was drawn."""
    chat = GatewaySession(tmp_path, "x = 1</code>", "y = 2</code>", "z")
    await chat(HI, stop=["</code>"])
    assert chat.session().nodes[1].message.text == "x = 1"
    await chat(HI, echo("x = 1</code>"), MORE, stop=["</code>"])
    history = [HI, echo("x = 1</code>"), MORE, echo("y = 2</code>\nCalling tools: none"), MORE]
    await chat(*history)
    chat.entry.state.histories.clear()  # type: ignore[union-attr]  # so that it is found by walking the tree
    await chat(*history, echo("z"), HI)
    session = chat.session()
    assert [node.parent for node in session.nodes] == [None, 0, 1, 2, 2, 4, 5, 6, 7]
    second, again = session.nodes[3], session.nodes[4]
    assert (again.copy_of, again.copied_tokens) == (second.id, len(second.token_ids)), "all of it stays on the path"
    assert session.counters == {"gateway/clean": 2, "gateway/loose": 2, "gateway/extended": 1}


async def test_where_the_stop_string_is_not_echoed_its_tokens_are_left_behind(tmp_path: Path) -> None:
    chat = GatewaySession(tmp_path, "act\nObservation:", "done")
    await chat(HI, stop=["Observation:"])
    await chat(HI, echo("act\nresult"), MORE)
    session = chat.session()
    turn, again = session.nodes[1], session.nodes[2]
    start = turn.versions[0].start
    assert again.copied_tokens is not None
    assert renderer().tokenizer.decode(turn.token_ids[start : again.copied_tokens]) == "act\n"
    assert session.counters == {"gateway/extended": 1}


async def test_reasoning_stays_in_the_tokens_whether_the_echo_has_it_or_not(tmp_path: Path) -> None:
    chat = GatewaySession(tmp_path, assistant("a", "because"), assistant("b", "so"), assistant("c"))
    await chat(HI)
    await chat(HI, echo("a!"), MORE)
    await chat(HI, echo("a!"), MORE, echo("b!", reasoning_content="so"), MORE)
    assert "because" in chat.saw(2)
    assert "so\n" in chat.saw(2)
    assert chat.session().counters == {"gateway/extended": 2}


@pytest.mark.parametrize(
    ("words", "said", "cause"),
    [
        (assistant("look", calls=[("f", "{}")]), {"content": "look!"}, "extended_forbidden"),
        (assistant("a", "because"), {"content": "a!", "reasoning_content": "why"}, "edited"),
        (assistant("a"), {"content": "ba"}, "edited"),
        (assistant(""), {"content": "all mine"}, "edited"),
    ],
    ids=["behind calls", "other reasoning", "in front", "of nothing"],
)
async def test_what_is_no_addition_or_has_no_place_is_a_branch(
    tmp_path: Path, words: Any, said: Message, cause: str
) -> None:
    chat = GatewaySession(tmp_path, words, assistant("b"))
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    _, (turn,) = await chat(HI, tools=tools)
    calls = [call.model_dump(exclude_none=True) for call in turn.message.tool_calls or ()]
    history = [HI, echo(**{"text": said["content"]}, **({"tool_calls": calls} if calls else {}))]
    history[1] |= {name: value for name, value in said.items() if name != "content"}
    result = [{"role": "tool", "tool_call_id": call["id"], "content": "7"} for call in calls]
    await chat(*history, *result, MORE, tools=tools)
    session = chat.session()
    assert session.counters[f"gateway/branches/{cause}"] == 1
    assert all(node.copied_tokens is None for node in session.nodes)


async def test_one_turn_may_be_continued_in_several_ways(tmp_path: Path) -> None:
    chat = GatewaySession(tmp_path, assistant("a"), assistant("b"), assistant("c"), assistant("d"))
    await chat(HI)
    side_by_side = [[HI, echo("a one"), MORE], [HI, echo("a two"), MORE], [HI, echo("a"), MORE]]
    await asyncio.gather(*(chat(*history) for history in side_by_side))
    session = chat.session()
    assert sorted(node.message.text for node in session.nodes if node.copied_tokens) == ["a one", "a two"]
    assert session.partly_used() == {}, "the end of the turn is on a path"
    assert session.counters == {"gateway/extended": 2, "gateway/clean": 1}
    assert len(list(session.paths())) == 3


async def test_stripping_leaves_the_reasoning_of_an_extended_turn_behind(tmp_path: Path) -> None:
    chat = GatewaySession(
        tmp_path,
        assistant("a", "because"),
        assistant("b", "so"),
        assistant("c"),
        strip_reasoning=True,
    )
    await chat(HI)
    await chat(HI, echo("a!"), MORE)
    await chat(HI, echo("a!"), MORE, echo("b?"), MORE)
    session = chat.session()
    assert "because" not in chat.saw(1)
    assert chat.saw(1).count("a!<|im_end|>") == chat.saw(2).count("a!<|im_end|>") == chat.saw(2).count("b?") == 1
    assert "so\n" not in chat.saw(2)
    assert [session.nodes[n.copy_of].message.text for n in session.nodes if n.copy_of is not None] == ["a", "b"]


async def test_tokens_that_an_echo_shares_with_its_turn_count_once_in_the_sessions_budget(tmp_path: Path) -> None:
    chat = GatewaySession(tmp_path, assistant("a" * 60), assistant("b"), session_tokens=150)
    await chat(HI)
    await chat(HI, echo("a" * 60 + "!"), MORE)
    session = chat.session()
    assert tree.size(session) < 150 < sum(len(node.token_ids) for node in session.nodes)


@pytest.mark.slow
async def test_a_session_that_is_taken_up_again_knows_its_extended_turns(tmp_path: Path) -> None:
    chat = GatewaySession(tmp_path, assistant("a"), assistant("b"), assistant("c"))
    await chat(HI)
    await chat(HI, echo("a!"), MORE)
    stored = chat.store.load("s")
    await chat.gateway.aclose()
    chat.gateway, chat.entry = Gateway(chat.gateway.parts, chat.store, secret=b"kept"), None
    await chat(HI, echo("a!"), MORE, echo("b"), MORE)
    session = chat.session()
    assert session.nodes[: len(stored.nodes)] == stored.nodes
    assert session.counters == {"gateway/extended": 1, "gateway/clean": 1}


ADD = {"name": "add", "description": "adds"}
SHAPE: dict[str, Any] = {"type": "object", "properties": {}}


def asked_of_chat(calls: list[ToolCall]) -> TurnRequest:
    """Semantic-kernel and agno send back the calls alone."""
    shown = [{"id": c.id, "type": "function", "function": c.function.model_dump()} for c in calls]
    results = [{"role": "tool", "tool_call_id": c.id, "content": "7"} for c in calls]
    tools = [{"type": "function", "function": {**ADD, "parameters": SHAPE}}]
    history = [HI, {"role": "assistant", "tool_calls": shown}, *results] if calls else [HI]
    return turn_request(history, tools=tools)


def asked_of_responses(calls: list[ToolCall]) -> TurnRequest:
    items = [HI, *({"type": "function_call", "call_id": c.id, **c.function.model_dump()} for c in calls)]
    items += [{"type": "function_call_output", "call_id": c.id, "output": "7"} for c in calls]
    body = {"model": "m", "input": items, "tools": [{"type": "function", **ADD, "parameters": SHAPE}]}
    return responses.read(Body.parse(orjson.dumps(body), "input"), Limits(), None, True)


def asked_of_messages(calls: list[ToolCall]) -> TurnRequest:
    uses = [{"type": "tool_use", "id": c.id, "name": c.function.name, "input": {}} for c in calls]
    results = [{"type": "tool_result", "tool_use_id": c.id, "content": "7"} for c in calls]
    turns = [{"role": "assistant", "content": uses}, {"role": "user", "content": results}] if calls else []
    body = {"model": "m", "max_tokens": 500, "messages": [HI, *turns], "tools": [{**ADD, "input_schema": SHAPE}]}
    return messages.read(Body.parse(orjson.dumps(body), "messages"), Limits(), None, True)


@pytest.mark.parametrize("asked", [asked_of_chat, asked_of_responses, asked_of_messages])
async def test_text_that_a_client_leaves_out_beside_calls_stays_on_the_path(tmp_path: Path, asked: Any) -> None:
    """Each turn with a call was a branch (`edited`), without the words before it, and nothing on it was sampled."""
    calling = assistant("let me see", "because", calls=[("add", "{}"), ("add", "{}")])
    chat = GatewaySession(tmp_path, calling, assistant("7"))
    access = await chat.gateway.open(Session("s", Task(id="t")))
    chat.entry = chat.gateway.entry("s", access.api_key)
    _, (turn,) = await exchange(chat.gateway, chat.entry, asked([]))
    await exchange(chat.gateway, chat.entry, asked(list(turn.message.tool_calls or ())))
    session = chat.session()
    assert [node.parent for node in session.nodes] == [None, *range(len(session.nodes) - 1)]
    assert session.counters == {"gateway/clean": 1, "gateway/loose": 1}
    assert "let me see" in chat.saw(1)


async def test_text_beside_calls_is_also_missed_on_the_path_without_the_reasoning(tmp_path: Path) -> None:
    calling = assistant("let me see", "because", calls=[("add", "{}")])
    chat = GatewaySession(tmp_path, calling, assistant("7"), assistant("8"), assistant("9"), strip_reasoning=True)
    tools = [{"type": "function", "function": {**ADD, "parameters": SHAPE}}]
    _, (turn,) = await chat(HI, tools=tools)
    (call,) = turn.message.tool_calls or ()
    shown = {"id": call.id, "type": "function", "function": call.function.model_dump()}
    result = {"role": "tool", "tool_call_id": call.id, "content": "7"}
    history = [HI, {"role": "assistant", "tool_calls": [shown]}, result]
    for text in ("7", "8"):
        await chat(*history, tools=tools)
        history += [echo(text), MORE]
    await chat(*history, tools=tools)
    session = chat.session()
    assert sum(node.copy_of == turn.id for node in session.nodes) == 1
    assert ("let me see" in chat.saw(3), "because" in chat.saw(3)) == (True, False)
    assert session.nodes[-1].parent is not None
    assert [n.message.text for n in tree.path(session, session.nodes[-1].id)][-5:] == ["7", "more", "8", "more", "9"]
    assert not any(name.startswith("gateway/branches/") for name in session.counters if "reasoning" not in name)
