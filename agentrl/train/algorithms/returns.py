"""Returns along a session's tree, and baselines out of its group.

There are two kinds of reward. The final reward belongs to the whole session and is part of every turn's return.
Step rewards (`Node.reward`) belong to what led to them: a turn's return is its own reward and all that
follow, and at a branch the leaf-weighted mean of the children, which is the mean over the paths below. A turn
led to what follows a copy of it (`Node.copy_of`) as well, but for tokens at its end that a client replaced by text of
its own (`Node.copied_tokens`).

A return is compared with the group's *at the same turn* (a session that is over has only its final reward left):
comparing a late turn with whole-episode returns would blame every turn for being late. Sessions weigh alike in a
baseline, and a session's paths alike in the session. Where returns are scaled, it is by their standard deviation at
the turn where it is largest. Without step rewards all of this is group-relative credit as published (DeepSeekMath,
arXiv:2402.03300, section 4.1.2); what was given up is their way with step rewards, normalising all of them in one
heap, which favours long sessions where rewards are mostly positive. Groups with sessions that were forked on purpose
have a rule of their own, in `agentrl.train.algorithms.branch_returns`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Sequence
from itertools import chain

from agentrl.config import AlgoConfig
from agentrl.train.algorithms.branch_returns import SAME, STD_FLOOR, Baseline, branch_advantages
from agentrl.train.algorithms.credit import (
    Advantage,
    Credit,
    NodeKey,
    denominators,
    ids_by_group,
    trainable_nodes,
    weigh,
)
from agentrl.train.algorithms.gae import all_steps
from agentrl.types import GREEDY, Group, Session
from agentrl.types.branches import token_weights

Found = dict[NodeKey, list[Advantage]]
"""Each trainable node's advantages, one for each equally likely continuation; one where all of them are equal."""

VARIANCE_FLOOR = 1e-8
"""Added to a batch's variance, as verl does."""


def group_relative(
    groups: Sequence[Group], config: AlgoConfig, *, baseline: Baseline = "mean", scale: bool = False
) -> Credit:
    """Advantages of each session's turns against the rest of its group.

    Sessions that failed for our reasons, or that nobody rewarded, are neither trained on nor part of a baseline or a
    denominator. A group in which all returns are equal, or that has one session, gives no signal. It stays in the
    loss's denominator, and is packed only where a KL penalty or an entropy bonus has something to say of its tokens.

    Args:
        groups: in any order; what belongs together is said by `Group.id`.
        config: how to normalise, and whether there is a penalty or a bonus.
        baseline: the group's mean, the mean of the other sessions (RLOO, arXiv:2402.14740), or 0.
        scale: divide by the group's standard deviation.
    """
    return credit_of(groups, config, lambda sessions: relative(sessions, config, baseline, scale))


def relative(sessions: Sequence[Session], config: AlgoConfig, baseline: Baseline, scale: bool = False) -> Found:
    """One group's advantages, those of siblings at a fork against each other; see `group_relative`."""
    if any(session.branches for session in sessions):
        return branch_advantages(sessions, baseline, scale, config.branch_baseline)
    return by_turn(sessions, baseline, scale)


def relative_to(sessions: Sequence[Session], config: AlgoConfig, baselines: Sequence[float]) -> Found:
    """One group's advantages: returns, below forks by the outcome of the turn's own branches, less numbers."""
    expected = {session.id: number for session, number in zip(sessions, baselines, strict=True)}
    returns = relative(sessions, config, "none")
    found: Found = {}
    for key, each in returns.items():
        found |= change_advantages({key: each}, lambda value, usual=expected[key[0]]: value - usual)  # type: ignore[misc]
    return found


def credit_of(
    groups: Sequence[Group],
    config: AlgoConfig,
    judge: Callable[[Sequence[Session]], Found],
    across: Callable[[Found], Found] | None = None,
) -> Credit:
    """Return the credit from each group's sessions' evidence on their turns.

    Args:
        groups: see `group_relative`, and there what becomes of a group without signal.
        config: see `group_relative`.
        judge: the advantages of one group.
        across: changes the advantages of the whole batch, such as their scale.
    """
    scored = ids_by_group(groups)
    by_group = [judge(sessions) for sessions in scored.values()]
    every = dict(chain.from_iterable(found.items() for found in by_group))
    if across is not None:
        every = across(every)
        by_group = [{key: every[key] for key in found} for found in by_group]
    silent: set[NodeKey] = set()
    trained = zero_variance = 0
    for found in by_group:
        if any(map(_says_something, chain.from_iterable(found.values()))):
            trained += 1
        elif found:
            zero_variance += 1
            silent.update(found)
    shares = weigh(scored, every, config)
    if not config.regularised:
        shares = {key: each for key, each in shares.items() if key not in silent}
    credit = Credit(shares, counts=denominators(scored, every, config))
    credit.metrics = {
        "groups/trained": float(trained),
        "groups/zero_variance": float(zero_variance),
        "groups/unscored": float(sum(not members for members in scored.values())),
        "groups/sessions_left_out": float(
            sum(session.phase != GREEDY for group in groups for session in group.sessions)
            - sum(map(len, scored.values()))
        ),
    }
    return credit


def step_returns(session: Session) -> list[dict[int, float]]:
    """Return each path's trainable nodes' ids and step returns, in order, for paths that hold a trainable node."""
    return [returns for returns, _ in _step_returns(session, {node.id for node in trainable_nodes(session)})]


def sampled_returns(session: Session, turns: int) -> list[float]:
    """A session's return at each of the first `turns` turns, the mean over its paths; they need not be trainable."""
    paths = [returns for returns, _ in _step_returns(session, {node.id for node in session.nodes if node.sampled})]
    return means(_by_turn(session, paths, max([turns, *map(len, paths)])))[:turns]


def _step_returns(session: Session, turns: Collection[int]) -> list[tuple[dict[int, float], frozenset[int]]]:
    """`step_returns` at these nodes, and which of them the path goes through without their ends."""
    found = []
    for path in session.stored_paths():
        total = 0.0
        returns: dict[int, float] = {}
        for node in reversed(path):
            original = session.original(node)
            total += original.reward or 0.0
            if original.id in turns:
                returns[original.id] = total
        if returns:
            cut = frozenset(
                node.copy_of for node in path if node.copied_tokens is not None and node.copy_of is not None
            )
            found.append((dict(reversed(returns.items())), cut))
    return found


def by_turn(sessions: Sequence[Session], baseline: Baseline | Expected, scale: bool | Scale = False) -> Found:
    """The advantages of a group's turns: each turn's return on each path below it, less what was expected at that turn.

    Args:
        sessions: a group's.
        baseline: see `group_relative`; or a function of the returns.
        scale: see `group_relative`; or a function of the returns, by which the differences are divided.
    """
    step_returns = [_step_returns(session, {node.id for node in trainable_nodes(session)}) for session in sessions]
    paths = [[returns for returns, _ in each] for each in step_returns]
    turns = max((len(path) for each in paths for path in each), default=0)
    returns = [_by_turn(session, each, turns) for session, each in zip(sessions, paths, strict=True)]
    baselines, factor = baseline(returns) if callable(baseline) else _baselines(returns, baseline), 1.0
    if callable(scale):
        factor /= scale(returns)
    elif scale and len(sessions) > 1:
        factor /= _deviation(returns) + STD_FLOOR
    if baseline in ("mean", "leave-one-out") and (len(sessions) == 1 or _all_equal(returns)):
        factor = 0.0
    advantages: Found = {}
    for session, each, rows, expected in zip(sessions, step_returns, returns, baselines, strict=True):
        found: dict[int, list[tuple[float, bool]]] = {}
        for (path, cut), row in zip(each, rows, strict=False):
            for node, value, usual in zip(path, row, expected, strict=False):
                found.setdefault(node, []).append((factor * (value - usual), node not in cut))
        copied = {n.copy_of: n.copied_tokens for n in session.nodes if n.copied_tokens is not None}
        for node, judged in found.items():
            advantages[session.id, node] = _each(judged, copied.get(node), len(session.nodes[node].token_ids))
    return advantages


def _each(judged: Sequence[tuple[float, bool]], copied: int | None, length: int) -> list[Advantage]:
    """A node's advantages, one for each equally likely continuation; one where all of them are equal.

    Args:
        judged: the advantage on each path, and whether the path goes through the node to its end.
        copied: how many of its tokens are on a path that leaves out its end.
        length: all of its tokens.
    """
    turn, end = [advantage for advantage, _ in judged], [advantage for advantage, whole in judged if whole]
    if max(turn) == min(turn):
        return [turn[0]]
    if copied is None or len(end) in (0, len(turn)):
        return [*turn]
    return [[one] * copied + [other] * (length - copied) for one in turn for other in end]


def by_session(sessions: Sequence[Session], advantages: Sequence[float]) -> Found:
    """One advantage for all turns of a session."""
    return {
        (session.id, node.id): [advantage]
        for session, advantage in zip(sessions, advantages, strict=True)
        for node in trainable_nodes(session)
    }


def scores(sessions: Sequence[Session]) -> list[float]:
    """The score of each session: its reward and its step rewards, the mean over its paths."""
    return [session.score or 0.0 for session in sessions]


def of_sessions(found: Found, sessions: Sequence[Session]) -> Found:
    """The advantages of some sessions."""
    keys = ((session.id, node.id) for session in sessions for node in session.nodes)
    return {key: found[key] for key in keys if key in found}


def change_advantages(found: Found, change: Callable[[float], float]) -> Found:
    """Return the advantages, each changed by a function."""
    return {
        key: [[*map(change, a)] if isinstance(a, Sequence) else change(a) for a in each] for key, each in found.items()
    }


def whiten(found: Found, groups: Sequence[Group]) -> Found:
    """Advantages less their mean over the batch's trained tokens, over their standard deviation (n - 1), as in verl.

    A token's advantages weigh alike, and a token that several branches share counts once; below a fork of m siblings it
    counts as 1/m, as in the loss.
    """
    every: list[tuple[float, float]] = []
    for session in (session for sessions in ids_by_group(groups).values() for session in sessions):
        parts = token_weights(session) if session.branches else None
        for node, places in all_steps(session).items():
            each = found.get((session.id, node), [])
            weight = 1.0 if parts is None else parts[node]
            for a in each:
                values = [a[i] for i in places] if isinstance(a, Sequence) else [a] * len(places)
                every += [(value, weight / len(each)) for value in values]
    tokens = math.fsum(weight for _, weight in every)
    if tokens <= 1:
        return found
    mean = math.fsum(weight * value for value, weight in every) / tokens
    variance = math.fsum(weight * (value - mean) ** 2 for value, weight in every) / (tokens - 1)
    if variance < SAME**2:
        return change_advantages(found, lambda _: 0.0)
    scale = 1 / math.sqrt(variance + VARIANCE_FLOOR)
    return change_advantages(found, lambda a: (a - mean) * scale)


def _says_something(advantage: Advantage) -> bool:
    return any(advantage) if isinstance(advantage, Sequence) else bool(advantage)


Rows = list[list[float]]
"""A session's returns, final reward included: a row for each path, a column for each turn of the group's longest."""

Expected = Callable[[Sequence[Rows]], list[list[float]]]
"""A function from the returns of a group's sessions to each session's baselines, turn by turn."""

Scale = Callable[[Sequence[Rows]], float]
"""A function from the returns of a group's sessions to a number above 0."""


def _by_turn(session: Session, paths: Sequence[dict[int, float]], turns: int) -> Rows:
    final = session.reward or 0.0
    rows = [[final + value for value in path.values()] + [final] * (turns - len(path)) for path in paths]
    return rows or [[final] * turns]


def means(rows: Sequence[Sequence[float]]) -> list[float]:
    """The mean of each column."""
    return [statistics.fmean(column) for column in zip(*rows, strict=True)]


def _baselines(returns: Sequence[Rows], baseline: Baseline) -> list[list[float]]:
    """Each session's baselines, turn by turn."""
    own = [means(rows) for rows in returns]
    if not own:
        return []
    if baseline == "none":
        return [[0.0] * len(own[0])] * len(own)
    if baseline == "mean" or len(own) == 1:
        return [means(own)] * len(own)
    sums = [math.fsum(column) for column in zip(*own, strict=True)]
    return [[(total - mine) / (len(own) - 1) for total, mine in zip(sums, row, strict=True)] for row in own]


def _deviation(returns: Sequence[Rows]) -> float:
    """The standard deviation of a group's returns (of sessions: n - 1) at the turn where it is largest."""
    mean = means([means(rows) for rows in returns])
    squares = [[[(x - m) ** 2 for x, m in zip(row, mean, strict=True)] for row in rows] for rows in returns]
    variances = means([means(rows) for rows in squares])
    return math.sqrt(max(variances, default=0.0) * len(returns) / (len(returns) - 1))


def _all_equal(returns: Sequence[Rows]) -> bool:
    """True where at every turn all returns are the same, but for rounding."""
    rows = [row for each in returns for row in each]
    return all(max(column) - min(column) < SAME for column in zip(*rows, strict=True))
