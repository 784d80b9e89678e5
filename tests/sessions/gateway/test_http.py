"""HTTP as few clients speak it: compressed bodies, connections closed by half, HTTP/1.0; and failures of our own."""

from __future__ import annotations

import asyncio
import gc
import gzip
import socket
import weakref
import zlib
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import httpx
import openai
import orjson
import pytest

from agentrl.errors import EngineError
from agentrl.sessions.gateway.limits import Limits
from agentrl.sessions.gateway.wire import chat
from tests.sessions.gateway.conftest import Serve, Served
from tests.sessions.gateway.fakes import ScriptedEngine, assistant, in_turn
from tests.sessions.gateway.test_chat import HI, client
from tests.sessions.gateway.test_other_protocols import claude

BODY = orjson.dumps({"model": "m", "messages": HI})


async def post(served: Served, access: dict[str, str], body: bytes, **headers: str) -> httpx.Response:
    async with httpx.AsyncClient(timeout=60) as http:
        given = {"authorization": f"Bearer {access['api_key']}", **headers}
        return await http.post(f"{access['base_url']}/chat/completions", content=body, headers=given)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("encoding", "packed"),
    [("gzip", gzip.compress(BODY)), ("GZIP", gzip.compress(BODY)), ("deflate", zlib.compress(BODY))],
    ids=["gzip", "GZIP", "deflate"],  # the time is in gzip's bytes: workers would collect different names
)
async def test_compressed_bodies_are_read(serve: Serve, encoding: str, packed: bytes) -> None:
    async with serve() as served:
        access = await served.open()
        reply = await post(served, access, packed, **{"content-encoding": encoding})
        assert (reply.status_code, reply.json()["choices"][0]["message"]["content"]) == (200, "hello")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("encoding", "packed", "status"),
    [
        ("br", BODY, 415),
        ("gzip", BODY, 400),
        ("gzip", gzip.compress(BODY)[:-9], 400),
        ("gzip", gzip.compress(BODY) * 2, 400),
        ("gzip", gzip.compress(b" " * 1_000_001), 413),
    ],
    ids=["unknown", "not compressed", "cut", "two", "bomb"],
)
async def test_bodies_that_can_not_be_decompressed_within_the_limits_are_refused(
    serve: Serve, encoding: str, packed: bytes, status: int
) -> None:
    async with serve(limits=Limits(body_bytes=1_000_000)) as served:
        access = await served.open()
        reply = await post(served, access, packed, **{"content-encoding": encoding})
        assert reply.status_code == status
        assert served.engine.calls == []


def request_head(access: dict[str, str], version: str, body: bytes) -> tuple[tuple[str, int], bytes]:
    host, port = access["base_url"].removeprefix("http://").partition("/")[0].split(":")
    head = (
        f"POST /sessions/{access['id']}/v1/chat/completions HTTP/{version}\r\nhost: x\r\n"
        f"authorization: Bearer {access['api_key']}\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return (host, int(port)), head.encode()


async def whole_reply(access: dict[str, str], body: bytes, version: str = "1.1", half: bool = False) -> bytes:
    """All that a plain socket is sent until the gateway closes it."""
    address, head = request_head(access, version, body)
    reader, writer = await asyncio.open_connection(*address)
    writer.write(head + body)
    if half:
        writer.write_eof()
    try:
        async with asyncio.timeout(120):
            return await reader.read()
    finally:
        writer.close()


async def until_running(served: Served) -> None:
    async with asyncio.timeout(120):
        while not served.engine.running:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.slow
async def test_a_client_that_closed_its_half_of_the_connection_gets_its_reply(serve: Serve, stream: bool) -> None:
    async with serve(ScriptedEngine(chunk=1)) as served:
        access = await served.open()
        served.engine.held = asyncio.Event()
        body = orjson.dumps({"model": "m", "messages": HI, "stream": stream})
        asking = asyncio.create_task(whole_reply(access, body, half=True))
        await until_running(served)
        served.engine.held.set()
        said = await asking
        while said.startswith(interim := b"HTTP/1.1 100 Continue\r\n\r\n"):
            said = said.removeprefix(interim)
        head, _, reply = said.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        assert b"[DONE]" in reply if stream else orjson.loads(reply)["choices"]
        assert len(served.session(access["id"]).nodes) == 2


async def test_one_that_closed_all_of_it_is_noticed_by_what_it_answers(serve: Serve) -> None:
    async with serve() as served:
        access = await served.open()
        served.engine.held = asyncio.Event()
        address, head = request_head(access, "1.1", BODY)
        with socket.create_connection(address) as plain:
            plain.sendall(head + BODY)
            await until_running(served)
        async with asyncio.timeout(120):
            while served.engine.running:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        served.engine.held.set()
        assert served.session(access["id"]).nodes == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.slow
async def test_a_client_of_http_1_0_is_sent_no_chunks(serve: Serve, stream: bool) -> None:
    """The sizes of the chunks stood in the stream's lines: proxies such as nginx's default speak HTTP/1.0."""
    async with serve(ScriptedEngine(in_turn(assistant("hello, how are you")), chunk=1)) as served:
        access = await served.open()
        body = orjson.dumps({"model": "m", "messages": HI, "stream": stream})
        head, _, reply = (await whole_reply(access, body, "1.0")).partition(b"\r\n\r\n")
        assert b"transfer-encoding" not in head
        assert b"connection: close" in head
        if not stream:
            assert orjson.loads(reply)["choices"][0]["message"]["content"] == "hello, how are you"
            return
        events = [line.removeprefix(b"data: ") for line in reply.split(b"\n") if line]
        assert events[-1] == b"[DONE]"
        deltas = [orjson.loads(event)["choices"][0]["delta"] for event in events[:-1]]
        assert "".join(delta.get("content") or "" for delta in deltas) == "hello, how are you"


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("failure", [EngineError("no memory"), RuntimeError("a bug")])
async def test_our_own_failures_are_never_called_overload(serve: Serve, failure: Exception, stream: bool) -> None:
    """Claude Code and others change the model, or wait for minutes, when they are told of overload."""
    async with serve(ScriptedEngine(fail=failure)) as served:
        access = await served.open()
        body: dict[str, Any] = {"model": "m", "max_tokens": 9, "messages": HI, "stream": stream}
        async with httpx.AsyncClient(headers={"x-api-key": access["api_key"]}, timeout=60) as http:
            reply = await http.post(f"{access['base_url']}/messages", json=body)
        assert reply.status_code == (503 if isinstance(failure, EngineError) else 500)
        assert reply.json()["error"]["type"] == "api_error"


@pytest.mark.slow
async def test_what_fails_while_a_request_is_read_is_answered_in_the_protocols_shape(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was a line of plain text, which clients report as an answer that is no JSON."""

    def broken(*_: Any) -> Any:
        raise RuntimeError("a bug")

    monkeypatch.setattr(chat.PARAMETERS, "check", broken)
    async with serve() as served:
        reply = await post(served, await served.open(), BODY)
        assert (reply.status_code, reply.json()["error"]["code"]) == (500, "internal_error")


@pytest.mark.slow
async def test_a_gateway_that_has_ended_keeps_no_engine_in_memory(serve: Serve) -> None:
    """FastAPI caches each endpoint's function for the life of the process: 600 MB of a run's cache stayed with them."""
    async with serve() as served:
        await post(served, await served.open(), BODY)
        engine = weakref.ref(served.engine)
    gc.unfreeze()
    del served
    gc.collect()
    assert engine() is None


class Breaking(ScriptedEngine):
    """Fails when its client has some of a turn."""

    async def generate(self, *request: Any, **options: Any) -> AsyncIterator[Any]:
        chunks = 0
        async for item in super().generate(*request, **options):
            yield item
            chunks += 1
            if chunks == 4:
                raise EngineError("gone")


@pytest.mark.slow
async def test_a_stream_that_breaks_ends_in_an_error_that_each_package_raises(serve: Serve) -> None:
    """Clients of the Responses protocol know an event by its type, which this one had not."""
    async with serve(Breaking(lambda prompt: assistant("a long text of several words"), chunk=2)) as served:
        access = await served.open()
        sdk, model = client(access), {"model": "m", "stream": True}
        for stream in (
            await sdk.chat.completions.create(messages=HI, **model),
            await sdk.responses.create(input="hi", **model),
            await claude(access).messages.create(messages=HI, max_tokens=99, **model),
        ):
            with pytest.raises((openai.APIError, anthropic.APIError), match="gone"):
                [event async for event in stream]
        async with httpx.AsyncClient(timeout=60) as plain:
            headers = {"authorization": f"Bearer {access['api_key']}"}
            body = {"model": "m", "input": "hi", "stream": True}
            reply = await plain.post(f"{access['base_url']}/responses", json=body, headers=headers)
        last = reply.text.strip().splitlines()[-1].removeprefix("data: ")
        error = orjson.loads(last)
        assert (error["type"], error["code"], error["error"]["code"]) == ("error", "engine_error", "engine_error")
        assert not any(node.sampled for node in served.session(access["id"]).nodes)
