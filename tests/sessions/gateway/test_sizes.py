"""Large prompts: refused unread where they can't fit, tokenised off the event loop where they may."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import httpx
import pytest

from agentrl.sessions.gateway import sizes
from tests.sessions.gateway.conftest import Serve
from tests.sessions.gateway.fakes import ScriptedEngine, assistant, renderer

WHERE = ["chat/completions", "completions", "responses", "messages"]


def body(path: str, text: str) -> dict[str, Any]:
    inside = {"completions": {"prompt": text}, "responses": {"input": text}}
    said = inside.get(path, {"messages": [{"role": "user", "content": text}]})
    return {"model": "m", **({"max_tokens": 20} if path == "messages" else {}), **said}


async def post(access: dict[str, str], path: str, text: str) -> httpx.Response:
    headers = {"authorization": f"Bearer {access['api_key']}"}
    async with httpx.AsyncClient(timeout=60) as http:
        return await http.post(f"{access['base_url']}/{path}", json=body(path, text), headers=headers)


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """What is tokenised: how many characters, and whether on the main thread (the event loop's)."""
    seen: list[tuple[int, bool]] = []
    kind = type(renderer().tokenizer)
    real = kind.encode

    def encode(self: Any, text: str) -> list[int]:
        seen.append((len(text), threading.current_thread() is threading.main_thread()))
        return real(self, text)

    monkeypatch.setattr(kind, "encode", encode)
    return seen


@pytest.mark.parametrize("path", WHERE)
@pytest.mark.slow
async def test_what_cannot_fit_is_refused_without_being_tokenised(
    serve: Serve, path: str, encoded: list[tuple[int, bool]]
) -> None:
    """10 MB took seconds of tokenising on the event loop before they were found too long."""
    async with serve(ScriptedEngine(max_context=8192)) as served:
        access = await served.open()
        reply = await post(access, path, "hello there " * 850_000)
        assert reply.status_code == 400, reply.text
        assert "context_length_exceeded" in reply.text or "at least" in reply.text
        assert max((size for size, _ in encoded), default=0) < 1000
        assert (await post(access, path, "hello")).status_code == 200


@pytest.mark.parametrize("path", WHERE)
@pytest.mark.slow
async def test_a_large_text_that_may_fit_is_tokenised_in_a_thread_and_small_ones_where_they_are(
    serve: Serve, path: str, encoded: list[tuple[int, bool]]
) -> None:
    async with serve(ScriptedEngine(max_context=10**6)) as served:
        access = await served.open()
        text = "how are you, " * (2 * sizes.LARGE // 13)
        assert (await post(access, path, text)).status_code == 200
        assert (await post(access, path, "hi")).status_code == 200
        assert [main for size, main in encoded if size >= sizes.LARGE] == [False]
        assert any(main for size, main in encoded if size < 100)
        (first, *_) = served.engine.calls
        assert text in renderer().tokenizer.decode(first.input_ids)


@pytest.mark.slow
async def test_a_text_whose_beginning_alone_is_too_long_is_refused_by_it(
    serve: Serve, encoded: list[tuple[int, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(vars(renderer().tokenizer), "longest", 10**6)  # from such a vocabulary nothing follows
    monkeypatch.setitem(vars(renderer().tokenizer), "most_gaps", 10**6)
    async with serve(ScriptedEngine(max_context=1000)) as served:
        access = await served.open()
        assert (await post(access, "chat/completions", "hello there " * 100_000)).status_code == 400
        assert max(size for size, _ in encoded) < 10_000


@pytest.mark.slow
async def test_a_text_with_more_words_than_tokens_are_left_is_refused_without_being_tokenised(
    serve: Serve, encoded: list[tuple[int, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a context of 262,000 tokens a prompt of 10 MB kept a thread busy for more than a second."""
    monkeypatch.setitem(vars(renderer().tokenizer), "longest", 10**6)
    async with serve(ScriptedEngine(max_context=20_000)) as served:
        access = await served.open()
        for path in WHERE:
            reply = await post(access, path, "hello there " * 100_000)
            assert reply.status_code == 400, reply.text
            assert "words" in reply.text
        assert max((size for size, _ in encoded), default=0) < 1000


@pytest.mark.slow
async def test_counting_tokens_refuses_no_length(serve: Serve) -> None:
    async with serve(ScriptedEngine(max_context=100)) as served:
        access = await served.open()
        reply = await post(access, "messages/count_tokens", "hello there " * 3000)
        assert reply.json()["input_tokens"] > 3000


@pytest.mark.slow
async def test_requests_are_answered_while_a_large_text_is_tokenised(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    kind = type(renderer().tokenizer)
    real = kind.encode

    def encode(self: Any, text: str) -> list[int]:
        if len(text) >= sizes.LARGE:
            begun.set()
            assert go_on.wait(30)
        return real(self, text)

    monkeypatch.setattr(kind, "encode", encode)
    async with serve(ScriptedEngine(lambda prompt: assistant("hi"), max_context=10**6)) as served:
        access = await served.open()
        large = asyncio.create_task(post(access, "chat/completions", "hello there " * 4000))
        assert await asyncio.to_thread(begun.wait, 30)
        async with httpx.AsyncClient() as http:
            assert (await http.get(f"{served.url}/health")).status_code == 200
        assert (await post(access, "chat/completions", "hi")).status_code == 200
        assert not large.done()
        go_on.set()
        assert (await large).status_code == 200
