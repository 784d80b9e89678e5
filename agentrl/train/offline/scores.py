"""A score model's loss and accuracy on held-out rows, without learning.

Accuracy is the share of pairs whose better side has the higher score, or of labels that have the highest probability. A
scale of scores has none: there the loss is the mean squared error.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from torch import Tensor

from agentrl.rollout.sources.judged import MARGIN
from agentrl.rollout.sources.reading import SessionData
from agentrl.rollout.stream.batch_metrics import Evaluation
from agentrl.train.algorithms import Algorithm
from agentrl.train.algorithms.credit import NodeKey
from agentrl.train.algorithms.scores import TARGET
from agentrl.train.forest.forest import Forest
from agentrl.train.forest.packing import NodeSpan, pack_with_spans
from agentrl.train.offline import held_out
from agentrl.train.trainers import Computing
from agentrl.types import Group, Task


@dataclass(slots=True)
class Judged:
    """The results of held-out pairs or targets of some groups.

    Attributes:
        losses: of each group.
        right: of each pair or label, whether it was right.
        margins: of each pair, the better side's score less the other's.
    """

    losses: list[list[float]]
    right: list[bool] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)


async def measure_scores(
    trainer: Computing, algorithm: Algorithm, data: SessionData, tasks: Sequence[Task], token_budget: int
) -> Evaluation:
    """Measure loss and accuracy on tasks of the split `eval`."""
    sums: list[tuple[float, int]] = []
    whole = Judged([])
    for start in range(0, len(tasks), held_out.CHUNK):
        groups = await asyncio.to_thread(held_out.read_groups, data, tasks[start : start + held_out.CHUNK])
        found = await asyncio.to_thread(_judge, trainer, algorithm, groups, token_budget)
        sums += [(math.fsum(each), len(each)) for each in found.losses]
        whole.right += found.right
        whole.margins += found.margins
    measured = held_out.summarize(tasks, sums)
    more = {"accuracy": fmean(whole.right)} if whole.right else {}
    more |= {"margin": fmean(whole.margins)} if whole.margins else {}
    *loss, (count, tokens) = measured.metrics.items()
    return replace(measured, metrics={**dict(loss), **more, count: tokens})


def _judge(trainer: Computing, algorithm: Algorithm, groups: Sequence[Group], token_budget: int) -> Judged:
    credit = algorithm.credit(groups)
    packed = [
        (forest, list(spans))
        for forest, spans in pack_with_spans(groups, credit, token_budget, fields=algorithm.fields)
    ]
    place = {session.id: number for number, group in enumerate(groups) for session in group.sessions}
    found = Judged([[] for _ in groups])
    if not packed:
        return found
    head = algorithm.needs.head
    if head is not None and head.classes:
        for key, (logps, label) in _of_classes(trainer, packed, len(head.labels)).items():
            found.losses[place[key[0]]].append(-logps[label])
            found.right.append(max(range(len(logps)), key=logps.__getitem__) == label)
        return found
    scores = _read(packed, trainer.logprobs([forest for forest, _ in packed]))
    if credit.pairs is None:
        targets = _read(packed, [forest.fields[TARGET.name].values for forest, _ in packed])
        for key, score in scores.items():
            found.losses[place[key[0]]].append((score - targets[key]) ** 2)
        return found
    sessions = {session.id: session for group in groups for session in group.sessions}
    for pair in credit.pairs:
        margin = scores[pair.chosen] - scores[pair.rejected]
        wanted = float(sessions[pair.chosen[0]].info.get(MARGIN) or 0.0)
        found.losses[place[pair.chosen[0]]].append(_softplus(wanted - margin))
        found.right.append(margin > 0)
        found.margins.append(margin)
    return found


def _softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def _of_classes(
    trainer: Computing, packed: Sequence[tuple[Forest, list[NodeSpan]]], count: int
) -> Mapping[NodeKey, tuple[list[float], int]]:
    """Each target's log-probabilities of all classes, and its label: a pass for each class as if it were the label."""
    labels = _read(packed, [forest.fields[TARGET.name].values for forest, _ in packed])
    found: dict[NodeKey, list[float]] = {key: [] for key in labels}
    for number in range(count):
        forests = []
        for forest, _ in packed:
            column = forest.fields[TARGET.name]
            one = replace(column, values=column.values.new_full(column.values.shape, number))
            forests.append(replace(forest, fields={**forest.fields, TARGET.name: one}))
        for key, value in _read(packed, trainer.logprobs(forests)).items():
            found[key].append(value)
    return {key: (logps, int(labels[key])) for key, logps in found.items()}


def _read(packed: Sequence[tuple[Forest, list[NodeSpan]]], values: Sequence[Tensor]) -> dict[NodeKey, float]:
    """Each node's value at its trained token, from values of every token."""
    return {
        span.node: float(value_T[at])
        for (forest, spans), value_T in zip(packed, values, strict=True)
        for span in spans
        for at in _list_trained(forest, span)
    }


def _list_trained(forest: Forest, span: NodeSpan) -> Iterator[int]:
    return (at for at in range(span.at, span.at + span.length) if forest.weight[at] > 0)
