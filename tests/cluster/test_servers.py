"""Inference servers that Ray starts on another node: published to over the network, watched, replaced, never left."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentrl import cluster
from agentrl.cluster.wire.forwarding import Forwarder
from agentrl.config import ClusterConfig, FleetConfig, WeightsConfig
from agentrl.errors import ConfigError
from agentrl.rollout.engines import make_engine
from agentrl.rollout.engines.servers.server_settings import ServerConfig
from agentrl.rollout.fleet import make_engines
from agentrl.rollout.workers.engine_access import EngineAccess
from agentrl.train.plan.memory import GIB, engine_memory
from agentrl.train.plan.shapes import shape_of
from agentrl.types import Sampling, Turn, collect
from tests.cluster.test_run import run
from tests.cluster.test_server import alive, until
from tests.rollout.engines import servers

pytestmark = pytest.mark.timeout(900)
FAR = {"engine": {"custom": {"far": 1}}}
"""The second node alone has it."""
SMALL = ServerConfig(name="tests.cluster.small_server:ENGINE", device="cpu")
DRIVER = """
import asyncio, sys, time
from pathlib import Path
from agentrl.rollout.engines import make_engine
from tests.cluster.test_servers import SMALL, generated, opened
async def main():
    with opened(sys.argv[1], None):
        engine = make_engine(SMALL, Path(sys.argv[2]))
        print(await generated(engine), flush=True)
        time.sleep(600)
asyncio.run(main())
"""


def opened(address: str, logs: Path | None) -> Any:
    config = {"name": "ray", "address": address, "resources": FAR}
    return cluster.opened(ClusterConfig.model_validate(config), logs)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "model"
    made.mkdir()
    (made / "config.json").write_text(json.dumps({"vocab_size": 32, "max_position_embeddings": 512}))
    header = json.dumps({"weight": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (made / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    return made


async def generated(engine: Any) -> int:
    """The id of the server's process, which is what it generates."""
    turn: Turn = await collect(engine.generate("s0/0", [1, 2], Sampling(max_new_tokens=16)))
    return int("".join(map(str, turn.token_ids)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "transport", "ready"),
    [
        ("sglang", "distributed", "The server is fired up"),
        ("vllm", "disk", "Application startup complete"),  # on a CPU it has no broadcast
    ],
)
def test_a_run_publishes_to_a_server_on_another_node_by_which_environment_workers_generate_directly(
    ray_nodes: Any, tmp_path: Path, name: str, transport: str, ready: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EngineAccess, "generate", None)
    result = run(
        tmp_path / "run",
        cluster={
            "name": "ray",
            "address": ray_nodes.address,
            "resources": FAR,
            "place_timeout": 60.0,
            "environments": 1,
        },
        engine=servers.config(name, threads=1, python=servers.python(name)).model_dump(exclude_unset=True),
        weights={"transport": transport},
        warm_start={"steps": 0},
        eval={"tasks": 1},
    )
    assert [row["version"] for row in result.metrics] == [1.0, 2.0]
    assert all(0 <= row["probe/abs_max"] < 1e-3 for row in result.metrics)
    assert all(row["status/infra_error"] == 0 for row in result.metrics)
    log = (tmp_path / "run" / "logs" / "engine-0.log").read_text()
    assert ready in log
    if name == "vllm":  # which says exactly what its cache holds; the plan has to say the same
        space = re.search(r"set \((.*)/.*\) GiB for KV cache", log)
        holds = re.search(r"KV cache size: ([\d,]+) tokens", log)
        assert space is not None
        assert holds is not None
        token = engine_memory(shape_of(str(tmp_path / "run" / "model")), 1, 4, 0.0).token
        block = servers.ATTACHED[name]["server"]["block_size"]
        assert int(holds[1].replace(",", "")) == float(space[1]) * GIB // (token * block) * block


@pytest.mark.slow
async def test_a_server_that_dies_on_its_node_is_replaced_there_and_ends_with_the_fleet(
    ray_nodes: Any, folder: Path, tmp_path: Path
) -> None:
    times = FleetConfig(probe_every=60)  # the server's end is noticed on its node first
    with opened(ray_nodes.address, tmp_path / "logs"):
        fleet = make_engines(SMALL, times, WeightsConfig(), folder)
        first = await generated(fleet)
        os.kill(first, signal.SIGKILL)
        log = tmp_path / "logs" / "engine-0.log"
        until(lambda: "the server ended with exit status" in log.read_text(), "its end is not in the log")
        second = await generated(fleet)
        assert second != first
        await fleet.close()
        until(lambda: not alive(second), "it goes on")
    assert (tmp_path / "logs" / "engine-1.log").read_text().splitlines()[1].startswith("serving")


@pytest.mark.slow
def test_where_the_driver_is_killed_the_server_on_another_node_ends(ray_nodes: Any, folder: Path) -> None:
    command = [sys.executable, "-c", DRIVER, ray_nodes.address, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        server = int(driver.stdout.readline())
        assert alive(server)
        driver.kill()
    until(lambda: not alive(server), "it goes on")


@pytest.mark.slow
async def test_what_a_node_lacks_for_a_server_is_told_with_the_setting(ray_nodes: Any, folder: Path) -> None:
    with opened(ray_nodes.address, None):
        engine = make_engine(ServerConfig(name="sglang", device="cpu", python="/nowhere/python"), folder)
        with pytest.raises(ConfigError, match=r"engine\.python='/nowhere/python' is no interpreter"):
            await engine.start()  # type: ignore[attr-defined]


# ---------------------------------------------------------------------------------- what reaches a server


@asynccontextmanager
async def forwarded(key: str) -> AsyncIterator[str]:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            body = await reader.readexactly(int(head.lower().partition(b"content-length:")[2].split()[0]))
            writer.write(f"HTTP/1.1 200 OK\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    forwarder = Forwarder(server.sockets[0].getsockname()[1], key)
    yield f"http://127.0.0.1:{await forwarder.listen('127.0.0.1')}"
    await forwarder.close()
    server.close()


async def test_requests_with_the_key_reach_the_server_byte_for_byte_on_one_connection_after_the_other() -> None:
    body = os.urandom(300_000)
    async with forwarded("secret") as url, httpx.AsyncClient(headers={"authorization": "Bearer secret"}) as client:
        answers = [await client.post(url, content=body) for _ in range(3)]
    assert all(answer.content == body for answer in answers)


@pytest.mark.parametrize("sent", [{}, {"authorization": "Bearer other"}, {"x": "Bearer secret"}], ids=str)
async def test_without_the_key_nothing_reaches_the_server(sent: dict[str, str]) -> None:
    async with forwarded("secret") as url, httpx.AsyncClient() as client:
        answer = await client.post(url, content=b"hello", headers=sent)
    assert (answer.status_code, answer.content) == (401, b"")


async def test_what_is_no_http_is_disconnected() -> None:
    async with forwarded("secret") as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(os.urandom(1 << 18).replace(b"\r", b"x"))
        with suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 60) == b""
        writer.close()
