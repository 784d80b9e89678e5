"""Control calls: whatever a server refuses is its own failure, told in its words."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from agentrl.errors import EngineError
from agentrl.rollout.engines.http import Http
from tests.rollout.engines import servers


def answering(status: int, body: object) -> Http:
    http = Http("http://127.0.0.1:9")
    reply = httpx.MockTransport(lambda request: httpx.Response(status, content=orjson.dumps(body)))
    http._client = httpx.AsyncClient(transport=reply, base_url=http.url)
    return http


@pytest.mark.parametrize("name", ["sglang", "vllm"])
def test_a_server_of_ours_keeps_idle_connections_far_longer_than_its_clients_use_them(name: str, folder: Path) -> None:
    """Both had about 5 s: a request on a connection that a busy server was just closing was lost."""
    engine = servers.attached(name, folder, "http://127.0.0.1:9")
    ((kept,),) = [[float(value) for key, value in engine._environment().items() if key.endswith("KEEP_ALIVE")]]
    pool: Any = Http("http://127.0.0.1:9")._client._transport
    assert kept > 100 * pool._pool._keepalive_expiry


@pytest.mark.parametrize("body", [{"success": True}, {"status": "ok"}, []])
async def test_a_control_call_that_is_not_refused_returns(body: object) -> None:
    await answering(200, body).do("/continue_generation", {})


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
    with pytest.raises(EngineError, match=says):
        await answering(status, body).do("/flush_cache")


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

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    http = Http(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    try:
        assert [event["text"] async for event in http.events("/generate", {})] == texts
    finally:
        await http.close()
        server.close()
