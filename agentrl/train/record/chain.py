"""A chain's folder: run folders as its stages, and one manifest of them.

    chain.yaml     the settings: common ones, and those of each stage, without secrets
    chain.json     the manifest: of each stage its state, a hash of its settings, what it began with, its result
    run.lock       the process that trains here; see `lock`
    STAGE/         a stage's run folder

The manifest is written before a stage begins and after it has ended, beside and renamed. What becomes of a stage in
between is its own folder's matter: one whose folder has settings is resumed as any run is.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from agentrl.common import formats
from agentrl.config.sections import named_folder
from agentrl.errors import ConfigError

NAME = "chain.json"
STAGES = "stages"
"""The section of settings that makes them a chain's."""
SETTINGS = "chain.yaml"
BEST = "best.jsonl"
"""The file of conversations that a stage with `reject` writes into its folder."""


class StageKind(StrEnum):
    """The kinds of stage, by what they do."""

    TRAIN = "train"
    REJECT = "reject"


class StageState(StrEnum):
    """The states of a stage."""

    WAITING = "waiting"
    BEGUN = "begun"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class StageStart:
    """The inputs that a stage began with.

    Attributes:
        stage: the stage whose model it is; None where it is no stage's.
        model: the model's folder, within the chain's where it is a stage's.
        weights: a digest of its weights (`manifest.weights`); '' where nothing recorded them.
        read: what else it takes from other stages, within the chain's folder, with digests (`output_digest`).
    """

    stage: str | None
    model: str
    weights: str
    read: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StageEnd:
    """A stage's result.

    Attributes:
        model: its last checkpoint, or its file of conversations, within the stage's folder.
        weights: a digest of that (`output_digest`).
        config: SHA-256 of the config.yaml that the stage ended with.
        steps: how many it took; 0 of one that trains nothing.
        before: the measure before its first step; None where there is none, as of a resumed process.
        after: the measure after its last.
    """

    model: str
    weights: str
    config: str
    steps: int
    before: float | None
    after: float | None


@dataclass(frozen=True, slots=True)
class StageRecord:
    """A stage in the manifest.

    Attributes:
        name: its name, and that of its folder.
        state: how far it is.
        settings: a hash of its settings as they were given (`settings_hash`).
        start: what it began with, once it has begun.
        end: its result, once it is done.
        kind: what it does.
    """

    name: str
    state: StageState
    settings: str
    start: StageStart | None = None
    end: StageEnd | None = None
    kind: StageKind = StageKind.TRAIN


@dataclass(frozen=True, slots=True)
class ChainRecord:
    """A chain's manifest."""

    path: Path
    stages: tuple[StageRecord, ...]

    def stage(self, name: str) -> StageRecord | None:
        """The stage of that name."""
        return next((stage for stage in self.stages if stage.name == name), None)

    def folder(self, name: str) -> Path:
        return self.path / name

    @property
    def current(self) -> StageRecord:
        """The first stage that is not done; the last one where all are."""
        return next((stage for stage in self.stages if stage.state is not StageState.DONE), self.stages[-1])

    @property
    def done(self) -> bool:
        """True where all stages are."""
        return all(stage.state is StageState.DONE for stage in self.stages)

    def changed(self, name: str, **changes: Any) -> ChainRecord:
        """The manifest with a stage changed."""
        changed = tuple(replace(each, **changes) if each.name == name else each for each in self.stages)
        return replace(self, stages=changed)

    def write(self) -> None:
        """Write it into the chain's folder."""
        from agentrl.train.record.files import write_atomically  # which loads the points of faults

        data = {**formats.CHAIN.mark(), "stages": [asdict(stage) for stage in self.stages]}
        write_atomically(self.path / NAME, json.dumps(data, indent=1).encode() + b"\n")


def is_chain(path: Path) -> bool:
    """Return whether a folder is a chain's."""
    return (path / NAME).is_file()


def describes_chain(settings: Mapping[str, Any]) -> bool:
    """Return whether settings are a chain's, or resume one."""
    resume = named_folder(settings, "resume")
    return STAGES in settings or (resume is not None and is_chain(Path(resume)))


def read(path: Path) -> ChainRecord:
    """A chain's manifest.

    Raises:
        ConfigError: there is none, or it is damaged.
        NewerFormat: a later agentrl wrote it.
    """
    file = path / NAME
    try:
        data = json.loads(file.read_bytes())
        formats.CHAIN.check(data, file)
        stages = tuple(map(_stage, data["stages"]))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no chain there ({NAME} is missing)") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{file} is damaged: {error}") from None
    if not stages:
        raise ConfigError(f"{file} is damaged: it has no stages")
    return ChainRecord(path, stages)


def chain_of(run: Path) -> Path | None:
    """The folder of the chain that a run is a stage of; None where it is none."""
    folder = run.absolute().parent
    try:
        return run.parent if is_chain(folder) and read(folder).stage(run.absolute().name) else None
    except ConfigError:
        return None


def refuse_done_stage(run: Path) -> None:
    """Refuse to resume a run that is a done stage of a chain: later stages began with its result."""
    whole = chain_of(run)
    found = read(whole).stage(run.absolute().name) if whole else None
    if found is not None and found.end is not None:
        raise ConfigError(
            f"resume={run}: stage {found.name} of the chain {whole} is done, and other stages begin with its result; "
            f"{'data' if found.kind is StageKind.REJECT else 'model'}={run / found.end.model} begins a new run with it"
        )


def resume_command(run: Path, where: str) -> str:
    """The command that resumes a run, or the chain that it is a stage of; `where` says from where in the run."""
    whole = chain_of(run)
    of_stage = f"its stage {run.absolute().name} " if whole else ""
    return f"resume {of_stage}{where} with:\n  agentrl train {shlex.quote(f'resume={whole or run}')}"


def resume_hint(record: ChainRecord) -> str:
    """The command that resumes a chain between two stages."""
    return f"resume with:\n  agentrl train {shlex.quote(f'resume={record.path}')}"


def settings_hash(tree: Mapping[str, Any]) -> str:
    """A hash of settings as they were given, without secrets."""
    return hashlib.sha256(json.dumps(tree, sort_keys=True, default=str).encode()).hexdigest()


def end_of(run: Path, before: float | None, after: float | None) -> StageEnd:
    """The result of a run that has ended."""
    from agentrl.train.record import manifest  # which loads the models

    checkpoints = sorted(path for path in (run / "checkpoints").glob("step-*") if path.name[5:].isdecimal())
    if not checkpoints:
        raise ConfigError(f"{run} has no checkpoint, so its stage has no result")
    last = checkpoints[-1]
    steps, weights = int(last.name.removeprefix("step-")), manifest.weights(last)
    return StageEnd(last.relative_to(run).as_posix(), weights, config_hash(run), steps, before, after)


def end_of_selection(run: Path, mean: float | None) -> StageEnd:
    """The result of a stage that wrote a file of conversations; `mean` is the mean reward of its sessions."""
    return StageEnd(BEST, output_digest(run / BEST), config_hash(run), 0, None, mean)


def output_digest(path: Path) -> str:
    """A digest of what a stage wrote: a file, a model's weights, a run's seals; '' where it is none of them."""
    from agentrl.train.record import manifest
    from agentrl.train.record.seals import NAME as SEALS  # which loads the stores

    file = path if path.is_file() else path / SEALS
    if found := "" if file == path else manifest.weights(path):
        return found
    try:
        with file.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError:
        return ""


def config_hash(run: Path) -> str:
    """SHA-256 of a run's config.yaml."""
    from agentrl.train.record.seals import SETTINGS as RUN_SETTINGS

    return hashlib.sha256((run / RUN_SETTINGS).read_bytes()).hexdigest()


def _stage(data: Mapping[str, Any]) -> StageRecord:
    start, end = data["start"], data["end"]
    return StageRecord(
        str(data["name"]),
        StageState(data["state"]),
        str(data["settings"]),
        None if start is None else StageStart(**start),
        None if end is None else StageEnd(**end),
        StageKind(data.get("kind", StageKind.TRAIN)),
    )
