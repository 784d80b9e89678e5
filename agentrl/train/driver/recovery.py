"""A trainer whose processes died is started anew within the run.

It continues from the newest checkpoint and trains again, in order, on the groups of the steps since, as the session
store has them: with a deterministic trainer its weights are then the same, bit for bit. Engines, groups under way and
groups that wait to be trained are not touched. Before the first checkpoint is whole it begins as the run did, and
imitates the same demonstrations again, from the step where that was last saved.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from agentrl.config import TrainerConfig
from agentrl.errors import TrainerError, brief
from agentrl.train.driver.resuming import step_of
from agentrl.train.record.state import RunState, last_attempts
from agentrl.train.trainers import Trainer
from agentrl.types import Group

T = TypeVar("T")


@dataclass
class Recovery:
    """Restarts of a trainer.

    Attributes:
        start: makes a trainer like the run's first one.
        max_restarts: how often that may happen between two checkpoints, and before the first.
        beginning: the state of the run's algorithm before its first step.
        imitate: has the loop's trainer learn what it does before the first step; set once it has been learned.
        starts: what `start` would be with other settings of the trainer; None: it keeps its settings.
        restarts: how often it has been started anew, since the newest checkpoint.
        trained: the groups, without their sessions, that each step since the newest checkpoint (from 0) trained on.
    """

    start: Callable[[], Trainer]
    max_restarts: int
    beginning: Mapping[str, Any] = field(default_factory=dict)
    imitate: Callable[[], Awaitable[None]] | None = None
    starts: Callable[[TrainerConfig], Callable[[], Trainer]] | None = None
    restarts: int = 0
    trained: dict[int, list[Group]] = field(default_factory=dict)

    def first(self, start: Callable[[], T], warn: Callable[[str], object]) -> T:
        """Return the result of `start`, the run's first trainer; where that dies while it starts, start it again."""
        while True:
            try:
                return start()
            except TrainerError as error:
                if not self.possible(error):
                    raise
                self.restarts += 1
                warn(f"the trainer is started anew: {brief(str(error))}")

    def learned(self, step: int, groups: Sequence[Group]) -> None:
        """A step has been trained on these groups."""
        self.trained[step] = [replace(group, sessions=[]) for group in groups]

    def saved(self, checkpoints: Sequence[Path]) -> None:
        """A checkpoint was written; these are complete."""
        self.restarts = 0
        first = step_of(checkpoints[-1]) if checkpoints else 0
        self.trained = {step: groups for step, groups in self.trained.items() if step >= first}

    def possible(self, error: BaseException) -> bool:
        """Return whether an error is a trainer's death with a restart left; where none is left, the error says so."""
        if died(error) is None:
            return False
        if left := self.restarts < self.max_restarts:
            return left
        error.add_note(
            f"it was started anew {self.restarts} times since the newest checkpoint or the run's beginning: "
            f"trainer.max_restarts={self.max_restarts} allows no more"
        )
        return False

    def restart(self, state: RunState, checkpoint: Path | None) -> RunState:
        """The state with another trainer, at a checkpoint or as it began; the old trainer is closed."""
        self.restarts += 1
        state.main.trainer.close()
        again = state.with_trainer(self.start())
        if checkpoint is None:
            again.main.algorithm.load_snapshot(self.beginning)
        else:
            again.restore_trainers(checkpoint)
        return again

    def groups(self, step: int, state: RunState) -> list[Group]:
        """The groups that a step trained on, with their stored sessions."""
        return [replace(group, sessions=last_attempts(state.store, group.id)) for group in self.trained[step]]


def died(error: BaseException | None) -> TrainerError | None:
    """The trainer's death that an error is, or was raised because of."""
    while error is not None and not isinstance(error, TrainerError):
        error = error.__cause__ or error.__context__
    return error
