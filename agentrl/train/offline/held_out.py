"""Measures of held-out sessions, without learning.

That is the loss, the mean negative log-likelihood of what would be trained; or for algorithms over pairs and labels the
margin between what is better and what is worse.
"""

from __future__ import annotations

import asyncio
import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import orjson

from agentrl.rollout.sources.reading import SessionData
from agentrl.rollout.stream.batch_metrics import Evaluation, TaskScores
from agentrl.rollout.stream.usage import Usage
from agentrl.train.algorithms import Algorithm
from agentrl.train.algorithms.credit import (
    Credit,
    NodeAdvantage,
    NodeKey,
    SequenceKind,
    Values,
    trainable_nodes,
    trained_tokens,
)
from agentrl.train.algorithms.pairs import compared_nodes
from agentrl.train.algorithms.policy_gradient import PolicyGradient
from agentrl.train.algorithms.sequences import sequences_of, sides_of
from agentrl.train.algorithms.values import per_token
from agentrl.train.forest.packing import pack_with_spans
from agentrl.train.record.files import append, read_sound_rows
from agentrl.train.record.seals import HELD_OUT
from agentrl.train.trainers import Computing
from agentrl.types import Group, Task

if TYPE_CHECKING:
    from torch import Tensor

NAME = HELD_OUT
"""A line for each measurement of a run: the step, the loss or margin with its bounds, and what it is of."""
CHUNK = 64
"""Groups that are in memory at a time."""
MEASURED = ("margin", "margin_low", "margin_high", "accuracy")


async def measure(
    trainer: Computing, algorithm: Algorithm, data: SessionData, tasks: Sequence[Task], token_budget: int
) -> Evaluation:
    """Measure the loss, or the margin, on tasks of the split `eval`."""
    if compares(algorithm):
        found = Margins()
        for start in range(0, len(tasks), CHUNK):
            groups = await asyncio.to_thread(read_groups, data, tasks[start : start + CHUNK])
            await asyncio.to_thread(add_groups, found, trainer, algorithm, groups, start, token_budget)
        return _margin(tasks, found)
    demonstrated = not algorithm.needs.engine
    sums: list[tuple[float, int]] = []
    for start in range(0, len(tasks), CHUNK):
        groups = await asyncio.to_thread(read_groups, data, tasks[start : start + CHUNK])
        sums += await asyncio.to_thread(_losses, trainer, groups, token_budget, demonstrated)
    return summarize(tasks, sums)


def compares(algorithm: Algorithm) -> bool:
    """Return whether an algorithm learns from pairs or labels, so that a margin is measured."""
    return algorithm.needs.head is None and (algorithm.needs.pairs or algorithm.needs.labels)


def read_groups(data: SessionData, tasks: Sequence[Task]) -> list[Group]:
    """Read the groups of held-out tasks, with ids of their own."""
    groups = []
    for number, task in enumerate(tasks):
        sessions = data.sessions("eval", task)
        for sample, session in enumerate(sessions):
            session.id, session.group = f"held-out-{number}-{sample}", f"held-out-{number}"
        groups.append(Group(f"held-out-{number}", task, sessions, number=number))
    return groups


def _losses(
    trainer: Computing, groups: Sequence[Group], token_budget: int, demonstrated: bool
) -> list[tuple[float, int]]:
    """Each group's summed loss, and of how many tokens."""
    own = {session.id: place for place, group in enumerate(groups) for session in group.sessions}
    nodes = ((s, n) for g in groups for s in g.sessions for n in trainable_nodes(s, demonstrated=demonstrated))
    credit = Credit({(session.id, node.id): (NodeAdvantage(0.0, 1.0),) for session, node in nodes})
    packed = list(pack_with_spans(groups, credit, token_budget))
    losses, counts = [0.0] * len(groups), [0] * len(groups)
    found = trainer.logprobs([forest for forest, _ in packed]) if packed else []
    for (forest, spans), logp_T in zip(packed, found, strict=True):
        logp, weight = logp_T.tolist(), forest.weight.tolist()
        for span in spans:
            places = [at for at in range(span.at, span.at + span.length) if weight[at]]
            losses[own[span.node[0]]] -= math.fsum(logp[at] for at in places)
            counts[own[span.node[0]]] += len(places)
    return list(zip(losses, counts, strict=True))


def summarize(tasks: Sequence[Task], sums: Sequence[tuple[float, int]]) -> Evaluation:
    """The mean over tokens, with the bounds of a ratio of sums over independent tasks (the delta method)."""
    tokens = sum(count for _, count in sums)
    mean = math.fsum(loss for loss, _ in sums) / tokens if tokens else math.nan
    spread = math.sqrt(math.fsum((loss - mean * count) ** 2 for loss, count in sums)) / tokens if tokens else math.nan
    low, high = (mean - 1.96 * spread, mean + 1.96 * spread) if len(sums) > 1 else (math.nan, math.nan)
    scores = [TaskScores(task.id, "", [loss / n]) for task, (loss, n) in zip(tasks, sums, strict=True) if n]
    metrics = {"loss": mean, "loss_low": low, "loss_high": high, "tokens": float(tokens)}
    return _evaluation(len(tasks), scores, metrics)


def _margin(tasks: Sequence[Task], found: Margins) -> Evaluation:
    scores = [TaskScores(tasks[place].id, "", [mean]) for place, (mean, _) in found.groups.items()]
    return _evaluation(len(tasks), scores, found.metrics())


def _evaluation(tasks: int, scores: list[TaskScores], metrics: dict[str, float]) -> Evaluation:
    """An evaluation whose result and bounds are the first three of the metrics."""
    mean, low, high, *_ = metrics.values()
    return Evaluation(
        tasks=tasks,
        sessions=len(scores),
        mean=mean,
        low=low,
        high=high,
        pass_at={},
        pass_hat={},
        infra_errors=0,
        generated=len(scores),
        worked=bool(scores),
        usage=Usage(),
        cost=None,
        errors={},
        scores=scores,
        metrics=metrics,
    )


def write(run: Path, step: int, measured: Evaluation) -> None:
    """Add a measurement to a run's record."""
    scores = {each.task: each.scores[0] for each in measured.scores}
    append(
        run / NAME, orjson.dumps({"step": step, **measured.metrics, "tasks": measured.tasks, "scores": scores}) + b"\n"
    )


def read(run: Path, step: int) -> Evaluation | None:
    """The measurement that a run made after so many steps; None where it has none."""
    row = next((row for row in read_sound_rows(run / NAME) if row.get("step") == step), None)
    if row is None:
        return None
    scores = [TaskScores(name, "", [value]) for name, value in row["scores"].items()]
    values = {name: row[name] for name in row if name not in ("step", "tasks", "scores")}
    metrics = {name: math.nan if value is None else value for name, value in values.items()}
    return _evaluation(row["tasks"], scores, metrics)


@dataclass
class Margins:
    """The margins of what was measured so far.

    A sequence's score is the loss's own (its log-ratio to the reference, or its mean log-probability), times the loss's
    beta. The margin is the chosen one's score less the rejected one's, and the accuracy the share of pairs in which it
    is above 0. Where sequences have labels and no partners, each desirable one is compared with each other one.

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
