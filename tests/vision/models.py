"""A tiny random vision-language model, and images as its processor would give them."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import torch
from transformers import SmolVLMConfig, SmolVLMForConditionalGeneration

from agentrl.attachments.images import ImageInputs

IMAGE, SIDE, PER_FRAME, VOCABULARY = 47, 16, 4, 48


def tiny_vlm(folder: Path, dtype: torch.dtype = torch.float32) -> Path:
    """A folder with a random SmolVLM: frames of 16 x 16 pixels are 16 patches, and 4 tokens."""
    torch.manual_seed(0)
    text = {
        "model_type": "llama", "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0,
        "bos_token_id": 1, "eos_token_id": 2, "max_position_embeddings": 256, "tie_word_embeddings": False,
    }  # fmt: skip
    seen = {
        "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
        "image_size": SIDE, "patch_size": 4,
    }  # fmt: skip
    config = SmolVLMConfig(
        text_config=text, vision_config=seen, image_token_id=IMAGE, scale_factor=2, pad_token_id=0,
        tie_word_embeddings=False,
    )  # fmt: skip
    SmolVLMForConditionalGeneration(config).to(dtype).save_pretrained(folder)
    return folder


def drawn(seed: int, frames: int = 1) -> ImageInputs:
    """Random frames; the second's lower half is padding."""
    pixels = np.random.default_rng(seed).standard_normal((frames, 4, SIDE, SIDE)).astype(np.float32)
    pixels[:, 3] = 1
    pixels[1:, :, SIDE // 2 :] = 0
    return ImageInputs(IMAGE, PER_FRAME, b"s" * 16, pixels)


def prompt(seed: int, frames: int = 1, text: int = 5) -> list[int]:
    """Token ids of some text around images."""
    rng = random.Random(seed)
    words = [rng.randrange(3, 40) for _ in range(text)]
    return [*words, *[IMAGE] * (PER_FRAME * frames), *words[:2]]
