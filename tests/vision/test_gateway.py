"""OpenAI's and Anthropic's own clients show images to a model that sees, through the gateway."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import anthropic
import httpx
import numpy as np
import openai
import pytest

from agentrl.attachments import images
from agentrl.config import EngineConfig
from agentrl.models import tiny, tiny_vision
from agentrl.rollout.engines.local.engine import LocalEngine
from agentrl.sessions.gateway.http.app import create_app
from agentrl.sessions.gateway.http.server import gateway_of, running
from agentrl.sessions.renderers.registry import get_renderer
from agentrl.sessions.store.store import Store
from agentrl.sessions.tree import tree

SIDE = 32


def picture(colour: str) -> str:
    """A PNG in base64."""
    from PIL import Image

    out = io.BytesIO()
    Image.new("RGB", (SIDE, SIDE), colour).save(out, "PNG")
    return base64.b64encode(out.getvalue()).decode()


@pytest.mark.slow
async def test_vision_clients_unmodified_have_turns_of_a_model_that_sees(tmp_path: Path) -> None:
    """Each image is processed once, over three protocols and two turns, and one path has what the engine read."""
    texts = [tiny.render([{"role": "user", "content": "How many?"}, {"role": "assistant", "content": "3"}])] * 9
    folder = tiny_vision.build(tmp_path / "tiny", texts, SIDE)
    engine, renderer = LocalEngine(folder, EngineConfig(max_batch=4)), get_renderer(str(folder))
    proved, red, blue = renderer.tokenizer.images.processed, picture("red"), picture("blue")
    shown: Any = [{"type": "text", "text": "How many?"}, {"type": "image_url", "image_url": {"url": data(red)}}]
    asked: Any = [{"type": "input_text", "text": "How many?"}, {"type": "input_image", "image_url": data(red)}]
    source = {"type": "base64", "media_type": "image/png", "data": red}
    block: Any = [{"type": "text", "text": "How many?"}, {"type": "image", "source": source}]
    with Store(tmp_path / "sessions.db") as store:
        app = create_app(engine, renderer, store)
        async with running(app) as url:
            async with httpx.AsyncClient() as client:
                access = (await client.post(f"{url}/sessions", json={})).json()
            address: Any = {"api_key": access["api_key"], "max_retries": 0}
            first = openai.AsyncOpenAI(base_url=access["base_url"], **address)
            second = anthropic.AsyncAnthropic(base_url=access["anthropic_base_url"], **address)
            async with first, second:
                said: Any = [{"role": "user", "content": shown}]
                turn = await first.chat.completions.create(model="m", messages=said, max_tokens=4)
                said += [{"role": "assistant", "content": turn.choices[0].message.content}]
                more = [{"type": "image_url", "image_url": {"url": data(blue)}}]
                await first.chat.completions.create(
                    model="m", messages=[*said, {"role": "user", "content": more}], max_tokens=4
                )
                await first.responses.create(model="m", input=[{"role": "user", "content": asked}], max_output_tokens=4)
                await second.messages.create(model="m", messages=[{"role": "user", "content": block}], max_tokens=4)
            session = gateway_of(app).entries[access["id"]].state.session
            tree.check(session)
    assert renderer.tokenizer.images.processed == proved + 2
    seen = [node for node in session.nodes if node.message.images]
    assert [len(node.message.images) for node in seen] == [1, 1], "the same opening is one node, whatever the protocol"
    frames = [images.unpack(node.attachments[images.NAME]) for node in seen]
    assert not np.array_equal(frames[0].frames, frames[1].frames)
    for node, inputs in zip(seen, frames, strict=True):
        assert len(inputs.places(node.token_ids)) == (SIDE // tiny_vision.PATCH) ** 2
    await engine.close()


def data(image: str) -> str:
    return f"data:image/png;base64,{image}"
