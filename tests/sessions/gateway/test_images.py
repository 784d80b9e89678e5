"""Images of clients: each protocol's parts, what is refused, and that two images are never taken for one."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from agentrl.rollout.episodes.agents import load_agent, play
from agentrl.rollout.workers.gateways import LocalGateway
from agentrl.types import Message, Sampling, Session, Status, Task
from tests.sessions.gateway.conftest import Serve
from tests.sessions.gateway.fakes import ScriptedEngine, renderer
from tests.sessions.gateway.test_chat import client
from tests.sessions.gateway.test_other_protocols import claude


class Pixels:
    """A processor of images that nobody computes with."""

    def attached(self, message: Message) -> dict[str, bytes]:
        return {}


class Seeing:
    """A format that writes the same words for every image, as placeholders of equal sizes are."""

    def __init__(self) -> None:
        self._inner = renderer()
        self.tokenizer: Any = SimpleNamespace(
            **{name: getattr(self._inner.tokenizer, name) for name in ("encode", "decode", "longest", "most_gaps")},
            images=Pixels(),
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def render(self, messages: Sequence[Message], **options: Any) -> list[list[int]]:
        said = [
            message.model_copy(update={"content": "".join(part.text or "[image]" for part in message.content)})
            if isinstance(message.content, list)
            else message
            for message in messages
        ]
        return self._inner.render(said, **options)


def picture(colour: str = "red", kind: str = "PNG", size: tuple[int, int] = (4, 4)) -> bytes:
    from PIL import Image

    out = io.BytesIO()
    Image.new("RGB", size, colour).save(out, kind)
    return out.getvalue()


def bomb() -> bytes:
    """A PNG of a few bytes whose header says that it has a billion pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 1 << 15, 1 << 15, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0" * 1000)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


URL_SAFE = str.maketrans("+/", "-_")
"""google-genai's base64."""


def asked(protocol: str, image: str, times: int = 1) -> tuple[str, dict[str, Any]]:
    """A request about an image, shown so often, by its URL: the path, and the body."""
    kind, _, data = image.removeprefix("data:").partition(";base64,")
    if protocol == "chat":
        content = [{"type": "text", "text": "See "}, *[{"type": "image_url", "image_url": {"url": image}}] * times]
        return "chat/completions", {"model": "m", "messages": [{"role": "user", "content": content}]}
    if protocol == "responses":
        content = [{"type": "input_text", "text": "See "}, *[{"type": "input_image", "image_url": image}] * times]
        return "responses", {"model": "m", "input": [{"role": "user", "content": content}]}
    if protocol == "google":
        parts = [{"text": "See "}, *[{"inlineData": {"mimeType": kind, "data": data.translate(URL_SAFE)}}] * times]
        return "../v1beta/models/org/m:generateContent", {"contents": [{"role": "user", "parts": parts}]}
    source = {"type": "base64", "media_type": kind, "data": data} if data else {"type": "url", "url": image}
    content = [{"type": "text", "text": "See "}, *[{"type": "image", "source": source}] * times]
    return "messages", {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": content}]}


async def ask(served: Any, opened: dict[str, str], protocol: str, image: str, times: int = 1) -> httpx.Response:
    path, body = asked(protocol, image, times)
    headers = {"authorization": f"Bearer {opened['api_key']}"}
    async with httpx.AsyncClient(timeout=60) as client:
        return await client.post(f"{opened['base_url']}/{path}", json=body, headers=headers)


PROTOCOLS = ("chat", "responses", "messages")


@pytest.mark.slow
@pytest.mark.parametrize("protocol", [*PROTOCOLS, "google"])
async def test_an_image_becomes_a_part_of_the_users_message_whose_type_is_the_decoded_one(
    serve: Serve, protocol: str
) -> None:
    async with serve(format=Seeing()) as served:
        opened = await served.open()
        assert (await ask(served, opened, protocol, url(picture(kind="JPEG"), "image/svg+xml"))).status_code == 200
        user, _ = served.session(opened["id"]).nodes
        assert [part.type for part in user.message.content] == ["text", "image_url"]
        refused = await ask(served, opened, protocol, url(picture()[:40]))
        assert (refused.status_code, "broken" in refused.text) == (400, True)
        refused = await ask(served, opened, protocol, url(picture()), times=65)
        assert (refused.status_code, "at most 64" in refused.text) == (413, True)
        assert user.message.images == [url(picture(kind="JPEG"), "image/jpeg")]


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("image", "code", "why"),
    [
        ("https://example.com/a.png", "unsupported_parameter", "nothing is fetched"),
        ("file:///etc/passwd", "unsupported_parameter", "nothing is fetched"),
        (url(b"<svg><script>alert(1)</script></svg>", "image/svg+xml"), "invalid_image", "broken, or none of PNG"),
        (url(picture()[:40]), "invalid_image", "broken"),
        (url(bomb()), "invalid_image", "too large"),
        ("data:image/png;base64,%%%", "invalid_image", "no base64"),
    ],
    ids=["remote", "file", "svg", "broken", "bomb", "no base64"],
)
async def test_what_is_no_image_is_refused_by_its_place_and_the_session_goes_on(
    serve: Serve, protocol: str, image: str, code: str, why: str
) -> None:
    async with serve(format=Seeing()) as served:
        opened = await served.open()
        answer = await ask(served, opened, protocol, image)
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert why in error["message"]
        assert (error.get("code") or error["details"]["error_code"]) == code
        assert ".content[1]." in error["message"]
        assert (await ask(served, opened, protocol, url(picture()))).status_code == 200
        assert len(served.session(opened["id"]).nodes) == 2


@pytest.mark.slow
async def test_a_model_that_reads_text_refuses_images_by_name(serve: Serve) -> None:
    async with serve() as served:
        opened = await served.open()
        for protocol in PROTOCOLS:
            answer = await ask(served, opened, protocol, url(picture()))
            assert (answer.status_code, "text only" in answer.text) == (400, True)


@pytest.mark.slow
async def test_openais_and_anthropics_own_clients_send_images(serve: Serve) -> None:
    image, size = picture("green"), {"type": "base64", "media_type": "image/png"}
    source = {**size, "data": base64.b64encode(image).decode()}
    async with serve(format=Seeing()) as served:
        opened = await served.open()
        async with client(opened) as openai, claude(opened) as anthropic:
            parts: Any = [{"type": "image_url", "image_url": {"url": url(image), "detail": "low"}}]
            said = await openai.chat.completions.create(model="m", messages=[{"role": "user", "content": parts}])
            assert said.choices[0].message.content == "hello"
            parts = [{"type": "input_image", "image_url": url(image), "detail": "auto"}]
            reply = await openai.responses.create(model="m", input=[{"role": "user", "content": parts}])
            assert reply.output_text == "hello"
            parts = [{"type": "image", "source": source}, {"type": "text", "text": "?"}]
            turn = await anthropic.messages.create(
                model="m", max_tokens=9, messages=[{"role": "user", "content": parts}]
            )
            assert turn.content[0].text == "hello"
        shown = [node.message.images for node in served.session(opened["id"]).nodes if node.message.images]
        assert shown == [[url(image)], [url(image)]], "the first two requests are the same prompt"


@pytest.mark.slow
async def test_two_images_with_the_same_tokens_are_two_prompts(serve: Serve) -> None:
    """The retry of a request is known by its prompt's tokens, which are the same for both."""
    engine = ScriptedEngine()
    async with serve(engine, format=Seeing()) as served:
        opened = await served.open()
        for colour in ("red", "blue", "red"):
            assert (await ask(served, opened, "chat", url(picture(colour)))).status_code == 200
        session = served.session(opened["id"])
        roots = [node for node in session.nodes if node.parent is None]
        assert [node.message.images for node in roots] == [[url(picture("red"))], [url(picture("blue"))]]
        seeds = {call.sampling.seed for call in engine.calls[:2]}
        assert len(seeds) == 2


@pytest.mark.slow
async def test_a_tool_may_answer_with_an_image_and_a_system_prompt_may_not(serve: Serve) -> None:
    async with serve(format=Seeing()) as served:
        opened = await served.open()
        headers = {"authorization": f"Bearer {opened['api_key']}"}
        source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(picture()).decode()}
        block = {"type": "image", "source": source}
        messages = [
            {"role": "user", "content": "Look."},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "look", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [block]}]},
        ]
        body = {"model": "m", "max_tokens": 9, "messages": messages}
        async with httpx.AsyncClient(timeout=60) as client:
            answer = await client.post(f"{opened['base_url']}/messages", json=body, headers=headers)
            assert answer.status_code == 200, answer.text
            shown = [node.message for node in served.session(opened["id"]).nodes if node.message.images]
            assert [message.role for message in shown] == ["tool"]
            inline = {"inline_data": {"mime_type": "image/png", "data": source["data"], "display_name": "a.png"}}
            given = {"name": "look", "response": {"output": "Here."}, "parts": [inline]}
            contents = [
                {"role": "user", "parts": [{"text": "Look."}]},
                {"role": "model", "parts": [{"functionCall": {"name": "look", "args": {}}}]},
                {"role": "user", "parts": [{"functionResponse": given}]},
            ]
            place = f"{opened['google_base_url']}/v1beta/models/m:generateContent"
            answer = await client.post(place, json={"contents": contents}, headers=headers)
            assert answer.status_code == 200, answer.text
            result = served.session(opened["id"]).nodes[-2].message
            assert (result.role, result.text, len(result.images)) == ("tool", "Here.", 1)
            part = {"type": "image_url", "image_url": {"url": url(picture())}}
            system = [{"role": "system", "content": [part]}, {"role": "user", "content": "?"}]
            body = {"model": "m", "messages": system}
            answer = await client.post(f"{opened['base_url']}/chat/completions", json=body, headers=headers)
            assert (answer.status_code, "text only" in answer.text) == (400, True)


@pytest.mark.slow
@pytest.mark.parametrize("image", [bomb(), picture()[:40], b"<svg/>"], ids=["bomb", "broken", "svg"])
async def test_a_program_that_sends_such_a_file_ends_its_session_by_its_own_fault_and_no_other(
    serve: Serve, image: bytes
) -> None:
    async def agent(task: Task, client: Any) -> None:
        part = {"type": "image_url", "image_url": {"url": url(image if task.id == "bad" else picture())}}
        await client.chat.completions.create(model="m", messages=[{"role": "user", "content": [part]}])

    async with serve(format=Seeing()) as served:
        ended = {}
        for name in ("bad", "good"):
            session, gateway = Session(name, Task(id=name)), LocalGateway(served.gateway, served.url)
            ended[name] = await play(gateway, session, load_agent(agent), 30, Sampling())
        assert (ended["bad"].status, ended["good"].status) == (Status.AGENT_ERROR, Status.COMPLETED)
        assert "messages[0].content[0].image_url.url" in ended["bad"].error
        assert served.store.load("good").nodes[0].message.images == [url(picture())]
