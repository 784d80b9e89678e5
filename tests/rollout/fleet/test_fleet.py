"""A fleet of local engines: who takes what, who comes and goes, and what becomes of turns that lose their engine."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from agentrl.config import FleetConfig
from agentrl.errors import ConfigError, DeadlineExceeded, EngineError, InvalidInput
from agentrl.rollout.engines.local.engine import LocalEngine
from agentrl.rollout.fleet.admission import Affinity
from agentrl.rollout.fleet.fleet import Fleet
from agentrl.rollout.fleet.member import Member, MemberState
from agentrl.rollout.fleet.ticket import Ticket
from agentrl.rollout.weights.snapshot import read_snapshot
from agentrl.sessions.tree.generation import generate
from agentrl.types import Capabilities, Chunk, FinishReason, PauseMode, Sampling, Turn, collect
from tests.rollout.fleet.conftest import LOCAL, QUICK, local_fleet
from tests.rollout.fleet.turns import drawing, turns_under_way

pytestmark = pytest.mark.slow

PATIENCE = 120.0
PROMPT = [5, 6, 7, 8]


async def turn(fleet: Fleet, name: str = "s/0", tokens: int = 40, seed: int = 1) -> Turn:
    stream = generate(fleet, name, PROMPT, Sampling(max_new_tokens=tokens, seed=seed), time.monotonic() + PATIENCE)
    return await collect(stream)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.01)


class Faulty(LocalEngine):
    """A local engine that is told how to fail: by a function that sees each item before it goes out."""

    def __init__(self, folder: Path, spoil: Callable[[Chunk | Turn], Chunk | Turn]) -> None:
        super().__init__(folder, LOCAL)
        self.spoil, self.hang, self.sick = spoil, asyncio.Event(), False

    async def generate(self, *args: Any, **kwargs: Any) -> AsyncIterator[Chunk | Turn]:
        async for item in super().generate(*args, **kwargs):
            if self.hang.is_set():
                await asyncio.sleep(3600)
            yield self.spoil(item)

    async def health(self) -> Any:
        health = await super().health()
        return replace(health, ok=False, detail="sick") if self.sick else health


class Unable(LocalEngine):
    """A local engine whose log-probabilities, from `fails` on, never come or are an error."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, LOCAL)
        self.fails: str | None = None

    async def score(self, input_ids: Sequence[int], temperature: float = 1.0) -> list[float]:
        if self.fails == "hangs":
            await asyncio.sleep(3600)
        if self.fails == "dies":
            await self.close()
            raise EngineError("the process died")
        return await super().score(input_ids, temperature)


@pytest.mark.parametrize("how", ["hangs", "dies"])
async def test_an_engine_that_can_not_score_is_left_out_and_started_anew(how: str, folder: Path) -> None:
    """After each publication all engines are compared with the trainer; a death there ended the run."""
    fleet = local_fleet(folder, make=lambda: Unable(folder), timeout=5.0)
    try:
        await fleet.start()
        one, other = (cast(Unable, member.engine) for member in fleet.engines.values())
        whole = await asyncio.wait_for(fleet.scores(PROMPT), PATIENCE)
        assert list(whole) == ["engine-0", "engine-1"]
        one.fails = how
        found = await asyncio.wait_for(fleet.scores(PROMPT), PATIENCE)
        assert found == {"engine-1": whole["engine-1"]}
        await until(lambda: fleet.engines["engine-0"].state is MemberState.READY)
        assert fleet.engines["engine-0"].engine is not one
        other.fails = how
        assert await asyncio.wait_for(fleet.score(PROMPT), PATIENCE) == whole["engine-0"]
    finally:
        await fleet.close()


def as_it_is(item: Chunk | Turn) -> Chunk | Turn:
    return item


# --------------------------------------------------------------------------------------------- policy


def test_a_session_stays_where_its_prefix_is_and_leaves_only_a_far_busier_engine() -> None:
    policy = Affinity(max_imbalance=4)
    assert policy.choose("a", {"x": 3, "y": 0}) == "y"
    assert policy.choose("a", {"x": 0, "y": 4}) == "y"
    assert policy.choose("a", {"x": 0, "y": 5}) == "x"
    assert policy.choose("a", {"x": 2, "y": 0}) == "x"
    policy.forget("x")
    assert policy.choose("a", {"x": 1, "y": 0}) == "y"
    assert policy.choose("a", {"z": 9}) == "z"


async def test_turns_of_a_session_find_their_prefix_and_sessions_spread(fleet: Fleet) -> None:
    await fleet.start()
    running = [asyncio.create_task(turn(fleet, f"s{n}/0", 60, n)) for n in range(8)]
    await until(lambda: sum(len(member.open) for member in fleet.engines.values()) == 8)
    assert {len(member.open) for member in fleet.engines.values()} == {4}
    firsts = await asyncio.gather(*running)
    for n, first in enumerate(firsts):
        path = [*PROMPT, *first.token_ids, 9]
        again = await collect(fleet.generate(f"s{n}/1", path, Sampling(max_new_tokens=2, seed=n)))
        assert again.cached_tokens >= 0.8 * len(path)


# ---------------------------------------------------------------------------------- coming and going


async def test_engines_are_added_drained_and_removed_while_turns_run(fleet: Fleet, folder: Path) -> None:
    await fleet.start()
    running = [asyncio.create_task(turn(fleet, f"s{n}/0", 150, n)) for n in range(6)]
    await until(lambda: sum(len(member.open) for member in fleet.engines.values()) == 6)
    added = await fleet.add(lambda: LocalEngine(folder, LOCAL))
    await until(lambda: fleet.engines[added].state is MemberState.READY)
    await asyncio.wait_for(fleet.remove("engine-0"), PATIENCE)
    assert set(fleet.engines) == {"engine-1", added}
    await turn(fleet, "late/0")
    assert all(len(one.token_ids) == 150 for one in await asyncio.gather(*running))
    assert fleet.lost == 0
    with pytest.raises(InvalidInput, match="engine-1"):
        await fleet.drain("engine-0")


async def test_an_engine_that_joins_late_serves_the_version_of_the_others(fleet: Fleet, folder: Path) -> None:
    weights = [(name, tensor * 1.1) for name, tensor in read_snapshot(folder)]
    await fleet.publish(weights, 3)
    added = await fleet.add(lambda: LocalEngine(folder, LOCAL))
    await until(lambda: fleet.engines[added].state is MemberState.READY)
    assert fleet.engines[added].engine.version() == 3
    assert len({await member.receiver.checksum() for member in fleet.engines.values()}) == 1
    scores = list((await fleet.scores(PROMPT)).values())
    assert len(scores) == 3
    assert scores[0] == scores[1] == scores[2]


async def test_without_a_kept_copy_a_late_engine_waits_for_the_next_publication(folder: Path) -> None:
    fleet = local_fleet(folder, keep=False)
    weights = list(read_snapshot(folder))
    try:
        await fleet.publish(weights, 1)
        added = await fleet.add(lambda: LocalEngine(folder, LOCAL))
        await until(lambda: fleet.engines[added].state is MemberState.OUTDATED)
        await turn(fleet)
        await fleet.publish(weights, 2)
        assert fleet.engines[added].state is MemberState.READY
        assert fleet.engines[added].engine.version() == 2
    finally:
        await fleet.close()


async def test_an_engine_that_is_lost_and_replaced_amid_a_publication_does_not_pass_for_updated(folder: Path) -> None:
    """Its successor stands in the same place with the weights that runs begin with; nobody may call them new."""
    fleet = local_fleet(folder, 2)
    await fleet.start()
    member = fleet.engines["engine-0"]
    first, send = member.engine, fleet.publisher.transport.send

    async def interrupted(receivers: Any, seal: Any) -> Any:
        await fleet._roster.lose(member, "a test")
        await until(lambda: member.engine is not first)
        return await send({"engine-1": receivers["engine-1"]}, seal)

    fleet.publisher.transport.send = interrupted  # type: ignore[method-assign]
    try:
        await fleet.publish([(name, tensor * 1.1) for name, tensor in read_snapshot(folder)], 7)
        await until(lambda: member.state is MemberState.READY)
        assert member.engine.version() == 7
        assert len({await each.receiver.checksum() for each in fleet.engines.values()}) == 1
    finally:
        await fleet.close()


async def test_a_publication_that_loses_the_only_engine_reaches_the_one_that_comes_after_it(folder: Path) -> None:
    """A run with one server ended when that was killed between two steps."""
    fleet = local_fleet(folder, 1)
    await fleet.start()
    (member,) = fleet.engines.values()
    first, calls = member.engine, []

    async def killed(*args: Any) -> None:
        calls.append(args)
        raise EngineError("the server is gone")

    first.pause = killed  # type: ignore[method-assign]
    try:
        await fleet.publish([(name, tensor * 1.1) for name, tensor in read_snapshot(folder)], 7)
        assert calls
        assert member.engine is not first
        assert member.engine.version() == 7
        assert (await turn(fleet)).versions[0].version == 7
    finally:
        await fleet.close()


@pytest.mark.parametrize("mode", ["drain", "abort", "retract", "in_place"])
async def test_a_conversation_goes_through_a_publication_and_each_token_knows_its_policy(
    folder: Path, mode: str
) -> None:
    """Partial rollouts: a long turn is cut or frozen by an update and goes on; `drain` keeps turns of one version."""
    fleet = local_fleet(folder, mode=mode)
    try:
        await fleet.start()
        running = [asyncio.create_task(turn(fleet, f"s{n}/0", 200, n)) for n in range(4)]
        tickets = lambda: [ticket for member in fleet.engines.values() for ticket in member.open]  # noqa: E731
        await until(lambda: sum(bool(ticket.token_ids) for ticket in tickets()) == 4)
        await fleet.publish(read_snapshot(folder), 1)
        turns = await asyncio.gather(*running)
    finally:
        await fleet.close()
    for one in turns:
        assert len(one.token_ids) == len(one.logprobs) == 200
        assert [span.version for span in one.versions] == ([0] if mode == "drain" else [0, 1])
        assert one.versions[0].start == 0
        assert one.versions[-1].end == 200
    if mode == "retract":  # a local engine draws by place, so publishing the same weights changes nothing
        undisturbed = LocalEngine(folder, LOCAL)
        again = await turn(undisturbed, "s3/0", 200, 3)  # type: ignore[arg-type]
        assert again.token_ids == turns[3].token_ids
        await undisturbed.close()


# ------------------------------------------------------------------------------------------- failing


def spoilers() -> dict[str, Callable[[Chunk | Turn], Chunk | Turn]]:
    def logprobs(value: float) -> Callable[[Chunk | Turn], Chunk | Turn]:
        return lambda item: replace(item, logprobs=tuple(value for _ in item.logprobs))

    return {
        "a token outside the vocabulary": lambda item: replace(item, token_ids=tuple(10**6 for _ in item.token_ids)),
        "nan": logprobs(float("nan")),
        "a probability over 1": logprobs(0.5),
        "a policy version that it never had": lambda item: (
            replace(item, version=63)
            if isinstance(item, Chunk)
            else replace(item, versions=tuple(replace(span, version=63) for span in item.versions))
        ),
        "fewer log-probabilities": lambda item: replace(item, logprobs=item.logprobs[1:]),
        "another turn than it streamed": lambda item: (
            replace(item, token_ids=tuple((t + 1) % 200 for t in item.token_ids)) if isinstance(item, Turn) else item
        ),
    }


@pytest.mark.parametrize("rubbish", spoilers())
async def test_an_engine_with_invalid_output_is_restarted_and_its_turns_end_on_another(
    folder: Path, rubbish: str
) -> None:
    made: list[Faulty] = []

    def faulty() -> Faulty:  # only the first one is: what is started anew is well
        made.append(Faulty(folder, as_it_is if made else spoilers()[rubbish]))
        return made[-1]

    fleet = local_fleet(folder)
    try:
        await fleet.start()
        name = await fleet.add(faulty)
        await until(lambda: fleet.engines[name].state is MemberState.READY)
        turns = await asyncio.gather(*(turn(fleet, f"s{n}/0", 30, n) for n in range(9)))
        assert all(len(one.token_ids) == 30 and max(one.token_ids) < 288 for one in turns)
        assert all(max(one.logprobs) <= 0 for one in turns)
        assert {span.version for one in turns for span in one.versions} == {0}
        await until(lambda: fleet.engines[name].state is MemberState.READY)
        assert len(made) == 2
        assert fleet.lost == 1
    finally:
        await fleet.close()


@pytest.mark.parametrize("trouble", [pytest.param("hang", marks=pytest.mark.slow), "sick", "close"])
async def test_turns_continue_on_another_engine_with_their_tokens(folder: Path, trouble: str) -> None:
    config = QUICK.model_copy(update={"stall_timeout": 3.0})
    fleet = local_fleet(folder, 1, config)
    try:
        await fleet.start()
        made: list[Faulty] = []

        def faulty() -> Faulty:
            made.append(Faulty(folder, as_it_is))
            return made[-1]

        name = await fleet.add(faulty)
        await until(lambda: fleet.engines[name].state is MemberState.READY)
        member = fleet.engines[name]
        running = await turns_under_way(fleet, "s", 4, 250, lambda: drawing(member) > 0)
        drawn, engines = [list(ticket.token_ids) for ticket in member.open], len(made)
        if trouble == "hang":
            made[-1].hang.set()
        elif trouble == "sick":
            made[-1].sick = True
        else:
            await made[-1].close()
        turns = await asyncio.gather(*running)
        assert all(len(one.token_ids) == 250 for one in turns)
        for prefix in drawn:
            assert any(list(one.token_ids[: len(prefix)]) == prefix for one in turns)
        await until(lambda: member.state is MemberState.READY and len(made) == engines + 1)
    finally:
        await fleet.close()


class Watched(LocalEngine):
    """A local engine that notes its end."""

    ended = False

    async def close(self) -> None:
        self.ended = True
        await super().close()


@pytest.mark.parametrize("how", ["closed while it restarts", "closed while one is added", "removed while it restarts"])
async def test_an_engine_that_is_built_while_it_is_wanted_no_more_is_closed(folder: Path, how: str) -> None:
    """It is built in a thread, which nothing cancels: a server that it started would outlive the fleet."""
    built: list[Watched] = []
    begun, go_on = threading.Event(), threading.Event()

    def make() -> Watched:
        if len(built) == 1:
            begun.set()
            assert go_on.wait(PATIENCE)
        built.append(Watched(folder, LOCAL))
        return built[-1]

    fleet = local_fleet(folder, 1)
    try:
        await fleet.start()
        name = await fleet.add(make)
        await until(lambda: fleet.engines[name].state is MemberState.READY)
        if how == "closed while one is added":
            adding = asyncio.create_task(fleet.add(make))
        else:
            await built[0].close()
        await until(begun.is_set)
        ending = asyncio.create_task(fleet.remove(name) if how.startswith("removed") else fleet.close())
        await asyncio.sleep(0)
        go_on.set()
        await asyncio.wait_for(ending, PATIENCE)
        if how == "closed while one is added":
            with pytest.raises(EngineError, match="the fleet is closed"):
                await adding
        await until(lambda: len(built) == 2 and built[1].ended)
    finally:
        go_on.set()
        await fleet.close()


async def test_where_every_engine_was_given_up_the_error_says_why(folder: Path) -> None:
    def broken() -> Faulty:
        engine = Faulty(folder, as_it_is)
        engine.sick = True
        return engine

    fleet = local_fleet(folder, 1, QUICK.model_copy(update={"max_restarts": 1}), make=broken)
    try:
        with pytest.raises(EngineError, match="sick"):
            await asyncio.gather(*(turn(fleet, f"s{n}/0", 400) for n in range(200)))
    finally:
        await fleet.close()


@pytest.mark.parametrize(("server", "starts"), [("ours", 4), (None, 2)], ids=["ours", "somebody's"])
async def test_engines_that_never_started_are_given_up_soon_and_the_reason_is_reported_once(
    folder: Path, server: Any, starts: int
) -> None:
    """Each was started five times more, and what its log said stood in the error for each of them."""
    begun: list[int] = []

    class NeverUp(Faulty):
        async def start(self) -> None:
            begun.append(1)
            raise EngineError("server died\n" + "noise\n" * 50 + "OSError: libcuda.so.1")

    def make() -> Faulty:
        engine: Any = NeverUp(folder, as_it_is)
        engine.attached = server is None
        return cast(Faulty, engine)

    fleet = local_fleet(folder, 2, QUICK.model_copy(update={"max_restarts": 5}), make=make)
    try:
        with pytest.raises(EngineError) as raised:
            await fleet.start()
        told = "engine-0, engine-1: it did not start: server died\n  OSError: libcuda.so.1"
        assert str(raised.value) == f"no engine is left, and none could be started:\n{told}"
        assert len(begun) == starts
        health = await fleet.health()
        assert (health.gone, health.detail) == (True, str(raised.value))
    finally:
        await fleet.close()


@pytest.mark.parametrize("draws", [True, False])
async def test_a_late_answer_to_a_probe_loses_an_engine_that_draws_no_token_meanwhile(
    folder: Path, draws: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server on a busy machine was started anew in the middle of its turns."""
    engine = LocalEngine(folder, LOCAL)
    member = Member("engine-0", engine, QUICK.model_copy(update={"probe_timeout": 0.1}))
    member.open.add(Ticket("s/0"))
    member.progress -= 1

    async def late() -> Any:
        if draws:
            member.progress = time.monotonic()
        await asyncio.sleep(3600)

    monkeypatch.setattr(engine, "health", late)
    assert await member.find_fault() == (
        "" if draws else "it did not answer a probe within 0.1 s (fleet.probe_timeout)"
    )
    await engine.close()


async def test_a_deadline_is_kept_while_no_engine_is_ready(fleet: Fleet) -> None:
    await fleet.start()
    await fleet.pause()
    with pytest.raises(DeadlineExceeded):
        await collect(fleet.generate("s/0", PROMPT, Sampling(max_new_tokens=2), time.monotonic() + 0.2))
    await fleet.resume()
    assert len((await turn(fleet)).token_ids) == 40


async def test_a_fleet_that_sleeps_admits_nothing_until_new_weights_have_come(fleet: Fleet, folder: Path) -> None:
    await fleet.start()
    colocate(fleet, *fleet.engines)
    await fleet.sleep()  # for a critic's values
    await fleet.wake()
    early = asyncio.create_task(turn(fleet, tokens=4))
    await fleet.sleep()  # for the step
    await fleet.wake()
    await until(lambda: bool(fleet._roster.changed._waiters))
    assert not early.done()
    await fleet.publish(read_snapshot(folder), 6)
    assert {span.version for span in (await early).versions} == {6}


async def test_while_a_colocated_engine_sleeps_the_others_take_its_requests(fleet: Fleet, folder: Path) -> None:
    await fleet.start()
    fleet.publisher.mode = PauseMode.ABORT
    first, *others = fleet.engines
    colocate(fleet, first)
    turns = [asyncio.create_task(turn(fleet, f"s{i}/0", tokens=100)) for i in range(8)]
    await until(lambda: bool(fleet.engines[first].open))
    await fleet.sleep()
    await until(lambda: not fleet.engines[first].open)
    assert [len(each.token_ids) for each in await asyncio.gather(*turns)] == [100] * 8
    assert set((await turn(fleet, tokens=4)).engines) <= set(others)
    await fleet.wake()
    assert set((await turn(fleet, tokens=4)).engines) <= set(others)  # its weights are not there yet
    await fleet.publish(read_snapshot(folder), 6)
    assert {member.state for member in fleet.engines.values()} == {MemberState.READY}


async def test_a_colocated_engine_that_dies_while_it_sleeps_starts_once_the_trainer_has_left_the_gpus(
    fleet: Fleet, folder: Path
) -> None:
    await fleet.start()
    first = next(iter(fleet.engines))
    colocate(fleet, first)
    await fleet.sleep()
    await fleet._roster.lose(fleet.engines[first], "it died")
    await until(lambda: bool(fleet._roster.gpus_free._waiters))  # as a restart without it would not
    assert fleet.engines[first].state is MemberState.LOST
    await fleet.sleep()  # the trainer died as well, and learns again
    await fleet.wake()
    await fleet.publish(read_snapshot(folder), 6)
    await until(lambda: fleet.engines[first].state is MemberState.READY)
    assert fleet.engines[first].engine.version() == 6


def colocate(fleet: Fleet, *names: str) -> None:
    for name in names:
        fleet.engines[name].colocated = True


async def test_a_callers_mistake_is_no_engines_fault(fleet: Fleet) -> None:
    await fleet.start()
    for _ in range(5):
        with pytest.raises(InvalidInput):
            await collect(fleet.generate("s/0", [10**6], Sampling()))
    assert fleet.lost == 0


async def test_under_drain_a_turn_that_lost_its_engine_is_not_finished_by_another_policy(folder: Path) -> None:
    """What was promised is one version a turn; the session ends as our failure and is drawn again."""
    made: list[Faulty] = []

    def faulty() -> Faulty:
        made.append(Faulty(folder, as_it_is))
        return made[-1]

    for mode, refused in (("drain", True), ("abort", False)):
        made.clear()
        fleet = local_fleet(folder, 1, make=faulty, mode=mode)
        try:
            await fleet.start()
            stream = fleet.generate("s/0", PROMPT, Sampling(max_new_tokens=300, seed=1))
            drawn: list[int] = []
            async for item in stream:
                drawn += item.token_ids if isinstance(item, Chunk) else ()
                if isinstance(item, Turn):
                    break
                made[0].sick = True
            assert isinstance(item, Turn)
            assert item.finish_reason is FinishReason.ABORT
            assert list(item.token_ids) == drawn
            await fleet.publish(read_snapshot(folder), 1)
            rest = collect(fleet.generate("s/0", [*PROMPT, *drawn], Sampling(max_new_tokens=5, seed=1)))
            if refused:
                with pytest.raises(EngineError, match=r"weights\.mode=drain"):
                    await rest
            else:
                assert {span.version for span in (await rest).versions} == {1}
        finally:
            await fleet.close()


async def test_a_mode_that_the_engines_lack_is_refused_by_name(folder: Path) -> None:
    class Lacking(LocalEngine):
        @property
        def capabilities(self) -> Capabilities:
            return replace(super().capabilities, pause_modes=frozenset({PauseMode.DRAIN, PauseMode.ABORT}))

    engine = Lacking(folder, LOCAL)
    with pytest.raises(ConfigError, match=r"weights\.mode=retract.*allowed: abort, drain"):
        local_fleet(folder, 1, make=lambda: engine, mode="retract")
    await engine.close()


def test_a_fleet_needs_engines() -> None:
    with pytest.raises(InvalidInput, match="at least one"):
        Fleet([], None, FleetConfig())  # type: ignore[arg-type]


async def test_requests_that_end_wake_up_none_of_those_that_wait_for_a_publication(fleet: Fleet) -> None:
    """Each end woke up all of them: a pause with thousands of sessions under way took minutes of the event loop."""
    await fleet.start()
    admission, looked, count = fleet.admission, 0, 40
    admitting = admission._admitting

    def counted() -> bool:
        nonlocal looked
        looked += 1
        return admitting()

    admission._admitting = counted  # type: ignore[method-assign]
    ends = asyncio.Event()

    async def request(number: int, until: asyncio.Event | None = None) -> None:
        async with admission.attempt(f"s{number}/0", lambda: b"", time.monotonic() + PATIENCE, None):
            if until is not None:
                await until.wait()

    under_way = [asyncio.create_task(request(number, ends)) for number in range(count)]
    await until(lambda: looked == count)
    admission.paused = True
    waiting = [asyncio.create_task(request(count + number)) for number in range(count)]
    await until(lambda: looked >= 3 * count)  # each asks, and asks again as it begins to wait
    ends.set()
    await asyncio.gather(*under_way)
    await asyncio.sleep(0)
    assert looked <= 4 * count
    admission.paused = False
    await fleet._roster.notify()
    await asyncio.gather(*waiting)
    assert looked <= 6 * count
