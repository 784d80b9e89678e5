"""Recorded routed experts: from the turns that bring them to the tokens of forests."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.attachments import routed_experts
from agentrl.errors import InvalidInput
from agentrl.sessions.tree import tree
from agentrl.train.algorithms.credit import Credit, NodeAdvantage
from agentrl.train.forest.packing import pack
from agentrl.train.forest.recorded_experts import experts_by_node
from agentrl.types import Session
from tests.train.trees import as_group, environment_node, leaf_credit, linear_session, path, random_groups

LAYERS, TOPK, EXPERTS = 2, 2, 300
UNKNOWN = np.full((LAYERS, TOPK), -1)


def of_path(ids: tuple[int, ...]) -> np.ndarray:
    """What an engine that is a pure function of the path sends its last token to."""
    return np.random.default_rng(ids).integers(0, EXPERTS, (LAYERS, TOPK))


def prefixes(session: Session, node_id: int) -> list[tuple[int, ...]]:
    ids = tree.path_ids(session, node_id)
    return [tuple(ids[: place + 1]) for place in range(len(ids))]


def record(session: Session) -> set[tuple[int, ...]]:
    """Let every turn record what no turn before it on its path has; returns the paths of the recorded tokens."""
    paths: set[tuple[int, ...]] = set()
    for node in session.nodes:
        if node.sampled:
            known = prefixes(session, node.id)[tree.unrecorded(session, node.id, [routed_experts.NAME])[0][1] :]
            rows = [of_path(ids) for ids in known[:-1]]
            node.attachments[routed_experts.NAME] = routed_experts.pack(np.array([*rows, UNKNOWN]), EXPERTS)
            paths.update(known[:-1])
    return paths


def attach(session: Session, node: int, data: np.ndarray | bytes) -> None:
    packed = data if isinstance(data, bytes) else routed_experts.pack(data, EXPERTS)
    session.nodes[node].attachments[routed_experts.NAME] = packed


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), budget=st.sampled_from((1, 20, 60, 10_000)), some=st.booleans())
@pytest.mark.slow
def test_packing_keeps_every_tokens_experts_through_merges_splits_and_cuts(seed: int, budget: int, some: bool) -> None:
    """Experts are a function of the path here, so a token has the same in whatever session and forest it is."""
    rng = random.Random(seed)
    groups = random_groups(rng, 2, depth=5, branching=3)
    sessions = [session for group in groups for session in group.sessions]
    known_paths: dict[str, set[tuple[int, ...]]] = {}
    for session in sessions:
        known = record(session) if not some or rng.random() < 0.7 else set()
        known_paths.setdefault(session.group, set()).update(known)
    known_paths = {"g": set().union(*known_paths.values())}
    credit, _ = leaf_credit(rng, sessions)
    for forest in pack(groups, credit, budget, seed=seed):
        if not any(node.attachments for session in sessions for node in session.nodes):
            assert forest.routed_experts is None
            continue
        forest.check()
        assert forest.routed_experts is not None
        assert forest.routed_experts.dtype == torch.int16
        parents = forest.parents().tolist()
        paths: list[tuple[int, ...]] = []
        for token, parent in zip(forest.token_ids.tolist(), parents, strict=True):
            paths.append((*(paths[parent] if parent >= 0 else ()), token))
        for ids, row in zip(paths, forest.routed_experts.numpy(), strict=True):
            if (row < 0).any():
                assert np.array_equal(row, UNKNOWN)
            else:
                assert ids in known_paths["g"]
                assert np.array_equal(row, of_path(ids))
        rows = {session.id: experts_by_node(session) for session in sessions}
        by_name = {session.id: session for session in sessions}
        for place, (node, owner) in enumerate(zip(forest.node_id.tolist(), forest.session_id.tolist(), strict=True)):
            session = by_name[forest.sessions[owner]]
            if node in rows[session.id]:  # what the first owner knows is known
                own = rows[session.id][node][int(forest.position[place]) - tree.position(session, node)]
                assert bool((forest.routed_experts[place] >= 0).all()) or bool((own < 0).all())


def test_a_turn_records_the_nodes_before_it_and_the_next_one_its_last_token() -> None:
    session = linear_session("s", [10, 11, 12], [[30, 31], [32, 33]])
    record(session)
    rows = experts_by_node(session)
    assert [len(rows[i]) for i in range(4)] == [3, 4, 1, 4]
    for node in path(session, 3):
        expected = [of_path(ids) for ids in prefixes(session, node.id)[-len(node.token_ids) :]]
        if node.id == 3:
            expected[-1] = UNKNOWN
        assert np.array_equal(rows[node.id], expected)
    assert 4 not in rows  # the answer behind the last turn was nobody's input yet


def test_the_first_turns_record_of_a_shared_token_is_used() -> None:
    session = linear_session("s", [10, 11], [[30]])
    attach(session, 1, np.full((5, LAYERS, TOPK), 1))
    environment_node(session, 1, [3])
    attach(session, 3, np.full((6, LAYERS, TOPK), 2))
    rows = experts_by_node(session)
    assert [int(rows[i].max()) for i in (0, 1, 3)] == [1, 1, 2]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (np.zeros((6, LAYERS, TOPK), int), r"session 's', node 1: routed experts of 6 tokens; expected at most 5"),
        (
            b"\x02\x02\x02\x00odd",
            r"session 's', node 1: .* of 7 bytes are no whole number of rows of 8 bytes",
        ),
    ],
)
def test_experts_that_do_not_fit_are_refused_with_session_and_node(data: np.ndarray | bytes, said: str) -> None:
    session = linear_session("s", [10, 11], [[30]])
    attach(session, 1, data)
    credit = Credit({("s", 1): (NodeAdvantage(1.0, 1.0),)})
    with pytest.raises(InvalidInput, match=said):
        pack([as_group([session])], credit, 100)


@pytest.mark.slow
def test_experts_of_two_models_in_one_batch_are_refused() -> None:
    session = linear_session("s", [10, 11], [[30], [31]])
    attach(session, 1, np.zeros((2, LAYERS, TOPK), int))
    attach(session, 3, np.zeros((2, LAYERS + 1, TOPK), int))
    with pytest.raises(InvalidInput, match=r"node 3: routed experts of \(3, 2\) \(layers, k\); expected \(2, 2\)"):
        experts_by_node(session)
    other = linear_session("t", [10, 11], [[30]])
    other.nodes[1].attachments = session.nodes[3].attachments
    session.nodes[3].attachments = {}
    credit = Credit({(name, 1): (NodeAdvantage(1.0, 1.0),) for name in "st"})
    with pytest.raises(InvalidInput, match="a batch's routed experts must be of one shape"):
        pack([as_group([session, other])], credit, 100)
