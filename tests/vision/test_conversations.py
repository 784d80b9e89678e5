"""A conversation with images has the tokens and pixels that the model's own processor makes of the whole of it."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw
from tokenizers import pre_tokenizers
from transformers import (
    AutoTokenizer,
    CLIPImageProcessorPil,
    Idefics3ImageProcessorPil,
    Idefics3Processor,
    LlavaProcessor,
    Qwen2VLImageProcessorPil,
    SmolVLMImageProcessorPil,
)
from transformers.models.qwen2_5_vl.processing_qwen2_5_vl import Qwen2_5_VLProcessor

import agentrl
from agentrl.attachments import images
from agentrl.envs.episode import EXPERT
from agentrl.envs.results import record_failure
from agentrl.envs.turns import Player, send
from agentrl.errors import InvalidMessage, RenderError
from agentrl.models import tiny, tiny_vision
from agentrl.models.tokenizers import HFTokenizer
from agentrl.sessions.renderers.registry import get_renderer
from agentrl.sessions.store.store import Store
from agentrl.sessions.tree import tree
from agentrl.sessions.tree.conversation import Conversation
from agentrl.sessions.tree.turn_generator import TurnGenerator
from agentrl.types import Chunk, Message, Part, Placed, Sampling, Session, Status, Task, Turn, image
from tests.sessions.fakes import DiceEngine

SMOLVLM = (
    "<|im_start|>{% for message in messages %}{{message['role'] | capitalize}}"
    "{% if message['content'][0]['type'] == 'image' %}{{':'}}{% else %}{{': '}}{% endif %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{line['text']}}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
"""The chat template that SmolVLM publishes."""
QWEN = (
    "{% set image_count = namespace(value=0) %}{% for message in messages %}"
    "{% if loop.first and message['role'] != 'system' %}<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
    "{% endif %}<|im_start|>{{ message['role'] }}\n{% if message['content'] is string %}{{ message['content'] }}"
    "<|im_end|>\n{% else %}{% for content in message['content'] %}"
    "{% if content['type'] == 'image' or 'image' in content or 'image_url' in content %}"
    "{% set image_count.value = image_count.value + 1 %}"
    "{% if add_vision_id %}Picture {{ image_count.value }}: {% endif %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif 'text' in content %}{{ content['text'] }}{% endif %}{% endfor %}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""The chat template that Qwen2.5-VL publishes, without its part for videos."""
SIDE = 32


def picture(seed: int, size: tuple[int, int] = (SIDE, SIDE)) -> Image.Image:
    made = Image.new("RGB", size, "white")
    ImageDraw.Draw(made).ellipse((seed, 3, seed + 9, 12), fill=(seed * 9 % 255, 80, 200))
    return made


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    texts = [tiny.render([{"role": "user", "content": "How many shapes?"}, {"role": "assistant", "content": "3"}])] * 9
    return tiny_vision.build(tmp_path_factory.mktemp("seen") / "tiny", texts, SIDE)


@pytest.fixture(scope="module")
def smolvlm_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer and a processor as SmolVLM's, which splits larger pictures into frames; no weights."""
    folder = tmp_path_factory.mktemp("smolvlm")
    marks = [*tiny_vision.IMAGE_TOKENS, *(f"<row_{r}_col_{c}>" for r in range(1, 7) for c in range(1, 7))]
    tokenizer = tiny.build_tokenizer(["User: how many?\n"] * 9, 512, 2048, marks, SMOLVLM)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # as SmolVLM's
    tokenizer.save_pretrained(folder)
    sizes = {"size": {"longest_edge": 2 * SIDE}, "max_image_size": {"longest_edge": SIDE}}
    SmolVLMImageProcessorPil(**sizes).save_pretrained(folder)
    (folder / "processor_config.json").write_text(json.dumps({"image_seq_len": 4}))
    (folder / "config.json").write_text(json.dumps({"model_type": "smolvlm"}))
    return folder


@pytest.fixture(scope="module")
def qwen_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer and a processor as Qwen2.5-VL's, which takes pictures of any size as patches; no weights."""
    folder = tmp_path_factory.mktemp("qwen")
    marks = ("<|vision_start|>", "<|image_pad|>", "<|video_pad|>", "<|vision_end|>")
    tokenizer = tiny.build_tokenizer(["user\nhow many?\n"] * 9, 512, 2048, marks, QWEN)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.save_pretrained(folder)
    Qwen2VLImageProcessorPil(size={"shortest_edge": 28 * 28, "longest_edge": 84 * 84}).save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen2_5_vl"}))
    return folder


@pytest.fixture(scope="module")
def llava_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer and a processor as LLaVA's, which cuts the middle out of a picture; no weights."""
    folder = tmp_path_factory.mktemp("llava")
    tiny.build_tokenizer(["how many?"] * 9, 512, 2048, ("<image>",), tiny_vision.CHAT_TEMPLATE).save_pretrained(folder)
    CLIPImageProcessorPil(size={"shortest_edge": SIDE}, crop_size=SIDE).save_pretrained(folder)
    settings = {"patch_size": 8, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
    (folder / "processor_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text(json.dumps({"model_type": "llava"}))
    return folder


class ImagesAlone(Qwen2_5_VLProcessor):
    """Qwen2.5-VL's own processor without its part for videos, which needs a library of theirs."""

    def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
        return type(argument)


def processor_of(folder: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    if "qwen" in folder.name:
        pixels = Qwen2VLImageProcessorPil.from_pretrained(folder)
        return ImagesAlone(pixels, tokenizer, None, chat_template=tokenizer.chat_template)
    if "llava" in folder.name:
        settings = json.loads((folder / "processor_config.json").read_text())
        pixels = CLIPImageProcessorPil.from_pretrained(folder)
        return LlavaProcessor(pixels, tokenizer, chat_template=tokenizer.chat_template, **settings)
    kind = SmolVLMImageProcessorPil if "smolvlm" in folder.name else Idefics3ImageProcessorPil
    length = json.loads((folder / "processor_config.json").read_text())["image_seq_len"]
    return Idefics3Processor(kind.from_pretrained(folder), tokenizer, length, chat_template=tokenizer.chat_template)


def reference(folder: Path, messages: Sequence[Message]) -> Any:
    """The whole conversation by transformers' own processor."""
    shown = []
    for message in messages:
        parts = message.content if isinstance(message.content, list) else [{"type": "text", "text": message.text}]
        content = [
            part
            if isinstance(part, dict)
            else {"type": "image", "url": part.image}
            if part.image
            else {"type": "text", "text": part.text}
            for part in parts
        ]
        shown.append({"role": message.role, "content": content})
    return processor_of(folder).apply_chat_template(shown, tokenize=True, return_dict=True, return_tensors="np")


def agrees(folder: Path, session: Session, head: int) -> int:
    """Compare a path with the reference; returns how many frames it has."""
    path = tree.path(session, head)
    whole = reference(folder, [node.message for node in path])
    ids = [token for node in path for token in node.token_ids]
    expected = whole["input_ids"][0].tolist()
    assert ids == expected[: len(ids)]
    assert len(expected) - len(ids) <= 1, "what follows a turn is the next node's"
    found = [images.unpack(node.attachments[images.NAME]) for node in path if images.NAME in node.attachments]
    frames = [frame for one in found for frame in one.frames]
    if "image_grid_thw" in whole:
        assert np.array_equal(np.concatenate(frames), whole["pixel_values"])
        grids = [[1, 2 * rows, 2 * columns] for one in found for rows, columns in one.grids]
        assert grids == whole["image_grid_thw"].tolist()
    elif "pixel_attention_mask" not in whole:
        assert np.array_equal(np.stack(frames), whole["pixel_values"])
    else:
        assert np.array_equal(np.stack(frames)[:, :3], whole["pixel_values"][0])
        assert np.array_equal(np.stack(frames)[:, 3], whole["pixel_attention_mask"][0])
    for node in path:
        if images.NAME in node.attachments:
            images.unpack(node.attachments[images.NAME]).places(node.token_ids)
    return len(frames)


@pytest.mark.slow
def test_paths_and_forks_are_what_the_processor_makes_of_the_whole(
    tiny_folder: Path, smolvlm_folder: Path, qwen_folder: Path, llava_folder: Path
) -> None:
    others = (smolvlm_folder, qwen_folder, llava_folder)
    for folder, tool in ((tiny_folder, "tool"), *((folder, "user") for folder in others)):
        renderer = get_renderer(str(folder))
        proved = renderer.tokenizer.images.processed
        generator = TurnGenerator(renderer, None)
        session = Session("s", Task(id="t"))
        talk = Conversation(session, generator)
        wide = picture(5, (60, 40))
        talk.add([Message(role="system", content="Be brief.")])
        talk.add([Message(role="user", content=[image(wide), "Which one?"])])
        talk.demonstrate(Message(role="assistant", content="The first."))
        fork = talk.head
        assert fork is not None
        call = "c" if tool == "tool" else None
        for content in ([image(picture(9)), image(picture(9)), "two"], [image(wide)]):
            talk.add([Message(role=tool, tool_call_id=call, content=content)])
            talk.demonstrate(Message(role="assistant", content="That."))
        assert talk.head is not None
        frames = agrees(folder, session, talk.head.id)
        other = Conversation(session, generator, head=fork.id)
        other.add([Message(role="user", content=["See: ", image(picture(1)), " and?"])])
        last = other.demonstrate(Message(role="assistant", content="This."))
        assert agrees(folder, session, last.id) < frames
        mark = renderer.tokenizer.images.token
        [typed] = renderer.render([Message(role="user", content=[mark, image(wide)])])
        own = images.unpack(talk.session.nodes[1].attachments[images.NAME])
        assert own.places(typed).size == own.count, "typed placeholders are text"
        assert renderer.tokenizer.images.processed == proved + 3, "each distinct picture is processed once"
        tree.check(session)


@dataclass
class Seeing(DiceEngine):
    """Dice that are shown images, and note them."""

    shown: list[tuple[str, list[Placed]]] = field(default_factory=list)

    @property
    def capabilities(self) -> Any:
        return agentrl.types.Capabilities("dice", 1000, self.vocab, inputs=frozenset({images.NAME}))

    async def generate(  # type: ignore[override]
        self,
        request_id: str,
        input_ids: Sequence[int],
        sampling: Sampling,
        deadline: float | None = None,
        attached: Sequence[Placed] = (),
    ) -> AsyncIterator[Chunk | Turn]:
        self.shown.append((request_id, list(attached)))
        async for item in super().generate(request_id, input_ids, sampling, deadline):
            yield item


@pytest.mark.slow
async def test_each_attempt_at_a_turn_is_shown_the_paths_images(tiny_folder: Path, tmp_path: Path) -> None:
    tokenizer = HFTokenizer((tiny_folder / "tokenizer.json").read_text(), path=tiny_folder)
    renderer = get_renderer(str(tiny_folder))
    dice = {"vocab": tokenizer.vocab_size, "end": renderer.stop_token_ids[0], "chunk": 2}
    engine = Seeing(abort=0.7, end_weight=0.1, **dice)
    session, deadline = Session("s", Task(id="t")), time.monotonic() + 60
    talk = Conversation(session, TurnGenerator(renderer, engine))
    places = []
    for turn in range(2):
        places.append(len(talk.token_ids))
        talk.add([Message(role="user", content=[image(picture(turn)), "What?"])])
        await talk.generate(Sampling(max_new_tokens=12), deadline)
    assert engine.current > 0, "a turn was aborted and continued"
    for request, attached in engine.shown:
        count = 1 if request == engine.shown[0][0] else 2
        assert [place for place, _, _ in attached] == places[:count]
        assert [data for _, _, data in attached] == [session.nodes[n].attachments[images.NAME] for n in (0, 2)][:count]
    with pytest.raises(RenderError, match="engine=dice does not take"):
        await Conversation(session, TurnGenerator(renderer, DiceEngine(**dice)), head=3).generate(Sampling(), deadline)
    await _stored_once(session, tmp_path / "sessions.db")


async def _stored_once(session: Session, file: Path) -> None:
    """Several sessions with the same pictures hold each file and its pixels once, and are read as they were."""
    with Store(str(file)) as store, closing(sqlite3.connect(file)) as tables:
        for name in ("a", "b", "c"):
            session.id = name
            store.save(session)
        assert store.load("b").nodes == session.nodes
        assert tables.execute("SELECT count(*) FROM blobs").fetchone() == (4,)
        assert b"base64" not in tables.execute("SELECT group_concat(message) FROM nodes").fetchone()[0].encode()
        for name in ("a", "b", "c"):
            store.delete(name)
        assert tables.execute("SELECT count(*) FROM blobs").fetchone() == (0,)


@pytest.mark.parametrize("url", ["https://pictures.test/one.png", "data:image/png;base64,AAAA"])
@pytest.mark.slow
def test_an_image_that_can_not_be_read_ends_its_session_and_is_the_environments(url: str, tiny_folder: Path) -> None:
    """A part that was built by hand, which nothing has checked."""
    talk = Conversation(Session("s", Task(id="t")), TurnGenerator(get_renderer(str(tiny_folder)), None))
    shown = Message(role="user", content=[Part(type="image_url", image_url={"url": url}), "Which one?"])
    with pytest.raises(InvalidMessage, match="the environment's user message has a broken image") as raised:
        send({"": Player(talk, EXPERT)}, {"": [shown]})
    record_failure(talk.session, raised.value)
    assert talk.session.status is Status.INFRA_ERROR
    assert not talk.session.nodes
