"""Branches of a session that a run forked on purpose, and how much of the session each path is.

A fork continues a session several times from one of its nodes. Turns that were sampled there from the same prefix, by
the same policy and with the same sampling settings, are *siblings*: each of them is as likely as the others, so what
follows a fork is their plain mean, recursively. Every other branch (a compaction, a client's echo or retry, a
sub-agent's root) is a part of the path that made it, and has no siblings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentrl.types.session import Node, Session, Status


@dataclass(slots=True)
class Branch:
    """One way in which a session was continued to an end of its own: nodes [start, end), and their outcome.

    A session's first branch is what it was without any fork. A session without forks lists no branches.

    Attributes:
        head: the node that it continues; None for the first branch.
        start: the id of its first own node.
        end: one past its last own node; its path ends at the node before.
        status: how it ended.
        rewards: its final rewards by name.
        reward: their weighted sum; None where there is none.
        error: what ended it, where it did not complete.
        trained: whether its own turns may be trained on; otherwise it is only an estimate of the value of its head.
    """

    head: int | None
    start: int
    end: int
    status: Status
    rewards: dict[str, float] = field(default_factory=dict)
    reward: float | None = None
    error: str | None = None
    trained: bool = True


def branch_of(session: Session, node_id: int) -> Branch | None:
    """The branch that a node is of; None in a session without forks."""
    return next((branch for branch in session.branches if branch.start <= node_id < branch.end), None)


def outcome(session: Session, node_id: int) -> float:
    """The final reward of the path that ends at a node, 0 without one: its branch's, where the session has forks."""
    branch = branch_of(session, node_id)
    return (session.reward if branch is None else branch.reward) or 0.0


def scored(session: Session, branch: Branch) -> bool:
    """Return whether anything of a branch was rewarded: otherwise it is neither trained on nor compared with."""
    own = session.nodes[branch.start : branch.end]
    return branch.reward is not None or any(node.reward is not None for node in own)


def untrained(session: Session) -> set[int]:
    """The ids of nodes in branches that only estimate a value, or that nobody rewarded."""
    out = [branch for branch in session.branches if not branch.trained or not scored(session, branch)]
    return {node for branch in out for node in range(branch.start, branch.end)}


def siblings(session: Session) -> list[list[int]]:
    """Sets of turns that are siblings at a fork, at least two in each, by the ids of their nodes.

    Turns that lead to no branch that was rewarded are left out.
    """
    heads = dict.fromkeys(branch.head for branch in session.branches if branch.head is not None)
    if not heads:
        return []
    led = set(_scored_leaves(session))
    for node in reversed(session.nodes):
        if node.id in led and node.parent is not None:
            led.add(node.parent)
    sets: dict[tuple[Any, ...], list[int]] = {}
    for node in session.nodes:
        if node.parent in heads and node.sampled and node.id in led:
            sets.setdefault((node.parent, *conditions(node)), []).append(node.id)
    return [members for members in sets.values() if len(members) > 1]


def conditions(node: Node) -> tuple[Any, ...]:
    """Return what siblings have in common: agent, policy, sampling without the seed, the generation prompt."""
    assert node.sampling is not None
    opening = node.token_ids[: node.versions[0].start]
    return node.agent, node.policy, replace(node.sampling, seed=None, max_new_tokens=0, record=()), tuple(opening)


def path_weights(session: Session) -> dict[int, float]:
    """Return the weight of each rewarded stored path in the session, by the id of its last node; they sum to 1.

    Siblings share equally what their fork has; at any other branch the paths do, as in a session without forks.
    """
    leaves = _scored_leaves(session)
    parents = [node.parent for node in session.nodes]
    set_of = {member: members for members in siblings(session) for member in members}
    paths = [0.0] * len(parents)  # below each node; a fork counts as one of its siblings does, on average
    total = 0.0
    for node in reversed(range(len(parents))):
        paths[node] += node in leaves
        part = paths[node] / len(set_of.get(node, (node,)))
        parent = parents[node]
        if parent is None:
            total += part
        else:
            paths[parent] += part
    weights = [0.0] * len(parents)
    for node, parent in enumerate(parents):
        if not paths[node]:
            continue
        members = set_of.get(node)
        mine = paths[node] if members is None else sum(paths[m] for m in members) / len(members) ** 2
        above, below = (1.0, total) if parent is None else (weights[parent], paths[parent])
        weights[node] = above * mine / below
    return {leaf: weights[leaf] for leaf in leaves}


def mean_score(session: Session) -> float | None:
    """The mean of the paths' final and step rewards, by `path_weights`; None where no path was rewarded."""
    weights = path_weights(session)
    if not weights:
        return None
    paths = {path[-1].id: path for path in session.stored_paths()}
    return sum(
        weight * (outcome(session, leaf) + sum(session.original(node).reward or 0.0 for node in paths[leaf]))
        for leaf, weight in weights.items()
    )


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


def _scored_leaves(session: Session) -> list[int]:
    """The last nodes of the stored paths that were rewarded, in order."""
    left_out = session.continued() | session.uncredited()
    for branch in session.branches:
        if not scored(session, branch):
            left_out.update(range(branch.start, branch.end))
    return [node.id for node in session.nodes if node.id not in left_out]
