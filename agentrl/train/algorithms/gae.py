"""Generalised advantage estimation over a session's tree, token by token (Schulman et al., arXiv:1506.02438).

A step is a trained token, or a whole turn (`Step`): then the state is the one before its first trained token, and all
of its tokens have the turn's advantage. The environment's tokens in between are no steps. A node's reward is given to
the last step before or in it, the session's final reward to the last step of every path:

    delta_t = r_t + gamma V_{t+1} - V_t                          V beyond a path's last step is 0
    A_t     = delta_t + gamma lam A_{t+1}

A turn that branches has a return on each path below it. The recursion is linear, so the mean over paths needs no loop
over them: one pass from the leaves to the root carries sums over paths. Below a fork (`Session.branches`) paths weigh
what siblings of equal weight leave them, and each has the final reward of its own branch. A copy of a turn
(`Node.copy_of`) counts as the turn itself, or as its first tokens (`Node.copied_tokens`), as in
`agentrl.train.algorithms.returns`.

What was given up: bootstrapping where a limit truncated a session. Its rewards are final here, and the policy should
learn to stay within limits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from agentrl.train.algorithms.credit import trainable_nodes
from agentrl.types import Node, Session
from agentrl.types.session import outcome, path_weights

Step = Literal["token", "turn"]
"""The step of the recursion, and of the discount."""


@dataclass(slots=True)
class FutureSums:
    """Sums over the paths below a place in the tree.

    Attributes:
        paths: how many there are; in a session with forks, their weights.
        reward: given before the next step.
        value: of the state before the next step.
        advantage: of the next step.
    """

    paths: float = 0
    reward: float = 0.0
    value: float = 0.0
    advantage: float = 0.0

    def add(self, other: FutureSums) -> None:
        self.paths += other.paths
        self.reward += other.reward
        self.value += other.value
        self.advantage += other.advantage


def steps(node: Node, end: int | None = None) -> list[int]:
    """The places of a node's trained tokens before `end`; a root's first token has no predictor."""
    return [i for i, trainable in enumerate(node.trainable[:end]) if trainable and (i or node.parent is not None)]


def all_steps(session: Session) -> dict[int, list[int]]:
    """The places of the trained tokens of each node that has any, by its id."""
    ends = session.partly_used()
    return {node.id: steps(node, ends.get(node.id)) for node in trainable_nodes(session)}


def advantages(
    session: Session,
    values: Mapping[int, Sequence[float]],
    gamma: float,
    lam: float,
    step: Step = "token",
    rewards: Mapping[int, Sequence[float]] | None = None,
) -> dict[int, list[float]]:
    """Return the advantage of each trained node's tokens, the mean over the paths below; 0 where none is trained.

    Args:
        session: with its rewards.
        values: by node id, for each token the value of the state before it.
        gamma: the discount of a step.
        lam: lambda; 1 uses rewards only, 0 bootstraps from the next value.
        step: what a step is; with turns only the value at a turn's first trained token counts.
        rewards: by node id, a reward for each token, in place of the session's own; with steps of a token.
    """
    places = all_steps(session)
    sums = {i: [0.0] * len(session.nodes[i].token_ids) for i in places}
    paths: dict[int, list[float]] = {i: [0] * len(each) for i, each in sums.items()}
    ahead = [FutureSums() for _ in session.nodes]
    inner = session.continued() | session.uncredited()
    weights = path_weights(session) if session.branches else None
    for node in reversed(session.nodes):
        if node.id in inner:
            here = ahead[node.id]
        else:
            weight = 1 if weights is None else weights.get(node.id, 0.0)
            here = FutureSums(weight, weight * outcome(session, node.id) if rewards is None else 0.0)
        if not here.paths:
            continue
        original = session.original(node)
        if rewards is None:
            here.reward += here.paths * (original.reward or 0.0)
        if original.id in places:
            on_path = [i for i in places[original.id] if node.copied_tokens is None or i < node.copied_tokens]
            taken = [on_path] if step == "turn" and on_path else [[i] for i in on_path]
            given = None if rewards is None else rewards[original.id]
            _backward(here, taken, values[original.id], sums[original.id], gamma, lam, given)
            for i in on_path:
                paths[original.id][i] += here.paths
        if node.parent is not None:
            ahead[node.parent].add(here)
    return {
        i: [total / count if count else 0.0 for total, count in zip(sums[i], paths[i], strict=True)]
        for i in places
        if any(paths[i])
    }


def _backward(
    here: FutureSums,
    taken: Sequence[list[int]],
    values: Sequence[float],
    sums: list[float],
    gamma: float,
    lam: float,
    rewards: Sequence[float] | None,
) -> None:
    """Apply the recursion over a node's steps, each the places of its tokens, from its end to its beginning."""
    for places in reversed(taken):
        value = here.paths * values[places[0]]
        if rewards is not None:
            here.reward += here.paths * rewards[places[0]]
        here.advantage = here.reward + gamma * here.value - value + gamma * lam * here.advantage
        here.reward, here.value = 0.0, value
        for i in places:
            sums[i] += here.advantage
