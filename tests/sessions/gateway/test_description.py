"""The API's description is true: a fuzzer that reads it finds no answer that isn't in it, and no 5xx."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentrl.sessions.gateway.http.app import create_app
from agentrl.sessions.gateway.http.server import running
from agentrl.sessions.gateway.limits import Limits
from agentrl.sessions.store.store import Store
from tests.conftest import need
from tests.sessions.gateway.fakes import ScriptedEngine, renderer


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """A gateway in a thread of its own, for clients that block."""
    ready, done = threading.Event(), threading.Event()
    urls: list[str] = []

    async def main() -> None:
        with Store(folder / "s.db") as store:
            app = create_app(ScriptedEngine(json_schema=True), renderer(), store, limits=Limits(body_bytes=200_000))
            async with running(app) as url:
                urls.append(url)
                ready.set()
                await asyncio.to_thread(done.wait, 300)

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    try:
        assert ready.wait(90)
        yield urls[0]
    finally:
        done.set()
        thread.join(30)


@pytest.mark.slow
def test_every_address_is_described_with_its_answers(tmp_path: Path) -> None:
    with served(tmp_path) as url:
        description = httpx.get(f"{url}/openapi.json", timeout=90).json()
    spoken = {path.rpartition("/v1/")[2] for path in description["paths"] if "/v1/" in path}
    assert spoken >= {"chat/completions", "responses", "completions", "messages", "models", "messages/count_tokens"}
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            assert "401" in operation["responses"] or "/sessions/" not in path, path
            assert {"400", "413"} <= set(operation["responses"]) or "requestBody" not in operation, path
            assert "requestBody" in operation or method in ("get", "delete") or path.endswith("/cancel"), path


@pytest.mark.slow
def test_a_fuzzer_finds_no_answer_that_is_not_described(tmp_path: Path) -> None:
    try:
        import schemathesis
    except ImportError:
        need(False, "schemathesis")
        return
    from hypothesis import HealthCheck, settings

    with served(tmp_path) as url:
        access = httpx.post(f"{url}/sessions", json={}, timeout=90).json()
        description = httpx.get(f"{url}/openapi.json", timeout=90).json()
        del description["paths"]["/sessions/{session_id}/close"]  # it would end the fun
        for methods in description["paths"].values():
            for operation in methods.values():
                for parameter in operation.get("parameters", ()):
                    parameter["schema"] = {"type": "string", "enum": [access["id"], "feedfeedfeedfeed"]}
        schema = schemathesis.openapi.from_dict(description)
        schema.config.update(base_url=url)
        answered: dict[int, int] = {}
        checks = _checks(schemathesis)
        for result in schema.get_all_operations():
            operation = result.ok()

            @settings(max_examples=15, deadline=None, database=None, suppress_health_check=list(HealthCheck))
            @_given(operation)
            def fuzz(case: Any) -> None:
                headers = {"authorization": f"Bearer {access['api_key']}"}
                response = case.call(headers=headers)
                answered[response.status_code] = answered.get(response.status_code, 0) + 1
                assert response.status_code < 500, response.text
                case.validate_response(response, checks=checks)

            fuzz()
        assert {200, 400, 401} <= set(answered)


def _given(operation: Any) -> Any:
    from hypothesis import given

    return given(case=operation.as_strategy())


def _checks(schemathesis: Any) -> list[Any]:
    found = schemathesis.checks
    return [found.not_a_server_error, schemathesis.specs.openapi.checks.status_code_conformance]
