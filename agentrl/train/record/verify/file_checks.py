"""A check that files of a run agree with each other. No seal is needed, so this holds for older runs too."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import orjson

from agentrl.config.secrets import list_hidden
from agentrl.errors import AgentRLError
from agentrl.overrides import read_yaml
from agentrl.rollout.stream.batch_metrics import evaluate_groups
from agentrl.rollout.stream.seeds import group_seed
from agentrl.rollout.workers.held import read_heads
from agentrl.sessions.store.store import Store
from agentrl.train.driver.resizing import CHANGEABLE
from agentrl.train.driver.resuming import ONCE, flat, step_of
from agentrl.train.record import kept_code, state
from agentrl.train.record.data_identity import read_starts
from agentrl.train.record.files import read_rows
from agentrl.train.record.seals import METRICS
from agentrl.train.record.state import groups_of
from agentrl.train.record.verify.recorded import Recorded, Step
from agentrl.train.record.verify.report import Check
from agentrl.types import GREEDY

FREE = (*ONCE, *(f"trainer.{name}" for name in CHANGEABLE))
"""Settings that config.yaml may have otherwise than the last process began with."""


def check_settings(recorded: Recorded, check: Check) -> None:
    """Compare config.yaml with what the last process recorded."""
    rows, kept = read_starts(recorded.run), read_yaml(recorded.run / "config.yaml")
    now, then = (flat(orjson.loads(orjson.dumps(tree))) for tree in (kept, rows[-1]["settings"]))
    secret = {*list_hidden(kept), *recorded.secrets}
    for name in {**then, **now}:
        if name not in FREE and name not in secret and now.get(name) != then.get(name):
            what = f"{name} is {now.get(name)}, and was {then.get(name)} when the last process began"
            check.fault("config.yaml", what)


def check_checkpoints(recorded: Recorded, folders: Sequence[Path], check: Check) -> None:
    """Compare the step that a checkpoint's state has with its folder's, and that with the steps that were taken."""
    taken = max(
        read_rows(recorded.run / METRICS, lambda row: int(row["step"])), default=0
    )  # now: the run may train meanwhile
    for folder in folders:
        if step_of(folder) > taken:
            what = f"the run has taken {taken} steps, and did not come to it"
            check.fault(f"checkpoints/{folder.name}", what)
        try:
            step = state.read_saved(folder)["stream"]["step"]
        except (AgentRLError, OSError, ValueError, KeyError, TypeError) as error:
            check.fault(f"checkpoints/{folder.name}", f"run.json can't be read: {error}")
            continue
        if step != step_of(folder):
            check.fault(f"checkpoints/{folder.name}", f"run.json is the state after step {step}")


def check_code(recorded: Recorded, check: Check) -> None:
    """Compare the copies of Python files with the digests that processes recorded."""
    for process in recorded.processes:
        for name, digest in process.code.items():
            check.examined["copies of Python files"] += 1
            if not kept_code.has(recorded.run, name, digest):
                what = f"the copy of {name} that was used after step {process.after} is missing or was changed"
                check.fault(kept_code.FOLDER, what)


def check_seeds(step: Step, check: Check) -> None:
    """Sessions have the seed that follows from the run's and their group's number."""
    for group in step.groups:
        seed = group_seed(step.config.seed, "train", group.number)
        for session in group.sessions:
            if session.phase in ("train", GREEDY) and session.seed != seed:
                where = f"{step.where}, session {session.id}"
                check.fault(where, f"it has the seed {session.seed}, and the run's gives {seed}")


def check_evaluation(step: Step, store: Store, check: Check) -> None:
    """Compute the results of an evaluation that a row has again from its sessions."""
    row = step.row or {}
    if "eval/mean" not in row:
        return
    groups = list(groups_of(list(read_heads(store, phase="eval", step=step.number))))
    check.examined["evaluations"] += 1
    found = evaluate_groups(groups, step.config.eval)
    for name, value in (("eval/mean", found.mean), ("eval/low", found.low), ("eval/high", found.high)):
        logged = row.get(name)
        if name != "eval/mean" and not step.recorded.is_sealed(step.number):
            continue  # older agentrls had other intervals
        if logged != value and not (logged is None and math.isnan(value)):
            check.fault(f"{step.where}, {name}", f"logged {logged}, and the sessions give {value}")
