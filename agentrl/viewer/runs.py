"""The runs below a folder: which there are, how each stands, and its settings.

A run is found by its name, which is its path below the folder as this module listed it; no path is ever built from
what a request says.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

import orjson

from agentrl.common import formats
from agentrl.config.secrets import without_secrets
from agentrl.envs.data import identity
from agentrl.envs.data.identity import Identities
from agentrl.errors import AgentRLError, ConfigError, NewerFormat, unknown_name
from agentrl.overrides import read_yaml
from agentrl.rollout.episodes import edits
from agentrl.rollout.stream.batch_metrics import score_caution
from agentrl.sessions.store.store import Store
from agentrl.train.driver.resuming import flat
from agentrl.train.record import chain, data_identity, lock
from agentrl.viewer.notes import Notes, TaggedNote
from agentrl.viewer.origins import Origins
from agentrl.viewer.series import MetricsFile, number, thin

DEPTH = 4
"""Levels of folders below the given one in which runs are looked for."""
SETTINGS = "config.yaml"
SPARK = 60
"""The number of a sparkline's points."""


class RunStatus(StrEnum):
    """The state of a run."""

    RUNNING = "running"
    FINISHED = "finished"
    STOPPED = "stopped"  # it ended in order before its last step
    KILLED = "killed"  # its process is gone and did not end in order
    NEWER = "newer"  # a later agentrl wrote it, in a format that this one can't read
    DAMAGED = "damaged"  # its format.json, config.yaml or result.json can't be read


class FolderKind(StrEnum):
    """The kind of a folder's content."""

    TRAINING = "training"
    EVALUATION = "evaluation"
    PLAY = "play"  # sessions that a person has played


@dataclass
class Run:
    """A run's folder."""

    name: str
    path: Path
    metrics: MetricsFile
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _stores: dict[str, tuple[int, Store]] = field(default_factory=dict)
    _settings: tuple[int, dict[str, Any]] | None = None
    _evaluates: bool = False

    @cached_property
    def notes(self) -> Notes:
        """People's notes on the run and its sessions."""
        return Notes(self.path)

    @cached_property
    def origins(self) -> Origins:
        """The origins of the run's tokens."""
        return Origins(self.path / "provenance.jsonl")

    @property
    def database(self) -> Path:
        """The path of the run's session store."""
        return self.path / "sessions.db"

    def store(self, name: str = "sessions.db") -> Store:
        """Its sessions, or those of another store in its folder, opened once and read-only."""
        try:
            inode = (self.path / name).stat().st_ino
        except OSError:
            raise ConfigError(f"{self.name}: no sessions are stored there ({name})") from None
        with self._lock:
            found = self._stores.get(name)
            if found is None or found[0] != inode:
                found = self._stores[name] = inode, Store(self.path / name, read_only=True)
            return found[1]

    def settings(self) -> dict[str, Any]:
        """Its settings by dotted names; what is secret by its name is hidden. Read again where the file has changed.

        Of a file that can't be read the reason, by the file's name.
        """
        file = self.path / SETTINGS
        try:
            written = file.stat().st_mtime_ns
            if self._settings is None or self._settings[0] != written:
                self._settings = written, flat(without_secrets(read_yaml(file)))
        except (OSError, ConfigError) as error:
            return {SETTINGS: str(error)}
        return self._settings[1]

    def summary(self) -> dict[str, Any]:
        """A line of the list of runs; of one that can't be read, why."""
        try:
            formats.check_run(self.path)
            self.evaluation()
        except NewerFormat as error:
            return self._unreadable(RunStatus.NEWER, str(error))
        except ConfigError as error:
            return self._unreadable(RunStatus.DAMAGED, str(error))
        settings, rows = self.settings(), self.metrics.rows()
        if why := settings.get(SETTINGS):
            return self._unreadable(RunStatus.DAMAGED, why)
        last = rows[-1] if rows else {}
        kind, evaluation = self.kind(), self.evaluation() or {}
        trains = kind is FolderKind.TRAINING
        steps = settings.get("steps") if trains else None
        done = int(last.get("step", 0))
        rewards = [row.get("reward/mean") for row in rows]
        model, policy = settings.get("model.name"), settings.get("policy", "model")
        by_model = trains or policy == "model"
        return {
            "name": self.name,
            "kind": kind,
            "state": self.state(done, steps, bool(evaluation) or kind is FolderKind.PLAY),
            "done": done,
            "steps": steps,
            "environment": settings.get("env.name"),
            "model": model if trains else evaluation.get("policy", model if by_model else policy),
            "algorithm": settings.get("algo.name") if trains else None,
            "engine": settings.get("engine.name") if by_model else None,
            "reward": number(last.get("reward/mean") if trains else evaluation.get("mean")),
            "left": number(last.get("time/left")),
            "spark": thin([number(value) for value in rewards], SPARK),
            "updated": self.updated(),
            "sessions": self.database.exists(),
            "note": self.notes.one().json(),
        }

    def _unreadable(self, state: RunStatus, why: str) -> dict[str, Any]:
        known = {
            "name": self.name,
            "kind": FolderKind.TRAINING,
            "state": state,
            "done": 0,
            "environment": why,
        }
        missing = dict.fromkeys(("steps", "model", "algorithm", "engine", "reward", "left"))
        return {
            **known,
            **missing,
            "spark": [],
            "updated": self.updated(),
            "sessions": state is RunStatus.DAMAGED and self.database.exists(),
            "note": TaggedNote().json(),
        }

    def kind(self) -> FolderKind:
        """Return the kind of the folder's content; an evaluation that has not ended is known by its sessions."""
        if self.settings().get("played"):
            return FolderKind.PLAY
        if self.evaluation() is not None:
            return FolderKind.EVALUATION
        if self.metrics.rows() or (self.path / "model").exists() or not self.database.exists():
            return FolderKind.TRAINING
        with contextlib.suppress(AgentRLError):
            if not self._evaluates and "eval" in self.store().counts("phase"):
                self._evaluates = True
        return FolderKind.EVALUATION if self._evaluates else FolderKind.TRAINING

    def state(self, done: int, steps: Any, evaluated: bool) -> RunStatus:
        holder = lock.holder(self.path)
        if holder is not None and holder.alive:
            return RunStatus.RUNNING
        if evaluated or (isinstance(steps, int) and done >= steps):
            return RunStatus.FINISHED
        return RunStatus.STOPPED if holder is None else RunStatus.KILLED

    def evaluation(self) -> dict[str, Any] | None:
        """Return an evaluation's results, with the scores that people edited; None for a training run.

        Raises:
            ConfigError: the file of them is damaged.
        """
        file = self.path / "result.json"
        try:
            found = orjson.loads(file.read_bytes())
        except OSError:
            return None
        except ValueError as error:
            raise ConfigError(f"{str(file)!r} is not JSON: {error}") from None
        if not isinstance(found, dict) or not all(map(_is_score, found.get("scores") or ())):
            raise ConfigError(f"{str(file)!r} is no result of agentrl eval: its scores are not those of tasks")
        return edits.apply_edits(self.path, found)

    def edits(self) -> dict[str, list[dict[str, Any]]]:
        """The edits of each session whose score people changed, in their order."""
        by_session: dict[str, list[dict[str, Any]]] = {}
        for edit in edits.read(self.path):
            by_session.setdefault(edit.session, []).append(asdict(edit))
        return by_session

    def shown_evaluation(self) -> dict[str, Any] | None:
        """The evaluation, with `caution`: what has to be said beside its interval."""
        found = self.evaluation()
        scores = [] if found is None else [task["scores"] for task in found.get("scores") or []]
        return None if found is None else found | {"caution": score_caution(scores)}

    def data(self) -> Identities:
        """The identities of its data; empty where an older agentrl did not record them."""
        found = (self.evaluation() or {}).get(identity.KEY)
        return data_identity.read_identities(self.path) if found is None else identity.read(found)

    def updated(self) -> float:
        """Return the time when the run last wrote something, in seconds since 1970."""
        times = []
        for name in ("metrics.jsonl", "sessions.db-wal", "sessions.db", "result.json", SETTINGS):
            try:
                found = (self.path / name).stat()
            except OSError:
                continue
            if found.st_size:  # a reader leaves an empty -wal
                times.append(found.st_mtime)
        return max(times, default=0.0)


class Runs:
    """The runs below a folder, or the one that it is."""

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise ConfigError(f"{str(root)!r}: no such folder; give a run's folder, or one that has runs in it")
        self.given, self.root = root, root.resolve()
        self._known: dict[str, Run] = {}
        self._lock = threading.Lock()

    def all(self) -> dict[str, Run]:
        """The runs that are there now, by name."""
        with self._lock:
            found = dict(self._find())
            known = self._known
            self._known = {
                name: known.get(name) or Run(name, path, MetricsFile(path / "metrics.jsonl"))
                for name, path in found.items()
            }
            return self._known

    def get(self, name: str) -> Run:
        """The run of that name."""
        run = self._known.get(name) or self.all().get(name)
        if run is None:
            raise unknown_name("run", name, self._known)
        formats.check_run(run.path)
        return run

    def chains(self) -> list[dict[str, Any]]:
        """The chains that runs are stages of: by name, with their stages in order, those that wait included."""
        found: dict[Path, dict[str, Any]] = {}
        names = {run.path: name for name, run in self.all().items()}
        for folder in dict.fromkeys(path.parent for path in names if path != self.root):
            with contextlib.suppress(ConfigError):
                stages = chain.read(folder).stages if chain.is_chain(folder) else ()
                known = [
                    {"name": each.name, "state": each.state, "run": names.get(folder / each.name)} for each in stages
                ]
                below = folder.relative_to(self.root).as_posix()
                if known:
                    found[folder] = {"name": folder.name if below == "." else below, "stages": known}
        return list(found.values())

    def _find(self) -> Iterator[tuple[str, Path]]:
        if is_run(self.root):
            yield self.root.name, self.root
            return
        for folder, names, _ in os.walk(self.root):
            path = Path(folder)
            below = path.relative_to(self.root)
            if path != self.root and is_run(path):
                yield below.as_posix(), path
                names.clear()
            elif len(below.parts) >= DEPTH:
                names.clear()
            names[:] = sorted(name for name in names if not name.startswith("."))


def run_at(path: Path) -> Run:
    """The run whose folder that is; of a chain's folder the stage that is under way, or the last.

    Raises:
        ConfigError: no stage of the chain has begun.
        UnknownName: it is no run's; the message names those beside it.
        NewerFormat: a later agentrl wrote it.
    """
    path = stage_at(path)
    if not is_run(path):
        beside = path.parent.iterdir() if path.parent.is_dir() else ()
        raise unknown_name("run", str(path), [str(other) for other in beside if is_run(other)])
    formats.check_run(path)
    return Run(path.resolve().name, path, MetricsFile(path / "metrics.jsonl"))


def stage_at(path: Path) -> Path:
    """The folder of a chain's stage that is under way, or of the last that has begun; any other folder as it is."""
    if not chain.is_chain(path):
        return path
    record = chain.read(path)
    begun = [folder for each in record.stages if is_run(folder := record.folder(each.name))]
    if not begun:
        raise ConfigError(f"{path}: no stage of the chain has begun: {', '.join(each.name for each in record.stages)}")
    return begun[-1]


def stage_pairs(first: Path, second: Path) -> Iterator[tuple[str, Path | None, Path | None]]:
    """The pairs of run folders that two folders are compared by: of two chains each stage, with a line about it."""
    if not (chain.is_chain(first) and chain.is_chain(second)):
        yield "", first, second
        return
    records = chain.read(first), chain.read(second)
    for name in dict.fromkeys(each.name for record in records for each in record.stages):
        one, other = (record.folder(name) if is_run(record.folder(name)) else None for record in records)
        lacking = [str(record.path) for record, at in zip(records, (one, other), strict=True) if at is None]
        about = f": has not begun in {' and '.join(lacking)}" if lacking else ""
        yield f"stage {name}{about}", one, other


def _is_score(task: Any) -> bool:
    """Return whether something is a task's scores, as a result has them."""
    scores = task.get("scores") if isinstance(task, dict) else None
    return isinstance(scores, list) and all(isinstance(score, int | float) for score in scores)


def is_run(path: Path) -> bool:
    """Return whether a folder is that of a run, or of an evaluation."""
    return (path / SETTINGS).is_file()
