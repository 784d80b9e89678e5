"""Two hundred streams at once without an error; ten thousand turns without growing."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import Any

import httpx
import orjson
import psutil
import pytest

from agentrl.sessions.gateway.exchange import Parts
from agentrl.sessions.gateway.gateway import Gateway
from agentrl.sessions.gateway.limits import Limits
from agentrl.sessions.gateway.rewards import CloseBody
from agentrl.sessions.store.store import Store
from agentrl.sessions.tree.turn_generator import TurnGenerator
from agentrl.types import Session, Task
from tests.sessions.gateway.conftest import Serve
from tests.sessions.gateway.fakes import ScriptedEngine, assistant, in_turn, renderer
from tests.sessions.gateway.inside import exchange, turn_request
from tests.sessions.gateway.test_drift import put_together
from tests.sessions.gateway.test_sessions import until

SESSIONS, TURNS = 200, 2


@pytest.mark.slow
async def test_two_hundred_sessions_stream_side_by_side_without_an_error(serve: Serve) -> None:
    words = "some words that take their time "
    async with serve(ScriptedEngine(in_turn(assistant(words)), held=asyncio.Event())) as served:
        limits = httpx.Limits(max_connections=SESSIONS)
        async with httpx.AsyncClient(timeout=300, limits=limits) as http:

            async def converse(number: int) -> str:
                access = (await http.post(f"{served.url}/sessions", json={"seed": number})).json()
                headers = {"authorization": f"Bearer {access['api_key']}"}
                messages: list[Any] = [{"role": "user", "content": f"I am {number}"}]
                for _ in range(TURNS):
                    body = {"model": "m", "messages": messages, "stream": True}
                    url = f"{access['base_url']}/chat/completions"
                    async with http.stream("POST", url, json=body, headers=headers) as answer:
                        assert answer.status_code == 200
                        text = b"".join([piece async for piece in answer.aiter_bytes()]).decode()
                    assert text.endswith("data: [DONE]\n\n")
                    message = put_together(text)
                    assert message["content"] == words
                    messages += [message, {"role": "user", "content": "more"}]
                return access["id"]

            async def release() -> None:
                await until(lambda: served.engine.running == SESSIONS, 120)
                served.engine.held.set()

            *ids, _ = await asyncio.gather(*(converse(number) for number in range(SESSIONS)), release())
        for id_ in ids:
            session = served.session(id_)
            assert len(session.nodes) == 2 * TURNS
            assert session.counters == {"gateway/clean": TURNS - 1}
        await until(lambda: not served.gateway.in_flight)  # a response is let go of after its last byte was read here


class SmallCache(Store):
    """At its usual limit SQLite's cache of pages fills over a whole test, which would pass for growth."""

    cache_kib = 1024


@pytest.mark.slow
async def test_memory_stays_flat_over_ten_thousand_turns(tmp_path: Path) -> None:
    """Sessions come and go; what is sealed is in the store alone."""
    engine = ScriptedEngine(in_turn(assistant("a reply of a few words")))
    with SmallCache(tmp_path / "s.db") as store:
        gateway = Gateway(Parts(TurnGenerator(renderer(), engine), Limits()), store)  # type: ignore[arg-type]

        async def session(number: int) -> None:
            access = await gateway.open(Session(f"s{number}", Task(id="t")))
            history: list[Any] = [{"role": "user", "content": "hello"}]
            for _ in range(20):
                entry = gateway.entry(access.id, access.api_key)
                made, _ = await exchange(gateway, entry, turn_request(history))
                echo = orjson.loads(made.choices[0].message.model_dump_json(exclude_none=True))
                history += [echo, {"role": "user", "content": "more"}]
            await gateway.close(access.id, access.api_key, CloseBody(reward=1.0))
            engine.calls.clear()

        process = psutil.Process()
        sizes = []
        for hundred in range(0, 500, 100):
            for first in range(hundred, hundred + 100, 20):
                await asyncio.gather(*map(session, range(first, first + 20)))
            gc.collect()
            sizes.append(process.memory_info().rss / 2**20)
        assert gateway.entries == {}
        assert len(store.ids()) == 500
        assert sizes[-1] - sizes[0] < 12, sizes
        await gateway.aclose()
