"""A reward service is one file: examples/plugins/reward_service.py."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import agentrl
from agentrl.errors import InfraError
from agentrl.sessions.store.store import Store
from agentrl.types import Status

NAME = f"{Path(__file__).parents[2]}/examples/plugins/reward_service.py:Service"


class Service(ThreadingHTTPServer):
    """Scores 0.25; the first `failures` calls are refused."""

    failures = 0
    calls: list[dict[str, object]]


class Handler(BaseHTTPRequestHandler):
    server: Service

    def do_POST(self) -> None:
        self.server.calls.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        self.send_response(503 if len(self.server.calls) <= self.server.failures else 200)
        self.end_headers()
        self.wfile.write(b'{"score": 0.25}')

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def service() -> Iterator[Service]:
    server = Service(("127.0.0.1", 0), Handler)
    server.calls = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def settings(service: Service, folder: Path, **more: object) -> dict[str, object]:
    judge = {"name": NAME, "url": f"http://127.0.0.1:{service.server_port}/score", "pause": 0.001, **more}
    run = {"policy": "expert", "eval.tasks": 1, "run_dir": str(folder)}
    return {**run, "rewards": {"judge": judge}}


@pytest.mark.slow
def test_its_score_counts_beside_the_environments_own_and_a_failed_call_is_repeated(
    service: Service, tmp_path: Path
) -> None:
    service.failures = 2
    result = agentrl.evaluate("calculator", **settings(service, tmp_path / "run", weight=2.0))
    with Store(tmp_path / "run" / "sessions.db", read_only=True) as store:
        (session,) = store.sessions()
    assert session.rewards["judge"] == 0.25
    own = sum(value for name, value in session.rewards.items() if name != "judge")
    assert (session.status, session.reward) == (Status.COMPLETED, own + 0.5)
    assert result.worked
    assert len(service.calls) == 3
    assert {"task", "messages"} == set(service.calls[-1])


@pytest.mark.usefixtures("without_pauses")
@pytest.mark.slow
def test_a_service_that_is_down_ends_the_session_as_an_infra_error_that_is_retried(
    service: Service, tmp_path: Path
) -> None:
    service.failures = 100
    with pytest.raises(InfraError, match="reward service"):
        agentrl.evaluate("calculator", **settings(service, tmp_path / "run", attempts=1), **{"rollout.retries": 1})
    assert len(service.calls) >= 2
