"""Images as the model's own processor sees them: their placeholder tokens, and the pixels that stand behind these.

The processor is asked once for each image (by its content): the bytes of what it made are kept for as long as there is
room, and they are what a node carries (`attachments.images`). Pillow's implementation is taken wherever there are
several, so that the same image is the same pixels on every machine.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.attachments import images
from agentrl.common.pictures import picture
from agentrl.common.untrusted import read_json
from agentrl.errors import ConfigError, InvalidInput, RenderError, missing_extra
from agentrl.types import Message

FAMILIES = ("idefics3", "smolvlm")
"""Values of model_type in config.json whose processors are known."""
_KEPT_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class ProcessedImage:
    """An image as text: `text` is what its placeholder becomes in a conversation; `inputs` are its frames."""

    text: str
    inputs: images.ImageInputs


class ImageProcessor:
    """The image processor of a model's folder.

    Args:
        folder: of Hugging Face, of a known family.

    Attributes:
        token: the text of the placeholder that a chat template writes for an image.

    Raises:
        ConfigError: the folder's processor can't be loaded.
    """

    def __init__(self, folder: Path) -> None:
        self._processor = _load(folder)
        self.token: str = self._processor.image_token
        self._token_id = int(self._processor.image_token_id)
        settings = [self._processor.image_processor.to_dict(), self._processor.image_seq_len]
        self._settings = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).digest()[:16]
        self._lock = threading.Lock()
        self._kept: OrderedDict[bytes, ProcessedImage] = OrderedDict()
        self._bytes = 0
        self.processed = 0

    def processed_image(self, url: str) -> ProcessedImage:
        """An image, processed once.

        Args:
            url: a data URL.

        Raises:
            RenderError: it is no image that can be read.
        """
        key = hashlib.sha256(url.encode()).digest()
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
            try:
                made = self._process(picture(url))
            except InvalidInput as error:
                raise RenderError(str(error)) from error
            self.processed += 1
            self._kept[key] = made
            self._bytes += made.inputs.frames.nbytes
            while self._bytes > _KEPT_BYTES and len(self._kept) > 1:
                self._bytes -= self._kept.popitem(last=False)[1].inputs.frames.nbytes
            return made

    def attached(self, message: Message) -> dict[str, bytes]:
        """Return what the node of a message carries of its images.

        Raises:
            RenderError: one of them can't be read, or they become frames of different sizes.
        """
        import numpy as np

        found = [self.processed_image(url).inputs for url in message.images]
        if not found:
            return {}
        if len({one.frames.shape[1:] for one in found}) > 1:
            sizes = ", ".join(sorted({"{} x {}".format(*one.frames.shape[2:]) for one in found}))
            raise RenderError(f"a message's images become frames of different sizes ({sizes}), which is not supported")
        frames = np.concatenate([one.frames for one in found])
        inputs = images.ImageInputs(found[0].token, found[0].per_frame, found[0].settings, frames)
        return {images.NAME: inputs.pack()}

    def encode(self, url: str) -> list[int]:
        """The tokens that an image becomes.

        Raises:
            RenderError: it is no image that can be read.
        """
        text = self.processed_image(url).text
        ids: list[int] = self._processor.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def expand(self, text: str, urls: Sequence[str]) -> str:
        """A rendered conversation in which each image's placeholder has become the text of its tokens.

        Args:
            text: trusted markup; nothing that others wrote in it reads as a placeholder.
            urls: the images, in order.

        Raises:
            RenderError: the template wrote another number of placeholders.
        """
        pieces = text.split(self.token)
        if len(pieces) != len(urls) + 1:
            raise RenderError(f"the chat template writes {len(pieces) - 1} placeholders for {len(urls)} images")
        shown = [*(self.processed_image(url).text for url in urls), ""]
        return "".join(piece + image for piece, image in zip(pieces, shown, strict=True))

    def _process(self, image: Any) -> ProcessedImage:
        import numpy as np

        made = self._processor.image_processor([[image]], return_row_col_info=True, return_tensors="np")
        pixels = np.asarray(made["pixel_values"][0], dtype=np.float32)
        mask = np.asarray(made["pixel_attention_mask"][0], dtype=np.float32)
        text = self._processor.replace_image_token({"rows": made["rows"], "cols": made["cols"]}, 0)
        frames = np.concatenate([pixels, mask[:, None]], 1)
        per_frame = text.count(self.token) // len(frames)
        return ProcessedImage(text, images.ImageInputs(self._token_id, per_frame, self._settings, frames))


def find_processor(folder: Path | None) -> ImageProcessor | None:
    """The image processor of a tokenizer's folder; None where its model sees no images, or none of a known family.

    Raises:
        ConfigError: it can't be loaded.
    """
    if folder is None:
        return None
    try:
        family = read_json((folder / "config.json").read_text()).get("model_type")
    except (OSError, ValueError, AttributeError):
        return None
    return ImageProcessor(folder) if family in FAMILIES else None


def _load(folder: Path) -> Any:
    """A processor without video, which SmolVLM's own class can't be: images become the same text by both."""
    try:
        from PIL import Image  # noqa: F401
    except ImportError:
        raise missing_extra("pillow", "vision") from None
    from transformers import AutoTokenizer, Idefics3Processor
    from transformers.models.auto.image_processing_auto import AutoImageProcessor

    try:
        settings = read_json((folder / "processor_config.json").read_text())
        pixels = AutoImageProcessor.from_pretrained(folder, backend="pil")
        tokenizer = AutoTokenizer.from_pretrained(folder)
        return Idefics3Processor(pixels, tokenizer, int(settings["image_seq_len"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"model={str(folder)!r}: its image processor can't be loaded: {error}") from error
