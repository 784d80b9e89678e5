"""Groups whose sessions are read: the source of a stream that needs no engine and no environment."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from agentrl.config import RolloutConfig
from agentrl.rollout.episodes.groups import Ended, nothing
from agentrl.rollout.stream.samplers import Sampler
from agentrl.rollout.stream.seeds import group_seed
from agentrl.rollout.stream.slots import Slots
from agentrl.rollout.stream.unfinished import LeftSessions
from agentrl.sessions.store.store import Store
from agentrl.types import Group, Session, Task


class SessionData(Protocol):
    """Sessions to read, by task."""

    tasks: dict[str, list[Task]]

    def sessions(self, split: str, task: Task) -> list[Session]:
        """The sessions of a task, new ones each time, from any thread; always the same."""


@dataclass(frozen=True)
class ReadGroups:
    """Groups of `SessionData`, stored as they are taken; see `rollout.stream.source.GroupSource`.

    Attributes:
        data: the sessions.
        limits: the run's settings of rollouts.
        seed: the run's.
        store: the run's.
        environment: what stands in place of an environment's name.
        split: of the data.
        combinations: what is read has no tree of joint turns.
    """

    data: SessionData
    limits: RolloutConfig
    seed: int
    store: Store
    environment: str
    split: str = "train"
    combinations: str = ""
    slots: Slots = field(default_factory=lambda: Slots(1), repr=False, compare=False)
    left: LeftSessions = field(default_factory=LeftSessions, repr=False, compare=False)

    async def prepare(self, tasks: Sequence[Task], n: int) -> None:
        """Do nothing: sessions are read one group at a time."""

    async def generate(
        self,
        group: Group,
        actor: Any = None,
        n: int = 1,
        *,
        phase: str,
        step: int | None = None,
        seconds: float | None = None,
        ended: Ended = nothing,
        greedy: Any = None,
    ) -> None:
        """Read a group's sessions, and store them as the run's."""
        group.sessions = await asyncio.to_thread(self._read, group, phase, step)
        for session in group.sessions:
            await ended(session)

    def _read(self, group: Group, phase: str, step: int | None) -> list[Session]:
        sessions = self.data.sessions(self.split, group.task)
        with self.store.batch():
            for sample, session in enumerate(sessions):
                session.id, session.group, session.sample = f"{group.id}-{sample}", group.id, sample
                session.group_number, session.group_attempt, session.attempt = group.number, group.attempt, 0
                session.phase, session.step, session.environment = phase, step, self.environment
                session.seed = group_seed(self.seed, phase, group.number)
                session.started = session.ended = None
                self.store.save(session, replace=True)
        return sessions


@dataclass(frozen=True)
class ListedTasks:
    """Tasks of a list, chosen by a sampler; see `rollout.stream.tasks.Tasks`."""

    tasks: Sequence[Task]
    sampler: Sampler

    def choose(self, number: int) -> int:
        return self.sampler.choose(number, len(self.tasks))

    def at(self, choice: int) -> Task:
        return self.tasks[choice]

    def see(self, choice: int, group: Group) -> None:
        self.sampler.see(choice, group)

    def state(self) -> Any:
        return self.sampler.state()

    def restore(self, state: Any) -> None:
        self.sampler.restore(state)
