"""Held-out margins: what an algorithm over pairs or labels makes of sessions that it does not learn from.

A sequence's score is the loss's own (its log-ratio to the reference, or its mean log-probability), times the loss's
beta. The margin is the chosen one's score less the rejected one's, and the accuracy the share of pairs in which it is
above 0. Where sequences have labels and no partners, each desirable one is compared with each other one.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from statistics import fmean
from typing import TYPE_CHECKING

from agentrl.train.algorithms import Algorithm
from agentrl.train.algorithms.credit import NodeKey, SequenceKind, Values, trained_tokens
from agentrl.train.algorithms.pairs import compared_nodes
from agentrl.train.algorithms.policy_gradient import PolicyGradient
from agentrl.train.algorithms.sequences import sequences_of, sides_of
from agentrl.train.algorithms.values import per_token
from agentrl.train.trainers import Computing
from agentrl.types import Group

if TYPE_CHECKING:
    from torch import Tensor

MEASURED = ("margin", "margin_low", "margin_high", "accuracy")


@dataclass
class Margins:
    """The margins of what was measured so far.

    Attributes:
        groups: of each group with pairs, by its place, the mean margin, and how many pairs there are.
        right: how many pairs have a margin above 0.
        labelled: the scores of desirable sequences, and of the others, where there are labels.
        alone: how many groups have labels of one kind.
    """

    groups: dict[int, tuple[float, int]] = field(default_factory=dict)
    right: int = 0
    labelled: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))
    alone: int = 0

    def add(self, place: int, pairs: Sequence[tuple[float, float]]) -> None:
        """Add a group's pairs: the scores of the chosen and of the rejected sequence."""
        if pairs:
            found = [chosen - rejected for chosen, rejected in pairs]
            self.groups[place] = math.fsum(found) / len(found), len(found)
            self.right += sum(margin > 0 for margin in found)

    def metrics(self) -> dict[str, float]:
        """The mean margin with its bounds (of 95%), the accuracy, and of how many pairs they are."""
        if self.groups and not self.alone:
            means = [mean for mean, _ in self.groups.values()]
            count = sum(number for _, number in self.groups.values())
            margin, spread, right = fmean(means), _variance(means) / len(means), self.right
        else:
            better, worse = self.labelled
            count = len(better) * len(worse)
            if not count:
                return {**dict.fromkeys(MEASURED, math.nan), "pairs": 0.0}
            margin = fmean(better) - fmean(worse)
            spread = _variance(better) / len(better) + _variance(worse) / len(worse)
            known = sorted(worse)
            right = sum(bisect.bisect_left(known, score) for score in better)
        single = min(len(self.groups) if self.groups and not self.alone else 2, count) < 2
        error = math.nan if single else 1.96 * math.sqrt(spread)
        bounds = {"margin_low": margin - error, "margin_high": margin + error}
        return {"margin": margin, **bounds, "accuracy": right / count, "pairs": float(count)}


def add_groups(
    found: Margins, trainer: Computing, algorithm: Algorithm, groups: Sequence[Group], first: int, budget: int
) -> None:
    """Measure groups."""
    assert isinstance(algorithm, PolicyGradient)
    kind = algorithm.policy_loss.require_sequence()
    views = [(place, view) for place, group in enumerate(groups, first) for view in group.by_agent()]
    scores = _scores(trainer, algorithm, [view for _, view in views], kind, budget)
    for place, view in views:
        credit = algorithm.credit([view])
        known = [(side.sequence, side.verdict) for side in sides_of(credit) if side.sequence in scores]
        if credit.pairs is not None:
            found.add(place, [(scores[pair.chosen], scores[pair.rejected]) for pair in credit.pairs])
            continue
        better, worse = ([scores[name] for name, verdict in known if verdict == wanted] for wanted in (1, -1))
        found.add(place, list(product(better, worse)))
        found.alone += bool(better) != bool(worse)
        for own, more in zip(found.labelled, (better, worse), strict=True):
            own += more


def _scores(
    trainer: Computing, algorithm: PolicyGradient, groups: Sequence[Group], kind: SequenceKind, budget: int
) -> Mapping[NodeKey, float]:
    """The score of each sequence, times the loss's beta."""
    import torch

    compute = algorithm.policy_loss.reference
    logp = per_token(groups, trainer.logprobs, budget, choose=compared_nodes)
    refer = partial(trainer.logprobs, reference=True)
    ref_logp: Values = per_token(groups, refer, budget, choose=compared_nodes) if compute else {}
    names, sums = list[NodeKey](), list[tuple[float, float, int]]()
    for session in (session for group in groups for session in group.scored):
        ends = session.partly_used()
        for last, nodes in sequences_of(session, kind, [node.id for node in compared_nodes(session)]).items():
            parts = [(node, ends.get(node) if copied is None else copied) for node, copied in nodes]
            one, other = (
                math.fsum(value for node, end in parts for value in values.get((session.id, node), ())[:end])
                for values in (logp, ref_logp)
            )
            names.append((session.id, last))
            sums.append((one, other, sum(trained_tokens(session.nodes[node], end) for node, end in parts)))
    columns: list[Tensor] = [torch.tensor(values, dtype=torch.float64) for values in zip(*sums, strict=True)]
    if not columns:
        return {}
    loss = algorithm.policy_loss
    score = getattr(loss, "score", None)
    made = score(*columns) if score is not None else columns[0] - columns[1]
    return dict(zip(names, (getattr(loss.config, "beta", 1.0) * made).tolist(), strict=True))


def _variance(values: Sequence[float]) -> float:
    mean = fmean(values)
    return math.fsum((value - mean) ** 2 for value in values) / max(len(values) - 1, 1)
