"""`agentrl serve` answers requests that are meant for it: not a site whose name was pointed here, nor its pages."""

from __future__ import annotations

import socket

import httpx
import pytest
from starlette.responses import PlainTextResponse

from agentrl.sessions.gateway.http.own_host import Hosts, OwnHost

APP = OwnHost(PlainTextResponse("answered"), Hosts(["gateway.example"]))


async def status(headers: dict[str, str], method: str = "POST") -> int:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(APP), base_url="http://127.0.0.1:8000") as http:
        return (await http.request(method, "/sessions", headers=headers)).status_code


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1:8000", "localhost:8000", "[::1]:8000", "10.0.0.7", "gateway.example", "Gateway.Example.:443"],
)
async def test_this_machines_names_addresses_and_given_names_are_answered(host: str) -> None:
    assert await status({"host": host}) == 200
    assert await status({"host": host, "origin": f"http://{host}"}) == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example"]
)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
async def test_a_name_that_was_pointed_here_is_refused(host: str, method: str) -> None:
    assert await status({"host": host}, method) == 421


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1:8001", "https://127.0.0.1:8000.evil"]
)
async def test_a_page_of_another_site_is_refused(origin: str) -> None:
    assert await status({"host": "127.0.0.1:8000", "origin": origin}) == 403


async def test_the_machines_own_name_is_known() -> None:
    assert await status({"host": f"{socket.gethostname()}:8000"}) == 200
