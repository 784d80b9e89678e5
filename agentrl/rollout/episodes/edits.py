"""Scores of an evaluation that people changed, with their history, in `edits.jsonl` beside what it wrote.

Nothing that was measured is touched: its sessions, its result and its record stay as they are. What reads a result puts
the edits on it (`edit_result`), and names them. The file is only appended to: each line has one edit, with the score
that it replaces, so the first line of a session has the measured one.
"""

from __future__ import annotations

import fcntl
import getpass
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from agentrl.errors import ConfigError, InvalidInput, StoreError, unknown_name
from agentrl.overrides import read_yaml
from agentrl.rollout.stream.batch_metrics import TaskScores, summarise
from agentrl.sessions.store.edited import FILE as FILE
from agentrl.sessions.store.edited import read_edits
from agentrl.sessions.store.store import Store
from agentrl.types import Group, Session

KEY = "edits"
"""Under this key a result that was edited has its edits."""


@dataclass(frozen=True, slots=True)
class Edit:
    """A score that was changed.

    Attributes:
        session: whose.
        task: of the session, and `digest` of its data, as a result names them
        (`rollout.stream.batch_metrics.TaskScores`). was: the score before; that of the session, or of the edit before.
        score: the score since.
        who: changed it.
        why: in their words.
        when: in UTC, as ISO 8601 has it.
    """

    session: str
    task: str
    digest: str
    was: float
    score: float
    who: str
    why: str
    when: str

    def __str__(self) -> str:
        return (
            f"{self.session} of task {self.task}: {self.was:g} to {self.score:g}, {self.who}, {self.when}: {self.why}"
        )


def read(folder: Path) -> list[Edit]:
    """The edits of an evaluation, in their order; none where nobody edited it.

    Raises:
        StoreError: the file is damaged.
    """
    try:
        return [Edit(**edit) for edit in read_edits(folder)]
    except TypeError as error:
        raise StoreError(f"{str(folder / FILE)!r} is damaged: {error}") from None


def require_session(folder: Path, session: str) -> Session:
    """Return a session of an evaluation.

    Raises:
        ConfigError: the folder has no result of an evaluation.
        UnknownName: it has no such session.
    """
    if not (folder / "result.json").is_file():
        raise ConfigError(f"{str(folder)!r} has no result of an evaluation: scores of a training run were trained on")
    with Store(folder / "sessions.db", read_only=True) as store:
        if not store.find({"id": session}, limit=1).rows:
            raise unknown_name("session", session, store.ids())
        return store.load(session)


def add(
    folder: Path, session: str, score: float, why: str, who: str | None = None, *, was: float | None = None
) -> Edit:
    """Change the score of a session of an evaluation.

    Args:
        folder: the evaluation's.
        session: the session's id.
        score: the new one.
        why: for the history.
        who: changes it; None is the user that this process runs as.
        was: the score that they saw; None is whatever it is.

    Raises:
        ConfigError: the folder has no result of an evaluation.
        UnknownName: it has no such session.
        InvalidInput: the score is no number, the session has none, no reason is given, or it was changed meanwhile.
    """
    if not math.isfinite(score):
        raise InvalidInput(f"score={score}: allowed are finite numbers")
    if not why.strip():
        raise InvalidInput("an edit needs a reason")
    found = require_session(folder, session)
    group = Group(found.group, found.task, [found])
    if not group.scored or found.score is None:
        raise InvalidInput(f"session {session} has no score that counts ({found.status.value})")
    known = TaskScores.of(group)
    file = os.open(folder / FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    with os.fdopen(file, "ab", buffering=0) as out:
        fcntl.flock(out, fcntl.LOCK_EX)  # or two people's edits would replace the same score
        before = next((edit.score for edit in reversed(read(folder)) if edit.session == session), found.score)
        if was is not None and was != before:
            raise InvalidInput(f"the score was changed from {was:g} to {before:g} meanwhile: load the page again")
        when = datetime.now(UTC).isoformat(timespec="seconds")
        edit = Edit(
            session, known.task, known.digest, before, float(score), who or getpass.getuser(), why.strip(), when
        )
        out.write(orjson.dumps(asdict(edit)) + b"\n")
    return edit


def editable(folder: Path, session: Session) -> bool:
    """Return whether `add` takes an edit of a session."""
    scored = session.score is not None and bool(Group(session.group, session.task, [session]).scored)
    return scored and (folder / "result.json").is_file()


def apply_edits(folder: Path, result: Mapping[str, Any]) -> dict[str, Any]:
    """An evaluation's result with the edits of its folder on it.

    Raises:
        StoreError: the edits are damaged, or are not this result's.
    """
    edits = read(folder)
    return edit_result(result, edits, _read_threshold(folder)) if edits else dict(result)


def edit_result(result: Mapping[str, Any], edits: Sequence[Edit], solved_at: float = 1.0) -> dict[str, Any]:
    """A result with edits on it: tasks' scores, mean, bounds, pass@k and pass^k; and the edits, as objects.

    Raises:
        StoreError: an edit is of a score that the result does not have.
    """
    tasks = [{**task, "scores": list(task["scores"])} for task in result["scores"]]
    for edit in edits:
        own = [task["scores"] for task in tasks if (task["task"], task["digest"]) == (edit.task, edit.digest)]
        scores = next((each for each in own if edit.was in each), None)
        if scores is None:
            raise StoreError(f"the result has no score {edit.was:g} of task {edit.task!r}, which {edit.session} had")
        scores[scores.index(edit.was)] = edit.score
    found = summarise([task["scores"] for task in tasks], solved_at)
    passes = {name: {str(k): value for k, value in found[name].items()} for name in ("pass_at", "pass_hat")}
    return {**result, **found, **passes, "scores": tasks, KEY: [asdict(edit) for edit in edits]}


def describe_edits(result: Mapping[str, Any]) -> list[str]:
    """The edits of a result, in words; none where it is as it was measured."""
    return [f"edited: {Edit(**each)}" for each in result.get(KEY, ())]


def _read_threshold(folder: Path) -> float:
    section = read_yaml(folder / "config.yaml").get("eval") if (folder / "config.yaml").is_file() else None
    return float(section.get("solved_at", 1.0)) if isinstance(section, Mapping) else 1.0
