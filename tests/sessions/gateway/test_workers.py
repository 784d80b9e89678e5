"""`agentrl serve workers=2`: each session belongs to one process, whichever a request reaches and whichever ends."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest

from agentrl.errors import ConfigError
from agentrl.models.tiny import build, render
from agentrl.rollout.workers.serve_workers import serve_command
from agentrl.sessions.gateway.http.listener import listening, serve_app
from agentrl.sessions.gateway.limits import Limits
from agentrl.sessions.gateway.workers import Front, SessionShard, new_session_id, worker_of
from agentrl.sessions.store.store import Store

ENGINE = """
import logging

from agentrl.rollout.engines.servers.server_settings import ServerConfig
from agentrl.sessions.renderers import get_renderer
from agentrl.types import FinishReason, Message, Turn, VersionSpan
from tests.sessions.gateway.fakes import ScriptedEngine


class Hello(ScriptedEngine):
    async def generate(self, request_id, input_ids, sampling, deadline=None):
        logging.getLogger("agentrl.hello").info("%s with the key %s", request_id, self.key)
        ids = tuple(self.renderer.turn(Message(role="assistant", content="hello")))
        yield Turn(ids, (-0.5,) * len(ids), (VersionSpan(1, 0, len(ids)),), FinishReason.STOP, ids[-1])


def engine(path, config, tokenizer):
    made = Hello()
    made.renderer, made.key = get_renderer(path), config.api_key
    return made


engine.settings = ServerConfig
"""
"""Says hello, and its key to the log; what a server that all workers attach to would do at `engine.url`."""
PATH = os.pathsep.join(entry for entry in sys.path if entry)


def test_each_session_belongs_to_one_worker_and_new_ones_are_made_for_it() -> None:
    shards = [SessionShard(number, (1, 2, 3)) for number in range(3)]
    for shard in shards:
        made = [new_session_id(shard) for _ in range(20)]
        assert all(shard.has(one) and worker_of(one, 3) == shard.number for one in made)
        assert not any(other.has(one) for one in made for other in shards if other is not shard)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "workers=2 needs an engine that runs already"),
        ({"fleet": {"urls": ["http://127.0.0.1:9"]}, "store": ":memory:"}, "can't be shared"),
        ({"port": 65535}, "port=65536: nothing can listen there"),
    ],
)
def test_what_several_processes_cannot_share_is_refused_by_name(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        serve_command({"model": "tiny", "workers": 2, "port": 0, **settings}, None)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("w") / "model", [render([{"role": "user", "content": "What is 2 + 2?"}])])


@pytest.fixture
def server(tmp_path: Path, model: Path) -> Iterator[subprocess.Popen[str]]:
    (tmp_path / "engine.py").write_text(ENGINE)
    words = [f"model={model}", "port=0", "workers=2", "engine=engine.py:engine", "engine.url=http://127.0.0.1:9"]
    command = [sys.executable, "-u", "-m", "agentrl", "serve", *words]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": PATH}
    ) as process:
        yield process
        process.kill()


def eventually(holds: Callable[[], bool], what: str, seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def port_of(url: str) -> int:
    return httpx.URL(url).port or 0


@pytest.mark.slow
def test_sessions_stay_with_their_worker_through_wrong_ports_and_its_death_and_nothing_is_left_at_the_end(
    server: subprocess.Popen[str], tmp_path: Path
) -> None:
    assert server.stdout is not None
    line = server.stdout.readline()
    url = re.findall(r"http://\S+?:\d+", line)[0]
    with httpx.Client(timeout=90) as http:
        opened = [http.post(f"{url}/sessions", json={}).raise_for_status().json() for _ in range(6)]
        assert Counter(Counter(port_of(one["base_url"]) for one in opened).values()) == {3: 2}  # dealt in turn
        first = opened[0]
        own, other = port_of(first["base_url"]), port_of(opened[1]["base_url"])
        key = {"authorization": f"Bearer {first['api_key']}"}
        history = [{"role": "user", "content": "hi"}]

        def turn(base: str) -> httpx.Response:
            return http.post(f"{base}/chat/completions", json={"model": "m", "messages": history}, headers=key)

        said = turn(first["base_url"]).raise_for_status().json()["choices"][0]["message"]
        assert said["content"] == "hello"
        history += [said, {"role": "user", "content": "again"}]
        for wrong in (other, port_of(url)):
            answer = turn(first["base_url"].replace(f":{own}/", f":{wrong}/"))
            where = f"{first['base_url']}/chat/completions?api_key={first['api_key']}"
            assert (answer.status_code, answer.headers["location"]) == (307, where)
            assert f"it is at http://127.0.0.1:{own}" in answer.json()["error"]["message"]
            with openai.OpenAI(
                base_url=str(answer.url).removesuffix("/chat/completions"), api_key=first["api_key"]
            ) as client:
                listed = client.models.list()  # a client that leaves `Authorization` out when it follows a redirect
            assert listed.data

        workers = psutil.Process(server.pid).children()
        assert len(workers) == 2
        dead = next(worker for worker in workers if own in {c.laddr.port for c in worker.net_connections("tcp")})
        dead.send_signal(signal.SIGKILL)
        eventually(lambda: not dead.is_running() or dead.status() == psutil.STATUS_ZOMBIE, "it was killed")
        with httpx.Client(timeout=90, transport=httpx.HTTPTransport(retries=3)) as fresh:
            answer = fresh.post(
                f"{first['base_url']}/chat/completions", json={"model": "m", "messages": history}, headers=key
            )
        assert answer.raise_for_status().json()["choices"][0]["message"]["content"] == "hello"
        tree = http.get(f"{url}/sessions/{first['id']}", headers=key, follow_redirects=True).raise_for_status().json()
        assert len(tree["nodes"]) == 4  # one path: the new process went on from the stored turn
        eventually(lambda: http.get(f"{url}/health").json()["ok"], "healthy again")
        workers = psutil.Process(server.pid).children()
        assert len(workers) == 2

    server.send_signal(signal.SIGINT)
    assert server.wait(240) == 0
    eventually(lambda: not any(worker.is_running() for worker in workers), "no worker outlives the server")
    with Store(tmp_path / "sessions.db") as store:
        assert set(store.ids()) == {one["id"] for one in opened}


@pytest.mark.slow
def test_the_workers_end_with_the_process_that_started_them_however_it_ends(server: subprocess.Popen[str]) -> None:
    assert server.stdout is not None
    url = re.findall(r"http://\S+?:\d+", server.stdout.readline())[0]
    assert httpx.get(f"{url}/health", timeout=90).json()["ok"]
    workers = psutil.Process(server.pid).children(recursive=True)
    assert len(workers) >= 2
    server.kill()
    _, left = psutil.wait_procs(workers, timeout=90)
    assert left == []


async def test_a_client_with_an_empty_key_gets_a_session_from_the_front_too() -> None:
    """It sends `Bearer ` with nothing behind it, which was no header that could be forwarded."""

    async def worker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b'HTTP/1.1 201 Created\r\ncontent-length: 13\r\n\r\n{"id": "one"}')
        writer.close()

    server = await asyncio.start_server(worker, "127.0.0.1", 0)
    front = Front("127.0.0.1", [server.sockets[0].getsockname()[1]], lambda number: True, 1000)
    entrance = listening("127.0.0.1", 0)
    try:
        async with serve_app(front, entrance, Limits()):
            reader, writer = await asyncio.open_connection(*entrance.getsockname())
            writer.write(b"POST /sessions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer \r\ncontent-length: 0\r\n\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 201 ")
            writer.close()
    finally:
        await front.aclose()
        entrance.close()
        server.close()
