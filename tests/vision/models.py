"""Tiny random vision-language models, and images as their processors would give them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from agentrl.attachments.images import ImageInputs

IMAGE, SIDE, PER_FRAME, VOCABULARY, HEAD = 47, 16, 4, 48, 8
TEXT = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "max_position_embeddings": 256, "tie_word_embeddings": False,
}  # fmt: skip
SHARED = {"image_token_id": IMAGE, "pad_token_id": 0, "tie_word_embeddings": False}


@dataclass(frozen=True)
class Served:
    """What a server wants to be otherwise in a Qwen's configuration; each mapping goes before the tiny model's own."""

    head: int = HEAD
    text: Mapping[str, Any] = field(default_factory=dict)
    shared: Mapping[str, Any] = field(default_factory=dict)
    patches: Mapping[str, Any] = field(default_factory=dict)


TINY = Served()


def smolvlm() -> Any:
    """Frames of 16 x 16 pixels are 16 patches, and 4 tokens."""
    seen = {
        "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
        "image_size": SIDE, "patch_size": 4,
    }  # fmt: skip
    text = {**TEXT, "model_type": "llama"}
    return transformers.SmolVLMForConditionalGeneration(
        transformers.SmolVLMConfig(text_config=text, vision_config=seen, scale_factor=2, **SHARED)
    )


PATCHES = {
    "depth": 3, "hidden_size": 16, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 32, "patch_size": 4,
}  # fmt: skip


def qwen25(served: Served = TINY) -> Any:
    """Patches of 4 x 4 pixels, four of which are a token; two layers of the tower look within windows of two tokens."""
    section = [served.head // 4, served.head // 8, served.head // 8]
    rope = {"rope_type": "default", "rope_theta": 100.0, "mrope_section": section}
    text, seen = {**TEXT, **served.text, "rope_parameters": rope}, {**PATCHES, **served.patches}
    seen |= {"window_size": 4 * seen["patch_size"], "fullatt_block_indexes": [1]}
    return transformers.Qwen2_5_VLForConditionalGeneration(
        transformers.Qwen2_5_VLConfig(text_config=text, vision_config=seen, **{**SHARED, **served.shared})
    )


def qwen3(served: Served = TINY) -> Any:
    """The same without windows; features of the tower's first layer are added behind the language model's."""
    section = [served.head // 4, served.head // 8, served.head // 8]
    rope = {"rope_type": "default", "rope_theta": 100.0, "mrope_section": section, "mrope_interleaved": True}
    text = {**TEXT, **served.text, "head_dim": served.head, "rope_parameters": rope}
    seen = {**PATCHES, **served.patches, "num_position_embeddings": 16, "deepstack_visual_indexes": [0]}
    return transformers.Qwen3VLForConditionalGeneration(
        transformers.Qwen3VLConfig(text_config=text, vision_config=seen, **{**SHARED, **served.shared})
    )


def llava() -> Any:
    """Frames of 16 x 16 pixels are 4 patches, and as many tokens; the features are the last layer's but one."""
    seen = {
        "model_type": "clip_vision_model", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 3,
        "num_attention_heads": 2, "image_size": SIDE, "patch_size": 8,
    }  # fmt: skip
    text = {**TEXT, "model_type": "llama"}
    return transformers.LlavaForConditionalGeneration(
        transformers.LlavaConfig(
            text_config=text, vision_config=seen, image_token_index=IMAGE, pad_token_id=0, tie_word_embeddings=False
        )
    )


def gemma3() -> Any:
    """Frames of 16 x 16 pixels are 16 patches, and 4 tokens, which see each other; a layer has a window."""
    seen = {
        "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
        "image_size": SIDE, "patch_size": 4,
    }  # fmt: skip
    text = {**TEXT, "head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 6}
    text |= {"layer_types": ["sliding_attention", "full_attention"]}
    return transformers.Gemma3ForConditionalGeneration(
        transformers.Gemma3Config(
            text_config=text, vision_config=seen, mm_tokens_per_image=PER_FRAME, image_token_index=IMAGE,
            boi_token_index=41, eoi_token_index=42, tie_word_embeddings=False,
        )
    )  # fmt: skip


def glm4v() -> Any:
    """GLM-4.5V's forebear: patches as Qwen's, half of a head's width turned by positions, in pairs of neighbours."""
    rope = {"rope_type": "default", "rope_theta": 100.0, "mrope_section": [1, 1, 0], "partial_rotary_factor": 0.5}
    seen = {**PATCHES, "image_size": SIDE, "attention_bias": False}
    return transformers.Glm4vForConditionalGeneration(
        transformers.Glm4vConfig(text_config={**TEXT, "rope_parameters": rope}, vision_config=seen, **SHARED)
    )


def framed(seed: int, frames: int) -> ImageInputs:
    """Random frames; the second's lower half is padding."""
    pixels = np.random.default_rng(seed).standard_normal((frames, 4, SIDE, SIDE)).astype(np.float32)
    pixels[:, 3] = 1
    pixels[1:, :, SIDE // 2 :] = 0
    return ImageInputs(IMAGE, b"s" * 16, tuple(pixels), ((1, PER_FRAME),) * frames)


def pictured(seed: int, frames: int) -> ImageInputs:
    """Random pictures without a mask."""
    made = framed(seed, frames)
    return ImageInputs(IMAGE, made.settings, tuple(frame[:3] for frame in made.frames), made.grids)


def blocked(seed: int, frames: int) -> ImageInputs:
    """Random pictures whose tokens see each other."""
    return replace(pictured(seed, frames), both=True)


def patched(seed: int, frames: int) -> ImageInputs:
    """Random patches of images with two rows of tokens, and of every second one with one row."""
    rng = np.random.default_rng(seed)
    grids = tuple((2, 2) if number % 2 == 0 else (1, 4) for number in range(frames))
    patches = tuple(rng.standard_normal((4 * PER_FRAME, 3 * 2 * 4 * 4)).astype(np.float32) for _ in grids)
    return ImageInputs(IMAGE, b"s" * 16, patches, grids)


@dataclass(frozen=True)
class TinyFamily:
    """A family's tiny model, and what its processor would make of images."""

    model: Callable[..., Any]
    drawn: Callable[[int, int], ImageInputs]


FAMILIES = {
    "smolvlm": TinyFamily(smolvlm, framed),
    "llava": TinyFamily(llava, pictured),
    "qwen2_5_vl": TinyFamily(qwen25, patched),
    "qwen3_vl": TinyFamily(qwen3, patched),
    "gemma3": TinyFamily(gemma3, blocked),
    "glm4v": TinyFamily(glm4v, patched),
}


def tiny_vlm(folder: Path, family: str = "smolvlm", *served: Served) -> Path:
    """A folder with a random model."""
    torch.manual_seed(0)
    FAMILIES[family].model(*served).to(torch.float32).save_pretrained(folder)
    return folder


def drawn(seed: int, frames: int = 1, family: str = "smolvlm") -> ImageInputs:
    """Random frames, of `PER_FRAME` tokens each."""
    return FAMILIES[family].drawn(seed, frames)


def prompt(seed: int, frames: int = 1, text: int = 5) -> list[int]:
    """Token ids of some text around images, each between two other tokens, as Qwen's are."""
    rng = random.Random(seed)
    words = [rng.randrange(3, 40) for _ in range(text)]
    return [*words, *[41, *[IMAGE] * PER_FRAME, 42] * frames, *words[:2]]
