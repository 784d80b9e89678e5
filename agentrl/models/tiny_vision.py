"""The tiny model for worlds that are seen: an Idefics3 whose language model is `tiny`'s, with a small tower before it.

A picture is scaled to one frame, and each patch of 16 x 16 pixels becomes one token, so that what stands in a place of
the picture is found at a token. Given up: detail within a patch beyond what 64 numbers hold.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from agentrl.models import tiny

PATCH, MOST_PATCHES = 16, 6
"""Pixels of a patch's side, and most patches of a picture's."""
TOWER = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
IMAGE_TOKENS = ("<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>")

_SHOWN = """\
{%- macro shown(content) %}
{%- if content is string %}{{- content }}
{%- else %}
{%- for part in content or [] %}
{%- if part.type == 'text' %}{{- part.text }}{%- else %}{{- '<image>' }}{%- endif %}
{%- endfor %}
{%- endif %}
{%- endmacro %}
"""
CHAT_TEMPLATE = _SHOWN + re.sub(
    r"\(message\.content or ''\)|(messages\[0\]|message)\.content",
    lambda found: f"shown({found[1] or 'message'}.content)",
    tiny.CHAT_TEMPLATE,
)
"""That of `tiny`, whose contents may be lists of texts and images."""


def side_of(sizes: Iterable[tuple[int, int]]) -> int:
    """The side of the model's pictures: that of the largest which it is to see, in whole patches, and not too many."""
    largest = max((max(size) for size in sizes), default=PATCH)
    return min(-(-largest // PATCH), MOST_PATCHES) * PATCH


def build(path: Path, texts: Iterable[str], side: int, *, seed: int = 0, shape: tiny.TinyShape | None = None) -> Path:
    """Make the tiny model that sees pictures of `side` pixels, its tokenizer and processor; see `tiny.build`."""
    shape = shape or tiny.TinyShape()
    tokenizer = tiny.build_tokenizer(texts, shape.vocab, shape.context, IMAGE_TOKENS, CHAT_TEMPLATE)
    model = build_model(tiny.language_config(tokenizer, shape), tokenizer, side, seed=seed)
    saved = tokenizer.save_pretrained, model.save_pretrained, partial(save_processor, side=side)
    return tiny.save_parts(path, *saved)


def save_processor(folder: Path, side: int) -> None:
    """Write the settings of the processor whose images are one frame of this side."""
    from transformers import Idefics3ImageProcessorPil

    size = {"longest_edge": side}
    Idefics3ImageProcessorPil(size=size, max_image_size=size, do_image_splitting=False).save_pretrained(folder)
    settings = {"processor_class": "Idefics3Processor", "image_seq_len": (side // PATCH) ** 2}
    (folder / "processor_config.json").write_text(json.dumps(settings, indent=2))


def build_model(text: Any, tokenizer: Any, side: int, *, seed: int) -> Any:
    """An `Idefics3ForConditionalGeneration` with random weights, its language model of the configuration `text`."""
    import torch
    from transformers import Idefics3Config, Idefics3ForConditionalGeneration

    config = Idefics3Config(
        text_config=text,
        vision_config={**TOWER, "image_size": side, "patch_size": PATCH},
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        scale_factor=1,
        pad_token_id=text.pad_token_id,
        tie_word_embeddings=True,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Idefics3ForConditionalGeneration(config)
