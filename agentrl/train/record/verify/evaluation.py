"""The verification of an evaluation's folder: its sessions, and whether its result is theirs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from agentrl.common import formats
from agentrl.rollout.episodes import edits
from agentrl.rollout.stream.batch_metrics import TaskScores
from agentrl.rollout.workers.held import read_heads
from agentrl.sessions.store.store import Store
from agentrl.train.evaluation.suite.results import DATA
from agentrl.train.evaluation.suite.results import NAME as RESULT
from agentrl.train.record.seals import SETTINGS, digest
from agentrl.train.record.verify import seal_checks
from agentrl.train.record.verify.data_checks import StoredTasks, check_store
from agentrl.train.record.verify.report import Check, Report
from agentrl.types import Group, Session


def is_evaluation(run: Path) -> bool:
    """Return whether a folder is that of an evaluation, and of no run that was trained."""
    there = [name for name in (SETTINGS, "sessions.db") if (run / name).is_file()]
    trained = any((run / name).exists() for name in ("starts.jsonl", "metrics.jsonl", "model"))
    return len(there) == 2 and not trained and any((run / name).is_file() for name in (RESULT, DATA))


def verify(run: Path) -> Report:
    """Check an evaluation's folder against itself."""
    formats.check_run(run)
    written = Check("seals", "files and sessions are as they were written, and none is missing")
    store = Check("store", "sessions are as they were written, and whole trees")
    result = Check("result", "what was measured is what the stored sessions give")
    sealed = seal_checks.read(run, 0, written)
    with Store(run / "sessions.db", read_only=True) as stored:
        check_store(stored, store, StoredTasks())
        if sealed is not None:
            _check_files(sealed, written)
            ids = {step: set(stored.ids()) for step in sealed.evaluations}
            seal_checks.check_sessions(sealed, stored.digests(), ids, written)
        elif not written.faults:
            written.unknown["evaluations of an agentrl that did not seal what it wrote"] += 1
        if not store.faults:
            _check_result(run, stored, result)
    checks = [written, store, result]
    if not store.faults and (changed := edits.read(run)):
        checks.append(_check_edits(run, changed))
    return Report(run, 0, checks)


def _check_edits(run: Path, changed: Sequence[edits.Edit]) -> Check:
    """Each edit is of a stored session, and from the score that it had then."""
    check = Check(
        "edits", "scores that people changed: each from the one that its session had; the measured ones stand"
    )
    scores: dict[str, float | None] = {}
    with Store(run / "sessions.db", read_only=True) as store:
        for edit in changed:
            check.examined["edits"] += 1
            if edit.session not in scores:
                known = bool(store.ids(id=edit.session))
                scores[edit.session] = store.load(edit.session).score if known else None
            if scores[edit.session] != edit.was:
                check.fault(edits.FILE, f"{edit}; but its score was {scores[edit.session]}")
            scores[edit.session] = edit.score
    check.told = [f"edited: {edit}" for edit in changed]
    return check


def _check_files(sealed: seal_checks.Sealed, check: Check) -> None:
    ended = next((seal for seal in reversed(sealed.seals) if seal.evaluation), None)
    if ended is None or ended.evaluation != "ended":
        check.unknown["evaluations that have not ended"] += 1
        return
    for name, known in ended.files.items():
        check.examined["files"] += 1
        file = sealed.run / name
        if not file.is_file() and name == RESULT and ended is sealed.seals[-1]:
            check.unknown["results that were not written to the end"] += 1
        elif not file.is_file():
            check.fault(name, "missing")
        elif digest(file.read_bytes()) != known:
            check.fault(name, "is not what the evaluation wrote")


def _check_result(run: Path, store: Store, check: Check) -> None:
    """Each task's scores are those of stored sessions, and the mean is theirs."""
    try:
        found: dict[str, Any] = orjson.loads((run / RESULT).read_bytes())
        tasks = [(each["task"], each["digest"], each["scores"]) for each in found["scores"]]
    except FileNotFoundError:
        return
    except (ValueError, KeyError, TypeError) as error:
        check.fault(RESULT, f"can't be read: {error}")
        return
    stored: dict[tuple[str, str], Counter[float]] = defaultdict(Counter)
    for group in _groups(store):
        known = TaskScores.of(group)
        stored[known.task, known.digest].update(known.scores)
    for task, data, scores in tasks:
        check.examined["tasks"] += 1
        if lacking := Counter(scores) - stored[task, data]:
            what = f"it was measured with the scores {scores}, and no stored session of it has {next(iter(lacking))}"
            check.fault(f"{RESULT}, task {task}", what)
    means = [sum(scores) / len(scores) for *_, scores in tasks if scores]
    mean = sum(means) / len(means) if means else None
    logged = found.get("mean")
    if (mean is None) != (logged is None) or (mean is not None and abs(mean - logged) > 1e-9 * max(1, abs(mean))):
        check.fault(f"{RESULT}, mean", f"is {logged}, and its tasks' scores give {mean}")


def _groups(store: Store) -> list[Group]:
    groups: dict[str, dict[int, Session]] = defaultdict(dict)
    for session in sorted(read_heads(store), key=lambda session: session.attempt):
        groups[session.group][session.sample] = session
    return [Group(name, next(iter(members.values())).task, list(members.values())) for name, members in groups.items()]
