"""Large prompts: refused unread where they can't fit, tokenised off the event loop where they may."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from agentrl.models.tokenizers import HFTokenizer
from agentrl.sessions.gateway import sizes
from agentrl.sessions.renderers import Renderer, get_renderer
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


class Watched(HFTokenizer):
    """The tests' tokenizer; notes what it encodes: how many characters, and whether on the event loop's thread.

    Args:
        begin: is called with each text before it is encoded.
        **said: what it says of its vocabulary in place of what is so: `longest`, `most_gaps`.
    """

    def __init__(self, begin: Callable[[str], object] = len, **said: int) -> None:
        super().__init__(renderer().tokenizer.source, renderer().tokenizer.config)
        self.begin, self.seen = begin, list[tuple[int, bool]]()
        vars(self).update(said)  # in the place of cached properties

    def encode(self, text: str) -> list[int]:
        self.seen.append((len(text), threading.current_thread() is threading.main_thread()))
        self.begin(text)
        return super().encode(text)

    @property
    def largest(self) -> int:
        """Characters of the longest text."""
        return max((size for size, _ in self.seen), default=0)


def watched(**said: int) -> tuple[Watched, Renderer]:
    """The tokenizer, and the renderer that has it; what it took to make that is not among what it has seen."""
    tokenizer = Watched(**said)
    made = get_renderer(tokenizer, "chatml")
    tokenizer.seen.clear()
    return tokenizer, made


@pytest.mark.parametrize("path", WHERE)
@pytest.mark.slow
async def test_what_cannot_fit_is_refused_without_being_tokenised(serve: Serve, path: str) -> None:
    """10 MB took seconds of tokenising on the event loop before they were found too long."""
    tokenizer, format = watched()
    async with serve(ScriptedEngine(max_context=8192), format) as served:
        access = await served.open()
        reply = await post(access, path, "hello there " * 850_000)
        assert reply.status_code == 400, reply.text
        assert "context_length_exceeded" in reply.text or "at least" in reply.text
        assert tokenizer.largest < 1000
        assert (await post(access, path, "hello")).status_code == 200


@pytest.mark.parametrize("path", WHERE)
@pytest.mark.slow
async def test_a_large_text_that_may_fit_is_tokenised_in_a_thread_and_small_ones_where_they_are(
    serve: Serve, path: str
) -> None:
    tokenizer, format = watched()
    async with serve(ScriptedEngine(max_context=10**6), format) as served:
        access = await served.open()
        text = "how are you, " * (2 * sizes.LARGE // 13)
        assert (await post(access, path, text)).status_code == 200
        assert (await post(access, path, "hi")).status_code == 200
        assert [main for size, main in tokenizer.seen if size >= sizes.LARGE] == [False]
        assert any(main for size, main in tokenizer.seen if size < 100)
        (first, *_) = served.engine.calls
        assert text in renderer().tokenizer.decode(first.input_ids)


@pytest.mark.slow
async def test_a_text_whose_beginning_alone_is_too_long_is_refused_by_it(serve: Serve) -> None:
    tokenizer, format = watched(longest=10**6, most_gaps=10**6)  # from such a vocabulary nothing follows
    async with serve(ScriptedEngine(max_context=1000), format) as served:
        access = await served.open()
        assert (await post(access, "chat/completions", "hello there " * 100_000)).status_code == 400
        assert 0 < tokenizer.largest < 10_000


@pytest.mark.slow
async def test_a_text_with_more_words_than_tokens_are_left_is_refused_without_being_tokenised(serve: Serve) -> None:
    """With a context of 262,000 tokens a prompt of 10 MB kept a thread busy for more than a second."""
    tokenizer, format = watched(longest=10**6)
    async with serve(ScriptedEngine(max_context=20_000), format) as served:
        access = await served.open()
        for path in WHERE:
            reply = await post(access, path, "hello there " * 100_000)
            assert reply.status_code == 400, reply.text
            assert "words" in reply.text
        assert tokenizer.largest < 1000


@pytest.mark.slow
async def test_counting_tokens_refuses_no_length(serve: Serve) -> None:
    async with serve(ScriptedEngine(max_context=100)) as served:
        access = await served.open()
        reply = await post(access, "messages/count_tokens", "hello there " * 3000)
        assert reply.json()["input_tokens"] > 3000


@pytest.mark.slow
async def test_requests_are_answered_while_a_large_text_is_tokenised(serve: Serve) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def wait(text: str) -> None:
        if len(text) >= sizes.LARGE:
            begun.set()
            assert go_on.wait(300)

    format = get_renderer(Watched(wait), "chatml")
    async with serve(ScriptedEngine(lambda prompt: assistant("hi"), max_context=10**6), format) as served:
        access = await served.open()
        large = asyncio.create_task(post(access, "chat/completions", "hello there " * 4000))
        assert await asyncio.to_thread(begun.wait, 300)
        async with httpx.AsyncClient(timeout=60) as http:
            assert (await http.get(f"{served.url}/health")).status_code == 200
        assert (await post(access, "chat/completions", "hi")).status_code == 200
        assert not large.done()
        go_on.set()
        assert (await large).status_code == 200
