"""Requests that are long by number and not by size: refused by a limit, or read beside the event loop."""

from __future__ import annotations

import threading
from typing import Any

import httpx
import pytest

from agentrl.sessions.gateway.limits import Limits
from agentrl.sessions.gateway.session_state import SessionState
from tests.sessions.gateway.conftest import Serve
from tests.sessions.gateway.fakes import ScriptedEngine


async def post(access: dict[str, str], body: dict[str, Any], path: str = "chat/completions") -> httpx.Response:
    headers = {"authorization": f"Bearer {access['api_key']}"}
    async with httpx.AsyncClient(timeout=60) as http:
        return await http.post(f"{access['base_url']}/{path}", json={"model": "m", **body}, headers=headers)


def said(count: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": "a"}] * count


@pytest.mark.slow
async def test_a_request_with_too_many_messages_is_refused(serve: Serve) -> None:
    async with serve(ScriptedEngine(), limits=Limits(messages=100)) as served:
        access = await served.open()
        refused = await post(access, {"messages": said(101)})
        assert refused.status_code == 413
        assert "101 messages" in refused.text
        assert (await post(access, {"messages": said(100)})).status_code == 200


@pytest.mark.slow
async def test_many_short_messages_are_matched_beside_the_event_loop(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """100,000 of them took 10 s, in which nothing else was answered."""
    here: list[bool] = []
    match = SessionState.match

    def noted(self: SessionState, *args: Any) -> Any:
        here.append(threading.current_thread() is threading.main_thread())
        return match(self, *args)

    monkeypatch.setattr(SessionState, "match", noted)
    async with serve(ScriptedEngine()) as served:
        access = await served.open()
        assert (await post(access, {"messages": said(2000)})).status_code in (200, 400)
        assert here
        assert not any(here)


@pytest.mark.slow
@pytest.mark.parametrize("depth", [101, 400, 700])
async def test_parameters_that_nest_deeply_are_the_clients_mistake(serve: Serve, depth: int) -> None:
    """A schema 400 deep was answered with 500."""
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": schema}
    async with serve(ScriptedEngine()) as served:
        access = await served.open()
        function = {"name": "f", "parameters": schema}
        for body in (
            {"tools": [{"type": "function", "function": function}]},
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}},
            {"metadata": schema},
        ):
            refused = await post(access, {"messages": said(1), **body})
            assert refused.status_code == 400, refused.text


@pytest.mark.slow
async def test_a_wrong_key_costs_no_reading_of_the_store(serve: Serve, loaded_sessions: list[str]) -> None:
    async with serve(ScriptedEngine()) as served:
        access, other = await served.open(), await served.open()
        for key in ("sk-", "sk-a-b", other["api_key"], access["api_key"] + "0", access["api_key"].upper()):
            wrong = {**access, "base_url": access["base_url"].replace(access["id"], "elsewhere"), "api_key": key}
            assert (await post(wrong, {"messages": said(1)})).status_code == 401
            assert (await post({**access, "api_key": key}, {"messages": said(1)})).status_code == 401
        assert loaded_sessions == []
