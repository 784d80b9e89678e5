"""What was made cheap: replies that nobody validates, requests read once, turns written together, and no garbage."""

from __future__ import annotations

import asyncio
import gc
import itertools
import random
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from anthropic.types import Message as AnthropicMessage
from anthropic.types import RawMessageStreamEvent
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from agentrl.errors import StoreError
from agentrl.sessions.gateway.http.bodies import Body
from agentrl.sessions.gateway.http.server import tuned_collector
from agentrl.sessions.gateway.limits import Limits
from agentrl.sessions.gateway.turn_request import cache_reader
from agentrl.sessions.gateway.wire import chat
from agentrl.sessions.gateway.writer import StoreWriter
from agentrl.sessions.store.integrity import CountFile
from agentrl.sessions.store.store import Store
from agentrl.sessions.tree import tree
from agentrl.types import Message, Session, Task
from tests.sessions.gateway.conftest import Serve
from tests.sessions.gateway.fakes import ScriptedEngine, assistant, in_turn, renderer

TOOL = {"name": "f", "description": "", "parameters": {"type": "object"}}
ASKED: dict[str, dict[str, Any]] = {
    "chat/completions": {"logprobs": True, "tools": [{"type": "function", "function": TOOL}]},
    "completions": {"logprobs": 0},
    "responses": {"tools": [{"type": "function", "strict": False, **TOOL}]},
    "messages": {"max_tokens": 400, "thinking": {"type": "enabled", "budget_tokens": 1024}},
}
WHOLE = {
    "chat/completions": ChatCompletion,
    "completions": Completion,
    "responses": Response,
    "messages": AnthropicMessage,
}
PIECE = {
    "chat/completions": ChatCompletionChunk,
    "completions": Completion,
    "responses": ResponseStreamEvent,
    "messages": RawMessageStreamEvent,
}


@pytest.mark.parametrize("path", WHOLE)
@pytest.mark.slow
async def test_replies_and_the_pieces_of_streams_fit_the_clients_own_types(serve: Serve, path: str) -> None:
    words = [
        assistant("Ü b", "thought", [("f", '{"a": 100000000000000000000000000}')]),
        assistant("plain"),
        assistant("", None),
    ]
    if path == "completions":
        words = words[:2]  # there, the scripted engine generates nothing after an empty turn
    text = {"completions": {"prompt": "hi"}, "responses": {"input": "hi"}}
    body = {"model": "m", **text.get(path, {"messages": [{"role": "user", "content": "hi"}]}), **ASKED[path]}
    if path == "messages":
        body["tools"] = [{"name": "f", "input_schema": {"type": "object"}}]
    async with serve(ScriptedEngine(in_turn(*(word for word in words for _ in range(2))))) as served:
        access = await served.open()
        headers = {"authorization": f"Bearer {access['api_key']}"}
        async with httpx.AsyncClient(timeout=60, headers=headers) as http:
            for _ in words:
                reply = await http.post(f"{access['base_url']}/{path}", json=body)
                assert reply.status_code == 200, reply.text
                TypeAdapter(WHOLE[path]).validate_python(reply.json())
                reply = await http.post(f"{access['base_url']}/{path}", json={**body, "stream": True})
                pieces = [line[6:] for line in reply.text.splitlines() if line.startswith("data: ")]
                assert len(pieces) > 1
                for piece in pieces:
                    if piece != "[DONE]":
                        data = orjson.loads(piece)
                        assert "error" not in data, data
                        if path == "completions":  # a piece of text has no reason yet, which the package's type lacks
                            data["choices"] = [{"finish_reason": "stop", **c} for c in data["choices"]]
                            for choice in data["choices"]:
                                choice["finish_reason"] = choice["finish_reason"] or "stop"
                        TypeAdapter(PIECE[path]).validate_python(data)


@pytest.mark.slow
async def test_an_application_with_middleware_of_its_own_has_it_around_turns_too(serve: Serve) -> None:
    async with serve() as served:
        from agentrl.sessions.gateway.http.app import create_app
        from agentrl.sessions.gateway.http.server import running

        app = create_app(ScriptedEngine(), renderer(), served.store)  # type: ignore[arg-type]
        seen = []

        @app.middleware("http")
        async def note(request: Any, follow: Any) -> Any:
            seen.append(request.url.path)
            return await follow(request)

        async with running(app) as url, httpx.AsyncClient(timeout=60) as http:
            access = (await http.post(f"{url}/sessions", json={})).json()
            headers = {"authorization": f"Bearer {access['api_key']}"}
            body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
            reply = await http.post(f"{access['base_url']}/chat/completions", json=body, headers=headers)
            assert reply.status_code == 200, reply.text
        assert seen == ["/sessions", f"/sessions/{access['id']}/v1/chat/completions"]


def test_the_same_parameters_are_read_once_and_others_are_not_taken_for_them() -> None:
    reads = []

    def read(body: Body, *rest: Any) -> Any:
        reads.append(body.fields)
        return chat.read(body, *rest)

    def asked(text: str, retry: int | None = None, **fields: Any) -> Any:
        messages = [{"role": "user", "content": text}]
        return again(
            Body.parse(orjson.dumps({"model": "m", "messages": messages, **fields}), "messages"), Limits(), retry, True
        )

    again = cache_reader(read)
    first = asked("a", temperature=0.5, user="me")
    first.count, first.ignored["x"] = 7, "x"
    second = asked("b", temperature=0.5, user="me")
    assert len(reads) == 1
    assert second.sampling is first.sampling
    assert (second.count, second.ignored) == (0, {"user": "user"})
    assert second.history.items() == [{"role": "user", "content": "b"}]
    assert asked("b", temperature=0.25, user="me").sampling.temperature == 0.25
    assert asked("b", retry=2, temperature=0.5, user="me").retry == 2
    assert len(reads) == 3


async def test_turns_that_end_while_the_store_is_busy_are_written_in_one_commit_and_a_failure_is_its_own(
    tmp_path: Path,
) -> None:
    with Store(tmp_path / "s.db") as store:
        sessions = [Session(f"s{i}", Task(id="t")) for i in range(5)]
        for session in sessions[:4]:
            store.save(session)
        for session in sessions:
            tree.add(session, None, Message(role="user", content="hi"), [1, 2, 3])
        writer, go_on = StoreWriter(store), threading.Event()
        busy = asyncio.ensure_future(writer.do(go_on.wait))
        await asyncio.sleep(0)
        adding = [asyncio.ensure_future(writer.append(session, session.nodes)) for session in sessions[:3]]
        await asyncio.sleep(0)
        commits = CountFile(store.path).read().commits
        go_on.set()
        await asyncio.gather(busy, *adding)
        assert CountFile(store.path).read().commits == commits + 1
        go_on.clear()
        busy = asyncio.ensure_future(writer.do(go_on.wait))
        await asyncio.sleep(0)
        both = [asyncio.ensure_future(writer.append(session, session.nodes)) for session in sessions[3:]]
        await asyncio.sleep(0)
        go_on.set()
        saved, failed = await asyncio.gather(*both, return_exceptions=True)
        assert saved is None
        assert isinstance(failed, StoreError)  # nobody had saved that session
        assert [len(store.load(session.id).nodes) for session in sessions[:4]] == [1, 1, 1, 1]
        await busy
        writer.close()


@pytest.fixture
def uncollected() -> Iterator[None]:
    """The collector is off."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.slow
async def test_a_sealed_session_is_freed_without_the_collector(serve: Serve, uncollected: None, stream: bool) -> None:
    """Each request once left a reference cycle with its prompt, so the collector took a tenth of a turn's time."""
    async with serve(ScriptedEngine(in_turn(assistant("hello"))), limits=Limits(turn_tokens=50)) as gate:
        access = await gate.open()
        left = weakref.ref(gate.gateway.entries[access["id"]].state)
        async with httpx.AsyncClient(headers={"authorization": f"Bearer {access['api_key']}"}, timeout=60) as client:
            history = [{"role": "user", "content": "hello"}]
            for text in ("more", "more " * 200_000, "other"):
                body = {"model": "m", "messages": history, "stream": stream}
                answer = await client.post(f"{access['base_url']}/chat/completions", json=body)
                assert answer.status_code == (400 if len(history[-1]["content"]) > 1000 else 200)
                history += [{"role": "user", "content": text}]
            wrong = {"model": "m", "messages": [{"role": "user", "content": 1}], "stream": stream}
            assert (await client.post(f"{access['base_url']}/chat/completions", json=wrong)).status_code == 400
            await client.post(f"{gate.url}/sessions/{access['id']}/close", json={"reward": 1.0})
        for _ in range(1000):
            if left() is None:
                break
            await asyncio.sleep(0.01)
        assert left() is None


@pytest.mark.slow
async def test_a_process_that_no_longer_serves_has_the_collector_that_it_had_before() -> None:
    gc.unfreeze()  # what the suite has frozen: tests/suite/memory.py
    before = gc.get_threshold(), gc.get_freeze_count()
    async with tuned_collector(lambda: 0):
        assert gc.get_freeze_count() > before[1]
        assert gc.get_threshold()[2] > 10**6
    assert (gc.get_threshold(), gc.get_freeze_count()) == before


@pytest.mark.slow
async def test_all_garbage_is_collected_only_while_no_request_comes() -> None:
    """With long sessions that takes a fifth of a second; it once came between two requests of a busy client."""
    often_checked = {"check_every": 0.001, "idle": 0.0}
    collected, often, begun = asyncio.Event(), asyncio.Event(), itertools.count()

    def note(phase: str, info: dict[str, int]) -> None:
        if info["generation"] == 2:
            collected.set()

    def another() -> int:
        number = next(begun)
        if number > 50:
            often.set()
        return number

    async with tuned_collector(another, **often_checked):
        gc.callbacks.append(note)
        await often.wait()
        gc.callbacks.remove(note)
    assert not collected.is_set()
    async with tuned_collector(lambda: 0, **often_checked):
        gc.callbacks.append(note)
        await collected.wait()
        gc.callbacks.remove(note)


def test_no_text_has_fewer_tokens_than_its_gaps_say() -> None:
    tokenizer, chance = renderer().tokenizer, random.Random(0)
    for _ in range(300):
        text = "".join(chance.choices(["hello", " ", "  ", "   ", "there,", "\n", "how are you", "é"], k=30))
        gaps = text.count(" ") - 2 * text.count("  ")
        assert gaps // tokenizer.most_gaps <= len(tokenizer.encode(text))


@pytest.mark.slow
async def test_heads_without_a_body_and_interim_ones_are_sent_though_heads_wait_for_their_body(serve: Serve) -> None:
    async with serve() as served:
        reader, writer = await asyncio.open_connection(*served.url.removeprefix("http://").split(":"))
        async with asyncio.timeout(60):
            writer.write(b"HEAD /health HTTP/1.1\r\nhost: x\r\n\r\n")
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 ")
            writer.write(b"POST /sessions HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n")
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
            writer.write(b"{}")
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 201 ")
        writer.close()
