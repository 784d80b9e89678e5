"""A run's trainer gets another number or layout of processes, at a step's boundary, while the run goes on.

    echo 'ranks: 4' > runs/NAME/trainer.yaml

After the step that is under way a checkpoint is written, the trainer is closed, and another one with these settings
continues from it; engines and sessions under way are not touched. The file is removed when it is read.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl.config import RunConfig
from agentrl.errors import ConfigError
from agentrl.overrides import read_yaml, validate

if TYPE_CHECKING:
    from agentrl.train.loop import Loop

FILE = "trainer.yaml"
CHANGEABLE = ("ranks", "tensor_parallel", "pipeline_parallel", "expert_parallel", "context_parallel", "threads")
"""Settings of a trainer that say how its processes divide the work, and not what is learned."""


def requested(folder: Path, config: RunConfig, warn: Callable[[str], object]) -> RunConfig | None:
    """The configuration that the run's folder asks for; None where it asks for none, or what it asks for is wrong.

    Args:
        folder: the run's.
        config: as it is.
        warn: is told what is wrong.
    """
    file = folder / FILE
    if not file.exists():
        return None
    try:
        tree = read_yaml(file)
        if strange := sorted(tree.keys() - set(CHANGEABLE)):
            raise ConfigError(f"{strange[0]} can't be changed during a run; allowed: {', '.join(CHANGEABLE)}")
        trainer = config.trainer
        found = validate({**trainer.model_dump(), **tree}, type(trainer))
    except ConfigError as error:
        warn(f"{file} is left out of account: {error}")
        found = config.trainer
    file.unlink()
    return None if found == config.trainer else config.model_copy(update={"trainer": found})


async def resize(loop: Loop, done: int) -> None:
    """Go on with the trainer that the run's folder asks for, after so many steps; where it can't be made, with the old.

    Raises:
        AgentRLError: neither could be started.
    """
    found, recovery = requested(loop.folder.path, loop.config, loop.display.warn), loop.recovery
    if found is None or recovery is None or recovery.starts is None:
        return
    await loop.recovering(done, partial(loop.save, done))
    before, recovery.start = recovery.start, recovery.starts(found.trainer)
    try:
        await loop.recovering(done, partial(loop.restart_trainer, done))
    except ConfigError as error:
        loop.display.warn(f"the trainer goes on as it was: {error}")
        recovery.start = before
        await loop.recovering(done, partial(loop.restart_trainer, done))
        return
    loop.config = found
    loop.folder.change_settings(found, done)
