"""A run's groups as one stream: numbered, drawn as far ahead as a gate admits, handed out in order.

    producer -> gate -> buffer -> loop

A group that was begun counts against the gate until it is discarded, or until the step that trained on it is
published. With a staleness bound of 0 no more than one step's groups are begun before that: the synchronous run. With
a bound of b as many as b + 1 steps take: the oldest of them are then at most b versions old when they are trained.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from agentrl.envs.episode import Actor
from agentrl.errors import InvalidInput
from agentrl.rollout.groups import Ended, Rollouts, new_group, nothing, side_by_side
from agentrl.rollout.programs import Program
from agentrl.rollout.tasks import TaskStream
from agentrl.types import Group, Session

PHASE = "train"


@dataclass
class Gate:
    """Says how many groups may begin.

    Attributes:
        groups_per_step: what a step takes.
        steps: the run's.
        staleness: how many versions old a group may be when it is trained.
        published: steps that are over.
        open: groups that were begun, and neither discarded nor part of a step that is over.
    """

    groups_per_step: int
    steps: int
    staleness: int = 0
    published: int = 0
    open: int = 0

    def admits(self) -> int:
        """How many more may begin.

        begun - discarded < (staleness + published + 1) · groups_per_step, and never more than the run's steps take.
        """
        ahead = min(self.staleness + 1, self.steps - self.published)
        return max(0, ahead * self.groups_per_step - self.open)


@dataclass
class Buffer:
    """Groups that were begun and not handed out yet.

    Attributes:
        begun: the attempt that is under way, or finished, by number.
        finished: those that have ended, by number.
    """

    begun: dict[int, int] = field(default_factory=dict)
    finished: dict[int, Group] = field(default_factory=dict)

    def begin(self, number: int, attempt: int) -> None:
        """A group is begun.

        Raises:
            InvalidInput: a group of that number is in the buffer already.
        """
        if number in self.begun:
            raise InvalidInput(f"group {number} is in the buffer already, as attempt {self.begun[number]}")
        self.begun[number] = attempt

    def put(self, group: Group) -> None:
        """A group has ended.

        Raises:
            InvalidInput: it was not begun, or has ended before.
        """
        if self.begun.get(group.number) != group.attempt or group.number in self.finished:
            raise InvalidInput(f"group {group.id!r} is not one that is under way")
        self.finished[group.number] = group

    def next(self, count: int) -> list[int]:
        """The numbers of the next `count` groups; fewer where no more were begun."""
        return sorted(self.begun)[:count]

    def take(self, count: int) -> list[Group] | None:
        """The next `count` groups in the order of their numbers, once all of them have ended; else None."""
        numbers = self.next(count)
        if len(numbers) < count or any(number not in self.finished for number in numbers):
            return None
        for number in numbers:
            del self.begun[number]
        return [self.finished.pop(number) for number in numbers]


class Stream:
    """The groups of a run's training; use it as an asynchronous context manager, which ends what is under way.

    Args:
        rollouts: draws groups.
        tasks: which task a number gets.
        actor: who speaks in the sessions.
        group_size: sessions of a group.
        gate: how many groups may begin.
        ended: is given each session that has ended.
    """

    def __init__(
        self,
        rollouts: Rollouts,
        tasks: TaskStream,
        actor: Actor | Program,
        *,
        group_size: int,
        gate: Gate,
        ended: Ended = nothing,
    ) -> None:
        self.rollouts, self.tasks, self.actor = rollouts, tasks, actor
        self.group_size, self.gate = group_size, gate
        self.buffer = Buffer()
        self._ended = ended
        self._next = 0
        self._again: dict[int, Group] = {}
        self._sessions: dict[int, list[Session]] = {}
        self._watch: Callable[[int, Session], None] = lambda number, session: None
        self._work: set[asyncio.Task[None]] = set()
        self._error: BaseException | None = None
        self._news = asyncio.Event()

    async def __aenter__(self) -> Stream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for work in self._work:
            work.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)

    async def take(self, count: int, ended: Callable[[Session], None] = lambda session: None) -> list[Group]:
        """The next `count` groups, in the order of their numbers.

        Args:
            count: how many.
            ended: is told of each session of theirs that has ended, those that have already included.

        Raises:
            AgentRLError: a failure that the user must mend; the other sessions are cancelled.
            EngineError: no engine is left, and none can be started.
            InvalidInput: the gate doesn't admit so many.
        """
        self._admit()
        wanted = self.buffer.next(count)
        if len(wanted) < count:
            raise InvalidInput(f"{count} groups are wanted, and the gate admits {len(wanted)}")
        for session in (session for number in wanted for session in self._sessions.get(number, ())):
            ended(session)
        self._watch = lambda number, session: ended(session) if number in wanted else None
        while (groups := self.buffer.take(count)) is None:
            if self._error is not None:
                raise self._error
            self._news.clear()
            await self._news.wait()
        for group in groups:
            self._sessions.pop(group.number, None)
        return groups

    def discard(self, groups: Sequence[Group]) -> None:
        """Groups that were taken are not trained on: their numbers are drawn anew, as another attempt."""
        for group in groups:
            self._again[group.number] = new_group(PHASE, group.number, group.task, group.attempt + 1)
        self.gate.open -= len(groups)

    def published(self, count: int) -> None:
        """A step that took `count` groups is over, and its version published: as many others may begin."""
        self.gate.published += 1
        self.gate.open -= count

    def _admit(self) -> None:
        batch: list[Group] = []
        for _ in range(self.gate.admits()):
            if self._again:
                group = self._again.pop(min(self._again))
            else:
                group = new_group(PHASE, self._next, self.tasks.take(self._next, 1)[0])
                self._next += 1
            self.buffer.begin(group.number, group.attempt)
            self.gate.open += 1
            batch.append(group)
        if batch:
            work = asyncio.create_task(self._draw(batch))
            self._work.add(work)
            work.add_done_callback(self._over)

    async def _draw(self, batch: Sequence[Group]) -> None:
        await self.rollouts.prepare([group.task for group in batch], self.group_size)
        await side_by_side(map(self._draw_group, batch))

    async def _draw_group(self, group: Group) -> None:
        async def ended(session: Session) -> None:
            await self._ended(session)
            self._sessions.setdefault(group.number, []).append(session)
            self._watch(group.number, session)

        step = self.gate.published
        await self.rollouts.draw(group, self.actor, self.group_size, phase=PHASE, step=step, ended=ended)
        self.buffer.put(group)
        self._news.set()

    def _over(self, work: asyncio.Task[None]) -> None:
        self._work.discard(work)
        if not work.cancelled() and (error := work.exception()) is not None:
            self._error = self._error or error
            self._news.set()

    # --------------------------------------------------------------------------------------- state

    def state(self) -> dict[str, Any]:
        """Where the stream stands, as JSON: what is under way is begun again by a resumed run, from the same seeds."""
        begun = {**self.buffer.begun, **{number: group.attempt for number, group in self._again.items()}}
        return {
            "step": self.gate.published,
            "next": self._next,
            "begun": [[number, begun[number]] for number in sorted(begun)],
            "finished": [group.id for _, group in sorted(self.buffer.finished.items())],
        }

    def restore(self, state: Mapping[str, Any], sessions: Callable[[str], list[Session]]) -> None:
        """Go on where another stream stood.

        Args:
            state: what `state` told.
            sessions: the stored sessions of a group by its id.
        """
        self.gate.published, self._next = state["step"], state["next"]
        for number, attempt in state["begun"]:
            group = new_group(PHASE, number, self.tasks.take(number, 1)[0], attempt)
            group.sessions = sorted(sessions(group.id), key=lambda s: s.sample) if group.id in state["finished"] else []
            if len(group.sessions) == self.group_size:
                self.buffer.begin(number, attempt)
                self.buffer.put(group)
                self._sessions[number] = group.sessions
                self.gate.open += 1
            else:
                group.sessions = []
                self._again[number] = group
