"""`agentrl serve` for other machines: HTTPS, a key, and addresses that a client there can use."""

from __future__ import annotations

import contextlib
import os
import re
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import orjson
import pytest
import trustme

from agentrl.config.secrets import HIDDEN
from agentrl.errors import ConfigError
from agentrl.models.tiny import build, render
from agentrl.rollout.workers.serve_workers import serve_command
from agentrl.sessions.gateway import Limits
from agentrl.sessions.gateway.http.app import create_app
from agentrl.sessions.gateway.http.server import running
from agentrl.sessions.store.store import Store
from tests.cluster.test_server import until
from tests.sessions.gateway.fakes import ScriptedEngine, renderer
from tests.sessions.gateway.test_workers import ENGINE, PATH
from tests.test_tracing import Collector


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def collector() -> Iterator[Collector]:
    server = Collector()
    server.answers.set()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def words(authority: trustme.CA, tmp_path: Path) -> dict[str, str]:
    issued = authority.issue_cert("127.0.0.1", "localhost")
    issued.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    for number, blob in enumerate(issued.cert_chain_pems):
        blob.write_to_path(str(tmp_path / "certificate.pem"), append=number > 0)
    return {"tls_certificate": str(tmp_path / "certificate.pem"), "tls_key": str(tmp_path / "key.pem")}


@pytest.fixture
def trusting(authority: trustme.CA) -> Iterator[httpx.Client]:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    with httpx.Client(verify=context, timeout=90) as client:
        yield client


@contextlib.contextmanager
def serving(folder: Path, *words: str) -> Iterator[list[str]]:
    """`agentrl serve` at all interfaces, in `folder`; what it says until it listens."""
    (folder / "engine.py").write_text(ENGINE)
    model = build(folder / "model", [render([{"role": "user", "content": "What is 2 + 2?"}])])
    fixed = [f"model={model}", "port=0", "host=0.0.0.0", "engine=engine.py:engine", "engine.url=http://127.0.0.1:9"]
    command = [sys.executable, "-u", "-m", "agentrl", "serve", *fixed, *words]
    env = {**os.environ, "PYTHONPATH": PATH, "OTEL_BSP_SCHEDULE_DELAY": "200"}
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        try:
            yield [process.stdout.readline(), process.stdout.readline()]
        finally:
            process.kill()


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_client_that_trusts_the_authority_has_a_conversation_and_no_other_gets_an_answer(
    workers: int, tmp_path: Path, words: dict[str, str], trusting: httpx.Client, collector: Collector
) -> None:
    """The turn is a span at the collector and a line of the log, neither of which has a key."""
    watched = {"tracing": collector.url, "log": "log.jsonl", "engine.api_key": "sk-planted"}
    settings = [f"{name}={value}" for name, value in {"workers": workers, **words, **watched}.items()]
    with serving(tmp_path, *settings) as said:
        key = said[0].split()[-1]
        port = re.findall(r"https://\S+?:(\d+)", said[1])[0]
        url = f"https://127.0.0.1:{port}"
        assert trusting.post(f"{url}/sessions", json={}).status_code == 401
        headers = {"authorization": f"Bearer {key}"}
        session = trusting.post(f"{url}/sessions", json={}, headers=headers).raise_for_status().json()
        assert session["base_url"].startswith("https://127.0.0.1:")
        with openai.OpenAI(base_url=session["base_url"], api_key=session["api_key"], http_client=trusting) as client:
            reply = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
        assert reply.choices[0].message.content == "hello"
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            httpx.get(f"{url}/health", trust_env=False, timeout=90)
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{url.replace('https', 'http')}/health", trust_env=False, timeout=90)
        until(lambda: any(b"generate" in body for _, body in collector.bodies), "no span of the turn came")
    span = next(body for _, body in collector.bodies if b"generate" in body)
    assert session["id"].encode() in span
    logged = [orjson.loads(line) for line in (tmp_path / "log.jsonl").read_bytes().splitlines()]
    (line,) = [line["message"] for line in logged if line["logger"] == "agentrl.hello"]
    assert line.startswith(session["id"])
    assert line.endswith(f"with the key {HIDDEN}")
    assert b"sk-planted" not in span


@pytest.mark.slow
async def test_at_all_interfaces_a_session_is_reached_under_the_address_that_its_client_used(tmp_path: Path) -> None:
    with Store(tmp_path / "sessions.db") as store:
        app = create_app(ScriptedEngine(), renderer(), store, limits=Limits(), secret=b"s" * 32)
        async with running(app, host="0.0.0.0") as url, httpx.AsyncClient(trust_env=False, timeout=60) as http:
            reachable = url.replace("0.0.0.0", "localhost")
            session = (await http.post(f"{reachable}/sessions", json={})).json()
    assert session["base_url"] == f"{reachable}/sessions/{session['id']}/v1"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"tls_key": None}, "tls_key=None: HTTPS needs both"),
        ({"tls_key": "missing.pem"}, "tls_key=missing.pem: not a certificate and its private key"),
        ({"tls_certificate": os.devnull}, "not a certificate and its private key"),
        ({"log": "no folder/log.jsonl"}, r"log='no folder/log\.jsonl': can't write there: No such file"),
    ],
)
def test_files_that_are_no_certificate_and_its_key_or_no_log_are_refused_by_name(
    changed: dict[str, str | None], message: str, words: dict[str, str]
) -> None:
    with pytest.raises(ConfigError, match=message):
        serve_command({"model": "tiny", "port": 0, **words, **changed}, None)  # type: ignore[arg-type]
