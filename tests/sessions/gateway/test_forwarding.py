"""Requests for listed models go to the address of the settings, with its key, and leave nothing in the session."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import openai
import pytest
from pydantic import SecretStr

from agentrl.config.gateway import ForwardConfig
from agentrl.sessions.gateway.http.forwarding import COUNTER
from agentrl.sessions.gateway.http.listener import address, listening, served
from agentrl.sessions.gateway.limits import Limits
from tests.sessions.gateway.conftest import Serve
from tests.sessions.gateway.test_chat import HI, client

KEY = "sk-of-the-setting"


class Other:
    """Another server: it repeats what it was asked, or streams."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, bytes]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        headers = dict(scope["headers"])
        self.asked.append((scope["path"], headers.get(b"authorization", b"").decode(), body))
        kind = b"text/event-stream" if b'"stream":true' in body else b"application/json"
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
        if kind == b"application/json":
            text = (
                b'{"object": "list", "data": [{"object": "embedding", "index": 0, "embedding": [0.5]}], "model": "e"}'
            )
            await send({"type": "http.response.body", "body": text})
            return
        for piece in (b'data: {"id": "a", "choices": []}\n\n', b"data: [DONE]\n\n"):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


@pytest.mark.slow
async def test_embeddings_and_other_models_are_forwarded_with_the_settings_key(serve: Serve) -> None:
    other, listener = Other(), listening("127.0.0.1", 0)
    url = f"{address(listener, '127.0.0.1', None)}/v1"
    forward = ForwardConfig(url=url, models=("e", "judge"), key=SecretStr(KEY))
    async with served(other, listener, Limits()), serve(forward=forward) as own:
        access = await own.open()
        async with client(access) as asking:
            found = await asking.embeddings.create(model="e", input=["a", "ü"], encoding_format="float")
            assert found.data[0].embedding == [0.5]
            stream = await asking.chat.completions.create(model="judge", messages=HI, stream=True)
            assert [chunk.id async for chunk in stream] == ["a"]
            own_reply = await asking.chat.completions.create(model="m", messages=HI)
            assert own_reply.choices[0].message.content == "hello"
            with pytest.raises(openai.NotFoundError, match=r"gateway\.forward"):
                await asking.embeddings.create(model="m", input="a")
        session = own.session(access["id"])
        assert session.counters == {COUNTER: 2}
        assert len(session.nodes) == 2
    assert [(path, key) for path, key, _ in other.asked] == [
        ("/v1/embeddings", f"Bearer {KEY}"),
        ("/v1/chat/completions", f"Bearer {KEY}"),
    ]
    assert '"input":["a","ü"]' in other.asked[0][2].decode()
    assert access["api_key"] not in str(other.asked)
    assert KEY not in repr(forward)
    listener.close()


@pytest.mark.slow
async def test_forwarded_requests_and_turns_share_the_limits_of_requests_in_progress(serve: Serve) -> None:
    """A program's embeddings had no limit, and thousands at once went to the other server."""
    asked, answer = asyncio.Event(), asyncio.Event()

    class Waiting(Other):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            asked.set()
            await answer.wait()
            await super().__call__(scope, receive, send)

    listener = listening("127.0.0.1", 0)
    forward = ForwardConfig(url=f"{address(listener, '127.0.0.1', None)}/v1", models=("e",))
    limits = Limits(session_in_flight=1)
    async with served(Waiting(), listener, Limits()), serve(forward=forward, limits=limits) as own:
        access = await own.open()
        async with client(access) as asking:
            first = asyncio.ensure_future(asking.embeddings.create(model="e", input="a"))
            await asked.wait()
            for other in (
                asking.embeddings.create(model="e", input="b"),
                asking.chat.completions.create(model="m", messages=HI),
            ):
                with pytest.raises(openai.RateLimitError, match="in this session"):
                    await other
            answer.set()
            assert (await first).data
            assert (await asking.chat.completions.create(model="m", messages=HI)).choices
        assert own.session(access["id"]).counters[COUNTER] == 1
    listener.close()


@pytest.mark.slow
async def test_a_server_that_is_gone_is_a_failure_that_may_be_tried_again(serve: Serve, tmp_path: Path) -> None:
    forward = ForwardConfig(url="http://127.0.0.1:9/v1", models=("e",))
    async with serve(forward=forward) as own:
        access = await own.open()
        async with client(access) as asking:
            with pytest.raises(openai.APIStatusError) as caught:
                await asking.embeddings.create(model="e", input="a")
    assert (caught.value.status_code, caught.value.code) == (503, "forward_failed")
    assert "ConnectError" in caught.value.message
