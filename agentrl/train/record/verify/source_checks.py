"""Checks of a run that reads its sessions: they are what the source gives, and what was measured stands."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl.config import AlgoConfig, DataConfig, ModelConfig
from agentrl.envs.data import identity
from agentrl.envs.data.hub import is_hub
from agentrl.errors import AgentRLError, brief
from agentrl.sessions.renderers import get_renderer
from agentrl.sessions.store.store import Store
from agentrl.train.algorithms import make_algorithm
from agentrl.train.offline import held_out
from agentrl.train.offline.source import ReadData, prepare_data, read_data
from agentrl.train.record.files import are_same, read_sound_rows
from agentrl.train.record.verify.recorded import Recorded, Row
from agentrl.train.record.verify.report import Check, Discrepancy
from agentrl.types import Node, Session

CLOSE = 1e-9
"""The relative distance at which a sum of the same numbers is the same."""


def check_source(recorded: Recorded, source: DataConfig, store: Store, check: Check) -> None:
    """Read the source again, and compare each trained session with it; a source that changed is told as unknown."""
    config = recorded.processes[-1].config
    if is_hub(source.name):
        check.unknown["sources on the hub, which are not fetched"] += 1
        return
    if not Path(source.name).expanduser().exists():
        check.unknown["sources that are not there any more"] += 1
        return
    try:
        data = _read(source, config.algo, config.model, recorded.run / "model")
    except AgentRLError as error:
        check.unknown[f"sources that can't be read: {brief(str(error))}"] += 1
        return
    found = {split: identity.of_tasks(tasks) for split, tasks in data.tasks.items()}
    known = next((each.data for each in reversed(recorded.processes) if each.data), {})
    if not known or identity.differences(known, found):
        check.unknown["sources that changed since they were read"] += 1
        return
    tasks = {task.id: task for task in data.tasks["train"]}
    for step in recorded.steps(store):
        for group in step.groups:
            where = f"{step.where}, group {group.id}"
            if group.task.id not in tasks:
                check.fault(where, f"its task {group.task.id!r} is not in {source.name}")
                continue
            check.faults += _compare(where, group.sessions, data.sessions("train", tasks[group.task.id]))
            check.examined["sessions"] += len(group.sessions)


def _read(source: DataConfig, algo: AlgoConfig, model: ModelConfig, base: Path) -> ReadData:
    data = read_data(source, make_algorithm(algo))
    prepare_data(source, data, get_renderer(base, model.renderer, model.stop), base, model.name)
    return data


def _compare(where: str, stored: Sequence[Session], source: Sequence[Session]) -> list[Discrepancy]:
    """The first difference of each session from what the source gives."""
    if len(stored) != len(source):
        return [Discrepancy(where, f"{len(stored)} sessions are stored, and the source gives {len(source)}")]
    found = []
    for one, other in zip(stored, source, strict=True):
        if one.score != other.score:
            what = f"has the score {one.score}, and the source gives {other.score}"
        elif list(map(_content, one.nodes)) != list(map(_content, other.nodes)):
            what = "has other tokens, or others of them are trained, than the source gives"
        else:
            continue
        found.append(Discrepancy(f"{where}, session {one.id}", what))
    return found


def _content(node: Node) -> tuple[Any, ...]:
    return node.parent, node.token_ids, node.trainable, node.logprobs


def check_held_out(recorded: Recorded, check: Check) -> None:
    """Check that what was measured is in its step's metrics, and that a margin is the mean of its groups'."""
    rows = {int(row["step"]): row for row in recorded.rows}
    pairs = _compares_pairs(recorded.processes[-1].config.algo)
    for measured in read_sound_rows(recorded.run / held_out.NAME):
        step = int(measured["step"])
        check.examined["measurements"] += 1
        check.faults += _other_metrics(step, measured, rows.get(step, {}))
        scores = list(measured["scores"].values())
        if pairs and scores:
            mean = math.fsum(scores) / len(scores)
            if abs(mean - measured["margin"]) > CLOSE * max(1.0, abs(mean)):
                what = f"the margin is {measured['margin']}, and its groups' give {mean}"
                check.fault(f"{held_out.NAME}, step {step}", what)


def _compares_pairs(algo: AlgoConfig) -> bool:
    try:
        algorithm = make_algorithm(algo)
    except AgentRLError:  # an import path, which is not followed without trust
        return False
    return algorithm.needs.pairs and held_out.compares(algorithm)


def _other_metrics(step: int, measured: Mapping[str, Any], row: Row) -> list[Discrepancy]:
    found = []
    for name in measured:
        if f"eval/{name}" in row:
            value, shown = math.nan if measured[name] is None else measured[name], row[f"eval/{name}"]
            if not are_same(value, shown):
                words = f"{name} is {value}, and metrics.jsonl has {shown}"
                found.append(Discrepancy(f"{held_out.NAME}, step {step}", words))
    return found
