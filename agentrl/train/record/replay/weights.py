"""The weights of a version of a recorded run: a checkpoint's, or computed again from the nearest one before it."""

from __future__ import annotations

from pathlib import Path

import orjson

from agentrl.config import AlgoConfig, ClusterConfig, TrainerConfig
from agentrl.errors import ConfigError
from agentrl.sessions.store.store import Store
from agentrl.train.driver.resuming import step_of, whole_checkpoints
from agentrl.train.record import manifest
from agentrl.train.record.recording import BY_TIME
from agentrl.train.record.verify.recomputed import repack
from agentrl.train.record.verify.recorded import Recorded, Step
from agentrl.train.trainers import Trainer
from agentrl.train.trainers.worker import place_trainer
from agentrl.types import VersionSpan


def weights_of(recorded: Recorded, store: Store, span: VersionSpan, scratch: Path) -> tuple[Path, str]:
    """The folder of the weights that a span was generated under, and in words how they were found.

    Raises:
        ConfigError: no checkpoint has them, and they can't be computed again bit for bit; the message says why.
    """
    version = span.version
    if recorded.weights and (version, span.incarnation) not in recorded.weights:
        raise ConfigError(f"{recorded.run}: version {version} of these weights was lost when the run was resumed")
    after = {int(row["step"]): int(row["version"]) for row in recorded.rows}
    after[0] = next((found.version for step, found in recorded.published if step == 0), 0)
    model, checkpoints = recorded.run / "model", whole_checkpoints(recorded.run)
    bases = {step_of(folder): folder for folder in checkpoints if manifest.damage(folder) is None}
    intact = model.is_dir() and manifest.damage(model) is None
    if intact and not recorded.settings(1).warm_start.steps:
        bases.setdefault(0, model)
    for step, folder in bases.items():
        if after.get(step) == version:
            return folder, f"version {version} is {folder.name}'s"
    steps = [step for step, found in sorted(after.items()) if found == version]
    nearest = max((step for step in bases if steps and step < steps[0]), default=None)
    if nearest is None or not intact:
        raise ConfigError(f"{recorded.run}: no intact checkpoint is of version {version} or, with model/, before it")
    _train_again(recorded, store, nearest, bases[nearest], steps[0], scratch)
    return scratch, f"version {version} was trained again from {bases[nearest].name}"


def _train_again(recorded: Recorded, store: Store, start: int, base: Path, last: int, out: Path) -> None:
    """Train the steps after `start` up to `last` on what is stored, and export the weights."""
    config = recorded.settings(start + 1)
    more = {"total_steps": config.steps, "seed": config.seed, "lora": config.lora}
    trainer = place_trainer(ClusterConfig(), recorded.run / "model", config.trainer, config.algo, **more)
    try:
        if not trainer.deterministic:
            raise ConfigError(
                f"{recorded.run}: no checkpoint is there after step {last}, and trainer={config.trainer.name} is not "
                "deterministic here, so its weights can't be computed again"
            )
        if base != recorded.run / "model":  # a checkpoint, also the one after a warm start
            trainer.load(base / "trainer")
        for step in recorded.steps(store):
            if start < step.number <= last:
                _take(trainer, step, config.algo, config.trainer, config.steps)
        trainer.export(out)
    finally:
        trainer.close()


def _take(trainer: Trainer, step: Step, algo: AlgoConfig, settings: TrainerConfig, steps: int) -> None:
    """Take a recorded step again."""
    scheduled = algo.schedule != "constant" and step.config.steps != steps
    if scheduled or (step.config.algo, step.config.trainer) != (algo, settings):
        what = "steps, which the learning rate follows," if scheduled else "settings of algo or trainer"
        raise ConfigError(f"{what} changed before {step.where}, which can't be taken again then")
    found = repack(step, step.trained) if step.trained is not None and not step.damaged else "its record is missing"
    if isinstance(found, str):
        raise ConfigError(f"{step.where} can't be taken again: {found}")
    metrics = orjson.loads(orjson.dumps(trainer.step(found.forests, found.algorithm.snapshot())))
    row = step.row or {}
    for name, value in metrics.items():
        if not name.startswith(BY_TIME) and value != row.get(name):
            raise ConfigError(f"{step.where} can't be taken again: {name} is {value}, and was {row.get(name)}")
