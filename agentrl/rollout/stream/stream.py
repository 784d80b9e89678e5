"""A run's groups as one stream: numbered, generated as far ahead as a gate admits, returned in batches.

    producer -> gate -> buffer -> loop

A group that was begun counts against the gate until it is discarded, or until the step that trained on it is
published. With a staleness bound of 0 no more than one step's groups are begun before that: the synchronous run. With
a bound of b as many as b + 1 steps take, and generation continues during training and publication. Where fewer keep
the loop supplied fewer are begun (`Gate`), since a group that waits to be trained only gets staler.

A batch is the next groups in the order of their numbers: none of them is then more than b versions behind. With
`order=ready` it is whichever groups have ended first. A group that is more than b versions behind is
discarded, and its number generated again, as another attempt. `oversample` begins more groups than a step
takes.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

from agentrl.envs.turns import Actor
from agentrl.errors import InvalidInput
from agentrl.rollout.episodes.combinations import has_whole_tree
from agentrl.rollout.episodes.groups import TRAIN, Ended, new_group, nothing
from agentrl.rollout.episodes.programs import Program
from agentrl.rollout.stream.buffer import Buffer, Gate, Order
from agentrl.rollout.stream.filters import PRIORITIES, make_measure
from agentrl.rollout.stream.outcomes import FAILED, REPLAYED, STALE, TRAINED, GroupOutcome
from agentrl.rollout.stream.seeds import derive
from agentrl.rollout.stream.source import GroupSource
from agentrl.rollout.stream.tasks import Tasks
from agentrl.sessions.store.store import Store
from agentrl.types import Group, Session

PREPARATION = -1
"""Stands for a group's number: the environment prepares for several groups."""


class Stream:
    """The groups of a run's training; use it as an asynchronous context manager, which cancels what is in progress.

    Args:
        rollouts: fills groups: it generates them, or reads them (`rollout.stream.source`).
        tasks: which task a number gets.
        actor: acts in the sessions; None where nothing is generated.
        group_size: sessions of a group.
        gate: how many groups may begin.
        order: which groups a batch takes.
        ended: called with each session that has ended.
        greedy: acts in one more session of each group (`GREEDY`); None: there is none.

    Attributes:
        discarded: groups that were discarded since `metrics` was last called, by cause.
        outcomes: of the groups that left the stream and are not in the run's ledger yet (`take_outcomes`); they are
            part of the stream's state.
    """

    def __init__(
        self,
        rollouts: GroupSource,
        tasks: Tasks,
        actor: Actor | Program | None,
        *,
        group_size: int,
        gate: Gate,
        order: Order = "number",
        ended: Ended = nothing,
        greedy: Actor | None = None,
    ) -> None:
        self.rollouts, self.tasks, self.actor = rollouts, tasks, actor
        self.group_size, self.gate, self.order, self.greedy = group_size, gate, order, greedy
        self.buffer = Buffer(priority=make_measure(PRIORITIES, rollouts.limits.priority))
        self.discarded: Counter[str] = Counter()
        self.outcomes: list[GroupOutcome] = []
        self._ended = ended
        self._next = 0
        self._again: dict[int, Group] = {}
        self._taken: dict[int, Group] = {}
        self._past: dict[int, Group] = {}
        self._replayed: dict[int, Group] = {}
        self._sessions: dict[int, list[Session]] = {}
        self._report: Callable[[int, Session], None] = lambda number, session: None
        self._work: dict[asyncio.Task[None], int] = {}
        self._error: BaseException | None = None
        self._news = asyncio.Event()
        self._idle, self._idle_since = 0.0, time.monotonic()

    async def __aenter__(self) -> Stream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for work in self._work:
            work.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)

    @property
    def sessions_each(self) -> int:
        """The sessions that are generated for each group, a greedy one included."""
        return self.group_size + (self.greedy is not None)

    async def take(self, count: int, ended: Callable[[Session], None] = lambda session: None) -> list[Group]:
        """The next `count` groups.

        Args:
            count: how many.
            ended: is called with each session of theirs that has ended, those that have already included; with
                `order="ready"` with each session of any group.

        Raises:
            AgentRLError: a failure that the user must fix; the other sessions are cancelled.
            EngineError: no engine is left, and none can be started.
            InvalidInput: the gate doesn't admit so many.
        """
        self._admit()
        if not self.buffer.ready(count, self.order):
            self.gate.wait(lambda: self._under_way() >= self.rollouts.slots.count)
            self._admit()
        wanted = set(self._list_wanted(count))
        for session in (session for number in wanted for session in self._sessions.get(number, ())):
            ended(session)
        self._report = lambda number, session: ended(session) if number in wanted else None
        while (groups := self._ready(count)) is None:
            if self._error is not None:
                raise self._error
            self._news.clear()
            await self._news.wait()
        for group in groups:
            self._sessions.pop(group.number, None)
            self._taken[group.number] = group
        return groups

    def discard(self, groups: Iterable[Group], cause: str = FAILED) -> None:
        """Groups are not trained on: their numbers are generated again, as another attempt."""
        for group in groups:
            again = new_group(TRAIN, group.number, group.task, group.attempt + 1)
            again.choice = group.choice
            self._again[group.number] = again
            self._sessions.pop(group.number, None)
            self._leave(group, cause)

    def drop(self, groups: Iterable[Group], cause: str) -> None:
        """Groups that were taken are not trained on, and as many groups of other numbers may begin."""
        for group in groups:
            self.tasks.see(group.choice, group)
            self._leave(group, cause)

    def reuse(self, count: int) -> list[Group]:
        """Groups to train on a second time with the batch that was taken, at most `count`, in the order of numbers.

        They are chosen, by the seed and the step, from the groups that were trained on once and are at most
        `rollout.reuse_age` versions behind.
        """
        limits, step = self.rollouts.limits, self.gate.published
        self._past |= self._replayed
        young = [number for number in sorted(self._past) if step - self._past[number].step <= limits.reuse_age]
        generator = random.Random(derive(self.rollouts.seed, "replay", step))
        chosen = sorted(generator.sample(young, min(count, len(young))))
        self._replayed = {number: self._past.pop(number) for number in chosen}
        return list(self._replayed.values())

    def _leave(self, group: Group, cause: str) -> None:
        self._taken.pop(group.number, None)
        self.gate.open -= 1
        self.discarded[cause] += 1
        self.outcomes.append(GroupOutcome.of(group, cause))

    def published(self, groups: Sequence[Group]) -> list[Group]:
        """A step on these groups has ended, and its version is published: as many other groups may begin.

        Groups that can't be trained any more, since they would be too far behind, are discarded.

        Returns:
            The groups that were trained on for the first time.
        """
        fresh = [group for group in groups if group.number not in self._replayed]
        self.outcomes += [GroupOutcome.of(group, TRAINED) for group in fresh]
        self.outcomes += [GroupOutcome.of(group, REPLAYED) for group in self._replayed.values()]
        self._replayed = {}
        for group in fresh:
            if self.rollouts.limits.reuse:
                self._past[group.number] = group
            self.tasks.see(group.choice, group)
            self._taken.pop(group.number, None)
        self.gate.publish(idle=len(self.buffer.begun) == len(self.buffer.finished))
        self.gate.open -= len(fresh)
        oldest = self.gate.published - self.rollouts.limits.reuse_age
        self._past = {number: group for number, group in self._past.items() if group.step >= oldest}
        self._discard_stale()
        return fresh

    def take_outcomes(self) -> list[GroupOutcome]:
        """Return the outcomes of groups that left the stream since the last call, in that order."""
        found, self.outcomes = self.outcomes, []
        return found

    def metrics(self) -> dict[str, float]:
        """The stream in numbers.

        Groups under way, groups that wait to be trained, sessions under way and waiting for a slot, seconds since the
        oldest one began; since the last call groups discarded, by cause, and seconds in which no group was under way;
        what became of the sessions that were in progress when the run was resumed (`LeftSessions.metrics`).
        """
        waiting, now = len(self.buffer.finished), time.monotonic()
        under_way = len(self.buffer.begun) - waiting
        idle = self._idle + (0.0 if under_way else now - self._idle_since)
        self._idle, self._idle_since = 0.0, now
        found = {"stream/under_way": float(under_way), "stream/waiting": float(waiting), "time/engine_idle": idle}
        slots = self.rollouts.slots
        found |= {"stream/sessions": float(slots.under_way), "stream/sessions_waiting": float(slots.waiting)}
        found["time/oldest_session"] = slots.oldest()
        if self.gate.staleness:
            found["stream/ahead"] = float(self.gate.ahead)
        found |= {f"stream/discarded_{cause}": float(count) for cause, count in sorted(self.discarded.items())}
        self.discarded.clear()
        return found | self.rollouts.left.metrics()

    def __str__(self) -> str:
        """Say in a few words what the stream waits for: `12 at work, 4 waiting, oldest 31 s`."""
        slots = self.rollouts.slots
        waiting = f", {slots.waiting} waiting" if slots.waiting else ""
        return f"{slots.under_way} at work{waiting}, oldest {slots.oldest():.0f} s" if slots.under_way else ""

    def _discard_stale(self) -> None:
        oldest = self.gate.published - self.gate.staleness
        stale = {number for number, group in self.buffer.begun.items() if group.step < oldest}
        for work in (work for work, number in self._work.items() if number in stale):
            work.cancel()
        self.discard((self.buffer.drop(number) for number in sorted(stale)), STALE)

    def _under_way(self) -> int:
        """Sessions that were begun and have not ended, those that wait for a slot included."""
        numbers = self.buffer.begun.keys() - self.buffer.finished
        return sum(max(self.sessions_each - len(self._sessions.get(number, ())), 0) for number in numbers)

    def _list_wanted(self, count: int) -> list[int]:
        """The numbers among which the next batch is."""
        wanted = self.buffer.next(count) if self.order == "number" else list(self.buffer.begun)
        if len(wanted) < count:
            raise InvalidInput(f"{count} groups were requested, but the gate admits {len(wanted)}")
        return wanted

    def _ready(self, count: int) -> list[Group] | None:
        """The next batch, taken out of the buffer; None where it is not complete."""
        return self.buffer.take(count, self.order)

    def _choose(self) -> list[Group]:
        """The groups that may begin now."""
        again = sorted(self._again)[: self.gate.admits(again=True)]
        groups = [self._again.pop(number) for number in again]
        for number in range(self._next, self._next + self.gate.admits() - len(groups)):
            groups.append(self._new(number, self.tasks.choose(number)))
            self._next += 1
        return groups

    def _admit(self) -> None:
        batch = self._choose()
        for group in batch:
            group.step = self._step(group)
            self.buffer.begin(group)
            self.gate.open += 1
        if batch:
            if len(self.buffer.begun) - len(self.buffer.finished) == len(batch):
                self._idle += time.monotonic() - self._idle_since
            ready = asyncio.create_task(self.rollouts.prepare([group.task for group in batch], self.sessions_each))
            for group in batch:
                work = asyncio.create_task(self._generate(group, ready))
                self._work[work] = group.number
                work.add_done_callback(self._over)
            self._work[ready] = PREPARATION
            ready.add_done_callback(self._over)

    def _step(self, group: Group) -> int:
        """The step that a group begins in, or has begun in before the run was resumed."""
        begun, left = self.rollouts.left.begun(group.id), self.rollouts.left
        if begun is not None and begun < self.gate.published - self.gate.staleness:
            left.forget(group.id)
            begun = None
        return self.gate.published if begun is None else begun

    def _new(self, number: int, choice: Any, attempt: int = 0) -> Group:
        """A group without sessions yet, of the task that the sampler chose."""
        group = new_group(TRAIN, number, self.tasks.at(choice), attempt)
        group.choice = choice
        return group

    async def _generate(self, group: Group, ready: asyncio.Task[None]) -> None:
        async def ended(session: Session) -> None:
            await self._ended(session)
            self._sessions.setdefault(group.number, []).append(session)
            self._report(group.number, session)

        await asyncio.shield(ready)
        size, seconds = self.group_size, self.rollouts.limits.group_deadline
        await self.rollouts.generate(
            group, self.actor, size, phase=TRAIN, step=group.step, seconds=seconds, ended=ended, greedy=self.greedy
        )
        self.buffer.put(group)
        if len(self.buffer.begun) == len(self.buffer.finished):
            self._idle_since = time.monotonic()
        self._news.set()

    def _over(self, work: asyncio.Task[None]) -> None:
        del self._work[work]
        if not work.cancelled() and (error := work.exception()) is not None:
            self._error = self._error or error
            self._news.set()

    def _is_whole(self, sessions: Sequence[Session]) -> bool:
        return has_whole_tree(sessions, self.sessions_each, self.group_size, self.rollouts.combinations)

    # --------------------------------------------------------------------------------------- state

    def state(self) -> dict[str, Any]:
        """The stream's state, as JSON; what groups in progress have generated is in the store (`carry_over`)."""
        begun = self.buffer.begun | self._taken | self._again
        ended = [self.buffer.begun[number] for number in self.buffer.finished] + list(self._taken.values())
        return {
            "step": self.gate.published,
            "ahead": self.gate.ahead,
            "next": self._next,
            "begun": [[number, begun[number].attempt, begun[number].choice] for number in sorted(begun)],
            "finished": [group.id for group in sorted(ended, key=lambda group: group.number)],
            "sampler": self.tasks.state(),
            "past": [
                [number, group.attempt, group.choice] for number, group in sorted((self._past | self._replayed).items())
            ],
            "outcomes": [outcome.data() for outcome in self.outcomes],
        }

    def restore(self, state: Mapping[str, Any], sessions: Callable[[str], list[Session]]) -> None:
        """Continue from another stream's state."""
        self.gate.restore(state["step"], state["ahead"])
        self._next = state["next"]
        self.tasks.restore(state["sampler"])
        self.outcomes = [GroupOutcome.read(outcome) for outcome in state["outcomes"]]
        for number, attempt, choice in state["begun"]:
            group = self._new(number, choice, attempt)
            stored = sorted(sessions(group.id), key=lambda s: s.sample) if group.id in state["finished"] else []
            if self._is_whole(stored):
                group.sessions, group.step = stored, stored[0].step or 0
                self.buffer.begin(group)
                self.buffer.put(group)
                self._sessions[number] = stored
                self.gate.open += 1
            else:
                self._again[number] = group
        for number, attempt, choice in state["past"]:
            group = self._new(number, choice, attempt)
            group.sessions = sorted(sessions(group.id), key=lambda s: s.sample)
            if self._is_whole(group.sessions):
                group.step = group.sessions[0].step or 0
                self._past[number] = group
        self._discard_stale()

    def carry_over(self, store: Store, versions: Mapping[str, int]) -> None:
        """Let groups that were in progress go on from what the store has of them, after `restore`.

        Args:
            store: the run's.
            versions: with which the run continues, of each policy that learns.
        """
        self.rollouts.left.find(store, min(self._again, default=self._next), versions)
