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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.attachments import images
from agentrl.common.pictures import picture
from agentrl.common.untrusted import read_json
from agentrl.errors import ConfigError, InvalidInput, RenderError, require_extra
from agentrl.models.vision_families import FAMILIES
from agentrl.types import Message

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_KEPT_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class ProcessedImage:
    """An image as text: `text` is what its placeholder becomes in a conversation; `inputs` are its frames."""

    text: str
    inputs: images.ImageInputs

    @property
    def nbytes(self) -> int:
        """The size of its frames."""
        return sum(frame.nbytes for frame in self.inputs.frames)


class ImageProcessor:
    """The image processor of a model's folder.

    Attributes:
        token: the text of the placeholder that a chat template writes for an image.

    Raises:
        ConfigError: the folder's processor can't be loaded.
    """

    def __init__(self, folder: Path) -> None:
        kind = read_json((folder / "config.json").read_text())["model_type"]
        self._kind = kind
        self._processor = _load(folder, kind)
        self._process = _PROCESSES[kind]
        self._around, self._both = FAMILIES[kind].around, FAMILIES[kind].both
        self.token: str = self._processor.image_token
        own = getattr(self._processor.tokenizer, "image_token_id", None)  # Gemma 3's template writes another
        self._token_id = int(self._processor.image_token_id if own is None else own)
        settings = [self._processor.image_processor.to_dict(), getattr(self._processor, "image_seq_len", None)]
        self._settings = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).digest()[:16]
        self._lock = threading.Lock()
        self._kept: OrderedDict[bytes, ProcessedImage] = OrderedDict()
        self._bytes = 0
        self.processed = 0

    def processed_image(self, url: str) -> ProcessedImage:
        """An image, processed once."""
        key = hashlib.sha256(url.encode()).digest()
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
            try:
                text, frames, grids = self._process(self._processor, picture(url))
            except InvalidInput as error:
                raise RenderError(str(error)) from error
            self.processed += 1
            inputs = images.ImageInputs(self._token_id, self._settings, tuple(frames), tuple(grids), self._both)
            made = ProcessedImage(text, inputs)
            self._kept[key] = made
            self._bytes += made.nbytes
            while self._bytes > _KEPT_BYTES and len(self._kept) > 1:
                self._bytes -= self._kept.popitem(last=False)[1].nbytes
            return made

    def attached(self, message: Message) -> dict[str, bytes]:
        """Return what the node of a message carries of its images.

        Raises:
            RenderError: one of them can't be read, or they become frames of different sizes.
        """
        found = [self.processed_image(url).inputs for url in message.images]
        if not found:
            return {}
        frames = tuple(frame for one in found for frame in one.frames)
        if len({frame.shape for frame in frames}) > 1 and not found[0].axes:
            sizes = ", ".join(sorted({"{} x {}".format(*frame.shape[1:]) for frame in frames}))
            raise RenderError(f"a message's images become frames of different sizes ({sizes}), which is not supported")
        grids = tuple(grid for one in found for grid in one.grids)
        return {images.NAME: replace(found[0], frames=frames, grids=grids).pack()}

    def encode(self, url: str) -> list[int]:
        """The tokens that an image becomes."""
        text = self.processed_image(url).text.join(self._around)
        ids: list[int] = self._processor.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def process_whole(self, messages: Sequence[Message], template: str, *, prompt: bool) -> Mapping[str, Any]:
        """A model's inputs, as arrays, that transformers' processor makes of a whole conversation by itself.

        Args:
            messages: whose texts hold no markup.
            template: the chat template.
            prompt: whether it ends with what opens the model's turn.
        """
        shown = [{"role": message.role, "content": _parts(message)} for message in messages]
        made: Mapping[str, Any] = self._processor.apply_chat_template(
            shown,
            chat_template=template,
            add_generation_prompt=prompt,
            tokenize=True,
            return_dict=True,
            return_tensors="np",
        )
        return made

    def model_inputs(self, messages: Sequence[Message]) -> dict[str, NDArray[Any]]:
        """The pixels and grids that nodes carry of a conversation's images, as `process_whole` has them."""
        import torch

        from agentrl.models.vision_trials import TRIALS

        shown = [self.processed_image(url).inputs for message in messages for url in message.images]
        frames = [torch.from_numpy(frame) for one in shown for frame in one.frames]
        grids = [grid for one in shown for grid in one.grids]
        given = TRIALS[self._kind].given(frames, grids, torch.zeros(1, 0))
        return {name: tensor.numpy() for name, tensor in given.items() if tensor.numel()}

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


def _parts(message: Message) -> list[dict[str, str]]:
    """A message's content as transformers' processors take it."""
    if not isinstance(message.content, list):
        return [{"type": "text", "text": message.text}]
    return [
        {"type": "image", "url": part.image} if part.image else {"type": "text", "text": part.text or ""}
        for part in message.content
    ]


def _process_idefics(processor: Any, image: Any) -> ProcessedParts:
    import numpy as np

    made = processor.image_processor([[image]], return_row_col_info=True, return_tensors="np")
    pixels = np.asarray(made["pixel_values"][0], dtype=np.float32)
    mask = np.asarray(made["pixel_attention_mask"][0], dtype=np.float32)
    text = processor.replace_image_token({"rows": made["rows"], "cols": made["cols"]}, 0)
    frames = np.concatenate([pixels, mask[:, None]], 1)
    return text, list(frames), [(1, text.count(processor.image_token) // len(frames))] * len(frames)


def _process_llava(processor: Any, image: Any) -> ProcessedParts:
    import numpy as np

    made = processor.image_processor([image], return_tensors="np")
    text = processor.replace_image_token(made, 0)
    return text, [np.asarray(made["pixel_values"][0], dtype=np.float32)], [(1, text.count(processor.image_token))]


def _process_qwen(processor: Any, image: Any) -> ProcessedParts:
    import numpy as np

    made = processor.image_processor([image], return_tensors="np")
    patches = np.asarray(made["pixel_values"], dtype=np.float32)
    _, high, wide = (int(side) for side in made["image_grid_thw"][0])
    merged = processor.image_processor.merge_size
    return processor.replace_image_token(made, 0), [patches], [(high // merged, wide // merged)]


def _process_gemma(processor: Any, image: Any) -> ProcessedParts:
    import numpy as np

    made = processor.image_processor([image], return_tensors="np")
    frames = list(np.asarray(made["pixel_values"], dtype=np.float32))
    return processor.replace_image_token(made, 0), frames, [(1, processor.image_seq_length)] * len(frames)


ProcessedParts = tuple[str, "list[NDArray[np.float32]]", list[tuple[int, int]]]
"""An image's text, its frames, and their grids."""
_PROCESSES: dict[str, Callable[[Any, Any], ProcessedParts]] = {
    "idefics3": _process_idefics,
    "smolvlm": _process_idefics,
    "llava": _process_llava,
    "qwen2_5_vl": _process_qwen,
    "qwen3_vl": _process_qwen,
    "gemma3": _process_gemma,
    "glm4v": _process_qwen,
    "glm4v_moe": _process_qwen,
}


def find_processor(folder: Path | None) -> ImageProcessor | None:
    """The image processor of a tokenizer's folder; None where its model sees no images, or none of a known family."""
    if folder is None:
        return None
    try:
        family = read_json((folder / "config.json").read_text()).get("model_type")
    except (OSError, ValueError, AttributeError):
        return None
    return ImageProcessor(folder) if family in FAMILIES else None


_CLASSES = {
    "idefics3": "Idefics3Processor",
    "smolvlm": "Idefics3Processor",
    "llava": "LlavaProcessor",
    "qwen2_5_vl": "Qwen2_5_VLProcessor",
    "qwen3_vl": "Qwen3VLProcessor",
    "gemma3": "Gemma3Processor",
    "glm4v": "Glm4vProcessor",
    "glm4v_moe": "Glm4vProcessor",
}
"""Of transformers. SmolVLM's own needs a video library; images become the same text by Idefics3's."""
_SETTINGS = {
    "Idefics3Processor": ("image_seq_len",),
    "LlavaProcessor": ("patch_size", "vision_feature_select_strategy", "num_additional_image_tokens"),
    "Gemma3Processor": ("image_seq_length",),
}
"""The arguments of a processor that its folder says."""


def _load(folder: Path, kind: str) -> Any:
    """The processor of transformers, without its part for videos, which needs libraries of theirs."""
    with require_extra("vision", "pillow"):
        from PIL import Image  # noqa: F401
    import transformers
    from transformers.models.auto.image_processing_auto import AutoImageProcessor

    whole = getattr(transformers, _CLASSES[kind])
    images_alone = type(whole.__name__, (whole,), {"check_argument_for_proper_class": lambda *given: type(given[-1])})
    try:
        pixels = AutoImageProcessor.from_pretrained(folder, backend="pil")
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        names = _SETTINGS.get(_CLASSES[kind], ())
        settings = read_json((folder / "processor_config.json").read_text()) if names else {}
        given = {name: settings[name] for name in names if name in settings}
        return images_alone(image_processor=pixels, tokenizer=tokenizer, **given)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"model={str(folder)!r}: its image processor can't be loaded: {error}") from error
