"""Gateways in workers of their own: the same sessions as with a gateway beside the program."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agentrl.cluster import Address, Connection, Worker, connect, open_cluster
from agentrl.cluster.pool import WorkerPool
from agentrl.cluster.shared_pool import DistantPool, shared_pool
from agentrl.cluster.wire.calls import Listener
from agentrl.config import ClusterConfig, GatewayConfig, ModelConfig, RolloutConfig, RunConfig
from agentrl.envs.base import Env
from agentrl.errors import ConfigError, Diverged, InfraError, InvalidInput
from agentrl.overrides import merge_settings, validate
from agentrl.rollout.episodes import agents, programs
from agentrl.rollout.episodes.agents import load_agent
from agentrl.rollout.episodes.groups import Rollouts
from agentrl.rollout.episodes.policies import Policy
from agentrl.rollout.episodes.programs import ServedProgram
from agentrl.rollout.workers import gateway_workers, gateways
from agentrl.rollout.workers.gateway_workers import DistantGateway, distant_program
from agentrl.sessions.renderers import get_renderer
from agentrl.sessions.store.store import Store
from agentrl.types import Engine, Session, Status, Task
from tests.cluster.test_elastic import soon
from tests.rollout.engines.conftest import engine, folder, model
from tests.suite.pairs import of, pairs

__all__ = ["engine", "folder", "model"]
AGENT = """
import asyncio, json, os, pathlib, openai


async def agent(task, client):
    async def say(*words):
        roles = ("user", "assistant")
        messages = [{"role": roles[place % 2], "content": text} for place, text in enumerate(words)]
        return await client.chat.completions.create(model="m", messages=messages, n=len(words[0]) % 2 + 1)

    async def post(path, **body):
        await client.post(f"{str(client.base_url).removesuffix('v1/')}{path}", body=body, cast_to=object)

    first = await say("hello")
    await say("hello", first.choices[0].message.content or "nothing", "and more?")
    await say("something else")
    how = task["how"]
    if how == "turn":
        await post("reward", value=0.25, turn=first.id)
    if how == "named":
        await post("reward", value=0.5, name="tidy")
    if how == "final":
        await post("reward", value=0.75)
    if how == "closed":
        await post("close", reward=1.0, rewards={"tidy": 0.5})
    if how == "raises":
        raise KeyError("oops")
    if how == "waits":
        pathlib.Path(task["file"]).write_text(str(os.getpid()))
        await asyncio.sleep(3600)


if __name__ == "__main__":
    asyncio.run(agent(json.loads(os.environ["AGENTRL_TASK"]), openai.AsyncOpenAI()))
"""
ENDS = ("nothing", "turn", "named", "final", "closed", "raises")
LIMITS = {"turn_tokens": 12, "session_tokens": 1000, "context_tokens": 400, "timeout": 300.0}
EVERYWHERE = pytest.mark.parametrize("caller", ["driver", "environment worker"])
MATRIX = pairs(promise=["same", "death"], caller=["driver", "environment worker"], form=["function", "command"])


class World(Env):
    """Gives a task, and no rewards."""

    async def reset(self, task: Task, *, seed: int | None = None) -> str:
        return ""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The agent: `agent` in it, or the file as a program."""
    made = tmp_path_factory.mktemp("agent") / "agent.py"
    made.write_text(AGENT)
    return made


@asynccontextmanager
async def serving(
    engine: Engine, folder: Path, agent: str, caller: str = "driver", **settings: Any
) -> AsyncIterator[tuple[ServedProgram, WorkerPool | None]]:
    """A program, and the gateway workers that it uses, called by the run's process or by one that calls its pool."""
    run = {"env": "calculator", "agent": agent, "model": {"renderer": "chatml"}, "rollout": LIMITS, "cluster": settings}
    config = RunConfig.model_validate(run)
    rollouts = Rollouts(World, Policy(get_renderer(folder, "chatml"), engine), config.rollout, seed=3)
    with open_cluster(config.cluster, None), Store(":memory:") as store:
        async with gateway_workers.gateway_workers(*sections(config), rollouts, folder) as pool:
            if pool is None:
                async with programs.serving(agent, rollouts.policy, store, config.rollout) as program:
                    yield program, pool
                return
            if caller == "driver":
                yield distant_program(agent, config.gateway, pool), pool
                return
            async with shared_pool(pool, "gateways") as address:
                distant = DistantPool(address)
                yield distant_program(agent, config.gateway, distant), pool
                distant.close()


def sections(config: RunConfig) -> tuple[ClusterConfig, GatewayConfig, ModelConfig]:
    return config.cluster, config.gateway, config.model


class Clock:
    """`asyncio` for the module that runs programs: their time is over when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.limits = list[asyncio.Timeout]()
        monkeypatch.setattr(agents, "asyncio", self)

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    def timeout(self, seconds: float) -> asyncio.Timeout:
        self.limits.append(limit := asyncio.timeout(seconds))
        return limit

    def end(self) -> None:
        """Let the time of the only program be over."""
        (limit,) = self.limits
        limit.reschedule(asyncio.get_running_loop().time())


async def play(program: ServedProgram, name: str, seconds: float = 300.0, **data: Any) -> Session:
    limits = RunConfig.model_validate({"env": "calculator", "rollout": LIMITS}).rollout
    session = Session(name, Task(id="t", data=data), seed=7)
    return await program.play(World(), session, limits.model_copy(update={"timeout": seconds}))


def recorded(session: Session) -> Any:
    nodes = [
        (n.parent, n.token_ids, n.trainable, n.logprobs, n.versions, n.sampling, n.reward, n.arrival)
        for n in session.nodes
    ]
    ended = (session.status, session.error, session.reward, session.rewards, session.reward_state, session.counters)
    return nodes, ended


@pytest.mark.slow
@pytest.mark.parametrize(*of(MATRIX, promise="same"))
async def test_trees_rewards_and_ends_are_those_of_a_gateway_beside_the_program(
    engine: Engine, folder: Path, file: Path, caller: str, form: str
) -> None:
    agent = f"{file}:agent" if form == "function" else f"python {file}"

    async def all_ends(**settings: Any) -> dict[str, Any]:
        async with serving(engine, folder, agent, caller, **settings) as (program, pool):
            sessions = [play(program, how, how=how) for how in ENDS]
            found = await asyncio.gather(*sessions)
            if pool is not None:
                await left(pool)
            return {session.id: recorded(session) for session in found}

    beside, workers = await all_ends(), await all_ends(gateways=2)
    for how in ENDS:
        assert workers[how] == beside[how], how
    nodes, (status, *_) = workers["raises"]
    assert status is Status.AGENT_ERROR
    assert len(nodes) > 6


@pytest.mark.slow
@pytest.mark.parametrize(*of(MATRIX, promise="death"))
async def test_a_workers_death_ends_its_programs_at_once_as_infrastructure_errors_and_it_is_replaced(
    engine: Engine, folder: Path, file: Path, caller: str, form: str, tmp_path: Path
) -> None:
    agent = f"{file}:agent" if form == "function" else f"python {file}"
    async with serving(engine, folder, agent, caller, gateways=2) as (program, pool):
        assert pool is not None
        names = [f"s{number}" for number in range(4)]
        waiting = {
            name: asyncio.create_task(play(program, name, how="waits", file=str(tmp_path / name))) for name in names
        }
        await soon(lambda: len(list(tmp_path.iterdir())) == 4, "the programs are not there")
        first, second = pool.under_way
        assert list(pool.under_way.values()) == [2, 2]
        first.kill()
        await soon(lambda: sum(task.done() for task in waiting.values()) == 2, "two sessions have not ended")
        lost = {name: task.result() for name, task in waiting.items() if task.done()}
        assert {session.status for session in lost.values()} == {Status.INFRA_ERROR}
        assert all("WorkerLost" in (session.error or "") for session in lost.values())
        if form == "command":
            await soon(lambda: not any(alive(tmp_path / name) for name in lost), "their programs go on")
        await soon(lambda: len(pool.under_way) == 2, "it is not replaced")
        assert second in pool.under_way
        again = await asyncio.gather(*(play(program, f"{name}~1", how="final") for name in lost))
        assert {session.reward for session in again} == {0.75}
        for task in waiting.values():
            task.cancel()
        await asyncio.gather(*waiting.values(), return_exceptions=True)
        await left(pool)


async def left(pool: WorkerPool) -> None:
    await soon(lambda: not any(pool.under_way.values()), "sessions that have ended still count")


def alive(file: Path) -> bool:
    """Whether the process runs whose number is in the file."""
    try:
        return Path(f"/proc/{file.read_text()}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
@EVERYWHERE
async def test_a_worker_that_opens_no_session_is_ended_at_the_deadline_of_a_call(
    engine: Engine, folder: Path, file: Path, caller: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(engine, folder, f"{file}:agent", caller, gateways=1) as (program, pool):
        assert pool is not None
        assert (await play(program, "before", how="final")).reward == 0.75
        stop(pool, monkeypatch)
        session = await play(program, "s", how="final")
        assert session.status is Status.INFRA_ERROR
        assert "WorkerTimeout: a gateway worker opened no session within 2 s" in (session.error or "")
        monkeypatch.undo()
        assert (await play(program, "s~1", how="final")).reward == 0.75  # by another one


@pytest.mark.slow
@EVERYWHERE
async def test_a_worker_that_stops_amid_a_session_is_ended_when_the_programs_time_is_over(
    engine: Engine, folder: Path, file: Path, caller: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(engine, folder, f"{file}:agent", caller, gateways=1) as (program, pool):
        assert pool is not None
        clock = Clock(monkeypatch)
        playing = asyncio.create_task(play(program, "s", how="waits", file=str(tmp_path / "there")))
        await soon((tmp_path / "there").exists, "the program is not there")
        stop(pool, monkeypatch)
        clock.end()
        session = await playing
        assert session.status is Status.INFRA_ERROR
        assert re.search(r"WorkerTimeout: .*finish ran past its deadline", session.error or "")
        monkeypatch.undo()
        assert (await play(program, "s~1", how="final")).reward == 0.75  # by another one


def stop(pool: WorkerPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the only worker's process, and let calls of it have two seconds."""
    (worker,) = pool.under_way
    monkeypatch.setattr(gateway_workers, "CALL_SECONDS", 2.0)
    os.killpg(process_of(worker), signal.SIGSTOP)


def process_of(worker: Worker) -> int:
    group: int = worker.process.server.pid  # type: ignore[attr-defined]
    return group


@pytest.mark.slow
async def test_sessions_end_with_the_process_that_opened_them(
    engine: Engine, folder: Path, file: Path, tmp_path: Path
) -> None:
    async with serving(engine, folder, f"{file}:agent", gateways=1) as (program, pool):
        assert pool is not None
        async with shared_pool(pool, "gateways") as address:
            another = DistantPool(address)
            theirs = ServedProgram(program.agent, gateway=DistantGateway(another), user_agent=program.user_agent)
            playing = asyncio.create_task(play(theirs, "s", how="waits", file=str(tmp_path / "there")))
            await soon((tmp_path / "there").exists, "the program is not there")
            assert list(pool.under_way.values()) == [1]
            await asyncio.to_thread(another.close)  # as its process's end does
            await left(pool)
            await asyncio.gather(playing, return_exceptions=True)
        assert (await once_free(program, "s")).reward == 0.75


async def once_free(program: ServedProgram, name: str) -> Session:
    """A session of a name that another one had: its gateway hears of that one's end after its pool."""
    async with asyncio.timeout(60.0):
        while True:
            with contextlib.suppress(InvalidInput):
                return await play(program, name, how="final")
            await asyncio.sleep(0.1)


class OneWorker:
    """Workers of which there is one, called over a connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @asynccontextmanager
    async def held(self) -> AsyncIterator[Connection]:
        yield self._connection


@pytest.mark.slow
async def test_a_recorded_request_that_does_not_come_is_told_to_whoever_runs_the_session_again(
    engine: Engine, folder: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(engine, folder, f"{file}:agent") as (program, _):
        before = await play(program, "s", how="nothing")
    monkeypatch.setattr(gateways, "PATIENCE", 0.5 - 10 * ((before.ended or 0.0) - (before.started or 0.0)))
    nowhere = Address("engines", "127.0.0.1", 9, b"")
    sections = GatewayConfig(), ModelConfig(renderer="chatml"), RolloutConfig()
    role = gateway_workers.GatewayRole(*sections, folder, nowhere, engine.capabilities)
    async with Listener(role, "a gateway worker", "here", "127.0.0.1", b"key") as address:
        connection = await asyncio.to_thread(connect, address)
        workers: Any = OneWorker(connection)
        idle = ServedProgram("idle", before, gateway=DistantGateway(workers), user_agent=load_agent("sleep 3600"))
        waits = ServedProgram("waits", before, gateway=DistantGateway(workers), user_agent=load_agent(late))
        assert (await play(idle, "idle", 3.0)).status is Status.TRUNCATED  # nothing waits for a request
        with pytest.raises(Diverged, match=r"session s, turn \d+: the program did not request it within 0\.5 s"):
            await play(waits, "waits")
        await asyncio.to_thread(connection.close)
    await role.close()


async def late(task: Task, client: Any) -> None:
    """Send a request that the recording has further on, and not those before it."""
    messages: Any = [{"role": "user", "content": "something else"}]
    await client.chat.completions.create(model="m", messages=messages)


def test_an_environment_worker_has_as_long_as_gateway_workers_may_take_more() -> None:
    assert gateway_workers.longest(ClusterConfig(gateways=1)) > 900.0 + gateway_workers.CALL_SECONDS
    assert gateway_workers.longest(ClusterConfig()) == 0.0


@pytest.mark.slow
async def test_a_programs_deadline_truncates_its_session_with_what_it_has(
    engine: Engine, folder: Path, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(engine, folder, f"{file}:agent", gateways=1) as (program, _):
        clock = Clock(monkeypatch)
        playing = asyncio.create_task(play(program, "s", how="waits", file=str(tmp_path / "there")))
        await soon((tmp_path / "there").exists, "the program is not there")
        clock.end()
        session = await playing
    assert session.status is Status.TRUNCATED
    assert "the agent took longer than" in (session.error or "")
    assert session.nodes


@pytest.mark.slow
async def test_where_nothing_can_listen_at_the_address_the_run_ends_as_it_starts(
    engine: Engine, folder: Path, file: Path
) -> None:
    run = {"env": "calculator", "agent": f"{file}:agent", "gateway": {"host": "198.51.100.7"}}
    config = RunConfig.model_validate(run | {"cluster": {"gateways": 1}, "model": {"renderer": "chatml"}})
    rollouts = Rollouts(World, Policy(get_renderer(folder, "chatml"), engine), config.rollout, seed=3)
    with open_cluster(config.cluster, None), pytest.raises(InfraError, match=r"can't listen on 198\.51\.100\.7"):
        async with gateway_workers.gateway_workers(*sections(config), rollouts, folder):
            pass


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("agent=solve cluster.gateways=-1", "cluster.gateways=-1"),
        (
            "agent=solve cluster=ray cluster.address=auto cluster.gateways=1",
            "gateway.host=127.0.0.1 is reached from its own alone: set gateway.host=node",
        ),
        (
            "agent=solve cluster=ray cluster.address=auto cluster.gateways=1 gateway.host=localhost",
            "gateway.host=localhost is reached from its own alone",
        ),
    ],
)
def test_settings_that_can_not_work_are_refused(words: str, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        validate(merge_settings(["env=calculator", *words.split()]), RunConfig)
    assert says in str(refused.value)
