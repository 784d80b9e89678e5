"""Another process generates by a fleet's engines directly: as the fleet itself does, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from agentrl import cluster
from agentrl.cluster import Role, Worker
from agentrl.cluster.wire import frames
from agentrl.cluster.wire.calls import Listener
from agentrl.config import WEIGHTS, FleetConfig
from agentrl.errors import EngineError
from agentrl.rollout.engines.local.plugin import LocalConfig
from agentrl.rollout.engines.local.process_engine import ProcessEngine
from agentrl.rollout.engines.servers.server_settings import ServerConfig
from agentrl.rollout.episodes.policies import Policy
from agentrl.rollout.fleet.fleet import Fleet
from agentrl.rollout.fleet.member import MemberState
from agentrl.rollout.weights import make_publisher
from agentrl.rollout.weights.snapshot import read_snapshot
from agentrl.rollout.workers import leases
from agentrl.rollout.workers.engine_access import EngineAccess
from agentrl.sessions.renderers.families.null import NullRenderer
from agentrl.sessions.tree.generation import generate
from agentrl.types import MAIN, Chunk, Engine, Sampling, Turn, collect
from tests.rollout.caller import PATIENCE
from tests.rollout.fleet.conftest import folder, local_fleet
from tests.rollout.fleet.test_processes import started
from tests.rollout.fleet.token_server import DEADLY
from tests.suite.pairs import of, pairs

__all__ = ["folder"]

pytestmark = pytest.mark.slow
PROMPT = [5, 6, 7, 8]
TIMES = FleetConfig(probe_every=0.3, probe_timeout=10, stall_timeout=60, max_restarts=1000)
KINDS = ["process", "server"]
MODES = ["drain", "abort", "retract", "in_place"]
PUBLICATIONS = pairs(test=["through", "between", "many"], mode=MODES, kind=KINDS)
"""How weights are published to which kind of engine, in which of three tests."""


@dataclass
class Setting:
    """A fleet, and a process that generates by it."""

    fleet: Fleet
    caller: Worker

    def turns(self, count: int, tokens: int, name: str = "s") -> list[asyncio.Task[Turn]]:
        """Turns of as many sessions that are generated from now on, of so many tokens each."""
        sampling = [Sampling(max_new_tokens=tokens, seed=number) for number in range(count)]
        calls = [self.turn(f"{name}{n}/0", [*PROMPT, n], how) for n, how in enumerate(sampling)]
        return [asyncio.create_task(call) for call in calls]

    async def under_way(self, count: int, tokens: int) -> list[asyncio.Task[list[Chunk | Turn]]]:
        """What as many turns stream, all of which have begun."""
        begun = [asyncio.Event() for _ in range(count)]

        async def read(number: int) -> list[Chunk | Turn]:
            asked = f"s{number}/0", [*PROMPT, number], Sampling(max_new_tokens=tokens, seed=number)
            came: list[Chunk | Turn] = []
            async for item in self.caller.stream("items", *asked, timeout=PATIENCE):
                came.append(item)
                begun[number].set()
            return came

        reading = [asyncio.create_task(read(number)) for number in range(count)]
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*(event.wait() for event in begun))
        return reading

    async def turn(self, name: str, ids: list[int], sampling: Sampling, kept: bool = False) -> Turn:
        """A turn; its session goes on if it is `kept`."""
        return cast(Turn, await self.caller.call("turn", name, ids, sampling, kept, timeout=PATIENCE))

    async def between_turns(self, count: int) -> None:
        """As many sessions that have had a turn, and go on."""
        for number in range(count):
            await self.turn(f"between{number}/0", [*PROMPT, number], Sampling(max_new_tokens=4), kept=True)
        assert self.open == count

    @property
    def open(self) -> int:
        """Requests and leases that the fleet knows of."""
        return sum(len(member.open) for member in self.fleet.engines.values())


def make(kind: str, folder: Path) -> Engine:
    return (
        ProcessEngine(folder, LocalConfig(max_batch=16, device="cpu", kernel="torch"))
        if kind == "process"
        else started(folder)
    )


def pid(engine: Any) -> int:
    server: Any = engine.worker.process if isinstance(engine, ProcessEngine) else engine
    return int(server.server.pid)


@asynccontextmanager
async def setting(
    folder: Path, kind: str, count: int = 2, times: FleetConfig = TIMES, **weights: Any
) -> AsyncIterator[Setting]:
    publisher = make_publisher(WEIGHTS.build(weights), folder, ServerConfig(name="sglang"))
    fleet = Fleet([lambda: make(kind, folder)] * count, publisher, times)
    try:
        await asyncio.wait_for(fleet.start(), PATIENCE)
        async with called(fleet) as caller:
            yield Setting(fleet, caller)
            assert await caller.call("forwarded", timeout=PATIENCE) == set()
    finally:
        await fleet.close()


@asynccontextmanager
async def called(fleet: Fleet) -> AsyncIterator[Worker]:
    """A process that generates by a fleet."""
    access = EngineAccess(lambda: {MAIN: Policy(NullRenderer(), fleet)})
    async with Listener(access, "engines", "engines", "127.0.0.1", b"k" * 32) as address:
        arguments = address, fleet.capabilities
        worker = cluster.current().spawn(
            Role("environments", "tests.rollout.caller:Caller", arguments, threads=1, loads=("tests.rollout.caller",))
        )
        try:
            await worker.ready(PATIENCE)
            yield worker
        finally:
            await worker.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.01)


# ------------------------------------------------------------------------------------------ generating


async def test_its_tokens_are_those_of_the_fleets_own_process_bit_for_bit(folder: Path) -> None:
    async with setting(folder, "process") as found:
        theirs = await asyncio.gather(*found.turns(6, 40))
        for number, one in enumerate(theirs):
            sampling = Sampling(max_new_tokens=40, seed=number)
            deadline = time.monotonic() + PATIENCE  # a busy machine may lose an engine: the turn goes on elsewhere
            ours = await collect(generate(found.fleet, f"o{number}/0", [*PROMPT, number], sampling, deadline))
            assert (one.token_ids, one.logprobs, one.versions) == (ours.token_ids, ours.logprobs, ours.versions)
        assert {name for one in theirs for name in one.engines} == {"engine-0", "engine-1"}
        await until(lambda: found.open == 0)


@pytest.mark.parametrize("kind", KINDS)
async def test_turns_of_a_session_find_their_prefix_and_what_comes_is_streamed(folder: Path, kind: str) -> None:
    async with setting(folder, kind) as found:
        path, sampling = list(PROMPT), Sampling(max_new_tokens=60)
        for number in range(3):
            stream = found.caller.stream("items", f"s/{number}", path, sampling, True, timeout=PATIENCE)
            *chunks, turn = [item async for item in stream]
            assert len(chunks) > 1
            assert tuple(token for chunk in chunks for token in chunk.token_ids) == turn.token_ids
            assert kind == "server" or turn.cached_tokens >= 0.8 * len(path) or not number
            path += turn.token_ids


async def test_the_bytes_that_pass_the_fleets_process_grow_neither_with_a_sessions_tokens_nor_with_its_turns(
    folder: Path,
) -> None:
    async with setting(folder, "process", 1, TIMES.model_copy(update={"probe_every": 600.0})) as found:

        async def passed(name: str, turns: int, tokens: int) -> int:
            before = frames.traffic.copy()
            asked = name, turns, Sampling(max_new_tokens=tokens)
            await found.caller.call("session", *asked, timeout=PATIENCE)
            return sum((frames.traffic - before).values())

        await passed("w", 1, 2)
        short, began = await passed("s", 1, 4), time.monotonic()
        long = await passed("l", 24, 12)
        reports = 1 + (time.monotonic() - began) // leases.REPORT_SECONDS  # that tokens come
        assert long < short + 300 * reports


async def test_an_engine_in_the_runs_own_process_generates_through_it(folder: Path) -> None:
    fleet = local_fleet(folder)
    try:
        await fleet.start()
        async with called(fleet) as caller:
            for _ in range(2):
                turn: Turn = await caller.call("turn", "s/0", PROMPT, Sampling(max_new_tokens=9), timeout=PATIENCE)
                assert len(turn.token_ids) == 9
            assert await caller.call("forwarded", timeout=PATIENCE) == {MAIN}
    finally:
        await fleet.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_caller_that_leaves_or_dies_ends_its_requests(folder: Path, kind: str) -> None:
    async with setting(folder, kind) as found, called(found.fleet) as other:
        turns = found.turns(4, 20_000 if kind == "server" else 400)
        await until(lambda: found.open == 4)
        for one in turns:
            one.cancel()
        await until(lambda: found.open == 0)
        sampling = Sampling(max_new_tokens=400)
        dying = [asyncio.create_task(other.call("turn", f"d{n}/0", PROMPT, sampling, timeout=None)) for n in range(4)]
        await until(lambda: found.open == 4)
        other.kill()
        await until(lambda: found.open == 0)
        await asyncio.gather(*dying, return_exceptions=True)
        if kind == "process":
            for member in found.fleet.engines.values():
                async with asyncio.timeout(PATIENCE):
                    while (await member.engine.health()).running:  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
        assert len((await found.turn("s/0", PROMPT, Sampling(max_new_tokens=9))).token_ids) == 9
        assert found.fleet.lost == 0


# ------------------------------------------------------------------------------------------- failing


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
async def test_where_an_engine_dies_or_hangs_its_turns_go_on_by_another_with_their_tokens(
    folder: Path, kind: str, sent: signal.Signals
) -> None:
    times = TIMES.model_copy(update={"stall_timeout": 3.0, "probe_timeout": 3.0})
    async with setting(folder, kind, times=times) as found:
        first = found.fleet.engines["engine-0"]
        victim = first.engine
        reading = await found.under_way(8, 200)
        os.killpg(pid(victim), sent)
        turns = []
        for *chunks, turn in await asyncio.wait_for(asyncio.gather(*reading), PATIENCE):
            assert isinstance(turn, Turn)
            assert len(turn.token_ids) == 200
            assert turn.token_ids == tuple(token for chunk in chunks for token in chunk.token_ids)
            turns.append(turn)
        assert {len(turn.engines) for turn in turns} == {1, 2}
        assert found.fleet.lost == 1
        await until(lambda: first.state is MemberState.READY)
        assert first.engine is not victim
        new = await asyncio.gather(*found.turns(4, 99, "new"))
        assert {name for one in new for name in one.engines} == {"engine-0", "engine-1"}


async def test_a_request_that_kills_its_engines_fails_after_some_and_the_others_get_through(folder: Path) -> None:
    async with setting(folder, "server", times=TIMES.model_copy(update={"max_attempts": 2})) as found:
        good = found.turns(4, 200)
        with pytest.raises(EngineError, match="failed 2 times"):
            await found.turn("bad/0", [DEADLY], Sampling(max_new_tokens=9))
        with pytest.raises(EngineError, match="2 engines died with this prompt"):
            await found.turn("again/0", [DEADLY], Sampling(max_new_tokens=9))
        assert [len(one.token_ids) for one in await asyncio.gather(*good)] == [200] * 4
        assert found.fleet.lost == 2


async def test_a_request_that_kills_its_engines_amid_a_session_fails_alike_and_the_sessions_beginning_is_not_blamed(
    folder: Path,
) -> None:
    async with setting(folder, "server", times=TIMES.model_copy(update={"max_attempts": 2})) as found:
        await found.turn("bad/0", PROMPT, Sampling(max_new_tokens=9), kept=True)
        with pytest.raises(EngineError, match="failed 2 times"):
            await found.turn("bad/1", [DEADLY, *PROMPT], Sampling(max_new_tokens=9))
        for number in range(3):
            await found.turn(f"good{number}/0", PROMPT, Sampling(max_new_tokens=9))
        assert found.fleet.lost == 2


async def test_where_an_engine_is_lost_between_two_turns_the_next_is_generated_by_another(folder: Path) -> None:
    async with setting(folder, "process") as found:
        sampling = Sampling(max_new_tokens=9, seed=1)
        first = await found.turn("s/0", PROMPT, sampling, kept=True)
        member = found.fleet.engines[first.engines[0]]
        os.killpg(pid(member.engine), signal.SIGKILL)
        await until(lambda: found.fleet.lost == 1)
        again = await found.turn("s/1", PROMPT, sampling)
        assert again.engines != first.engines or member.restarts == 1
        assert again.token_ids == first.token_ids
        assert found.fleet.lost == 1


async def test_a_lease_for_a_request_that_has_failed_before_is_not_kept(folder: Path) -> None:
    """Whatever comes next in its session asks anew."""
    async with setting(folder, "server", times=TIMES.model_copy(update={"max_attempts": 3})) as found:
        turn = asyncio.create_task(found.turn("s/0", PROMPT, Sampling(max_new_tokens=300), kept=True))
        await until(lambda: found.open == 1)
        (member,) = [member for member in found.fleet.engines.values() if member.open]
        os.killpg(pid(member.engine), signal.SIGKILL)
        assert len((await turn).token_ids) == 300
        await until(lambda: found.open == 0)
        await found.turn("s/1", PROMPT, Sampling(max_new_tokens=9), kept=True)
        assert found.open == 1


async def test_an_engine_whose_caller_hangs_is_not_given_up(folder: Path) -> None:
    """Nobody tells of its tokens; it generates all the same."""
    async with setting(folder, "process", 1, TIMES.model_copy(update={"stall_timeout": 1.0})) as found:
        async with called(found.fleet) as other:
            sampling = Sampling(max_new_tokens=400)
            call = asyncio.create_task(other.call("turn", "h/0", PROMPT, sampling, timeout=None))
            await until(lambda: found.open == 1)
            os.killpg(cast(Any, other.process).server.pid, signal.SIGSTOP)
            await asyncio.sleep(4.0)
            assert (found.open, found.fleet.lost) == (1, 0)
            other.kill()
            await asyncio.gather(call, return_exceptions=True)
        await until(lambda: found.open == 0)


# ------------------------------------------------------------------------------------ weights and memory


@pytest.mark.parametrize(*of(PUBLICATIONS, test="through"))
async def test_turns_go_through_a_publication_and_each_token_knows_its_policy(
    folder: Path, mode: str, kind: str
) -> None:
    async with setting(folder, kind, mode=mode) as found:
        reading = await found.under_way(4, 400)
        await found.fleet.publish(list(read_snapshot(folder)), 1)
        turns = [cast(Turn, items[-1]) for items in await asyncio.gather(*reading)]
        after = await found.turn("after/0", PROMPT, Sampling(max_new_tokens=9))
    for one in turns:
        assert len(one.token_ids) == len(one.logprobs) == 400
        assert [span.version for span in one.versions] == ([0] if mode == "drain" else [0, 1])
        assert (one.versions[0].start, one.versions[-1].end) == (0, 400)
    assert [span.version for span in after.versions] == [1]
    assert found.fleet.lost == 0


@pytest.mark.parametrize("mode", ["drain", "abort"])
async def test_while_a_colocated_engine_sleeps_the_others_take_its_requests(folder: Path, mode: str) -> None:
    async with setting(folder, "process", mode=mode) as found:
        first = found.fleet.engines["engine-0"]
        first.colocated = True
        turns = found.turns(8, 300)
        await until(lambda: bool(first.open) and found.open == 8)
        await found.fleet.sleep()
        assert not first.open
        assert [len(one.token_ids) for one in await asyncio.gather(*turns)] == [300] * 8
        assert (await found.turn("s/0", PROMPT, Sampling(max_new_tokens=9))).engines == ("engine-1",)
        await found.fleet.wake()
        await found.fleet.publish(list(read_snapshot(folder)), 6)
        assert first.state is MemberState.READY


async def test_an_engine_that_is_drained_finishes_the_turns_that_it_was_leased_for(folder: Path) -> None:
    async with setting(folder, "process") as found:
        turns = found.turns(4, 300)
        await until(lambda: found.open == 4)
        await found.fleet.remove("engine-0")
        assert [len(one.engines) for one in await asyncio.gather(*turns)] == [1] * 4
        assert found.fleet.lost == 0


async def test_where_the_fleet_is_closed_open_requests_fail(folder: Path) -> None:
    async with setting(folder, "process", 1) as found:
        (turn,) = found.turns(1, 400)
        await until(lambda: found.open == 1)
        await found.fleet.close()
        with pytest.raises(EngineError, match="closed"):
            await turn


# ------------------------------------------------------------------------------------ between two turns


@pytest.mark.parametrize(*of(PUBLICATIONS, test="between"))
async def test_sessions_between_two_turns_are_of_the_new_version_after_a_publication(
    folder: Path, mode: str, kind: str
) -> None:
    async with setting(folder, kind, mode=mode) as found:
        await found.between_turns(4)
        for version in (1, 2):
            await found.fleet.publish(list(read_snapshot(folder)), version)
            for number in range(4):
                path = [*PROMPT, number], Sampling(max_new_tokens=9)
                turn = await found.turn(f"between{number}/{version}", *path, kept=True)
                assert [span.version for span in turn.versions] == [version]
        assert found.fleet.lost == 0


@pytest.mark.parametrize("mode", ["drain", "abort"])
async def test_sessions_between_two_turns_hold_up_neither_sleep_nor_removal(folder: Path, mode: str) -> None:
    async with setting(folder, "process", count=3, mode=mode) as found:
        found.fleet.engines["engine-0"].colocated = True
        await found.between_turns(6)
        await found.fleet.sleep()
        await found.fleet.remove("engine-1")
        again = [found.turn(f"between{n}/1", [*PROMPT, n], Sampling(max_new_tokens=4)) for n in range(6)]
        assert {turn.engines for turn in await asyncio.gather(*again)} == {("engine-2",)}
        await until(lambda: found.open == 0)


async def test_leases_end_with_their_session_with_its_process_and_after_a_while(folder: Path) -> None:
    async with setting(folder, "process") as found, called(found.fleet) as other:
        await found.between_turns(2)
        await found.caller.call("over", "between0", timeout=PATIENCE)
        await until(lambda: found.open == 1)
        await other.call("turn", "s/0", PROMPT, Sampling(max_new_tokens=4), True, timeout=PATIENCE)
        assert found.open == 2
        other.kill()
        await until(lambda: found.open == 1)
        await found.caller.call("keep_for", 0.5, timeout=PATIENCE)
        await found.turn("between1/1", PROMPT, Sampling(max_new_tokens=4), kept=True)
        await until(lambda: found.open == 0)


async def test_turns_of_one_session_at_the_same_time_have_a_lease_each(folder: Path) -> None:
    async with setting(folder, "process", 1) as found:
        for count in (3, 2):
            calls = [found.turn(f"s/{n}", [*PROMPT, n], Sampling(max_new_tokens=99), kept=True) for n in range(count)]
            assert [len(turn.token_ids) for turn in await asyncio.gather(*calls)] == [99] * count
            assert found.open == 3
        await found.caller.call("over", "s", timeout=PATIENCE)
        await until(lambda: found.open == 0)


async def test_an_engine_that_is_added_takes_sessions_from_the_others_between_two_turns(folder: Path) -> None:
    async with setting(folder, "process", 1, TIMES.model_copy(update={"max_imbalance": 2})) as found:
        await found.between_turns(8)
        added = await found.fleet.add(lambda: make("process", folder))
        await until(lambda: found.fleet.engines[added].state is MemberState.READY and not found.open)
        await found.between_turns(8)
        first, second = (len(member.open) for member in found.fleet.engines.values())
        assert abs(first - second) <= 2


@pytest.mark.parametrize(*of(PUBLICATIONS, test="many"))
async def test_sessions_of_many_turns_go_through_one_publication_after_another(
    folder: Path, mode: str, kind: str
) -> None:
    async with setting(folder, kind, mode=mode) as found:
        played = [("session", f"s{n}", 6, Sampling(max_new_tokens=20, seed=n)) for n in range(6)]
        sessions = [asyncio.create_task(found.caller.call(*one, timeout=PATIENCE)) for one in played]
        version = 0
        while not all(session.done() for session in sessions):
            version += 1
            await found.fleet.publish(list(read_snapshot(folder)), version)
        for turns in await asyncio.gather(*sessions):
            assert [tokens for tokens, _ in turns] == [20] * 6
            versions = [of_turn for _, of_turn in turns]
            assert mode != "drain" or {len(of_turn) for of_turn in versions} == {1}
            drawn = [one for of_turn in versions for one in of_turn]
            assert drawn == sorted(drawn)
        await until(lambda: found.open == 0)
        assert found.fleet.lost == 0


class Indexed(dict[Any, Any]):
    """A mapping that is looked up, and never gone through."""

    def __iter__(self) -> Any:
        raise AssertionError("all keys are gone through")

    keys = values = items = __iter__  # type: ignore[assignment]


async def test_the_end_of_a_session_looks_at_its_own_leases_alone() -> None:
    """It went through the leases of all sessions that a process plays: thousands of them, for each that ended."""

    class Held:
        policy, usable, turns, given_back = MAIN, True, 0, False
        turn_came, lease = True, SimpleNamespace(single=False)

        def give_back(self) -> None:
            self.given_back = True

    kept, held = leases.Leases(lambda: cast(Any, None)), [Held() for _ in range(4)]
    kept._kept = Indexed()
    for number, each in enumerate(held):
        kept._end(cast(Any, each), f"s{number // 2}/{number}")
    kept.session_over("s0")
    assert [each.given_back for each in held] == [True, True, False, False]
    assert cast(Any, kept._take(MAIN, "s1")) is held[3]
    kept._give_back_unused("s1", cast(Any, held[2]), held[2].turns)
    assert held[2].given_back
    assert not held[3].given_back
    assert not kept._kept
