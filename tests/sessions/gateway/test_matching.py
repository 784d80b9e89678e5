"""Histories find their nodes again, in whatever spelling clients send them back."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.sessions.gateway.matching import NodeIndex, tools_digest
from agentrl.sessions.tree import tree
from agentrl.types import FinishReason, FunctionCall, Message, Sampling, Session, Task, ToolCall, Turn, VersionSpan
from tests.sessions.forests import sessions

FEW = settings(max_examples=50, deadline=None)

TOOLS = [{"type": "function", "function": {"name": "f"}}]
ABOVE = tools_digest(())


def grow(*said: Message | tuple[Message, ...]) -> tuple[Session, NodeIndex]:
    """One path; a tuple's first goes on, the others are siblings."""
    session, parent = Session("s", Task(id="t")), None
    for one in said:
        alternatives = one if isinstance(one, tuple) else (one,)
        nodes = [_add(session, parent, message) for message in alternatives]
        parent = nodes[0]
    return session, NodeIndex(session)


def _add(session: Session, parent: int | None, message: Message) -> int:
    if message.role != "assistant":
        return tree.add(session, parent, message, [1, 2]).id
    turn = Turn((5, 6), (-1.0, -1.0), (VersionSpan(0, 0, 2),), FinishReason.STOP, 6)
    return tree.add_turn(session, parent, [9], turn, Sampling(), message).id


def user(text: str) -> Message:
    return Message(role="user", content=text)


def said(text: str = "", reasoning: str | None = None, *calls: ToolCall) -> Message:
    return Message(role="assistant", content=text, reasoning_content=reasoning, tool_calls=list(calls) or None)


def call(arguments: str, id_: str = "c1") -> ToolCall:
    return ToolCall(id=id_, function=FunctionCall(name="f", arguments=arguments))


@pytest.mark.slow
@FEW
@given(sessions(), st.data())
def test_every_stored_path_finds_a_node_that_says_the_same(grown: Session, data: st.DataObject) -> None:
    """Down to the first turn that a length limit cut: that one can't be gone on from."""
    if not grown.nodes:
        return
    node = data.draw(st.sampled_from(grown.nodes))
    path = tree.path(grown, node.id)
    match = NodeIndex(grown).match(tools_digest(path[0].tools), [n.message for n in path])
    if any(n.finish_reason is FinishReason.LENGTH for n in path):
        return
    assert match.new == ()
    assert match.loose_matches == 0
    assert match.parent is not None
    found, meant = ([n.message for n in nodes] for nodes in (tree.path(grown, match.parent), path))
    if any(n.copy_of is not None for n in grown.nodes):  # a turn and its repetition answer to the same messages
        found, meant = ([m.model_copy(update={"reasoning_content": None}) for m in told] for told in (found, meant))
    assert found == meant


@pytest.mark.slow
@FEW
@given(sessions(), st.data(), st.lists(st.text(max_size=5), max_size=3))
def test_what_is_new_is_what_lies_beyond_the_deepest_match(
    grown: Session, data: st.DataObject, more: list[str]
) -> None:
    """Against a plain reference: try all nodes, take the deepest whose messages begin the history."""
    start = data.draw(st.sampled_from(grown.nodes)) if grown.nodes else None
    path = tree.path(grown, start.id) if start else []
    history = [n.message for n in path] + [Message(role="user", content=text) for text in more]
    above = tools_digest(path[0].tools) if path else ABOVE
    match = NodeIndex(grown).match(above, history)
    depths = [0]
    for node in grown.nodes:
        nodes = tree.path(grown, node.id)
        cut = any(n.finish_reason is FinishReason.LENGTH for n in nodes)
        begins = [n.message for n in nodes] == history[: len(nodes)]
        if not cut and begins and tools_digest(nodes[0].tools) == above:
            depths.append(len(nodes))
    assert len(history) - len(match.new) >= max(depths)
    assert list(match.new) == history[len(history) - len(match.new) :]
    assert len(tree.path(grown, match.parent)) == len(history) - len(match.new), "nothing is left out between the two"


def test_reasoning_left_out_and_arguments_respelt_match_loosely() -> None:
    _, index = grow(user("q"), said("  hm", "because", call('{"a": 1, "b": [2]}')))
    match = index.match(ABOVE, [user("q"), said("hm ", None, call('{"b":[2],"a":1}', "other")), user("next")])
    assert (match.parent, match.new, match.loose_matches, match.branch_cause) == (1, (user("next"),), 1, None)


@pytest.mark.parametrize("other", [call('{"a": 2}'), ToolCall(id="c1", function=FunctionCall(name="g"))])
def test_another_call_never_matches(other: ToolCall) -> None:
    _, index = grow(user("q"), said("", None, call('{"a": 1}')))
    match = index.match(ABOVE, [user("q"), said("", None, other)])
    assert (match.parent, match.branch_cause) == (0, "edited")


def test_among_equal_choices_the_call_ids_and_later_messages_decide() -> None:
    first, second = said("", "x", call("{}", "one")), said("", "y", call("{}", "two"))
    session, index = grow(user("q"), (first, second))
    match = index.match(ABOVE, [user("q"), said("", None, call("{}", "one")), user("n")])
    assert match.parent == 1
    tree.add(session, 1, user("went on"), [3])
    index = NodeIndex(session)
    match = index.match(ABOVE, [user("q"), said("", None, call("{}", "lost")), user("went on"), user("n")])
    assert match.parent == 3


def test_other_tools_are_another_root() -> None:
    session = Session("s", Task(id="t"))
    tree.add(session, None, user("q"), [1], tools=TOOLS)
    index = NodeIndex(session)
    assert index.match(tools_digest(TOOLS), [user("q")]).parent == 0
    match = index.match(ABOVE, [user("q")])
    assert (match.parent, match.branch_cause) == (None, "tools")
    shuffled = [json.loads(json.dumps({"function": {"name": "f"}, "type": "function"}))]
    assert tools_digest(shuffled) == tools_digest(TOOLS)


SYSTEM = Message(role="system", content="be")


@pytest.mark.parametrize(
    ("history", "parent", "cause"),
    [
        ([SYSTEM, user("1"), said("a"), user("2"), said("b"), user("3")], 4, None),
        ([SYSTEM, user("1"), said("a"), user("2"), said("B"), user("3")], 3, "edited"),
        ([SYSTEM, user("1"), said("a"), user("2!"), said("c"), user("3")], 2, "edited"),
        ([SYSTEM, user("2"), said("b"), user("3")], 0, "dropped"),
        ([SYSTEM, user("summary of all")], 0, "compacted"),
        ([Message(role="system", content="you are a critic"), user("1")], None, "agent"),
        ([user("2"), said("b"), user("3")], None, "dropped"),
        ([SYSTEM, user("1"), said("a"), user("2"), said("b"), said("x"), user("3")], 4, "injected"),
    ],
)
def test_a_branch_knows_its_cause(history: list[Message], parent: int | None, cause: str | None) -> None:
    _, index = grow(SYSTEM, user("1"), said("a"), user("2"), said("b"))
    match = index.match(ABOVE, history)
    assert (match.parent, match.branch_cause) == (parent, cause)


def test_dropped_tokens_are_the_sampled_ones_that_the_history_left_behind() -> None:
    _, index = grow(SYSTEM, user("1"), said("a"), user("2"), said("b"))
    assert index.match(ABOVE, [SYSTEM, user("1"), said("a"), user("2"), said("B")]).dropped_tokens == 2
    assert index.match(ABOVE, [SYSTEM, user("summary")]).dropped_tokens == 4
    assert index.match(ABOVE, [SYSTEM, user("1"), said("a"), user("2"), said("b"), user("3")]).dropped_tokens == 0


def test_a_turn_that_was_cut_is_never_continued() -> None:
    session = Session("s", Task(id="t"))
    tree.add(session, None, user("q"), [1])
    turn = Turn((5, 6), (-1.0, -1.0), (VersionSpan(0, 0, 2),), FinishReason.LENGTH)
    tree.add_turn(session, 0, [9], turn, Sampling(), said("half a"))
    match = NodeIndex(session).match(ABOVE, [user("q"), said("half a"), user("go on")])
    assert (match.parent, match.branch_cause, len(match.new)) == (0, "cut", 2)


FLAG = {"type": "boolean", "default": False}
DEFAULTS = [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"all": FLAG, "n": {}}}}}]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("echoed", "same"),
    [
        ('{"x": 1, "all": false}', True),
        ('{"x": 1, "all": true}', False),
        ('{"x": 2, "all": false}', False),
        ('{"x": 1, "n": false}', False),
        ('{"all": false}', False),
    ],
)
def test_a_call_that_its_client_completed_by_declared_defaults_is_the_same_call(echoed: str, same: bool) -> None:
    _, index = grow(user("a"), said("", None, call('{"x": 1}')))
    history = [user("a"), said("", None, call(echoed)), user("b")]
    match = index.match(ABOVE, history, DEFAULTS)
    assert (match.parent, match.loose_matches, match.branch_cause) == ((1, 1, None) if same else (0, 0, "edited"))
    assert index.match(ABOVE, history).branch_cause == "edited"
    assert index.match(ABOVE, [user("a"), said("", None, call(echoed, "c2"))], DEFAULTS).parent == 0


def test_text_and_reasoning_beside_calls_may_be_left_out_where_the_calls_have_their_ids() -> None:
    _, index = grow(user("a"), (said("one", "so", call('{"x": 1}')), said("two", "so", call('{"x": 1}', "c2"))))
    for id_, node in (("c1", 1), ("c2", 2)):
        match = index.match(ABOVE, [user("a"), said("", None, call('{"x":1}', id_)), user("b")])
        assert (match.parent, match.loose_matches, match.branch_cause) == (node, 1, None)
    for echo in (
        said("", None, call('{"x": 2}')),
        said("", None, call('{"x": 1}', "c3")),
        said("three", None, call('{"x": 1}', "c2")),
        said("one"),
    ):
        assert index.match(ABOVE, [user("a"), echo]).parent == 0
    _, index = grow(user("a"), (said("", None, call("{}")), said("two", None, call("{}", "c2"))))
    assert index.match(ABOVE, [user("a"), said("", None, call("{}", "c2"))]).parent == 2, "the ids say which"
