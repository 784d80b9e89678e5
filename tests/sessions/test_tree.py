"""The tree, held to its invariants on random forests and against plain recomputation."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.errors import TreeError
from agentrl.sessions.tree import tree
from agentrl.types import FinishReason, Message, Sampling, Session, Task, Turn, VersionSpan
from tests.sessions.forests import sessions

FEW = settings(max_examples=50, deadline=None)

USER = Message(role="user", content="hi")
ASSISTANT = Message(role="assistant", content="hello")


def session() -> Session:
    return Session("s", Task(id="t"))


@pytest.mark.slow
@FEW
@given(sessions())
def test_whatever_add_accepts_passes_the_check(grown: Session) -> None:
    tree.check(grown)


@FEW
@given(sessions())
@pytest.mark.slow
def test_a_path_is_its_parents_path_and_its_own_tokens(grown: Session) -> None:
    for node in grown.nodes:
        above = tree.path_ids(grown, node.parent)
        assert tree.path_ids(grown, node.id) == above + node.token_ids
        assert tree.position(grown, node.id) == len(above)
        assert tree.depth(grown, node.id) == len(tree.path(grown, node.parent))
        assert tree.path(grown, node.id)[-1] is node


@pytest.mark.slow
@FEW
@given(sessions())
def test_children_are_in_the_order_of_their_creation_and_partition_the_tree(grown: Session) -> None:
    below = [tree.children(grown, parent) for parent in [None, *(node.id for node in grown.nodes)]]
    assert sorted(node.id for group in below for node in group) == [node.id for node in grown.nodes]
    for group in below:
        assert [node.id for node in group] == sorted(node.id for node in group)
    assert tree.roots(grown) == below[0]
    assert tree.leaves(grown) == [node for node, group in zip(grown.nodes, below[1:], strict=True) if not group]
    assert tree.size(grown) == sum(len(node.token_ids) - (node.copied_tokens or 0) for node in grown.nodes)


@pytest.mark.slow
@FEW
@given(sessions(), st.data())
def test_adding_a_branch_never_changes_what_is_stored(grown: Session, data: st.DataObject) -> None:
    before = copy.deepcopy(grown.nodes)
    open_ends = [node.id for node in grown.nodes if node.finish_reason is not FinishReason.LENGTH]
    tree.add(grown, data.draw(st.sampled_from([None, *open_ends])), USER, [1, 2])
    assert grown.nodes[:-1] == before


@pytest.mark.parametrize("spoil", ["id", "parent", "lengths", "negative", "logp", "reward", "mask", "role"])
@settings(max_examples=8, deadline=None)
@given(sessions().filter(lambda s: s.nodes), st.data())
def test_every_spoilt_tree_is_refused(spoil: str, grown: Session, data: st.DataObject) -> None:
    """Break one invariant of a random node: the check must say so."""
    node = grown.nodes[data.draw(st.integers(0, len(grown.nodes) - 1))]
    if spoil == "id":
        node.id += 1
    elif spoil == "parent":
        node.parent = node.id
    elif spoil == "lengths":
        node.token_ids.append(1)
    elif spoil == "negative":
        node.token_ids, node.trainable, node.logprobs = [-1], [False], [0.0]
    elif spoil == "logp":
        node.token_ids, node.trainable, node.logprobs = [1], [False], [float("nan")]
    elif spoil == "reward":
        node.reward = float("inf")
    elif spoil == "mask":
        node.token_ids, node.trainable, node.logprobs = [1, 2], [True, False], [0.0, 0.0]
    else:
        node.message, node.token_ids, node.trainable, node.logprobs = USER, [1], [True], [0.0]
        node.sampling = Sampling()  # what nobody sampled may be trained on, whoever said it (`data.train_on`)
    with pytest.raises(TreeError):
        tree.check(grown)


TURN = Turn((5, 6, 7), (-1.0, -2.0, -0.5), (VersionSpan(3, 0, 1), VersionSpan(4, 1, 3)), FinishReason.STOP)


def test_a_turns_node_opens_with_the_untrained_generation_prompt() -> None:
    s = session()
    root = tree.add(s, None, USER, [1, 2])
    node = tree.add_turn(s, root.id, [9, 9], TURN, Sampling(), ASSISTANT)
    assert node.token_ids == [9, 9, 5, 6, 7]
    assert node.trainable == [False, False, True, True, True]
    assert node.logprobs == [0.0, 0.0, -1.0, -2.0, -0.5]
    assert node.versions == [VersionSpan(3, 2, 3), VersionSpan(4, 3, 5)]


def test_a_turn_from_a_narrowed_support_is_stored_untrainable_with_its_logprobs() -> None:
    node = tree.add_turn(session(), None, [9], TURN, Sampling(top_p=0.9), ASSISTANT)
    assert not any(node.trainable)
    assert node.logprobs == [0.0, -1.0, -2.0, -0.5]


@pytest.mark.parametrize(
    ("copied", "ids", "why"),
    [
        (2, [9, 9, 5], "samples none"),
        (6, [9, 9, 5, 6, 7, 1], "samples none"),
        (4, [9, 9, 5, 8], "does not begin"),
        (5, [9, 9, 5, 6, 7, 1], "of which others copy"),
    ],
)
def test_what_continues_a_turn_begins_with_its_sampled_tokens(copied: int, ids: list[int], why: str) -> None:
    s = session()
    root = tree.add(s, None, USER, [1, 2])
    turn = tree.add_turn(s, root.id, [9, 9], TURN, Sampling(), ASSISTANT)
    tree.add(s, root.id, ASSISTANT, [9, 9, 5, 6, 1, 1], copy_of=turn.id, copied_tokens=4)
    with pytest.raises(TreeError, match=why):
        tree.add(s, root.id, ASSISTANT, ids, copy_of=turn.id, copied_tokens=copied)
    with pytest.raises(TreeError, match="same parent"):
        tree.add(s, turn.id, ASSISTANT, [9, 9, 5, 6, 1], copy_of=turn.id, copied_tokens=4)
    with pytest.raises(TreeError, match="no turn"):
        tree.add(s, root.id, ASSISTANT, [9, 9, 5, 6, 1], copied_tokens=4)
    tree.check(s)
    assert tree.size(s) == 2 + 5 + 2


def test_nothing_follows_a_turn_that_a_length_limit_cut() -> None:
    s = session()
    cut = Turn(TURN.token_ids, TURN.logprobs, TURN.versions, FinishReason.LENGTH)
    node = tree.add_turn(s, None, [9], cut, Sampling(), ASSISTANT)
    with pytest.raises(TreeError, match="length limit"):
        tree.add(s, node.id, USER, [1])
    assert len(s.nodes) == 1


@pytest.mark.parametrize(
    ("turn", "words"),
    [
        (Turn((5,), (0.5,), (VersionSpan(0, 0, 1),), FinishReason.STOP), "above 0"),
        (Turn((5, 6), (-1, -1), (VersionSpan(0, 0, 1),), FinishReason.STOP), "version spans"),
        (Turn((5, 6, 7), (-1, -1, -1), (VersionSpan(0, 0, 1), VersionSpan(1, 2, 3)), FinishReason.STOP), "version"),
        (Turn((5,), (-1,), (VersionSpan(0, 0, 1),), FinishReason.ABORT), "ended"),
        (Turn((), (), (), FinishReason.STOP), "version spans"),
        (Turn((5, 6), (-1,), (VersionSpan(0, 0, 2),), FinishReason.STOP), "differ in number"),
    ],
)
def test_an_engines_broken_turn_is_refused_and_leaves_the_tree_alone(turn: Turn, words: str) -> None:
    s = session()
    with pytest.raises(TreeError, match=words):
        tree.add_turn(s, None, [9], turn, Sampling(), ASSISTANT)
    assert s.nodes == []


def test_tools_belong_to_roots_and_unknown_nodes_are_named() -> None:
    s = session()
    tree.add(s, None, USER, [1], tools=[{"type": "function"}])
    with pytest.raises(TreeError, match="tools"):
        tree.add(s, 0, USER, [1], tools=[{"type": "function"}])
    with pytest.raises(TreeError, match="no node 7"):
        tree.path(s, 7)


@pytest.mark.slow
def test_attachments_of_more_tokens_than_the_path_has_are_refused_with_the_place_and_what_was_expected() -> None:
    session = Session("s1", Task(id="t"))
    root = tree.add(session, None, Message(role="user", content="x"), [1, 2, 3])
    kind, two_layers = "routed_experts", bytes((1, 2, 2, 0))
    reply = Message(role="assistant", content="y")
    with pytest.raises(TreeError, match=r"session 's1': node 1: routed experts of 6 tokens; expected at most 5"):
        tree.add(session, root.id, reply, [4, 5], attached={kind: two_layers + bytes(6 * 4)})
    with pytest.raises(TreeError, match=r"session 's1': node 1: routed experts of 9 bytes are no whole number of rows"):
        tree.add(session, root.id, reply, [4, 5], attached={kind: two_layers + bytes(5)})
    assert tree.unrecorded(session, root.id, [kind]) == ((kind, 0),)
    node = tree.add(session, root.id, reply, [4, 5], attached={kind: two_layers + bytes(4 * 4) + b"\xff" * 4})
    assert tree.unrecorded(session, node.id, [kind]) == ((kind, 4),)
    with pytest.raises(TreeError, match=r"node 2: .*'routed_expert'.*routed_experts"):
        tree.add(session, root.id, reply, [4, 5], attached={"routed_expert": two_layers})
    session.nodes[1].attachments = {kind: two_layers + bytes(6 * 4)}
    with pytest.raises(TreeError, match="expected at most 5"):
        tree.check(session)
