"""The source of a stream's groups: generation is one, a file of conversations or a recorded run another.

A source fills groups, which the stream (`rollout.stream.stream`) has numbered and given a task. So the order of groups,
the gate, the ledger and resumption are the same whatever groups are made of, and none of them needs an engine.
`Rollouts` generates sessions; `rollout.sources` has those that read them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from agentrl.config import RolloutConfig
from agentrl.rollout.episodes.groups import Ended
from agentrl.rollout.stream.slots import Slots
from agentrl.rollout.stream.unfinished import LeftSessions
from agentrl.types import Group, Task


class GroupSource(Protocol):
    """Fills the groups of a stream with sessions."""

    @property
    def limits(self) -> RolloutConfig:
        """The groups that are reused, the seconds of a group, and the ready group that goes first."""

    @property
    def seed(self) -> int:
        """The run's seed."""

    @property
    def slots(self) -> Slots:
        """Sessions under way."""

    @property
    def left(self) -> LeftSessions:
        """The sessions that an earlier process of the run left."""

    @property
    def combinations(self) -> str:
        """The pairing of completions of a group's tree of joint turns; "" where groups are none."""

    async def prepare(self, tasks: Sequence[Task], n: int) -> None:
        """Get ready for `n` sessions of each task."""

    async def generate(
        self,
        group: Group,
        actor: Any,
        n: int,
        *,
        phase: str,
        step: int | None = None,
        seconds: float | None = None,
        ended: Ended = ...,
        greedy: Any = None,
    ) -> None:
        """Fill a group with its sessions, which are stored then; what acts is of use to generation alone.

        A group of the same number and task has the same sessions each time, unless they are generated: so a run that
        was killed goes on.
        """
