"""A run's trainer gets another number or layout of processes, at a step's boundary, while the run goes on.

    echo 'ranks: 4' > runs/NAME/trainer.yaml

After the step that is under way a checkpoint is written, the trainer is closed, and another one with these settings
continues from it; engines and sessions under way are not touched. The file is removed when it is read. Likewise a
trainer whose node is drained goes on elsewhere, where others have room for it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from agentrl import cluster
from agentrl.common.concurrency import in_thread
from agentrl.config import RunConfig, TrainerConfig
from agentrl.errors import ConfigError
from agentrl.overrides import read_yaml, validate
from agentrl.train.display.console import Display
from agentrl.train.driver.recovery import Recovery
from agentrl.train.record.run_folder import RunFolder

T = TypeVar("T")
FILE = "trainer.yaml"
CHANGEABLE = ("ranks", "tensor_parallel", "pipeline_parallel", "expert_parallel", "context_parallel", "threads")
"""Settings of a trainer that say how its processes divide the work, and not what is learned."""


class Resizable(Protocol):
    """The parts of a run's loop that the exchange of its trainer takes."""

    folder: RunFolder
    display: Display
    recovery: Recovery

    @property
    def config(self) -> RunConfig:
        """The settings that the run goes on with."""

    def saves_after(self, step: int) -> bool:
        """Return whether a checkpoint is due after `step` steps."""

    async def save(self, step: int) -> None:
        """Write the checkpoint after `step` steps."""

    async def restart_trainer(self, done: int) -> None:
        """Put a new trainer in the place of the old one, after the same steps."""

    async def recovering(self, done: int, work: Callable[[], Awaitable[T]]) -> T:
        """Do work that needs the trainer, again where that dies."""


def read_request(folder: Path, trainer: TrainerConfig, warn: Callable[[str], object]) -> TrainerConfig | None:
    """The trainer's settings that the run's folder asks for; None where there are none, or they are wrong or the same.

    `trainer` has the settings so far; `warn` is told what is wrong.
    """
    file = folder / FILE
    if not file.exists():
        return None
    try:
        tree = read_yaml(file)
        if strange := sorted(tree.keys() - set(CHANGEABLE)):
            raise ConfigError(f"{strange[0]} can't be changed during a run; allowed: {', '.join(CHANGEABLE)}")
        found = validate({**trainer.model_dump(), **tree}, type(trainer))
    except ConfigError as error:
        warn(f"{file} is left out of account: {error}")
        found = trainer
    file.unlink()
    return None if found == trainer else found


async def resize(loop: Resizable, done: int) -> None:
    """Go on with the trainer that the run's folder asks for, after so many steps; where it can't be made, with the old.

    Raises:
        AgentRLError: neither could be started.
    """
    found, recovery = read_request(loop.folder.path, loop.config.trainer, loop.display.warn), loop.recovery
    if found is None or recovery.starts is None:
        alone = not loop.config.fleet.colocated and not loop.config.learned  # else others of its kind are there
        if alone and done < loop.config.steps and await in_thread(cluster.current().movable, "trainer"):
            loop.display.say("the trainer is moved: its node is drained")
            await _start_anew(loop, recovery, done)
        return
    before, recovery.start = recovery.start, recovery.starts(found)
    try:
        await _start_anew(loop, recovery, done)
    except ConfigError as error:
        loop.display.warn(f"the trainer goes on as it was: {error}")
        recovery.start = before
        await loop.recovering(done, partial(loop.restart_trainer, done))
        return
    loop.folder.change_trainer(found, done)


async def _start_anew(loop: Resizable, recovery: Recovery, done: int) -> None:
    """Have the trainer go on in other processes, from a checkpoint of now; it is none of the restarts after deaths."""
    if not loop.saves_after(done):
        await loop.recovering(done, partial(loop.save, done))
    await loop.recovering(done, partial(loop.restart_trainer, done))
    recovery.restarts -= 1
