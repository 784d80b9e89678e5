"""Renderers of families whose processors differ most show images as these do: Gemma 3, GLM-4.1V and GLM-4.5V."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import pre_tokenizers
from transformers import AutoTokenizer, LlavaOnevisionProcessor
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.glm4v.image_processing_pil_glm4v import Glm4vImageProcessorPil
from transformers.models.llava_onevision.image_processing_pil_llava_onevision import LlavaOnevisionImageProcessorPil

from agentrl.attachments import images
from agentrl.models import tiny, tiny_vision
from agentrl.sessions.renderers.proof.images import prove_images
from agentrl.sessions.renderers.registry import get_renderer
from agentrl.types import Message, image
from tests.vision.test_conversations import picture

GEMMA = (
    "{{ bos_token }}{%- for message in messages -%}"
    "{%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}"
    "{{ '<start_of_turn>' + role + '\n' }}"
    "{%- if message['content'] is string -%}{{ message['content'] | trim }}{%- else -%}"
    "{%- for item in message['content'] -%}"
    "{%- if item['type'] == 'image' -%}{{ '<start_of_image>' }}"
    "{%- elif item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}{%- endfor -%}{%- endif -%}"
    "{{ '<end_of_turn>\n' }}{%- endfor -%}{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%}"
)
"""The chat template that Gemma 3 publishes, without its rules for system messages and the order of roles."""
GLM = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for item in message['content'] %}"
    "{% if item['type'] == 'image' %}<|begin_of_image|><|image|><|end_of_image|>"
    "{% else %}{{ item['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Turns of ChatML with images as GLM-4.1V's template has them: its own turns end with the next one's role."""

ONE = "{% for part in messages[0]['content'] %}<image>{% endfor %}"


def folder_of(folder: Path, kind: str, template: str, names: dict[str, str], marks: tuple[str, ...]) -> Path:
    """A tokenizer, as transformers loads it, that knows special tokens by these names; no weights."""
    tokenizer: Any = tiny.build_tokenizer(["user\nhow many?\n"] * 9, 512, 2048, (*names.values(), *marks), template)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.save_pretrained(folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"extra_special_tokens": names}))
    (folder / "config.json").write_text(json.dumps({"model_type": kind}))
    assert AutoTokenizer.from_pretrained(folder).convert_tokens_to_ids(list(names.values()))
    return folder


@pytest.mark.slow
def test_gemma_and_glm_show_images_as_their_processors_do(tmp_path: Path) -> None:
    names = {"boi_token": "<start_of_image>", "image_token": "<image_soft_token>", "eoi_token": "<end_of_image>"}
    gemma = folder_of(tmp_path / "gemma", "gemma3", GEMMA, names, ("<start_of_turn>", "<end_of_turn>"))
    Gemma3ImageProcessorPil(size={"height": 32, "width": 32}).save_pretrained(gemma)
    (gemma / "processor_config.json").write_text(json.dumps({"image_seq_length": 4}))
    glm = folder_of(
        tmp_path / "glm", "glm4v_moe", GLM, {"image_token": "<|image|>"}, ("<|begin_of_image|>", "<|end_of_image|>")
    )
    Glm4vImageProcessorPil(size={"shortest_edge": 56 * 56, "longest_edge": 112 * 112}).save_pretrained(glm)
    for folder, both in ((gemma, True), (glm, False)):
        renderer = get_renderer(str(folder))
        found = prove_images(renderer)
        assert (found.fault, found.boundaries) == ("", 2), str(found)
        shown = renderer.tokenizer.images.attached(Message(role="user", content=[image(picture(3))]))  # type: ignore[attr-defined]
        assert images.unpack(shown[images.NAME]).both is both


def test_onevisions_processor_rewrites_an_image_when_another_comes_for_which_it_is_refused(tmp_path: Path) -> None:
    """A path can only be continued; `vision_families.REFUSED` says so to whoever names such a model."""
    folder = folder_of(tmp_path / "one", "llava_onevision", tiny_vision.CHAT_TEMPLATE, {"image_token": "<image>"}, ())
    tiles = {"size": {"height": 32, "width": 32}, "image_grid_pinpoints": [[32, 64], [64, 64]]}

    class ImagesAlone(LlavaOnevisionProcessor):
        def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
            return type(argument)

    settings = {"num_image_tokens": 16, "vision_feature_select_strategy": "full"}
    processor = ImagesAlone(LlavaOnevisionImageProcessorPil(**tiles), AutoTokenizer.from_pretrained(folder), **settings)
    counts = []
    for count in (1, 2):
        shown = [{"type": "image", "image": picture(number)} for number in range(count)]
        talk = [{"role": "user", "content": shown}]
        made = processor.apply_chat_template(talk, chat_template=ONE, tokenize=True, return_dict=True)
        counts.append(made["input_ids"][0].count(processor.image_token_id))
    assert counts[1] < 2 * counts[0], "the second image is not all that was added"
