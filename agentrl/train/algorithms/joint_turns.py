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
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Literal

from agentrl.train.algorithms.branch_returns import SAME, paths_of
from agentrl.train.algorithms.credit import NodeKey
from agentrl.types import Session
from agentrl.types.session import JointPath, joint_path

TeamBaseline = Literal["mean", "max", "leave_one_out"]
Pairing = Literal["aligned", "cross"]
JointAction = tuple[int, ...]
"""The completions of agents at a state that are played together."""


@dataclass(eq=False, slots=True)
class JointTurn:
    """A joint turn, or a tree's root, which nobody took.

    Attributes:
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
    returns: Mapping[JointAction, float], agent: int, baseline: TeamBaseline = "mean"
) -> dict[int, float]:
    """Return the advantages of an agent's completions at a state: each the sum of those of the joint actions it is in.

    A completion that is in fewer than others, because a limit cut it off, counts as if it were in as many.

    Args:
        returns: of the state's joint actions.
        agent: its place in these.
        baseline: what a joint action is compared with.
    """
    values = [*returns.values()]
    found: dict[int, list[float]] = {}
    for place, action in enumerate(returns):
        advantage = values[place] - compare_with(values, place, baseline)
        found.setdefault(action[agent], []).append(0.0 if abs(advantage) < SAME else advantage)
    most = max(map(len, found.values()))
    return {completion: most * fmean(each) for completion, each in found.items()}


def path_advantages(
    paths: Mapping[str, tuple[JointPath, Sequence[float]]], agent: int, gamma: float, baseline: TeamBaseline = "mean"
) -> dict[str, list[float]]:
    """Return the advantage of each of an agent's turns in the sessions of a group that is a tree of joint turns.

    Args:
        paths: by session the joint actions that were played, and what each was rewarded with.
        agent: its place in the joint actions.
        gamma: discount factor per joint turn.
        baseline: see `completion_advantages`.
    """
    turns: dict[JointPath, JointTurn] = {(): JointTurn()}
    for path, rewards in paths.values():
        for depth, reward in enumerate(rewards):
            if path[: depth + 1] not in turns:
                turns[path[: depth + 1]] = JointTurn(reward)
                turns[path[:depth]].children.append(turns[path[: depth + 1]])
    returns = joint_returns(turns[()], gamma)
    states: dict[JointPath, dict[JointAction, float]] = {}
    for path in [*turns][1:]:
        states.setdefault(path[:-1], {})[path[-1]] = returns[turns[path]]
    found = {state: completion_advantages(each, agent, baseline) for state, each in states.items()}
    return {
        session: [found[path[:depth]][path[depth][agent]] for depth in range(len(rewards))]
        for session, (path, rewards) in paths.items()
    }


def path_weights(paths: Mapping[str, JointPath]) -> dict[str, float]:
    """Return how much of its group each path is: a state's joint actions weigh alike, recursively; in all 1."""
    joint = {path[:depth] for path in paths.values() for depth in range(1, len(path) + 1)}
    counts = Counter(turn[:-1] for turn in joint)
    each = {name: math.prod(1 / counts[path[:depth]] for depth in range(len(path))) for name, path in paths.items()}
    total = math.fsum(each.values())
    return {name: weight / total for name, weight in each.items()}


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


@dataclass(frozen=True, slots=True)
class JointTurnsPlayed:
    """An agent's turns in a session that is a path through a tree of joint turns.

    Attributes:
        path: the joint action of each.
        rewards: what followed each, the final reward with the last.
        places: by node the number of the turn that it is, or follows.
    """

    path: JointPath
    rewards: Sequence[float]
    places: Mapping[int, int]


def joint_turns_of(session: Session, agents: int) -> JointTurnsPlayed:
    """Return what one of several agents did in a session, which has its nodes alone."""
    main, places, rewards = session.main_agent, dict[int, int](), list[float]()
    for node in session.nodes:
        if node.message.role == "assistant" and node.copy_of is None and node.agent == main:
            rewards.append(0.0)
        if rewards:
            places[node.id] = len(rewards) - 1
            rewards[-1] += node.reward or 0.0
    if rewards:
        rewards[-1] += session.reward or 0.0
    path = joint_path(session, agents)
    return JointTurnsPlayed((*path, *[(0,) * agents] * (len(rewards) - len(path))), rewards, places)
