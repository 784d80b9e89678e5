"""Digests of what a run writes, as it writes it: `seals.jsonl`. A file that changes afterwards is noticed.

    {"step": 0, "start": {"settings": "…", "model": "…", "losses": []}, "lines": {"starts.jsonl": [1, "…"]}, …}
    {"step": 0, "evaluation": "ended", "sessions": {"eval-0-0": "…"}, "before": "…"}
    {"step": 4, "lines": {"metrics.jsonl": [4, "…"], …}, "stream": "…", "sessions": {"train-6.0-0": "…"}, "before": "…"}
    {"step": 4, "checkpoint": {"name": "step-000004", "files": "…", "trainer": "…"}, "before": "…"}

Each line has the digest of the line before it, so none can be changed, removed or put in between without all that
follow; a checkpoint's manifest names the line before its own. `lines` says of each file that grows by lines how many it
has now, and what a digest of the new ones is. A checkpoint, and `model/`, are sealed by what their manifests say of
their files (`train.record.manifest`); a session by its rows (`sessions.store.digests`), once nothing changes it any
more.

A seal is written before what it seals is in its place, so a process that is killed leaves at most a last seal of
something that is not there, which the next process removes. A resumed run drops the seals after the step that it
continues after. Whoever can write every file can write seals that fit: they prove that a record is as it was written,
not who wrote it.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import orjson

from agentrl.errors import ConfigError
from agentrl.sessions.tree.incarnations import Loss
from agentrl.train.record import ledger, manifest, provenance, ratings
from agentrl.train.record.data_identity import STARTS
from agentrl.train.record.files import append, keep_lines, whole_lines, write_atomically

NAME = "seals.jsonl"
LOSSES, STREAM = "losses.json", "stream.json"
METRICS, HELD_OUT = "metrics.jsonl", "held_out.jsonl"
FILES = (STARTS, provenance.NAME, ledger.NAME, ratings.NAME, METRICS, HELD_OUT)
"""Files that grow by lines."""
SETTINGS = "config.yaml"
Lines = Mapping[str, tuple[int, str]]
Moment = Literal["begun", "ended"]


@dataclass(frozen=True, slots=True)
class _Start:
    """A process began to train.

    Attributes:
        settings: the digest of config.yaml.
        model: that of `model/` (`manifest.digests`).
        losses: what losses.json had.
        anew: it began at the beginning; sessions that were sealed before may be played again.
        replaced: this process found `model/` damaged, and replaced it.
        late: trainers of checkpoints that came after the checkpoints' own seals, by the checkpoint's name.
    """

    settings: str
    model: str
    losses: list[Loss]
    anew: bool = False
    replaced: bool = False
    late: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint was written: its name, digests of its files and of its trainer's ('': it comes later)."""

    name: str
    files: str
    trainer: str


@dataclass(frozen=True, slots=True)
class Seal:
    """A line.

    Attributes:
        step: after how many steps.
        before: the digest of the line before; '' in the first one.
        lines: by file how many lines it has now, and the digest of those that are new.
        start: a process began.
        checkpoint: one was written.
        evaluation: one began, or ended, after the step: its sessions are those of `sessions`.
        sessions: digests of sessions that have ended, by id.
        stream: the digest of stream.json.
        files: digests of small files by name.
    """

    step: int
    before: str
    lines: Lines = field(default_factory=dict)
    start: _Start | None = None
    checkpoint: Checkpoint | None = None
    evaluation: Moment | None = None
    sessions: Mapping[str, str] = field(default_factory=dict)
    stream: str = ""
    files: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, row: dict[str, Any]) -> Seal:
        """The seal of a line's JSON."""
        start, checkpoint = row.pop("start", None), row.pop("checkpoint", None)
        lines = {name: (int(count), str(digest)) for name, (count, digest) in row.pop("lines", {}).items()}
        return cls(
            **row,
            lines=lines,
            start=_Start(**start) if start else None,
            checkpoint=Checkpoint(**checkpoint) if checkpoint else None,
        )


def digest(data: bytes) -> str:
    """A digest of bytes, 32 hexadecimal digits."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def read(run: Path) -> list[tuple[Seal, str]]:
    """A run's seals, each with the digest of its line; a torn last line is left out."""
    return [(_parse(run, number, line), digest(line)) for number, line in enumerate(whole_lines(run / NAME), 1)]


def read_losses(run: Path) -> list[Loss]:
    """The last version that survived each loss of a run's weights (`losses.json`)."""
    file = run / LOSSES
    found: list[Loss] = orjson.loads(file.read_bytes()) if file.exists() else []
    return found


def has_promised(run: Path) -> bool:
    """Return whether a process that trained in a run's folder recorded that it seals what it writes."""
    try:
        return any(orjson.loads(line).get("sealed") for line in whole_lines(run / STARTS))
    except (OSError, ValueError, AttributeError):
        return False


def _parse(run: Path, number: int, line: bytes) -> Seal:
    try:
        return Seal.of(orjson.loads(line))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{run / NAME}, line {number} is damaged: {error}") from None


class Seals:
    """Writes a run's seals; safe for several threads."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self._lock = threading.RLock()
        self._known: _Known | None = None
        self._replaced = ""

    @property
    def last(self) -> str:
        """The digest of the last seal's line; '' where there is none."""
        with self._lock:
            return self._load().last

    def start(self, step: int, settings: bytes, line: bytes, *, losses: list[Loss], anew: bool) -> None:
        """A process begins to train after `step` steps; its settings and its line of `starts.jsonl` follow."""
        with self._lock:
            known, (model, _) = self._load(), manifest.digests(self.run / "model")
            late = {name: trainer for name, trainer in self._trainers() if name in known.unfinished}
            replaced = model != known.model and model == self._replaced
            start = _Start(digest(settings), model, losses, anew, replaced, late)
            known.unfinished -= late.keys()
            self._write(Seal(step, known.last, self._count_grown({STARTS: line}), start=start))
            known.model = model

    def replace_model(self) -> None:
        """The run's `model/` was damaged, and has been replaced."""
        self._replaced = manifest.digests(self.run / "model")[0]
        if (self.run / NAME).exists():
            self.add(self._load().step, files={"model": self._replaced})

    def add(self, step: int, *, lines: Mapping[str, bytes] | None = None, **found: Any) -> None:
        """Write a seal.

        Args:
            step: after how many steps.
            lines: what is going to be appended to files of `FILES`, by name; other new lines of theirs are sealed too.
            **found: other fields of `Seal`.
        """
        with self._lock:
            known = self._load()
            self._write(Seal(step, known.last, self._count_grown(lines) if lines is not None else {}, **found))

    def checkpoint(self, step: int, name: str, folder: Path) -> None:
        """Seal a checkpoint by its manifest, in the folder where it lies now."""
        with self._lock:
            files, trainer = manifest.digests(folder)
            self.add(step, checkpoint=Checkpoint(name, files, trainer))
            if not trainer:
                self._load().unfinished.add(name)

    def seal_late(self) -> None:
        """Seal trainers that were written after their checkpoints."""
        with self._lock:
            known = self._load()
            for name, trainer in list(self._trainers()):
                if name in known.unfinished:
                    known.unfinished.remove(name)
                    files, _ = manifest.digests(self.run / "checkpoints" / name)
                    self.add(known.step, checkpoint=Checkpoint(name, files, trainer))

    def drop_after(self, step: int) -> None:
        """Remove the seals after `step`, which a resumed run will write again."""
        with self._lock:
            known = self._load()
            replaced, model = self._replaced, known.model
            keep_lines(self.run / NAME, step)
            self._known = None
            if self._load().model != model:  # replaced by a process that was killed before it trained
                self._replaced = replaced or model

    def _trainers(self) -> Iterator[tuple[str, str]]:
        for folder in sorted((self.run / "checkpoints").glob("step-*")):
            if trainer := manifest.digests(folder)[1]:
                yield folder.name, trainer

    def _write(self, seal: Seal) -> None:
        line = _line(seal)
        append(self.run / NAME, line)
        self._load().add(seal, digest(line))

    def _count_grown(self, coming: Mapping[str, bytes] | None) -> Lines:
        """By file the number of lines that it will have, and the digest of those that no seal has yet."""
        known, grown = self._load(), dict[str, tuple[int, str]]()
        for name in FILES:
            data = known.unsealed(self.run / name) + (coming or {}).get(name, b"")
            if data:
                known.sizes[name] += len(data)
                grown[name] = known.lines[name] + data.count(b"\n"), digest(data)
        return grown

    def _load(self) -> _Known:
        if self._known is None:
            whole = whole_lines(self.run / NAME)
            seals = [_parse(self.run, number, line) for number, line in enumerate(whole, 1)]
            counts = [len(whole_lines(self.run / name)) for name in FILES]
            if seals and _is_ahead(seals, dict(zip(FILES, counts, strict=True))):
                whole.pop()
                seals.pop()
            if (self.run / NAME).exists() and b"".join(whole) != (self.run / NAME).read_bytes():
                write_atomically(self.run / NAME, b"".join(whole))
            self._known = _Known()
            for seal, line in zip(seals, whole, strict=True):
                self._known.add(seal, digest(line))
            for name in FILES:
                lines = whole_lines(self.run / name)[: self._known.lines[name]]
                self._known.lines[name], self._known.sizes[name] = len(lines), sum(map(len, lines))
        return self._known


@dataclass(slots=True)
class _Known:
    """The content of all seals together.

    Attributes:
        last: the digest of the last line.
        step: the highest one.
        lines: how many lines of each file are sealed; `sizes`, how many bytes these have.
        unfinished: checkpoints whose trainer is not sealed.
        model: the digest of `model/`.
    """

    last: str = ""
    step: int = 0
    lines: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FILES, 0))
    sizes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FILES, 0))
    unfinished: set[str] = field(default_factory=set)
    model: str = ""

    def add(self, seal: Seal, line: str) -> None:
        self.last, self.step = line, max(self.step, seal.step)
        self.lines |= {name: count for name, (count, _) in seal.lines.items()}
        if seal.start:
            self.model = seal.start.model
            self.unfinished -= seal.start.late.keys()
        self.model = seal.files.get("model", self.model)
        if seal.checkpoint and seal.checkpoint.trainer:
            self.unfinished.discard(seal.checkpoint.name)
        elif seal.checkpoint:
            self.unfinished.add(seal.checkpoint.name)

    def unsealed(self, file: Path) -> bytes:
        """The bytes of a file beyond the lines that are sealed."""
        if not file.exists():
            return b""
        with file.open("rb") as content:
            content.seek(self.sizes[file.name])
            return content.read()


def _is_ahead(seals: list[Seal], counts: Mapping[str, int]) -> bool:
    """True where the last seal promises lines that were never written, and nothing else is missing."""
    before: dict[str, int] = dict.fromkeys(FILES, 0)
    for seal in seals[:-1]:
        before |= {name: count for name, (count, _) in seal.lines.items()}
    short = [name for name, (count, _) in seals[-1].lines.items() if counts[name] < count]
    return bool(short) and all(counts[name] >= before[name] for name in short)


def _line(seal: Seal) -> bytes:
    row: dict[str, Any] = {
        "step": seal.step,
        "start": seal.start,
        "checkpoint": seal.checkpoint,
        "evaluation": seal.evaluation,
    }
    row |= {"lines": seal.lines, "sessions": seal.sessions, "stream": seal.stream, "files": seal.files}
    kept = {name: value for name, value in row.items() if value or name == "step"}
    return orjson.dumps({**kept, "before": seal.before}) + b"\n"
