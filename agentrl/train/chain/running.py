"""A chain's stages, trained one after the other in one process, or resumed in another."""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from agentrl.config import yaml_settings
from agentrl.errors import ConfigError
from agentrl.train.chain import planning
from agentrl.train.display.console import Display
from agentrl.train.driver.launch import train_run
from agentrl.train.driver.result import TrainResult
from agentrl.train.evaluation.rejection import Rejection, reject
from agentrl.train.plan.preflight import check_evaluation, check_training
from agentrl.train.record import chain, lock, manifest
from agentrl.train.record.chain import ChainRecord, StageStart, StageState
from agentrl.train.record.files import read_metrics, write_atomically
from agentrl.train.record.seals import METRICS


@dataclass(frozen=True, slots=True)
class ChainResult(TrainResult):
    """A chain's result: that of the last stage that was trained, and those of all.

    Attributes:
        chain: the chain's folder.
        stages: each stage's result. Of one that an earlier process trained `before` and `after` are None.
    """

    chain: Path = Path()
    stages: dict[str, TrainResult] = field(default_factory=dict)


async def train_chain(plan: planning.Chain, display: Display) -> ChainResult:
    """Train the stages that are not done yet, each as the run that it is.

    Raises:
        AgentRLError: a stage failed; the message begins with its name.
    """
    with _open(plan) as record:
        results: dict[str, TrainResult] = {}
        for number, stage in enumerate(plan.stages, 1):
            display.resume_hint = lambda: f"interrupted; {chain.resume_hint(plan.begun_record())}"
            about = f"stage {stage.name} ({number} of {len(plan.stages)})"
            if plan.state(stage.name) is StageState.DONE:
                display.say(f"== {about} is done")
                results[stage.name] = _read_result(record, stage.name)
                continue
            display.say(f"== {about}")
            try:
                record, result = await _train_stage(plan, stage, record, display)
            except Exception as error:
                planning.name_stage(error, stage.name)
                if results and not getattr(error, "__notes__", ()):
                    error.add_note(f"once that is fixed, {chain.resume_hint(record)}")
                raise
            results[stage.name] = result
            if not result.worked:
                break
            gc.collect()  # engines and trainer are in cycles, and the next stage needs their memory
    trained = [each for each in results.values() if each.trained]
    last = trained[-1] if trained else results[next(reversed(results))]
    return ChainResult(last.path, last.before, last.after, last.metrics, last.worked, last.kind, plan.path, results)


async def _train_stage(
    plan: planning.Chain, stage: planning.Stage, record: ChainRecord, display: Display
) -> tuple[ChainRecord, TrainResult]:
    folder = plan.path / stage.name
    if (folder / "config.yaml").exists():
        config = planning.resume_config(plan, stage, record)
    else:
        config = planning.begin_config(plan, stage, record)
        record = record.changed(stage.name, state=StageState.BEGUN, start=_start(plan, stage, config.played_by, record))
        record.write()
    if stage.best_of is not None:
        check_evaluation(config)
        play = partial(reject, config, stage.best_of, display)
        return await _keep_best(play, record, stage.name, display)
    result = await train_run(config, display, check_training(config))
    if not result.worked:
        return record, result
    before, after = (None if each is None else each.mean for each in (result.before, result.after))
    record = record.changed(stage.name, state=StageState.DONE, end=chain.end_of(folder, before, after))
    record.write()
    return record, result


async def _keep_best(
    play: Callable[[Path, str], Awaitable[Rejection]], record: ChainRecord, name: str, display: Display
) -> tuple[ChainRecord, TrainResult]:
    folder = record.folder(name)
    file = folder / chain.BEST
    file.unlink(missing_ok=True)  # of a kill between it and the manifest; the sessions are there
    found = await play(folder, chain.resume_hint(record))
    display.say("\n".join([*found.lines()][:-1]))  # the last one is a command
    record = record.changed(name, state=StageState.DONE, end=chain.end_of_selection(folder, found.mean))
    record.write()
    return record, TrainResult(folder, None, None, [])


def _start(plan: planning.Chain, stage: planning.Stage, model: str, record: ChainRecord) -> StageStart:
    """The model that a stage begins with; the digest is of what an earlier stage recorded."""
    read = planning.outputs_read(stage, record)
    if stage.model is None:
        return StageStart(None, model, "", read)
    folder = Path(model)
    return StageStart(stage.model.stage, folder.relative_to(plan.path).as_posix(), manifest.weights(folder), read)


@contextmanager
def _open(plan: planning.Chain) -> Iterator[ChainRecord]:
    """The chain's folder with its manifest, locked; removed where a new chain fails before a stage has anything."""
    path, record = plan.path, plan.begun_record()
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"run_dir={str(path)!r}: can't make that folder: {error.strerror}; name another") from None
    held = lock.RunLock(path)
    try:
        write_atomically(path / chain.SETTINGS, yaml_settings.write(planning.kept_settings(plan)).encode())
        record.write()
        yield record
    except Exception:
        if plan.record is None and not any((path / stage.name).exists() for stage in plan.stages):
            for name in (chain.NAME, chain.SETTINGS, lock.NAME):
                (path / name).unlink(missing_ok=True)
            with suppress(OSError):
                path.rmdir()
        raise
    finally:
        with suppress(FileNotFoundError):
            held.release()


def _read_result(record: ChainRecord, name: str) -> TrainResult:
    folder = record.folder(name)
    return TrainResult(folder, None, None, read_metrics(folder / METRICS))
