"""Fleets of small server processes under kill -9 and SIGSTOP: what `test_servers` does to real ones, cheaply."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agentrl.cluster import Role
from agentrl.cluster.local import LocalProcess
from agentrl.cluster.server import free_port
from agentrl.config import FleetConfig, WeightsConfig
from agentrl.rollout.engines import make_engine
from agentrl.rollout.engines.servers.server_settings import ServerConfig
from agentrl.rollout.fleet.fleet import Fleet
from agentrl.rollout.weights import make_publisher
from agentrl.rollout.weights.snapshot import read_snapshot
from tests.rollout.fleet.turns import PATIENCE, drawing, turns_under_way, until, until_ready

pytestmark = pytest.mark.slow
LOADS = ("agentrl.rollout.engines.local.engine_role", "tests.rollout.fleet.token_server")
TIMES = FleetConfig(probe_every=0.3, probe_timeout=10, stall_timeout=10, max_restarts=1000)


def started(folder: Path) -> Any:
    """An engine on a server process of its own."""
    port = free_port()
    engine: Any = make_engine(ServerConfig(name="sglang", device="cpu", url=f"http://127.0.0.1:{port}"), folder)
    role = Role("engine", "tests.rollout.fleet.token_server:TokenServer", (folder, port), threads=1, loads=LOADS)
    engine.process = LocalProcess(role, None)
    engine.server = engine.process.server
    return engine


@asynccontextmanager
async def running_fleet(folder: Path, *makers: Callable[[], Any]) -> AsyncIterator[Fleet]:
    publisher = make_publisher(WeightsConfig(mode="abort"), folder, ServerConfig(name="sglang"))
    fleet = Fleet(makers, publisher, TIMES)
    try:
        await asyncio.wait_for(fleet.start(), PATIENCE)
        yield fleet
    finally:
        await fleet.close()


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_server_that_is_killed_or_stopped_is_replaced_by_one_of_the_same_version(
    folder: Path, sent: signal.Signals
) -> None:
    async with running_fleet(folder, lambda: started(folder), lambda: started(folder)) as fleet:
        await fleet.publish([(name, tensor * 1.05) for name, tensor in read_snapshot(folder)], 4)
        running = await turns_under_way(fleet, "s", 12, 150, lambda: drawing(fleet.engines["engine-0"]) > 0)
        victim: Any = fleet.engines["engine-0"].engine
        os.killpg(victim.server.pid, sent)
        turns = await asyncio.wait_for(asyncio.gather(*running), PATIENCE)
        assert all(len(one.token_ids) == len(one.logprobs) == one.versions[-1].end == 150 for one in turns)
        assert {span.version for one in turns for span in one.versions} == {4}
        await until_ready(fleet)
        assert fleet.engines["engine-0"].engine is not victim
        assert victim.server.exit_status is not None
        assert {member.engine.version() for member in fleet.engines.values()} == {4}
        assert len({await member.receiver.checksum() for member in fleet.engines.values()}) == 1


async def test_a_server_that_is_stopped_while_paused_is_found_without_a_token(folder: Path) -> None:
    async with running_fleet(folder, lambda: started(folder), lambda: started(folder)) as fleet:
        await fleet.pause()
        victim: Any = fleet.engines["engine-0"].engine
        os.killpg(victim.server.pid, signal.SIGSTOP)
        await until(lambda: fleet.engines["engine-0"].engine is not victim)
        await fleet.resume()
        await until_ready(fleet)
