"""What Prometheus scrapes from the gateway."""

from __future__ import annotations

import httpx

from agentrl.prometheus import TYPE
from tests.sessions.gateway.conftest import Serve
from tests.test_prometheus import asked


async def test_the_gateway_says_how_busy_it_is_without_a_key(serve: Serve) -> None:
    async with serve() as served, httpx.AsyncClient(timeout=60) as http:
        answer = await http.get(f"{served.url}/metrics")
    assert (answer.status_code, answer.headers["content-type"]) == (200, TYPE)
    values = dict(line.replace('{model="agentrl"}', "").split() for line in answer.text.splitlines()[1::2])
    assert values["agentrl_gateway_in_flight"] == "0.0"
    assert values["agentrl_engine_ok"] == "1.0"
    assert {"agentrl_gateway_open_sessions", "agentrl_engine_running", "agentrl_engine_version"} <= values.keys()
    assert {name for name, of_run in asked().items() if not of_run} <= values.keys(), "the dashboard's"
