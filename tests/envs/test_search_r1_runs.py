"""Search-R1 with a retrieval server of its own: an agent program's loop, and servers that fail in mid-run."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agentrl.config import RolloutConfig
from agentrl.envs.builtin.search_r1.env import SearchR1
from agentrl.envs.builtin.search_r1.squad import prepare_squad
from agentrl.envs.episode import EXPERT
from agentrl.envs.registry import factory
from agentrl.retrieval.index import build
from agentrl.retrieval.service import Service, close_all, service
from agentrl.rollout.episodes.agents import load_agent
from agentrl.rollout.episodes.groups import Rollouts
from agentrl.rollout.episodes.policies import Policy
from agentrl.rollout.episodes.programs import ServedProgram
from agentrl.rollout.stream.health import sessions_of
from agentrl.rollout.workers.gateways import LocalGateway
from agentrl.sessions.renderers.families.null import NullRenderer
from agentrl.sessions.tree import tree
from agentrl.types import Session, Status, Task
from tests.envs.test_search_r1 import SQUAD
from tests.sessions.gateway.conftest import Serve, serve  # noqa: F401 (a fixture)
from tests.sessions.gateway.fakes import ScriptedEngine

EXAMPLE = Path(__file__).parents[2] / "examples" / "search_r1" / "agent.py"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("search_r1")
    (folder / "squad.json").write_text(SQUAD)
    prepare_squad(folder / "squad.json", folder)
    build(folder / "corpus.jsonl", folder / "bm25")
    (folder / "train.jsonl").write_text(
        "".join(
            f'{{"question": "what flows through {city}", "golden_answers": ["{river}"]}}\n'
            for river, city in (("the danube", "vienna"), ("the rhine", "basel"), ("the elbe", "dresden"))
        )
    )
    yield folder
    close_all()


def writes(prompt: str) -> str:
    """What a model might write: nothing of use, then a search, then the river that it was told."""
    told = prompt.rpartition("<information>")[2] if "<information>Doc 1" in prompt else ""
    if told:
        return f"<think> It is there. </think><answer> {' '.join(told.partition(') ')[2].split()[:2])} </answer>"
    return "<search> dresden </search>" if "Try again" in prompt else "I do not know."


@pytest.mark.slow
async def test_a_plain_client_loop_searches_and_answers_token_for_token(data: Path, serve: Serve) -> None:  # noqa: F811
    engine = ScriptedEngine(writes)
    async with serve(engine) as served:
        env = SearchR1(data=data)
        session = Session("s", env.tasks()[2], seed=1)
        gateway = LocalGateway(served.gateway, served.url)
        program = ServedProgram(str(EXAMPLE), gateway=gateway, user_agent=load_agent(f"{EXAMPLE}:agent"))
        await program.play(env, session, RolloutConfig())
    assert (session.status, session.error) == (Status.COMPLETED, None)
    names = ("correct", "exact", "searches", "retrieved")
    assert [session.rewards[name] for name in names] == [1.0, 1.0, 1.0, 1.0]
    turns = [node for node in session.nodes if node.sampled]
    assert len(turns) == 3
    assert len({node.parent for node in turns}) == 3, "one path: each turn follows the one before"
    for call, node in zip(engine.calls, turns, strict=True):
        start = node.versions[0].start
        assert [*tree.path_ids(session, node.parent), *node.token_ids[:start]] == call.input_ids
        assert call.turn is not None
        assert tuple(node.token_ids[start : start + len(call.turn.token_ids)]) == call.turn.token_ids


def rollouts_of(data: Path, **options: Any) -> Rollouts:
    limits = RolloutConfig(retries=1, concurrency=8, turn_timeout=400)
    make = factory("search_r1", data=str(data), **options)
    return Rollouts(make, Policy(NullRenderer()), limits, 0, environment="search_r1")


async def collect(rollouts: Rollouts, tasks: Sequence[Task]) -> list[Session]:
    groups = await rollouts.collect(list(tasks), EXPERT, phase="train", n=8)
    return sessions_of(groups)


@pytest.mark.slow
async def test_sessions_outlive_a_server_that_is_killed_again_and_again(data: Path) -> None:
    """The run's own server is started again at its address; searches that it was answering are sent again."""
    own = service(data / "bm25")
    rollouts, tasks = rollouts_of(data, search_timeout=300), SearchR1(data=data).tasks()
    assert {session.status for session in await collect(rollouts, tasks)} == {Status.COMPLETED}
    before = own.restarts
    collecting = asyncio.create_task(collect(rollouts, tasks))
    for _ in range(2):
        os.kill(own.pid, signal.SIGKILL)
        while own.restarts == before:  # noqa: ASYNC110 - another thread starts it
            await asyncio.sleep(0.02)
        before = own.restarts
    sessions = await collecting
    assert {session.status for session in sessions} == {Status.COMPLETED}
    assert {session.score for session in sessions} == {1.0}


@asynccontextmanager
async def between(server: str, broken: list[str]) -> AsyncIterator[str]:
    """A proxy in front of a real server that garbles or withholds its answers while `broken` says so."""
    host, port = server.removeprefix("http://").split(":")

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(host, int(port))

        async def answers() -> None:
            while chunk := await there.read(65536):
                if broken == ["slow"]:
                    await asyncio.sleep(3600)
                writer.write(chunk[:-9] + b"\x00" * 9 if broken == ["garbled"] else chunk)

        answering = asyncio.create_task(answers())
        try:
            while chunk := await reader.read(65536):
                back.write(chunk)
        finally:
            answering.cancel()
            back.close()
            writer.close()

    listening = await asyncio.start_server(handle, "127.0.0.1", 0)
    yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    listening.close()


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["slow", "garbled"])
async def test_sessions_of_a_slow_or_garbled_server_are_infra_errors_and_drawn_again(data: Path, fault: str) -> None:
    server, broken = Service(data / "bm25"), [fault]
    try:
        async with between(server.url, broken) as url:
            rollouts = rollouts_of(data, retriever=url, search_timeout=0.4)
            sessions = await collect(rollouts, SearchR1(data=data).tasks())
            assert {(session.status, session.reward) for session in sessions} == {(Status.INFRA_ERROR, None)}
            assert all("RetrievalError" in str(session.error) for session in sessions)
            assert {session.attempt for session in sessions} == {1}, "each was drawn again, as rollout.retries=1 says"
            broken.clear()
            rollouts = rollouts_of(data, retriever=url, search_timeout=60)
            again = await collect(rollouts, SearchR1(data=data).tasks())
            assert {(session.status, session.score) for session in again} == {(Status.COMPLETED, 1.0)}
    finally:
        server.close()
