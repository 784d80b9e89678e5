"""The stream of groups: what begins when, in which order it is handed out, and what a resumed run finds."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterable
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.config import RolloutConfig
from agentrl.envs.base import Env
from agentrl.envs.episode import NOOP
from agentrl.errors import EnvError, InvalidInput
from agentrl.rollout.episodes.groups import Rollouts, new_group
from agentrl.rollout.episodes.policies import Policy
from agentrl.rollout.stream.batch_metrics import rollout_metrics
from agentrl.rollout.stream.buffer import Buffer, Gate, Order
from agentrl.rollout.stream.filters import FILTERS, PRIORITIES, make_measure
from agentrl.rollout.stream.outcomes import REPLAYED, STALE, TRAINED, GroupOutcome
from agentrl.rollout.stream.samplers import SAMPLERS, make_sampler
from agentrl.rollout.stream.stream import Stream
from agentrl.rollout.stream.tasks import TaskStream
from agentrl.sessions.renderers.families.null import NullRenderer
from agentrl.types import Group, Message, Session, Status, StepResult, Task

SIZE = 2


class World(Env):
    """Sessions that take as long as chance has it; `begun` tells in which order their groups began."""

    begun: ClassVar[list[tuple[str, int | None]]] = []
    dice = random.Random(0)
    broken = ""
    slow = ""

    def tasks(self, split: str = "train") -> Iterable[Task]:
        return [Task(id=str(n)) for n in range(5)]

    async def reset(self, task: Task, *, seed: int | None = None) -> str:
        World.begun.append((task.id, seed))
        if task.id == World.broken:
            raise ValueError("a bug")
        self.task = task.id
        return task.id

    async def step(self, message: Message) -> StepResult:
        await asyncio.sleep(3600 if self.task == World.slow else World.dice.random() * 0.003)
        return StepResult([], terminated=True, reward=int(self.task) / 4)


def stream(
    steps: int,
    per_step: int = 3,
    staleness: int = 0,
    ended: Any = None,
    order: Order = "number",
    oversample: float = 0.0,
    sampler: str = "shuffled",
    limits: RolloutConfig | None = None,
) -> Stream:
    World.begun, World.broken, World.slow = [], "", ""
    rollouts = Rollouts(World, Policy(NullRenderer()), limits or RolloutConfig(), seed=5)
    gate = Gate(per_step, steps, staleness, oversample)
    more = {"ended": ended} if ended else {}
    chooses = make_sampler(SAMPLERS.settings(sampler)(name=sampler), 5)
    return Stream(
        rollouts, TaskStream(World(), "train", 5, chooses), NOOP, group_size=SIZE, gate=gate, order=order, **more
    )


async def test_groups_come_in_the_order_of_their_numbers_with_the_tasks_of_those_numbers() -> None:
    async with stream(steps=4) as groups:
        taken: list[Group] = []
        for _ in range(4):
            taken += await groups.take(3)
            groups.published(taken[-3:])
    assert [group.number for group in taken] == list(range(12))
    assert [group.task for group in taken] == TaskStream(World(), "train", 5).take(0, 12)
    assert [group.id for group in taken] == [f"train-{n}.0" for n in range(12)]
    assert [session.sample for group in taken for session in group.sessions] == list(range(SIZE)) * 12
    assert {session.step for session in taken[-1].sessions} == {3}


@pytest.mark.parametrize("staleness", [0, 1, 4])
async def test_no_group_begins_that_could_be_older_than_the_bound_when_it_is_trained(staleness: int) -> None:
    steps, per_step = 6, 2
    async with stream(steps, per_step, staleness) as groups:
        for step in range(steps):
            taken = await groups.take(per_step)
            assert all(step - session.step <= staleness for group in taken for session in group.sessions)
            begun = len(World.begun) / SIZE
            assert begun <= min(staleness + step + 1, steps) * per_step
            groups.published(taken)
    assert len(World.begun) == steps * per_step * SIZE, "a group was begun that no step needs, or none that one does"


async def test_groups_that_are_ready_before_the_loop_needs_them_are_begun_no_more_than_one_step_early() -> None:
    async with stream(steps=8, per_step=2, staleness=4) as groups:
        for step in range(8):
            taken = await groups.take(2)
            assert all(step - session.step <= 1 for group in taken for session in group.sessions)
            async with asyncio.timeout(60):
                while groups.buffer.begun.keys() != groups.buffer.finished:  # noqa: ASYNC110 - no event of their end
                    await asyncio.sleep(0.001)
            groups.published(taken)
        assert groups.gate.ahead == 1


async def test_a_loop_that_waits_for_each_batch_has_groups_begun_as_early_as_the_bound_allows() -> None:
    ahead = []
    async with stream(steps=16, per_step=2, staleness=4) as groups:
        for _ in range(16):
            taken = await groups.take(2)
            ahead.append(groups.gate.ahead)
            groups.published(taken)
    assert (ahead[0], max(ahead)) == (1, 4)


@pytest.mark.parametrize(("slots", "ahead"), [(2 * SIZE, 1), (3 * SIZE, 2)])
async def test_a_loop_that_waits_has_groups_begun_earlier_only_where_slots_are_free(slots: int, ahead: int) -> None:
    async with stream(steps=16, per_step=1, staleness=4, limits=RolloutConfig(concurrency=slots)) as groups:
        World.slow = groups.tasks.take(0, 2)[1].id
        groups.published(await groups.take(1))
        waiting = asyncio.ensure_future(groups.take(1))
        await asyncio.sleep(0)  # now the slow group and the next one are under way
        assert groups.gate.ahead == ahead
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting


def test_a_gate_begins_groups_later_again_once_the_engine_has_nothing_to_do_and_old_ones_up_to_the_bound() -> None:
    gate = Gate(groups_per_step=2, steps=40, staleness=4)
    for idle in (False, False, False, True):
        gate.publish(idle=idle)
        gate.wait(lambda: False)
    assert (gate.ahead, gate.admits(), gate.admits(again=True)) == (4, 10, 10)
    gate.publish(idle=True)
    for ahead in (3, 2, 1, 1):
        assert gate.ahead > ahead or ahead == 1
        for _ in range(4):
            gate.publish(idle=True)
        assert gate.ahead == ahead
    assert (gate.admits(), gate.admits(again=True)) == (4, 10)
    one = Gate(groups_per_step=2, steps=20, staleness=4)
    one.restore(9, ahead=3)
    assert (one.published, one.ahead) == (9, 3)


async def test_a_discarded_group_is_generated_again_with_its_seed_as_another_attempt() -> None:
    async with stream(steps=1) as groups:
        first = await groups.take(3)
        groups.discard(first[1:])
        again = await groups.take(2)
    assert [(group.number, group.attempt, group.id) for group in again] == [(1, 1, "train-1.1"), (2, 1, "train-2.1")]
    assert [s.seed for group in again for s in group.sessions] == [s.seed for g in first[1:] for s in g.sessions]
    assert [group.task for group in again] == [group.task for group in first[1:]]


async def test_more_groups_than_the_gate_admits_are_an_error_and_not_a_wait_for_ever() -> None:
    async with stream(steps=1) as groups:
        with pytest.raises(InvalidInput, match="4 groups were requested, but the gate admits 3"):
            await groups.take(4)


async def test_an_error_of_the_user_reaches_the_caller_and_cancels_the_other_sessions() -> None:
    async with stream(steps=1) as groups:
        World.broken = "3"
        groups.gate.groups_per_step = 5
        with pytest.raises(EnvError, match="a bug"):
            await groups.take(5)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_each_session_is_stored_before_its_group_is_returned_and_reported_once() -> None:
    kept: list[str] = []
    told: list[str] = []

    async def keep(session: Session) -> None:
        await asyncio.sleep(0.001)
        kept.append(session.id)

    async with stream(steps=3, staleness=2, ended=keep) as groups:
        for _ in range(3):
            taken = await groups.take(3, lambda session: told.append(session.id))
            ids = [session.id for group in taken for session in group.sessions]
            assert set(ids) <= set(kept)
            assert sorted(told[-len(ids) :]) == sorted(ids)
            groups.published(taken[-3:])
    assert len(told) == len(set(told)) == 9 * SIZE


async def test_ready_groups_overtake_a_slow_one_which_is_generated_anew_once_it_is_too_far_behind() -> None:
    async with stream(steps=4, per_step=2, staleness=1, order="ready") as groups:
        World.slow = groups.tasks.take(0, 1)[0].id
        taken: list[list[Group]] = []
        for step in range(3):
            taken.append(await groups.take(2))
            assert all(step - group.step <= 1 for group in taken[-1])
            groups.published(taken[-1])
            if step == 1:
                assert groups.discarded == {STALE: 1}
                World.slow = ""
    numbers = [group.number for batch in taken for group in batch]
    assert len(set(numbers)) == 6
    assert 0 not in numbers[:4]
    assert [(o.group, o.begun, o.hash) for o in groups.outcomes if o.outcome == STALE] == [("train-0.0", 0, None)]
    assert 0 in groups.buffer.begun or 0 in numbers
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_oversampling_begins_more_groups_and_leaves_behind_those_that_are_not_ready() -> None:
    async with stream(steps=2, per_step=2, order="ready", oversample=0.5) as groups:
        World.slow = groups.tasks.take(1, 1)[0].id
        batch = await groups.take(2)
        assert [group.number for group in batch] == [0, 2]
        groups.published(batch)
        World.slow = ""
        assert [group.attempt for group in await groups.take(2) if group.number == 1] in ([1], [])
    assert groups.discarded == {STALE: 1}


@pytest.mark.slow
async def test_a_groups_deadline_ends_its_sessions_and_those_that_had_not_begun_have_no_reward() -> None:
    groups = stream(steps=1, per_step=1)
    limits = RolloutConfig(tool_timeout=0.01, turn_timeout=0.02, timeout=3600)
    limits = limits.model_copy(update={"turn_timeout": 3600, "group_deadline": 1.0, "concurrency": 1})
    seen = list[tuple[str, dict[str, float]]]()

    class Looking(World):
        """Looks at the stream from the session that is at work, once the other one waits."""

        async def step(self, message: Message) -> StepResult:
            while not groups.metrics()["stream/sessions_waiting"]:  # noqa: ASYNC110 - no event of its wait
                await asyncio.sleep(0)
            seen.append((str(groups), groups.metrics()))
            return await super().step(message)

    groups.rollouts = Rollouts(Looking, Policy(NullRenderer()), limits, seed=5)
    async with groups:
        World.slow = groups.tasks.take(0, 1)[0].id
        (group,) = await groups.take(1)
    ((said, metrics),) = seen
    assert said.startswith("1 at work, 1 waiting, oldest ")
    assert (metrics["stream/sessions"], metrics["stream/sessions_waiting"]) == (1.0, 1.0)
    assert sorted(session.status.value for session in group.sessions) == ["aborted", "truncated"]
    assert {session.error for session in group.sessions} == {"the group took longer than rollout.group_deadline=1 s"}
    assert rollout_metrics([group])["count/group_deadline"] == 2
    with pytest.raises(ValueError, match="group_deadline=60 must exceed turn_timeout=120"):
        RolloutConfig(group_deadline=60)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_each_group_that_leaves_the_stream_is_trained_within_the_bound_or_has_a_cause(data: st.DataObject) -> None:
    steps, per_step, staleness = 5, data.draw(st.integers(1, 3)), data.draw(st.integers(0, 3))
    order: Order = data.draw(st.sampled_from(["number", "ready"]))
    oversample = data.draw(st.sampled_from([0.0, 0.7])) if order == "ready" else 0.0

    async def play() -> list[GroupOutcome]:
        async with stream(steps, per_step, staleness, order=order, oversample=oversample) as groups:
            for step in range(steps):
                batch = await groups.take(per_step)
                assert all(0 <= step - group.step <= staleness for group in batch)
                assert all(len(group.sessions) == SIZE for group in batch)
                groups.published(batch)
                assert groups.gate.open == len(groups.buffer.begun)
            return groups.outcomes

    outcomes = asyncio.run(play())
    ids = [outcome.group for outcome in outcomes]
    trained = [outcome.number for outcome in outcomes if outcome.outcome == "trained"]
    assert len(ids) == len(set(ids)), "a group left twice"
    assert len(trained) == len(set(trained)) == steps * per_step, "a number was trained twice"
    assert {outcome.outcome for outcome in outcomes} <= {"trained", STALE}


@settings(max_examples=25, deadline=None)
@given(data=st.data())
@pytest.mark.slow
def test_a_stream_that_continues_from_a_saved_state_returns_what_the_other_would_have(data: st.DataObject) -> None:
    steps, per_step, staleness = 5, data.draw(st.integers(1, 3)), data.draw(st.integers(0, 3))
    stop = data.draw(st.integers(0, steps - 1))
    lost = data.draw(st.sets(st.integers(0, steps - 1)))
    # which results are there when a group begins is a matter of time, but where each step waits for the last one's
    sampler = "shuffled" if staleness else data.draw(st.sampled_from(["shuffled", "difficulty"]))
    stored: dict[str, Session] = {}

    async def keep(session: Session) -> None:
        stored[session.id] = session

    async def play(groups: Stream, first: int, last: int) -> list[Group]:
        taken: list[Group] = []
        for step in range(first, last):
            batch = await groups.take(per_step)
            if step in lost:
                groups.discard(batch[:1])
                batch = sorted([*batch[1:], *await groups.take(1)], key=lambda group: group.number)
            groups.published(batch)
            taken += batch
        return taken

    async def both() -> tuple[list[Group], list[Group]]:
        async with stream(steps, per_step, staleness, sampler=sampler) as one:
            straight = await play(one, 0, steps)
        async with stream(steps, per_step, staleness, keep, sampler=sampler) as two:
            began = await play(two, 0, stop)
            state = json.loads(json.dumps(two.state()))
        async with stream(steps, per_step, staleness, keep, sampler=sampler) as three:
            three.restore(state, lambda group: [s for s in stored.values() if s.group == group])
            return straight, began + await play(three, stop, steps)

    straight, resumed = asyncio.run(both())

    def drawn(groups: list[Group]) -> list[Any]:
        return [(g.id, g.task, [(s.id, s.seed, s.task) for s in g.sessions]) for g in groups]

    assert drawn(straight) == drawn(resumed)


async def test_groups_that_were_taken_and_not_trained_yet_are_part_of_a_saved_state() -> None:
    """A run that is asked to end between taking a batch and training on it must not lose the batch."""
    stored: dict[str, Session] = {}

    async def keep(session: Session) -> None:
        stored[session.id] = session

    async with stream(steps=2, ended=keep) as one:
        taken = await one.take(3)
        state = one.state()
    async with stream(steps=2) as two:
        two.restore(state, lambda group: [s for s in stored.values() if s.group == group])
        again = await two.take(3)
    assert [group.id for group in again] == [group.id for group in taken]
    assert [group.sessions for group in again] == [group.sessions for group in taken]


def test_with_a_priority_the_groups_of_its_largest_value_go_first_once_they_have_ended() -> None:
    task = Task(id="t")

    def ended(number: int, *scores: float, status: Status = Status.COMPLETED) -> Group:
        group = new_group("train", number, task)
        group.sessions = [Session(str(n), task, reward=score, status=status) for n, score in enumerate(scores)]
        return group

    buffer = Buffer(priority=make_measure(PRIORITIES, "signal"))
    groups = [ended(0, 1, 1), ended(1, 0, 1), ended(2, 0.5, 1), ended(3, 0, 1), ended(4)]
    for group in groups:
        buffer.begin(group)
        buffer.put(group)
    assert buffer.next(9, "ready") == [1, 3, 2, 0, 4]
    assert buffer.next(2) == [0, 1]
    assert [bool(make_measure(FILTERS, "signal")(group)) for group in groups] == [False, True, True, True, False]  # type: ignore[misc]
    complete = make_measure(FILTERS, "complete")
    assert complete is not None
    assert [complete(group) for group in (groups[0], ended(5, 1.0, status=Status.TRUNCATED), groups[4])] == [1, 0, 0]


async def test_groups_are_replayed_once_while_they_are_young_and_a_resumed_run_replays_the_same() -> None:
    stored: dict[str, Session] = {}

    async def keep(session: Session) -> None:
        stored[session.id] = session

    def replaying() -> Stream:
        groups = stream(steps=8, per_step=2, ended=keep)
        limits = RolloutConfig(reuse=0.5, reuse_age=2)
        groups.rollouts = Rollouts(World, Policy(NullRenderer()), limits, seed=5)
        return groups

    async def play(groups: Stream, first: int, last: int) -> list[tuple[int, str, str]]:
        seen = []
        for step in range(first, last):
            batch = await groups.take(2)
            again = groups.reuse(1)
            assert groups.published([*again, *batch]) == batch
            assert groups.gate.open == 0
            seen += [(step, outcome.group, outcome.outcome) for outcome in groups.take_outcomes()]
        return seen

    async with replaying() as one:
        straight = await play(one, 0, 8)
    async with replaying() as two:
        began = await play(two, 0, 3)
        state = json.loads(json.dumps(two.state()))
    async with replaying() as three:
        three.restore(state, lambda group: [s for s in stored.values() if s.group == group])
        assert began + await play(three, 3, 8) == straight
    replayed = [(step, group) for step, group, outcome in straight if outcome == REPLAYED]
    trained = {group: step for step, group, outcome in straight if outcome == TRAINED}
    assert len(replayed) == len({group for _, group in replayed}) == 7, "one a step from the second on, none twice"
    assert all(1 <= step - trained[group] <= 2 for step, group in replayed)


@pytest.mark.slow
def test_a_buffer_refuses_a_second_copy_and_what_was_not_begun() -> None:
    buffer, task = Buffer(), Task(id="t")
    buffer.begin(new_group("train", 3, task))
    with pytest.raises(InvalidInput, match="group 3 is in the buffer already, as attempt 0"):
        buffer.begin(new_group("train", 3, task, 1))
    with pytest.raises(InvalidInput, match=r"train-3\.1"):
        buffer.put(new_group("train", 3, task, 1))
    buffer.put(new_group("train", 3, task))
    with pytest.raises(InvalidInput, match=r"train-3\.0"):
        buffer.put(new_group("train", 3, task))


def test_a_buffer_that_waits_looks_at_all_numbers_a_few_times_however_many_groups_end_meanwhile() -> None:
    """Each group that ended had all numbers sorted: 25,000 groups of a step took minutes."""
    task, looked = Task(id="t"), 0

    class Counted(Buffer):
        def next(self, count: int, order: Order = "number") -> list[int]:
            nonlocal looked
            looked += 1
            return super().next(count, order)

    buffer, numbers = Counted(), list(range(900))
    for number in numbers:
        buffer.begin(new_group("train", number, task))
    random.Random(3).shuffle(numbers)
    for number in numbers:
        buffer.put(new_group("train", number, task))
        assert buffer.ready(300) == buffer.finished.issuperset(range(300))
    assert buffer.ready(900)
    assert looked <= 20


async def test_groups_that_are_taken_one_by_one_look_at_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script's `async for group` went through all groups of the step for each, and through their sessions."""
    looked = 0

    def counted(groups: Stream) -> int:
        nonlocal looked
        looked += 1
        return 0

    monkeypatch.setattr(Stream, "_under_way", counted)
    async with stream(steps=2, per_step=40, staleness=1) as one:
        for step in range(2):
            taken = [(await one.take(1))[0] for _ in range(40)]
            assert [group.number for group in taken] == list(range(40 * step, 40 * (step + 1)))
            one.published(taken)
    assert looked <= 2
