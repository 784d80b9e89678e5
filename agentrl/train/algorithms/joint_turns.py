"""Joint turns: a tree of what a team did together, its returns, and each joint turn's advantage over its alternatives.

A joint turn is what all agents of a team say at once, and is rewarded once. Its return is its reward plus `gamma` times
the mean return of its children. Its advantage is its return less a baseline out of its *alternatives*: the joint turns
that were drawn from the same state. The tree and both rules are those of MAGRPO (Liu et al., arXiv:2508.04652).

A group of sessions that nobody forked is a tree of chains below one root. Only their first turns share a state; the
later ones are then compared with the turns of the same number on the other chains, as equation 3 of the paper does with
a group of histories. Both are one rule here: a turn's alternatives are the turns of the same number below the deepest
joint turn above it that was continued in several ways.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from statistics import fmean
from typing import Literal

from agentrl.train.algorithms.branch_returns import SAME, paths_of
from agentrl.train.algorithms.credit import NodeKey
from agentrl.types import Session

TeamBaseline = Literal["mean", "max", "leave_one_out"]
Pairing = Literal["aligned", "cross"]


@dataclass(eq=False, slots=True)
class JointTurn:
    """A joint turn, or a tree's root, which nobody took.

    Attributes:
        reward: what it was rewarded with.
        children: the joint turns that followed.
        forks: whether its children were drawn from the same state, so that they are alternatives. Otherwise they are
            parts of one session, such as a conversation that was begun anew.
    """

    reward: float = 0.0
    children: list[JointTurn] = field(default_factory=list)
    forks: bool = True

    def tree(self) -> list[JointTurn]:
        """Return the joint turns from this one on, each before its children."""
        found, waiting = list[JointTurn](), [self]
        while waiting:
            found.append(waiting.pop())
            waiting.extend(found[-1].children)
        return found


def joint_returns(root: JointTurn, gamma: float) -> dict[JointTurn, float]:
    """Return each joint turn's reward plus `gamma` times the mean return of its children."""
    returns: dict[JointTurn, float] = {}
    for turn in reversed(root.tree()):
        later = fmean(returns[child] for child in turn.children) if turn.children else 0.0
        returns[turn] = turn.reward + gamma * later
    return returns


def joint_advantages(root: JointTurn, gamma: float, baseline: TeamBaseline = "mean") -> dict[JointTurn, float]:
    """Return the advantage of each joint turn below the root; 0 where it has no alternatives."""
    returns, tree = joint_returns(root, gamma), root.tree()
    advantages = dict.fromkeys(tree[1:], 0.0)
    for fork in (turn for turn in tree if turn.forks and len(turn.children) > 1):
        lines = [[(child, 1.0, True)] for child in fork.children]
        while any(lines):
            lines = [line for line in lines if line]
            means = [_mean(line, returns) for line in lines]
            equal = max(means) - min(means) < SAME
            for place, line in enumerate(lines):
                usual = compare_with(means, place, baseline)
                for turn, _, own in line:
                    if own:
                        advantages[turn] = 0.0 if equal and len(line) == 1 else returns[turn] - usual
            lines = [_children(line) for line in lines]
    return advantages


Line = list[tuple[JointTurn, float, bool]]
"""The turns of one number below a fork's child: each with its weight, and whether no deeper fork compares it."""


def _mean(line: Line, returns: dict[JointTurn, float]) -> float:
    return math.fsum(weight * returns[turn] for turn, weight, _ in line) / math.fsum(weight for _, weight, _ in line)


def _children(line: Line) -> Line:
    return [
        (child, weight / len(turn.children), own and not (turn.forks and len(turn.children) > 1))
        for turn, weight, own in line
        for child in turn.children
    ]


def compare_with(returns: Sequence[float], place: int, baseline: TeamBaseline) -> float:
    """Return the baseline of one of several alternatives, given the returns of all; a single one's is its own."""
    if len(returns) == 1:
        return returns[0]
    match baseline:
        case "mean":
            return fmean(returns)
        case "max":
            return max(returns)
        case "leave_one_out":
            return fmean(each for i, each in enumerate(returns) if i != place)


def completion_advantages(
    returns: Sequence[float], agents: int, samples: int, pairing: Pairing = "aligned", baseline: TeamBaseline = "mean"
) -> list[list[float]]:
    """Return the advantage of each agent's completions at a node: the sum of those of the joint turns that it is in.

    Args:
        returns: of the node's joint turns. `aligned`: the k-th is of every agent's k-th completion. `cross`: one for
            each combination, the last agent's completion changing fastest.
        agents: how many there are.
        samples: completions of each agent at the node.
        pairing: which completions were played together.
        baseline: what a joint turn is compared with.
    """
    joint = [(k,) * agents for k in range(samples)]
    if pairing == "cross":
        joint = list(product(range(samples), repeat=agents))
    advantages = [each - compare_with(returns, place, baseline) for place, each in enumerate(returns)]
    found = [[0.0] * samples for _ in range(agents)]
    for chosen, advantage in zip(joint, advantages, strict=True):
        for agent, completion in enumerate(chosen):
            found[agent][completion] += advantage
    return found


def tree_of(sessions: Sequence[Session]) -> tuple[JointTurn, dict[NodeKey, JointTurn]]:
    """Return the tree of one agent's turns in a group's sessions, forks included, and each turn's place in it.

    The root's children stand for the sessions' beginnings; below them are the turns. Rewards that follow a turn, the
    final one included, are the turn's; where paths through it differ in them, it has their mean.
    """
    root, places = JointTurn(), dict[NodeKey, JointTurn]()
    for session in sessions:
        root.children.append(start := JointTurn(forks=False))
        rewards: dict[int, list[tuple[float, float]]] = {}
        for path in paths_of(session):
            at = start
            for i, (turn, member) in enumerate(zip(path.turns, path.members, strict=True)):
                after = path.returns[i + 1] if i + 1 < len(path.turns) else 0.0
                rewards.setdefault(turn, []).append((path.weight, path.returns[i] - after))
                if (session.id, turn) not in places:
                    places[session.id, turn] = JointTurn(forks=False)
                    at.children.append(places[session.id, turn])
                    at.forks = at.forks or member == turn
                at = places[session.id, turn]
        for turn, each in rewards.items():
            total = math.fsum(weight for weight, _ in each)
            places[session.id, turn].reward = math.fsum(weight * reward for weight, reward in each) / total
    return root, places
