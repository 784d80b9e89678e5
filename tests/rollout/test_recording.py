"""Sessions are in the store while they are generated, with every attempt, whatever end they have."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.config import RolloutConfig
from agentrl.envs.base import Env
from agentrl.envs.episode import EXPERT
from agentrl.errors import InfraError, StoreError
from agentrl.rollout.episodes.groups import DEMO, Rollouts
from agentrl.rollout.episodes.policies import Policy
from agentrl.sessions.renderers.families.null import NullRenderer
from agentrl.sessions.store import recorder as recording
from agentrl.sessions.store.recorder import Recorder
from agentrl.sessions.store.store import Store
from agentrl.types import Message, Session, Status, StepResult, Task
from tests.train.trees import environment_node


class Steps(Env):
    """Two turns; before the second one it waits for `go`, and fails as often as `failures` says."""

    def __init__(self, go: asyncio.Event, failures: list[str]) -> None:
        super().__init__()
        self.go, self.failures, self.turns = go, failures, 0

    def tasks(self, split: str = "train") -> list[Task]:
        return [Task(id="t")]

    async def reset(self, task: Task, *, seed: int | None = None) -> Any:
        return "begin"

    async def step(self, message: Message) -> StepResult:
        await self.go.wait()
        if self.failures:
            raise InfraError(self.failures.pop())
        self.turns += 1
        return StepResult([Message(role="user", content="go on")], reward=0.5, terminated=self.turns == 2)

    def expert(self, messages: Any) -> Message:
        return Message(role="assistant", content="done")


async def until(store: Store, **filters: Any) -> Any:
    """The summary that fits, once it is there."""
    async with asyncio.timeout(60):
        while not (rows := store.find(filters).rows):  # noqa: ASYNC110  another thread writes them
            await asyncio.sleep(0.01)
    return rows[0]


def rollouts(recorder: Recorder, go: asyncio.Event, *failures: str) -> Rollouts:
    limits = RolloutConfig(retries=2)
    policy, left = Policy(NullRenderer()), list(failures)
    return Rollouts(lambda: Steps(go, left), policy, limits, 5, environment="steps", recorder=recorder)


async def test_a_session_is_open_in_the_store_with_its_turns_so_far_and_then_as_it_ended(tmp_path: Path) -> None:
    go = asyncio.Event()
    with Store(tmp_path / "s.db") as store, Recorder(store) as recorder, Store(store.path, read_only=True) as reader:
        playing = asyncio.create_task(rollouts(recorder, go).collect([Task(id="t")], EXPERT, phase="eval", n=1, step=3))
        row = await until(reader, turns=1)
        assert (row.status, row.phase, row.step, row.environment) == (Status.OPEN, "eval", 3, "steps")
        assert (row.group_number, row.ended, (row.started or 0) > 1e9) == (0, None, True)
        go.set()
        (group,) = await playing
        assert reader.load(row.id) == group.sessions[0]
        row = reader.find().rows[0]
        assert (row.status, row.turns, row.score, (row.duration or 0) >= 0) == (Status.COMPLETED, 2, 1.0, True)


async def test_a_session_that_would_be_played_again_anyway_is_in_the_store_once_it_has_ended(tmp_path: Path) -> None:
    go = asyncio.Event()
    with Store(tmp_path / "s.db") as store, Recorder(store, {DEMO}) as recorder:
        playing = asyncio.create_task(rollouts(recorder, go).collect([Task(id="t")], EXPERT, phase=DEMO, n=1))
        other = asyncio.create_task(rollouts(recorder, go).collect([Task(id="t")], EXPERT, phase="eval", n=1))
        await until(store, turns=1)
        assert [row.phase for row in store.find().rows] == ["eval"]
        go.set()
        (group,), _ = await playing, await other
        assert list(store.sessions(phase=DEMO)) == group.sessions


async def test_what_waits_to_be_written_is_written_as_it_was_also_where_its_session_has_ended_meanwhile(
    tmp_path: Path,
) -> None:
    """A session was stored as TRUNCATED while a full disk kept its last turn out; a resumed run trained on the rest."""
    with Store(tmp_path / "s.db") as store:
        with Recorder(store) as recorder, recorder._store.batch():  # which holds the writing thread
            session = Session("a", Task(id="t"))
            beginning = asyncio.ensure_future(recorder.resume(session, b"first"))
            await asyncio.sleep(0)
            environment_node(session, None, [1, 2])
            recorder.update(session, b"second")
            environment_node(session, 0, [3])
            session.status, session.ended, session.reward = Status.TRUNCATED, 1.0, 0.5
            session.counters["turns"] = 1
        await beginning
        stored = store.load("a")
        assert (stored.status, stored.ended, stored.reward, stored.counters) == (Status.OPEN, None, None, {})
        assert (len(stored.nodes), store.state("a")) == (1, b"second")


def test_a_state_is_not_stored_without_the_nodes_before_it(tmp_path: Path) -> None:
    with Store(tmp_path / "s.db") as store:
        session = Session("a", Task(id="t"))
        store.save(session, state=b"first")
        environment_node(session, None, [1, 2])
        with pytest.raises(StoreError, match="is stored with 0 nodes; node 1 can't follow"):
            store.append(session, [], b"second")
        assert store.state("a") == b"first"


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["eval", DEMO])
async def test_attempts_that_the_infrastructure_failed_stay_with_their_error_until_they_are_made_again(
    tmp_path: Path, phase: str
) -> None:
    go = asyncio.Event()
    go.set()
    with Store(tmp_path / "s.db") as store, Recorder(store, {DEMO}) as recorder:
        (group,) = await rollouts(recorder, go, "b", "a").collect([Task(id="t")], EXPERT, phase=phase, n=1)
        rows = store.find(sort="attempt").rows
        assert [(row.attempt, row.status) for row in rows] == [(0, "infra_error"), (1, "infra_error"), (2, "completed")]
        assert [row.blame for row in rows] == ["infra", "infra", None]
        assert "a" in str(rows[0].error)
        assert group.sessions == [store.load(rows[2].id)]
        (group,) = await rollouts(recorder, go).collect([Task(id="t")], EXPERT, phase=phase, n=1)
        assert list(store.sessions()) == group.sessions, "a resumed run takes the place of what it makes again"


@settings(max_examples=30)
@given(st.lists(st.integers(0, 2), max_size=16), st.booleans())
def test_a_commit_of_many_sessions_stores_what_one_commit_a_step_of_each_would(order: list[int], grouped: bool) -> None:
    """Three sessions begin, grow twice, end and begin anew as drawn; those with a group take an attempt's place."""

    async def play(together: bool) -> list[Any]:
        ages = [0] * 3
        sessions = dict[int, Session]()
        with Store(":memory:") as store:
            with Recorder(store) as recorder, recorder._store.batch() if together else nullcontext():
                waits = list[Awaitable[None]]()
                for one in order:
                    age, ages[one] = ages[one] % 4, ages[one] + 1
                    waits.append(asyncio.ensure_future(take(recorder, sessions, one, age, ages[one])))
                    await (asyncio.sleep(0) if together else waits[-1])
            await asyncio.gather(*waits)
            rows = store.find(sort="id", limit=100).rows
            return [list(store.sessions()), rows, [store.state(row.id) for row in rows]]

    async def take(recorder: Recorder, sessions: dict[int, Session], one: int, age: int, time: int) -> None:
        if age == 0:
            name = f"{one}-{time if grouped else 0}"
            session = Session(name, Task(id="t"), group=f"g{one}" if grouped else "", phase="train")
            sessions[one] = session
            return await recorder.resume(session, b"begun")
        session = sessions[one]
        if age < 3:
            environment_node(session, age - 2 if age > 1 else None, [one, time])
            return recorder.update(session, str(time).encode())
        session.status, session.reward = Status.COMPLETED, float(time)
        return await recorder.end(session)

    assert asyncio.run(play(True)) == asyncio.run(play(False))


async def test_what_comes_alone_is_stored_at_once_and_what_comes_soon_after_a_commit_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each session waited 20 ms for others as it began, and again as it ended."""
    clock, waits = 100.0, list[float]()
    monkeypatch.setattr(recording, "time", SimpleNamespace(monotonic=lambda: clock, sleep=waits.append))
    with Store(tmp_path / "s.db") as store, Recorder(store) as recorder:
        session = Session("a", Task(id="t"))
        await recorder.resume(session, None)
        await recorder.end(session)
        clock += 1.0
        await recorder.resume(Session("b", Task(id="t")), None)
    assert waits == pytest.approx([recording.AT_ONCE, recording.TOGETHER, recording.AT_ONCE])


async def test_a_turn_that_cannot_be_stored_yet_is_stored_with_a_later_one(tmp_path: Path) -> None:
    with Store(tmp_path / "s.db") as store:
        with Recorder(store) as recorder:
            session = Session("a", Task(id="t"))
            await recorder.resume(session, None)
            for value, parent in ((object(), None), ("text", 0)):
                environment_node(session, parent, [1, 2])
                session.info["made"] = value
                recorder.update(session)
        assert store.load("a") == session


async def test_a_run_that_is_cancelled_leaves_no_open_session(tmp_path: Path) -> None:
    with Store(tmp_path / "s.db") as store:
        with Recorder(store) as recorder:
            made = rollouts(recorder, asyncio.Event())
            playing = asyncio.create_task(made.collect([Task(id="t")], EXPERT, phase="train", n=2))
            await until(store, turns=1)
            playing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await playing
        assert store.counts() == {"aborted": 2}


async def test_a_session_that_cannot_be_stored_costs_no_other_one(tmp_path: Path) -> None:
    with Store(tmp_path / "s.db") as store, Recorder(store) as recorder:
        good, bad = (Session(name, Task(id="t")) for name in ("good", "bad"))
        await asyncio.gather(recorder.resume(good, None), recorder.resume(bad, None))
        bad.info = {"env": object()}
        recorder.update(bad)
        recorder.update(good)
        results = await asyncio.gather(recorder.end(bad), recorder.end(good), return_exceptions=True)
        assert [type(result).__name__ for result in results] == ["InvalidInput", "NoneType"]
        assert store.ids() == ["bad", "good"]


@pytest.mark.slow
async def test_a_session_that_is_cancelled_while_it_is_stored_holds_up_no_other_one(tmp_path: Path) -> None:
    begun, go = threading.Event(), threading.Event()

    class Held(Store):
        def batch(self) -> AbstractContextManager[None]:
            begun.set()
            go.wait(60)
            return super().batch()

    with Held(tmp_path / "s.db") as store, Recorder(store) as recorder:
        sessions = [Session(name, Task(id="t")) for name in ("first", "cancelled", "other")]
        first, cancelled, other = (asyncio.create_task(recorder.resume(session, None)) for session in sessions)
        await asyncio.to_thread(begun.wait, 60)
        cancelled.cancel()
        go.set()
        await asyncio.wait_for(asyncio.gather(first, other), 60)
        assert cancelled.cancelled()
        assert store.ids() == ["cancelled", "first", "other"]
