"""Whose fault an episode's failure is: by its kind, by who chose, and by what other groups' tools do meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import threading
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from agentrl.config import RolloutConfig
from agentrl.envs import closing
from agentrl.envs.base import Env, reward
from agentrl.envs.episode import EXPERT
from agentrl.errors import EnvError
from agentrl.rollout.episodes import tool_faults
from agentrl.rollout.episodes.groups import Rollouts
from agentrl.rollout.episodes.policies import Policy
from agentrl.sessions.renderers.families.null import NullRenderer
from agentrl.tools.tool import tool
from agentrl.types import Group, Message, Session, Status, StepResult, Task

LIMITS = RolloutConfig(tool_timeout=20, turn_timeout=30, timeout=60, retries=2)


class Shelf(Env):
    """A shelf of a service that may be down: `at` says where an error is raised, for which tasks."""

    max_turns = 6
    played = 0

    def __init__(self, at: str = "", error: Exception | None = None, tasks: Sequence[str] = ("a", "b")) -> None:
        self.at, self.error, self.named = at, error, tasks
        self.task = Task(id="")

    def tasks(self, split: str = "train") -> Iterable[Task]:
        return [Task(id=name) for name in self.named]

    def fail(self, where: str) -> None:
        if where == self.at and self.task.id in self.named and self.error is not None:
            raise self.error

    def reset(self, task: Task, *, seed: int | None = None) -> str:
        self.task = task
        type(self).played += 1
        self.fail("reset")
        return "look"

    @tool
    async def look(self) -> str:
        """Look."""
        self.earn(0.25)
        self.fail("tool")
        return "a book"

    @tool(model_errors=(ConnectionError, TimeoutError))
    async def fetch(self) -> str:
        """Fetch."""
        self.fail("fetch")
        return "a page"

    @reward
    async def done(self, session: Session) -> float:
        self.fail("reward")
        return float(session.status is Status.COMPLETED)

    def expert(self, messages: Sequence[Message]) -> Message | str:
        said = sum(message.role == "assistant" for message in messages)
        return (self.call("look"), self.call("fetch"), "done")[said]


def names(count: int) -> list[Task]:
    return [Task(id="abcdefgh"[number]) for number in range(count)]


async def played(make: Any, tasks: Sequence[Task], limits: RolloutConfig = LIMITS) -> list[Group]:
    rollouts = Rollouts(make, Policy(NullRenderer()), limits, seed=5)
    return await rollouts.collect(tasks, EXPERT, phase="test", n=2)


@pytest.mark.parametrize("at", ["reset", "reward", "tool"])
@pytest.mark.parametrize("error", [ConnectionResetError("gone"), OSError(errno.ENOSPC, "full")], ids=repr)
async def test_a_connection_and_a_full_disk_are_nobodys_answer_and_are_tried_again(at: str, error: Exception) -> None:
    class Down(Shelf):
        played = 0

    (group,) = await played(lambda: Down(at, error), names(1))
    assert {(session.status, session.reward) for session in group.sessions} == {(Status.INFRA_ERROR, None)}
    assert Down.played == len(group.sessions) * (LIMITS.retries + 1)
    assert not group.scored


async def test_what_the_model_chose_is_its_observation() -> None:
    (group,) = await played(lambda: Shelf("fetch", ConnectionRefusedError("refused")), names(1))
    assert {(session.status, session.reward) for session in group.sessions} == {(Status.COMPLETED, 1.0)}
    assert all("ConnectionRefusedError" in session.nodes[-2].message.text for session in group.sessions)


async def test_an_error_of_no_such_kind_is_the_environments_as_before() -> None:
    with pytest.raises(EnvError, match=r"Shelf\.reset raised PermissionError"):
        await played(lambda: Shelf("reset", PermissionError("no")), names(1))


async def test_who_fails_in_its_tools_every_time_while_others_are_answered_keeps_what_it_has_and_is_told() -> None:
    make = lambda: Shelf("tool", ConnectionResetError("gone"), tasks=("b",))  # noqa: E731
    first, second, third = await played(make, names(3))
    assert {session.status for group in (first, third) for session in group.sessions} == {Status.COMPLETED}
    for session in second.sessions:
        assert (session.status, session.reward, session.attempt) == (Status.AGENT_ERROR, 0.0, LIMITS.retries)
        assert session.counters["tool_faults"] == LIMITS.retries
        assert "the tool 'look' raised ConnectionResetError" in (session.error or "")
    assert len(second.scored) == 2


@pytest.mark.parametrize("at", ["reset", "reward"])
async def test_who_fails_outside_its_tools_is_never_blamed(at: str) -> None:
    groups = await played(lambda: Shelf(at, ConnectionResetError("gone"), tasks=("b",)), names(3))
    assert {session.status for session in groups[1].sessions} == {Status.INFRA_ERROR}


async def test_where_all_tools_fail_nobody_is_blamed() -> None:
    groups = await played(lambda: Shelf("tool", ConnectionResetError("gone"), tasks="abcdefgh"), names(4))
    assert {session.status for group in groups for session in group.sessions} == {Status.INFRA_ERROR}


async def test_one_retry_that_is_answered_is_enough() -> None:
    class Once(Shelf):
        left = 3

        def fail(self, where: str) -> None:
            if where == "tool" and type(self).left:
                type(self).left -= 1
                raise ConnectionResetError("gone")

    groups = await played(Once, names(3))
    assert {session.status for group in groups for session in group.sessions} == {Status.COMPLETED}


async def test_at_a_concurrency_of_one_a_suspect_lets_the_others_play_first() -> None:
    make = lambda: Shelf("tool", ConnectionResetError("gone"), tasks=("a",))  # noqa: E731
    groups = await played(make, names(2), LIMITS.model_copy(update={"concurrency": 1}))
    assert [{session.status for session in group.sessions} for group in groups] == [
        {Status.AGENT_ERROR},
        {Status.COMPLETED},
    ]


class Thing:
    """Stands for nothing in JSON."""

    def __repr__(self) -> str:
        raise ValueError("nor in words")


@pytest.mark.parametrize("by", ["step", "reward"])
async def test_info_that_json_can_not_hold_is_the_authors_error_by_its_key(by: str) -> None:
    class Noting(Shelf):
        async def step(self, message: Message) -> StepResult:
            result = await super().run_tools(message)
            if by == "step":
                result.info["seen"] = {"things": [1, Thing()]}
            return result

        @reward
        async def done(self, session: Session) -> float:
            if by == "reward":
                session.info["seen"] = {"things": [1, Thing()]}
            return 1.0

    with pytest.raises(EnvError, match=r"Noting.* info\['seen'\]\['things'\]\[1\] = <Thing, whose repr raised"):
        await played(Noting, names(1))


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing has more than a moment to close."""
    monkeypatch.setattr(closing, "CLOSE_SECONDS", 0.02)


@pytest.mark.usefixtures("soon")
async def test_a_close_that_never_ends_holds_no_session(caplog: pytest.LogCaptureFixture) -> None:
    released = asyncio.Event()

    class Stuck(Shelf):
        async def close(self) -> None:
            while not released.is_set():  # ignores its cancellation
                with contextlib.suppress(asyncio.CancelledError):
                    await released.wait()

    with caplog.at_level(logging.WARNING):
        (group,) = await played(Stuck, names(1))
    assert {session.status for session in group.sessions} == {Status.COMPLETED}
    released.set()
    assert "Stuck.close() has not ended after 0.02 s" in caplog.text


@pytest.mark.usefixtures("soon")
async def test_a_close_that_blocks_for_ever_holds_no_session(caplog: pytest.LogCaptureFixture) -> None:
    """A plain `close` that waited for a thread of its own held the event loop, and so the run."""
    released = threading.Event()

    class Blocked(Shelf):
        def close(self) -> None:
            released.wait()

    with caplog.at_level(logging.WARNING):
        (group,) = await played(Blocked, names(1))
    released.set()
    assert {session.status for session in group.sessions} == {Status.COMPLETED}
    assert "Blocked.close() has not ended after 0.02 s" in caplog.text


def test_sessions_that_end_look_at_each_failed_one_once_however_many_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that was away for a moment failed 10,000 sessions, and each end was compared with all of them."""
    faults, looked, count = tool_faults.ToolFaults(), 0, 100
    is_of_other_group = tool_faults._Attempts.is_of_other_group

    def counted(attempts: Any, session: Session) -> bool:
        nonlocal looked
        looked += 1
        return is_of_other_group(attempts, session)

    monkeypatch.setattr(tool_faults._Attempts, "is_of_other_group", counted)

    def ended(number: int, status: Status, **counters: int) -> Session:
        session = Session(f"s{number}", Task(id="t"), group_number=number, phase="test", status=status)
        session.counters = counters
        faults.ended(session)
        return session

    with contextlib.ExitStack() as stack:
        playing = [stack.enter_context(faults.playing()) for _ in range(count)]
        for number, attempts in enumerate(playing):
            attempts.lost(ended(number, Status.INFRA_ERROR, tool_calls=2))
        assert looked == 0
        for number in range(count):
            ended(number, Status.COMPLETED, tool_calls=1)
        assert looked <= 2 * count
        assert all(attempts.others_answered for attempts in playing)
