"""Control calls: whatever a server refuses is its own failure, told in its words."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, suppress
from pathlib import Path

import orjson
import pytest

from agentrl.errors import EngineError
from agentrl.rollout.engines.servers.connections import IDLE_SECONDS
from agentrl.rollout.engines.servers.http import Http
from tests.rollout.engines import servers

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(serve: Serve) -> AsyncIterator[Http]:
    """A client of a server whose connections are served so."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    http = Http(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    try:
        yield http
    finally:
        await http.close()
        server.close()


async def request(reader: asyncio.StreamReader) -> bytes:
    """The next request's head; its body is read as well."""
    head = await reader.readuntil(b"\r\n\r\n")
    await reader.readexactly(int(head.partition(b"content-length: ")[2].split(b"\r\n")[0]))
    return head


def answering(status: int, body: object) -> AbstractAsyncContextManager[Http]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = orjson.dumps(body)
        await request(reader)
        writer.write(b"HTTP/1.1 %d So\r\nContent-Length: %d\r\n\r\n%s" % (status, len(data), data))
        writer.close()

    return serving(serve)


@pytest.mark.parametrize("name", ["sglang", "vllm"])
def test_a_server_of_ours_keeps_idle_connections_far_longer_than_its_clients_use_them(name: str, folder: Path) -> None:
    """Both had about 5 s: a request on a connection that a busy server was just closing was lost."""
    engine = servers.attached(name, folder, "http://127.0.0.1:9")
    ((kept,),) = [[float(value) for key, value in engine._environment().items() if key.endswith("KEEP_ALIVE")]]
    assert kept > 100 * IDLE_SECONDS


@pytest.mark.parametrize("body", [{"success": True}, {"status": "ok"}, []])
async def test_a_control_call_that_is_not_refused_returns(body: object) -> None:
    async with answering(200, body) as http:
        await http.do("/continue_generation", {})


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (200, {"success": False, "message": "requests are running"}, "/flush_cache refused: requests are running"),
        (200, {"success": False, "why": "asleep"}, "asleep"),
        (400, {"error": "no such group"}, "no such group"),
        (500, {"error": "out of memory"}, "out of memory"),
    ],
)
async def test_a_refused_control_call_is_the_engines_failure(status: int, body: object, says: str) -> None:
    async with answering(status, body) as http:
        with pytest.raises(EngineError, match=says):
            await http.do("/flush_cache")


async def test_whatever_a_model_writes_an_event_ends_where_its_line_does() -> None:
    """Among what splits a text into lines elsewhere: NEL, the Unicode separators, the ASCII ones, a form feed."""
    texts = ["a\u0085b\u2028c\u2029d", "\x1c\x1d\x1e\x0b\x0c", "one\ntwo\r\nthree\r", "é" * 3, ""]
    stream = b"".join(b"data: " + json.dumps({"text": t}, ensure_ascii=False).encode() + b"\n\n" for t in texts)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
        for at in range(len(stream)):  # cut between any two bytes
            writer.write(stream[at : at + 1])
            await writer.drain()
        writer.write(b"data: [DONE]\r\n\r\n")
        writer.close()

    async with serving(serve) as http:
        assert [event["text"] async for events in http.events("/generate", {}) for event in events] == texts


BODY = orjson.dumps({"weights": "x" * 300})
FRAMINGS = {
    "sized": b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY),
    "interim": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(BODY), BODY),
    "chunked": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"a\r\n%s\r\n%X;q=1\r\n%s\r\n0\r\nx-trailer: 1\r\n\r\n" % (BODY[:10], len(BODY) - 10, BODY[10:]),
}


@pytest.mark.parametrize("framing", FRAMINGS)
@pytest.mark.parametrize("at_once", [1, 7, 10_000])
@pytest.mark.slow
async def test_answers_are_read_wherever_they_are_cut_and_their_connection_is_used_again(
    framing: str, at_once: int
) -> None:
    connections = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        with suppress(asyncio.IncompleteReadError):
            while await request(reader):
                for at in range(0, len(FRAMINGS[framing]), at_once):
                    writer.write(FRAMINGS[framing][at : at + at_once])
                    await writer.drain()
                    await asyncio.sleep(0)
        writer.close()

    async with serving(serve) as http:
        for _ in range(3):
            assert await http.get("/weights") == orjson.loads(BODY)
        assert await asyncio.gather(http.get("/weights"), http.get("/weights")) == [orjson.loads(BODY)] * 2
    assert len(connections) == 2  # a second one for two requests at once


async def test_a_server_that_sends_more_than_an_answer_is_not_asked_on_that_connection_again() -> None:
    served = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(await request(reader))
        writer.write(FRAMINGS["sized"] + b"HTTP/1.1 404 Lost\r\ncontent-length: 4\r\n\r\nlost")
        await reader.read()
        writer.close()

    async with serving(serve) as http:
        for _ in range(2):
            assert await http.get("/weights") == orjson.loads(BODY)
    assert len(served) == 2


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\n{}",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nmany\r\n{}\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{}\r\n0\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
    ],
)
async def test_an_answer_that_breaks_off_or_is_no_http_is_the_engines_failure(answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(answer)
        writer.close()

    async with serving(serve) as http:
        with pytest.raises(EngineError, match="BrokenConnection"):
            await http.get("/model_info")


async def test_a_stream_that_is_left_early_closes_its_connection_and_the_next_request_has_another() -> None:
    closed = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: {}\n\n")
        await reader.read()
        closed.set()
        writer.close()

    async with serving(serve) as http:
        for _ in range(2):
            async with aclosing(http.events("/generate", {})) as events:
                assert await anext(events) == [{}]
            await closed.wait()
            closed.clear()


async def test_a_connection_that_the_server_closed_or_that_is_idle_for_long_is_not_used_again() -> None:
    served, left = [], asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(await request(reader))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        if len(served) > 1:
            await reader.read()
        writer.close()
        await writer.wait_closed()
        left.set()

    async with serving(serve) as http:
        assert await http.get("/model_info") == {}
        await left.wait()
        while any(one.usable for one in http.connections.idle):  # noqa: ASYNC110 (it has no event for it)
            await asyncio.sleep(0)
        assert await http.get("/model_info") == {}
        http.connections.idle_seconds = -1.0
        assert await http.get("/model_info") == {}
    assert len(served) == 3


async def test_a_server_that_does_not_answer_in_time_is_given_up_and_one_that_is_not_there_is_named() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with serving(serve) as http:
        with pytest.raises(EngineError, match=r"GET .*/model_info: no answer within 0.01 s"):
            await http.get("/model_info", timeout=0.01)
    with pytest.raises(EngineError, match="BrokenConnection: the connections were closed"):
        await http.get("/model_info")
    with pytest.raises(EngineError, match="the server has no address yet"):
        await Http("").get("/model_info")
    with pytest.raises(EngineError, match=r"127\.0\.0\.1:9/model_info: ConnectionRefusedError"):
        await Http("http://127.0.0.1:9").get("/model_info")
