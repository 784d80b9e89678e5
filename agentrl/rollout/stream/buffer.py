"""Groups of a run that may begin, and those that were begun and not taken yet."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from agentrl.errors import InvalidInput
from agentrl.types import Group

Order = Literal["number", "ready"]
"""The groups of a batch: the next in the order of their numbers, or whichever have ended."""


@dataclass
class Gate:
    """Limits how many groups may begin.

    Groups that end long before they are trained are stale for nothing. So they begin `ahead` steps early, which is at
    most `staleness`: one step at first, twice as many each time the loop has to wait for a batch though slots are free,
    one less where it did not wait for `staleness` steps in a row, and the engine had nothing left to do at the end of
    each.

    Attributes:
        groups_per_step: what a step takes.
        steps: the run's.
        staleness: how many versions a group may be behind when it is trained.
        oversample: groups that may begin beyond that, as a fraction of `groups_per_step`.
        published: steps that are over.
        open: groups that were begun, and neither discarded nor part of a step that is over.
        ahead: how many steps early groups begin.
    """

    groups_per_step: int
    steps: int
    staleness: int = 0
    oversample: float = 0.0
    published: int = 0
    open: int = 0
    ahead: int = field(init=False)
    _waited: bool = field(default=True, init=False)  # for the first batch the loop always waits
    _calm: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.ahead = min(1, self.staleness)

    def admits(self, *, again: bool = False) -> int:
        """Return how many more groups may begin; `again`: of those that were begun before, which the next batches need.

        begun - discarded < (ahead + published + 1) · groups_per_step, with `staleness` in place of `ahead` for those
        begun before, and never more than the run's steps take; the allowance of `oversample` comes on top.
        """
        left = self.steps - self.published
        if left <= 0:
            return 0
        allowance = math.ceil(self.oversample * self.groups_per_step)
        ahead = self.staleness if again else self.ahead
        return max(0, min(ahead + 1, left) * self.groups_per_step + allowance - self.open)

    def wait(self, full: Callable[[], bool]) -> None:
        """The loop has to wait for a batch; only the first time since the last publication counts.

        Args:
            full: says whether all slots are taken, so that groups which began earlier would only wait for one.
        """
        if not self._waited and not full():
            self.ahead = min(2 * self.ahead, self.staleness)
        self._waited = True

    def publish(self, *, idle: bool) -> None:
        """A step is over; `idle`: all groups that were begun have ended."""
        self.published += 1
        self._calm = self._calm + 1 if idle and not self._waited else 0
        if self._calm >= self.staleness:
            self.ahead, self._calm = max(self.ahead - 1, min(1, self.staleness)), 0
        self._waited = False

    def restore(self, published: int, ahead: int) -> None:
        """Continue after so many steps, `ahead` as it was then."""
        self.ahead = min(max(ahead, self.ahead), self.staleness)
        self.published, self._waited = published, not published


@dataclass
class Buffer:
    """Groups that were begun and not taken yet.

    Attributes:
        begun: those in progress and those that have ended, by number.
        finished: the numbers of those that have ended.
        priority: of a group that has ended; with `order="ready"` the largest goes first, of equals the lowest number.
    """

    begun: dict[int, Group] = field(default_factory=dict)
    finished: set[int] = field(default_factory=set)
    priority: Callable[[Group], float] | None = None
    _numbers: list[int] = field(default_factory=list, init=False)  # of `begun`, sorted
    _late: tuple[int, int] | None = field(default=None, init=False)  # of the next so many groups, one under way

    def begin(self, group: Group) -> None:
        """A group is begun; InvalidInput where a group of that number is in the buffer already."""
        if group.number in self.begun:
            attempt = self.begun[group.number].attempt
            raise InvalidInput(f"group {group.number} is in the buffer already, as attempt {attempt}")
        self.begun[group.number], self._late = group, None
        insort(self._numbers, group.number)

    def put(self, group: Group) -> None:
        """A group has ended; InvalidInput where it was not begun, or has ended before."""
        known = self.begun.get(group.number)
        if known is None or known.attempt != group.attempt or group.number in self.finished:
            raise InvalidInput(f"group {group.id!r} is not in progress")
        self.begun[group.number] = group
        self.finished.add(group.number)

    def next(self, count: int, order: Order = "number") -> list[int]:
        """The numbers of the next `count` groups; fewer where no more were begun, or have ended (`order="ready"`)."""
        if order == "number":
            return self._numbers[:count]
        numbers = sorted(self.finished)
        if (priority := self.priority) is not None:
            numbers.sort(key=lambda number: -priority(self.begun[number]))
        return numbers[:count]

    def ready(self, count: int, order: Order = "number") -> bool:
        """Return whether the next `count` groups have ended; all numbers are looked at only where one more may have."""
        if len(self.finished) < count or order == "ready":
            return len(self.finished) >= count
        if self._late is not None and self._late[0] == count and self._late[1] not in self.finished:
            return False
        late = [number for number in self.next(count) if number not in self.finished]
        self._late = (count, late[-1]) if late else None
        return not late

    def take(self, count: int, order: Order = "number") -> list[Group] | None:
        """The next `count` groups, once all of them have ended; else None."""
        return [self.drop(number) for number in self.next(count, order)] if self.ready(count, order) else None

    def drop(self, number: int) -> Group:
        """Take a group out, ended or not."""
        group = self.begun.pop(number)
        self.finished.discard(number)
        del self._numbers[bisect_left(self._numbers, number)]
        self._late = None
        return group
