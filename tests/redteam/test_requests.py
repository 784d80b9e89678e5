"""Servers answer those for whom they are there, and a wrong request is its client's mistake."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from starlette.responses import PlainTextResponse

from agentrl.retrieval.server import App
from agentrl.sessions.gateway.http.api_error import ApiError
from agentrl.sessions.gateway.http.bodies import Body
from agentrl.sessions.gateway.http.own_host import Hosts, OwnHost
from agentrl.sessions.gateway.limits import Limits
from agentrl.viewer.guard import Guard
from tests.redteam.attack import Attack, ids
from tests.redteam.requests import HOSTS, ORIGINS, SEARCHES, TURNS
from tests.retrieval.test_server import Counting, answer

ANSWER = PlainTextResponse("answered")
APPS: dict[str, Any] = {"serve": OwnHost(ANSWER, Hosts()), "view": Guard(ANSWER, None)}


async def status(app: str, method: str, headers: dict[str, str]) -> int:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(APPS[app]), base_url="http://127.0.0.1:8000") as http:
        return (await http.request(method, "/", headers=headers)).status_code


@pytest.mark.parametrize("app", APPS)
@pytest.mark.parametrize("case", HOSTS, ids=ids(HOSTS))
async def test_no_other_name_is_answered(case: Attack, app: str) -> None:
    for method in ("GET", "POST"):
        given = {"host": case.payload, "origin": f"http://{case.payload}"}
        assert await status(app, method, given) == 421, case.must_not


@pytest.mark.parametrize("app", APPS)
@pytest.mark.parametrize("case", ORIGINS, ids=ids(ORIGINS))
async def test_no_page_of_another_site_is_answered(case: Attack, app: str) -> None:
    own = {"host": "127.0.0.1:8000"}
    assert await status(app, "POST", {**own, "origin": "http://127.0.0.1:8000"}) == 200
    assert await status(app, "POST", {**own, "origin": case.payload}) == 403, case.must_not


@pytest.mark.parametrize("case", SEARCHES, ids=ids(SEARCHES))
async def test_no_wrong_search_is_made(case: Attack) -> None:
    index: Any = Counting()
    assert (await answer(App(index), eval(case.payload)))[0] == 400, case.must_not
    assert index.batches == [], case.must_not


def messages(data: bytes) -> list[Any]:
    body = Body.parse(data, "messages", Limits().depth)
    return body.history.items() if body.history else []


@pytest.mark.parametrize("case", TURNS, ids=ids(TURNS))
def test_no_body_is_more_than_a_clients_mistake(case: Attack) -> None:
    with pytest.raises(ApiError) as refused:
        messages(eval(case.payload))
    assert refused.value.status == 400, case.must_not
