"""Returns along a session's tree, and baselines out of its group.

Two kinds of reward meet here. The final reward belongs to the whole session and is part of every turn's return.
Step rewards (`Node.reward`) belong to what led to them: a turn's return is its own reward and all that
follow, and at a branch the leaf-weighted mean of the children, which is the mean over the paths below. A turn
that a branch tells again without its reasoning (`Node.repeats`) led to what follows there.

A return is compared with the group's *at the same turn* (a session that is over has only its final reward left):
comparing a late turn with whole-episode returns would blame every turn for being late. Sessions weigh alike in a
baseline, and a session's paths alike in the session. Where returns are scaled, it is by their standard deviation at
the turn where it is largest. Without step rewards all of this is group-relative credit as published (DeepSeekMath,
arXiv:2402.03300, section 4.1.2); what was given up is their way with step rewards, normalising all of them in one
heap, which favours long sessions where rewards are mostly positive.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Literal

from agentrl.config import AlgoConfig
from agentrl.train.credit import Advantage, Credit, NodeKey, ids_by_group, trainable_nodes, weigh
from agentrl.types import Group, Session

Baseline = Literal["mean", "leave-one-out", "none"]

STD_FLOOR = 1e-4
"""Added to a group's standard deviation, as TRL does, so that near-ties don't blow up."""

SAME = 1e-9
"""Returns that differ by less than this differ by rounding only."""


def group_relative(
    groups: Sequence[Group], config: AlgoConfig, *, baseline: Baseline = "mean", scale: bool | None = None
) -> Credit:
    """Advantages of each session's turns against the rest of its group.

    Sessions that failed for our reasons, or that nobody rewarded, are neither trained on nor part of a baseline or a
    denominator. A group in which all returns are equal, or that has one session, gives no signal. It stays in the
    loss's denominator, and is packed only where a KL penalty or an entropy bonus has something to say of its tokens.

    Args:
        groups: in any order; what belongs together is said by `Group.id`.
        config: `scale_by_std`, how to normalise, and whether there is a penalty or a bonus.
        baseline: the group's mean, the mean of the other sessions (RLOO, arXiv:2402.14740), or 0.
        scale: divide by the group's standard deviation; None asks the configuration.
    """
    scale = config.scale_by_std if scale is None else scale
    scored = ids_by_group(groups)
    advantages: dict[NodeKey, Sequence[Advantage]] = {}
    silent: set[NodeKey] = set()
    trained = zero_variance = 0
    for sessions in scored.values():
        found = _advantages(sessions, baseline, scale)
        advantages.update(found)
        if any(advantage for each in found.values() for advantage in each):
            trained += 1
        elif found:
            zero_variance += 1
            silent.update(found)
    shares = weigh(scored, advantages, config)
    if not (config.kl_coef or config.entropy_coef):
        shares = {key: each for key, each in shares.items() if key not in silent}
    credit = Credit(shares)
    credit.metrics = {
        "groups/trained": float(trained),
        "groups/zero_variance": float(zero_variance),
        "groups/unscored": float(sum(not members for members in scored.values())),
        "groups/sessions_left_out": float(sum(len(g.sessions) for g in groups) - sum(map(len, scored.values()))),
    }
    return credit


def step_returns(session: Session) -> list[dict[int, float]]:
    """For each path of the tree that holds a trainable node: its trainable nodes' ids and step returns, in order."""
    trainable = {node.id for node in trainable_nodes(session)}
    found = []
    for path in session.paths():
        total = 0.0
        returns: dict[int, float] = {}
        for node in reversed(path):
            total += node.reward or 0.0
            if node.id in trainable:
                returns[node.id] = total
        if returns:
            found.append(dict(reversed(returns.items())))
    return found


def _advantages(sessions: Sequence[Session], baseline: Baseline, scale: bool) -> dict[NodeKey, list[float]]:
    """For each trainable node of a group its advantage on each path below it; one where all of them are equal."""
    paths = [step_returns(session) for session in sessions]
    turns = max((len(path) for each in paths for path in each), default=0)
    returns = [_by_turn(session, each, turns) for session, each in zip(sessions, paths, strict=True)]
    baselines, factor = _baselines(returns, baseline), 1.0
    if scale and len(sessions) > 1:
        factor /= _deviation(returns) + STD_FLOOR
    if baseline != "none" and (len(sessions) == 1 or _all_equal(returns)):
        factor = 0.0
    advantages: dict[NodeKey, list[float]] = {}
    for session, each, rows, expected in zip(sessions, paths, returns, baselines, strict=True):
        for path, row in zip(each, rows, strict=False):
            for node, value, usual in zip(path, row, expected, strict=False):
                advantages.setdefault((session.id, node), []).append(factor * (value - usual))
    return {key: each if max(each) != min(each) else each[:1] for key, each in advantages.items()}


Rows = list[list[float]]
"""A session's returns, final reward included: a row for each path, a column for each turn of the group's longest."""


def _by_turn(session: Session, paths: Sequence[dict[int, float]], turns: int) -> Rows:
    final = session.reward or 0.0
    rows = [[final + value for value in path.values()] + [final] * (turns - len(path)) for path in paths]
    return rows or [[final] * turns]


def _means(rows: Sequence[Sequence[float]]) -> list[float]:
    return [statistics.fmean(column) for column in zip(*rows, strict=True)]


def _baselines(returns: Sequence[Rows], baseline: Baseline) -> list[list[float]]:
    """For each session what its returns are compared with, turn by turn."""
    own = [_means(rows) for rows in returns]
    if not own:
        return []
    if baseline == "none":
        return [[0.0] * len(own[0])] * len(own)
    if baseline == "mean" or len(own) == 1:
        return [_means(own)] * len(own)
    sums = [math.fsum(column) for column in zip(*own, strict=True)]
    return [[(total - mine) / (len(own) - 1) for total, mine in zip(sums, row, strict=True)] for row in own]


def _deviation(returns: Sequence[Rows]) -> float:
    """The standard deviation of a group's returns (of sessions: n - 1) at the turn where it is largest."""
    mean = _means([_means(rows) for rows in returns])
    squares = [[[(x - m) ** 2 for x, m in zip(row, mean, strict=True)] for row in rows] for rows in returns]
    variances = _means([_means(rows) for rows in squares])
    return math.sqrt(max(variances, default=0.0) * len(returns) / (len(returns) - 1))


def _all_equal(returns: Sequence[Rows]) -> bool:
    """Whether at every turn all returns are the same, but for rounding."""
    rows = [row for each in returns for row in each]
    return all(max(column) - min(column) < SAME for column in zip(*rows, strict=True))
