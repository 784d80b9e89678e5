"""The server, what belongs to a process, and what a client does about a bad one."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentrl.errors import Blame, ConfigError, RetrievalError
from agentrl.retrieval.batches import Batches
from agentrl.retrieval.client import RetrievalClient
from agentrl.retrieval.corpus import Passage
from agentrl.retrieval.index import build, open_index
from agentrl.retrieval.server import App
from agentrl.retrieval.service import Service


@pytest.fixture
def index(tmp_path: Path, small: Path) -> Path:
    build(small, tmp_path / "index")
    return tmp_path / "index"


@pytest.fixture
def running(index: Path) -> Iterator[Service]:
    found = Service(index)
    yield found
    found.close()


class Counting:
    """An index that counts how its searches come; they end once `free` is set."""

    retriever, digest = "bm25", ""

    def __init__(self, free: bool = True) -> None:
        self.free, self.batches = threading.Event(), []  # type: ignore[var-annotated]
        if free:
            self.free.set()

    def search(self, queries: list[str], topk: int) -> list[list[Passage]]:
        self.batches.append(list(queries))
        self.free.wait()
        return [[Passage(query, query, 1.0)] * topk for query in queries]


async def test_queries_that_arrive_together_are_searched_together_and_once() -> None:
    index: Any = Counting()
    batches = App(index, cached=100).batches
    found = await asyncio.gather(*(batches.search([f"q{n % 10}"], 2) for n in range(50)))
    assert [hits[0][0].id for hits in found] == [f"q{n % 10}" for n in range(50)]
    assert len(index.batches) == 1
    assert len(index.batches[0]) == 10
    await batches.search(["q3"], 2)
    assert len(index.batches) == 1, "known results are not searched again"


async def test_what_nobody_waits_for_any_more_is_not_searched() -> None:
    index: Any = Counting(free=False)
    batches = App(index).batches
    first = asyncio.create_task(batches.search(["a"], 1))
    while not index.batches:  # noqa: ASYNC110 - a thread appends to it
        await asyncio.sleep(0.01)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await batches.search(["b"], 1)
    index.free.set()
    await first
    await batches.search(["c"], 1)
    assert index.batches == [["a"], ["c"]]


async def answer(app: App, body: bytes, path: str = "/retrieve") -> tuple[int, bytes]:
    transport = httpx.ASGITransport(app=app)  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        response = await client.post(path, content=body)
    return response.status_code, response.content


async def test_a_request_without_scores_gets_the_documents_alone(index: Path) -> None:
    app = App(open_index(index))
    status, content = await answer(app, b'{"queries": ["Danube", "Adriatic"], "topk": 1}')
    assert status == 200
    assert content.count(b'"document"') == 0
    assert b'"id":"p0"' in content
    status, content = await answer(app, b'{"queries": ["Vienna"], "topk": 1, "return_scores": true}')
    assert b'"document":{"id"' in content
    assert b'"score":' in content


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{", b"not JSON"),
        (b"[]", b"JSON object"),
        (b"{}", b"queries"),
        (b'{"queries": [1]}', b"queries"),
        (b'{"queries": []}', b"1 to 1024"),
        (b'{"queries": ["a"], "topk": 0}', b"topk = 0"),
        (b'{"queries": ["a"], "topk": true}', b"topk = True"),
        (b'{"queries": ["a"], "return_scores": 1}', b"return_scores"),
    ],
)
async def test_a_wrong_request_gets_400_and_the_field(body: bytes, words: bytes) -> None:
    index: Any = Counting()
    status, content = await answer(App(index), body)
    assert status == 400
    assert words in content


async def test_a_request_that_waits_too_long_gets_503() -> None:
    index: Any = Counting(free=False)
    status, _ = await answer(App(index, timeout=0.05), b'{"queries": ["a"]}')
    index.free.set()
    assert status == 503


@pytest.mark.slow
async def test_a_server_that_is_killed_is_started_again_at_the_same_address(running: Service) -> None:
    client = RetrievalClient(running.url, timeout=300)
    assert (await client.search(["Danube"], 3))[0][0].id == "p0"
    first = running.pid
    os.killpg(first, signal.SIGKILL)  # the server with its guard, which alone would leave it answering for a moment
    found = await asyncio.gather(*(client.search(["Adriatic"], 1) for _ in range(20)))
    assert {hits[0][0].id for hits in found} == {"p2"}
    assert running.restarts == 1
    running.close()
    running.close()
    with pytest.raises(ProcessLookupError):
        os.kill(running.pid, 0)


def wait_until_given_up(service: Service) -> None:
    for _ in range(3000):
        service.check()
        time.sleep(0.1)


@pytest.mark.slow
def test_a_server_whose_corpus_changed_says_so_and_is_not_started_again(index: Path, small: Path) -> None:
    small.write_text(small.read_text() + "more")
    service = Service(index)
    try:
        with pytest.raises(RetrievalError, match=r"ended with 3: error: .*corpus\.jsonl is not the file") as error:
            wait_until_given_up(service)
    finally:
        service.close()
    assert "Fatal" not in str(error.value)
    assert service.restarts == 0


def test_a_service_without_an_index_is_a_wrong_setting(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is none"):
        Service(tmp_path / "nothing")


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def responds(content: bytes) -> Handler:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(65536)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b" % (len(content), content))
        await writer.drain()
        writer.close()

    return handle


async def hangs(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


async def closes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "handler",
    [
        responds(b"<html>"),
        responds(b"[]"),
        responds(b'{"result": []}'),
        responds(b'{"result": [[{"document": {"id": "1"}}]]}'),
        responds(b'{"result": [[{"document": {"contents": 3}}]]}'),
        responds(b'{"result": [[{"document": {"contents": "a"}, "score": "x"}]]}'),
        responds(b'{"result": [[{"document": {"contents": "a"}, "score": NaN}]]}'),
        responds(b'{"result": [[], []]}'),
        responds(b'{"result": [null]}'),
        responds(b'{"result": [["a"]]}'),
        hangs,
        closes,
    ],
)
async def test_a_server_that_answers_nonsense_or_nothing_is_the_infrastructures_fault(handler: Handler) -> None:
    async with await asyncio.start_server(handler, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(RetrievalError, match="retrieval server") as error:
            await RetrievalClient(f"http://127.0.0.1:{port}", timeout=0.2).search(["a"], 3)
    assert error.value.blame is Blame.INFRA


@pytest.mark.slow
async def test_a_server_that_is_down_is_the_infrastructures_fault() -> None:
    with pytest.raises(RetrievalError, match="ConnectError"):
        await RetrievalClient("http://127.0.0.1:9/retrieve", timeout=3).search(["a"], 3)


async def test_no_more_searches_run_at_the_same_time_than_may_and_none_is_forgotten() -> None:
    running, most = 0, 0

    async def search(queries: list[str], topk: int) -> list[list[Passage]]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        if "bad" in queries:
            raise ValueError("bad")
        return [[Passage(query, query)] * topk for query in queries]

    async def session(batches: Batches, number: int) -> None:
        for turn in range(10):
            await asyncio.sleep(0.0003 * (number % 7))
            query = f"{number}-{turn}"
            [hits] = await batches.search([query], 1 + number % 2)
            assert [hit.id for hit in hits] == [query] * (1 + number % 2)
            with pytest.raises(ValueError, match="bad"):
                await batches.search([f"{number}", "bad"], 9)

    batches = Batches(search, at_once=2)
    async with asyncio.timeout(60):
        await asyncio.gather(*(session(batches, number) for number in range(20)))
    assert most == 2
    assert batches.batches < 400, "queries were searched together"


def echoes(requests: list[list[str]]) -> Handler:
    """Finds each query itself, and refuses requests with a query `refused`."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length:")[2].split()[0])
        requests.append(json.loads(await reader.readexactly(length))["queries"])
        status = b"400 Bad Request" if "refused" in requests[-1] else b"200 OK"
        content = json.dumps({"result": [[{"document": {"contents": query}}] for query in requests[-1]]}).encode()
        writer.write(b"HTTP/1.1 %b\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % (status, len(content)))
        writer.write(content)
        await writer.drain()
        writer.close()

    return handle


async def test_concurrent_searches_share_a_request_and_a_query_that_is_refused_fails_alone() -> None:
    requests: list[list[str]] = []
    async with await asyncio.start_server(echoes(requests), "127.0.0.1", 0) as server:
        client = RetrievalClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", timeout=60)
        found = await asyncio.gather(*(client.search([f"q{number}"], 1) for number in range(50)))
        assert [hits[0][0].contents for hits in found] == [f"q{number}" for number in range(50)]
        assert len(requests) <= 2
        asked = (client.search([query], 1) for query in ("one", "refused", "x" * 20_000))
        one, refused, long = await asyncio.gather(*asked, return_exceptions=True)
        half = await client.search(["half a \ud83d pair"], 1)
    assert isinstance(one, list)
    assert one[0][0].contents == "one"
    assert isinstance(refused, RetrievalError)
    assert "answered 400" in str(refused)
    assert isinstance(long, list)
    assert len(long[0][0].contents) == 10_000, "the server would refuse more"
    assert half[0][0].contents == "half a ? pair", "no text, and as such no server's fault"


@pytest.mark.slow
async def test_of_a_server_that_gives_more_than_it_was_asked_for_the_best_are_taken() -> None:
    content = b'{"result": [[{"document": {"contents": "a"}, "score": null}, {"document": {"contents": "b"}}]]}'
    async with await asyncio.start_server(responds(content), "127.0.0.1", 0) as server:
        [hits] = await RetrievalClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}").search(["x"], 1)
    assert hits == [Passage("", "a", None)]
