"""What a run does with the branches that it forked on purpose: which are trained, by how much, and each by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from agentrl.types.nodes import Branch, Node
from agentrl.types.session import Session, branch_of, outcome, path_weights, scored, siblings


def untrained(session: Session) -> set[int]:
    """The ids of nodes in branches that only estimate a value, or that nobody rewarded."""
    out = [branch for branch in session.branches if not branch.trained or not scored(session, branch)]
    return {node for branch in out for node in range(branch.start, branch.end)}


def mean_rewards(session: Session) -> tuple[dict[str, float], float | None]:
    """A session's final rewards: by name the mean over its branches, and the mean by `path_weights`."""
    each = [branch for branch in session.branches if branch.reward is not None]
    if not each:
        return {}, None
    names = dict.fromkeys(name for branch in each for name in branch.rewards)
    by_name = {name: fmean(b.rewards[name] for b in each if name in b.rewards) for name in names}
    return by_name, sum(weight * outcome(session, leaf) for leaf, weight in path_weights(session).items())


def token_weights(session: Session) -> list[float]:
    """Return each trained token's weight relative to one above every fork: 1/m below a fork of m trained siblings."""
    left_out = untrained(session)
    trained = [[member for member in members if member not in left_out] for members in siblings(session)]
    forked = {member: len(members) for members in trained for member in members}
    weights: list[float] = []
    for node in session.nodes:
        above = 1.0 if node.parent is None else weights[node.parent]
        weights.append(above / forked.get(node.id, 1))
    return weights


def branch_nodes(session: Session, branch: Branch) -> list[Node]:
    """The nodes that a branch's own episode consists of: those before its head, and its own, in order."""
    own = session.nodes[branch.start : branch.end]
    if branch.head is None:
        return own
    before = branch_of(session, branch.head)
    assert before is not None
    return [node for node in branch_nodes(session, before) if node.id <= branch.head] + own


def alone(session: Session, nodes: Sequence[Node]) -> Session:
    """A session of some of the nodes, numbered anew, as if the others had never been; it has no branches."""
    ids: dict[int | None, int | None] = {None: None} | {node.id: place for place, node in enumerate(nodes)}
    numbered = [
        replace(node, id=place, parent=ids[node.parent], copy_of=ids[node.copy_of]) for place, node in enumerate(nodes)
    ]
    excluded = [place for root in session.excluded if (place := ids.get(root)) is not None]
    return replace(session, nodes=numbered, branches=[], excluded=excluded)
