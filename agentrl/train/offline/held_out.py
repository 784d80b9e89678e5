"""The loss on held-out sessions: the mean negative log-likelihood of what would be trained, without learning."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from agentrl.rollout.sources.reading import SessionData
from agentrl.rollout.stream.batch_metrics import Evaluation, TaskScores
from agentrl.rollout.stream.usage import Usage
from agentrl.train.algorithms.credit import Credit, NodeAdvantage, trainable_nodes
from agentrl.train.forest.packing import pack_with_spans
from agentrl.train.record.files import append
from agentrl.train.trainers import Computing
from agentrl.types import Group, Task

NAME = "held_out.jsonl"
"""A line for each measurement of a run: the step, the loss with its bounds, and what it is of."""
CHUNK = 64
"""Groups that are in memory at a time."""


async def measure(
    trainer: Computing, data: SessionData, tasks: Sequence[Task], token_budget: int, *, demonstrated: bool
) -> Evaluation:
    """Measure the loss on tasks of the split `eval`.

    Args:
        trainer: has the weights.
        data: the sessions.
        tasks: which of them.
        token_budget: tokens of one forest.
        demonstrated: whether what nobody sampled is measured, or what an engine did.
    """
    sums: list[tuple[float, int]] = []
    for start in range(0, len(tasks), CHUNK):
        groups = await asyncio.to_thread(read_groups, data, tasks[start : start + CHUNK])
        sums += await asyncio.to_thread(_losses, trainer, groups, token_budget, demonstrated)
    return summarize(tasks, sums)


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
    return Evaluation(
        tasks=len(tasks),
        sessions=len(scores),
        mean=mean,
        low=low,
        high=high,
        pass_at={},
        pass_hat={},
        infra_errors=0,
        generated=len(scores),
        worked=bool(tokens),
        usage=Usage(),
        cost=None,
        errors={},
        scores=scores,
        metrics={"loss": mean, "loss_low": low, "loss_high": high, "tokens": float(tokens)},
    )


def write(run: Path, step: int, measured: Evaluation) -> None:
    """Add a measurement to a run's record."""
    scores = {each.task: each.scores[0] for each in measured.scores}
    append(
        run / NAME, orjson.dumps({"step": step, **measured.metrics, "tasks": measured.tasks, "scores": scores}) + b"\n"
    )


def read(run: Path, step: int) -> Evaluation | None:
    """The measurement that a run made after so many steps; None where it has none."""
    file = run / NAME
    lines = file.read_bytes().splitlines() if file.exists() else []
    for row in map(_row, lines):
        if row.get("step") == step:
            tasks = [Task(id=name) for name in row["scores"]]
            found = summarize(tasks, [(value, 1) for value in row["scores"].values()])
            metrics = {name: value for name, value in row.items() if name not in ("step", "tasks", "scores")}
            bounds = [math.nan if row[name] is None else row[name] for name in ("loss_low", "loss_high")]
            return replace(found, mean=row["loss"], low=bounds[0], high=bounds[1], metrics=metrics)
    return None


def _row(line: bytes) -> Mapping[str, Any]:
    try:
        row: Mapping[str, Any] = orjson.loads(line)
    except ValueError:  # torn
        return {}
    return row
