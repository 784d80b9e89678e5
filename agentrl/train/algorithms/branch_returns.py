"""Advantages in sessions that were forked on purpose (`rollout.branch`).

A turn's value is the mean of the returns on the paths below it, siblings at a fork counted equally, recursively
(`agentrl.types.session.path_weights`). What it is compared with is the value of its siblings, at the same turn: the
turns that were sampled from the same prefix, at the last fork above it. Above every fork the siblings are the group's
sessions, which were sampled from the same prompt. So a fork is to its branches what a group is to its sessions; in a
group without forks this is the rule of `agentrl.train.algorithms.returns`. `algo.branch_baseline=group` compares every
turn with the group's sessions.

Siblings from the same prefix as the baseline: TreeRL (arXiv:2506.11902) and Tree-GRPO (arXiv:2509.21240) have it for
trees of samples; here a scale, where there is one, is that of the whole group, since two or three siblings say nothing
about a deviation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean
from typing import Literal

from agentrl.train.algorithms.credit import Advantage, NodeKey, trained_tokens
from agentrl.types import Session
from agentrl.types.branches import untrained
from agentrl.types.session import outcome, path_weights, siblings

Baseline = Literal["mean", "leave-one-out", "none"]

STD_FLOOR = 1e-4
"""Added to a group's standard deviation, as TRL does, so that near-ties don't blow up."""

SAME = 1e-9
"""Returns that differ by less than this differ by rounding only."""


@dataclass(frozen=True, slots=True)
class WeightedPath:
    """A path of a session.

    Attributes:
        weight: how much of the session it is.
        turns: the ids of its sampled turns.
        returns: from each turn on, the final reward included.
        members: for each turn the sibling at the last fork above it, or the turn itself; None above every fork.
        final: its final reward.
    """

    weight: float
    turns: Sequence[int]
    returns: list[float]
    members: Sequence[int | None]
    final: float


def paths_of(session: Session) -> list[WeightedPath]:
    """A session's paths that were rewarded, root to leaf, those of untrained continuations included."""
    weights, left_out, ends = path_weights(session), session.uncredited(), session.partly_used()
    counted = {n.id for n in session.nodes if n.sampled and n.id not in left_out and trained_tokens(n, ends.get(n.id))}
    forked = {member for members in siblings(session) for member in members}
    found = []
    for path in session.stored_paths():
        if (weight := weights.get(path[-1].id)) is None:
            continue
        member: int | None = None
        turns: list[int] = []
        members: list[int | None] = []
        rewards: list[float] = []
        for node in path:
            original = session.original(node)
            member = original.id if original.id in forked else member
            if original.id in counted and original.id not in turns:
                turns.append(original.id)
                members.append(member)
                rewards.append(original.reward or 0.0)
            elif rewards:
                rewards[-1] += original.reward or 0.0
        final = outcome(session, path[-1].id)
        returns = list(accumulate(reversed(rewards), initial=final))[:0:-1]
        found.append(WeightedPath(weight, turns, returns, members, final))
    return [path for path in found if path.turns] or found


def branch_advantages(
    sessions: Sequence[Session], baseline: Baseline, scale: bool, compare: Literal["siblings", "group"]
) -> dict[NodeKey, list[Advantage]]:
    """The advantage of each trained turn of a group's sessions.

    Args:
        sessions: the group's scored sessions, some of them with forks.
        baseline: the mean of the siblings, the mean of the others among them, or 0.
        scale: divide by the standard deviation of the group's returns, at the turn where it is largest.
        compare: what a turn below a fork is compared with.
    """
    each = [paths_of(session) for session in sessions]
    columns = max((len(path.turns) for paths in each for path in paths), default=0)
    for path in (path for paths in each for path in paths):
        path.returns.extend([path.final] * (columns - len(path.turns)))
    everything = [_mean(paths, columns) for paths in each]
    factor = 1.0 if baseline == "none" and not scale else _factor(each, everything, scale)
    advantages: dict[NodeKey, list[Advantage]] = {}
    for place, (session, paths) in enumerate(zip(sessions, each, strict=True)):
        above = _baseline(everything, place, baseline)
        below: dict[int, list[float]] = {}
        if compare == "siblings":
            for members in siblings(session):
                means = [_mean([path for path in paths if member in path.members], columns) for member in members]
                below |= {member: _baseline(means, i, baseline) for i, member in enumerate(members)}
        left_out = untrained(session)
        judged: dict[int, list[tuple[float, float]]] = {}
        for path in paths:
            for column, (turn, member) in enumerate(zip(path.turns, path.members, strict=True)):
                usual = above if member is None else below.get(member, above)
                if turn not in left_out:
                    judged.setdefault(turn, []).append((path.weight, path.returns[column] - usual[column]))
        for turn, values in judged.items():
            total = math.fsum(weight for weight, _ in values)
            advantages[session.id, turn] = [factor * math.fsum(w * value for w, value in values) / total]
    return advantages


def _mean(paths: Sequence[WeightedPath], columns: int) -> list[float]:
    """The mean return of paths, by their weights, turn by turn."""
    total = math.fsum(path.weight for path in paths)
    if not total:
        return [0.0] * columns
    return [math.fsum(path.weight * path.returns[i] for path in paths) / total for i in range(columns)]


def _baseline(means: Sequence[Sequence[float]], place: int, baseline: Baseline) -> list[float]:
    """The baseline of one of several siblings, turn by turn, given the mean returns of all of them."""
    if baseline == "none":
        return [0.0] * len(means[place])
    others = [row for i, row in enumerate(means) if i != place or baseline == "mean" or len(means) == 1]
    return [fmean(column) for column in zip(*others, strict=True)]


def _factor(each: Sequence[Sequence[WeightedPath]], means: Sequence[Sequence[float]], scale: bool) -> float:
    """The factor of advantages: 0 where all returns are equal."""
    columns = list(zip(*(path.returns for paths in each for path in paths), strict=True))
    if all(max(column) - min(column) < SAME for column in columns):
        return 0.0
    if not scale:
        return 1.0
    counted = [paths for paths in each if paths]
    centre = [fmean(column) for column in zip(*means, strict=True)]
    variances = [
        fmean(math.fsum(path.weight * (path.returns[i] - usual) ** 2 for path in paths) for paths in counted)
        for i, usual in enumerate(centre)
    ]
    count = len(counted)
    return 1 / (math.sqrt(max(variances) * (count / (count - 1) if count > 1 else 1)) + STD_FLOOR)
