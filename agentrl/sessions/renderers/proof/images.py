"""Proof by trial that a renderer's tokens and pixels of images are those of the model's own processor.

A conversation with images is rendered message by message, as a session grows. At every turn boundary its tokens are
compared with those that the processor's own `apply_chat_template` gives for the whole, and at its end the pixels, and
the grids that positions follow from.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from agentrl.errors import AgentRLError
from agentrl.models.image_processor import ImageProcessor
from agentrl.models.tokenizers import HFTokenizer
from agentrl.sessions.renderers.base import Renderer, ToolSchema
from agentrl.sessions.renderers.proof.trials import compare_boundaries
from agentrl.types import Message, Part, image


@dataclass(frozen=True, slots=True)
class ImageProof:
    """The outcome.

    Attributes:
        boundaries: turn boundaries compared.
        fault: what differs, or could not be rendered, as a clause; "" where nothing did.
        not_compared: why nothing was compared.
    """

    boundaries: int = 0
    fault: str = ""
    not_compared: str = ""

    def __str__(self) -> str:
        if self.not_compared:
            return f"its images were not compared: {self.not_compared}"
        if self.fault:
            return f"a conversation with images differs from what the model's processor makes of it: {self.fault}"
        return f"images: tokens at {self.boundaries} turn boundaries, and pixels, are the processor's own"


def prove_images(renderer: Renderer) -> ImageProof:
    """Compare a renderer with the image processor of its tokenizer's folder."""
    tokenizer = renderer.tokenizer
    if not isinstance(tokenizer, HFTokenizer) or (seen := tokenizer.images) is None:
        return ImageProof(not_compared="the model sees none")
    template = tokenizer.chat_template
    if not template:
        return ImageProof(not_compared="there is no chat template")

    def whole(messages: Sequence[Message], tools: Sequence[ToolSchema], prompt: bool) -> list[int]:
        ids: list[int] = seen.process_whole(messages, template, prompt=prompt)["input_ids"][0].tolist()
        return ids

    messages = _conversation()
    try:
        proof = compare_boundaries(renderer, whole, messages)
        fault = proof.difference or _compare_pixels(seen, template, messages)
    except (AgentRLError, ValueError, KeyError, TypeError) as error:  # templates and processors of many families
        return ImageProof(fault=f"{type(error).__name__}: {error}")
    return ImageProof(proof.boundaries, fault)


def _conversation() -> list[Message]:
    """Two questions about images: a wide one, then two of one size, one of them twice."""
    rng = random.Random(0)
    text = partial(Part, type="text")
    wide, square, other = (_picture(rng, size) for size in ((90, 50), (64, 64), (64, 64)))
    return [
        Message(role="user", content=[image(wide), text(text="Which one?")]),
        Message(role="assistant", content="The first."),
        Message(
            role="user",
            content=[text(text="Now these: "), image(square), image(other), text(text=" and"), image(square)],
        ),
        Message(role="assistant", content="None."),
    ]


def _picture(rng: random.Random, size: tuple[int, int]) -> object:
    from PIL import Image

    return Image.frombytes("RGB", size, rng.randbytes(3 * size[0] * size[1]))


def _compare_pixels(seen: ImageProcessor, template: str, messages: Sequence[Message]) -> str:
    """The first input of the model that is not what nodes carry of their images; "" where all are."""
    import numpy as np

    theirs = seen.process_whole(messages, template, prompt=False)
    ours = seen.model_inputs(messages)
    for name, array in ours.items():
        if name not in theirs:
            return f"the processor gives no {name}"
        if array.shape != theirs[name].shape or not np.array_equal(array, theirs[name]):
            return f"{name} of {array.shape} is not the processor's, of {theirs[name].shape}"
    return ""
