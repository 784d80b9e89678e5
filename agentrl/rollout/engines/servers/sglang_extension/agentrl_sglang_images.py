"""Images that agentrl has processed, for SGLang's server, which takes over HTTP only those that it processes itself.

Token ids stay as they came; which of them stand for an image is told, and checked against the model that is served.
Positions come with them, by agentrl's rule. Features are named by a digest of the numbers that they are made of, so
that cached ones and cached prefixes are those of the same image; SGLang 0.5.23 keeps features when weights change, so
they are forgotten here.
"""

from __future__ import annotations

import base64
import functools
import json
import math
from collections import OrderedDict
from typing import Any

import torch

PREFIX = "agentrl-images:"
"""The beginning of a request's `image_data`."""
FORGOTTEN = "agentrl-images: forgotten"
"""The beginning of the error for images whose numbers were left out and are not held any more."""
HELD_BYTES = 1 << 30
"""Numbers of images that are held, so that a session's next turns need not bring them again."""
ABSENT = (
    "fused_sigmoid_mul_cpu",
    "fused_qk_gemma_rmsnorm_cpu",
    "fused_qk_gemma_rmsnorm_with_gate_cpu",
    "fused_qkvzba_split_reshape_cat_contiguous_cpu",
)
"""Kernels of Qwen 3.5 that SGLang 0.5.23's wheel lacks on a CPU, and that its processor of all Qwen-VL models names."""


held: OrderedDict[str, torch.Tensor] = OrderedDict()


def take_images() -> None:
    """Have the server take images in agentrl's form, beside its own."""
    if not torch.cuda.is_available():
        name_absent_kernels()
    from sglang.srt.managers import multimodal_processor

    make = multimodal_processor.get_mm_processor

    def made(*given: Any, **named: Any) -> Any:
        processor = make(*given, **named)
        kind = type(processor)
        plain = kind.process_mm_data_async

        async def process(self: Any, image_data: Any = None, input_text: Any = None, **more: Any) -> Any:
            first = image_data[0] if image_data else None
            if isinstance(first, str) and first.startswith(PREFIX):
                return read_images(self, first, list(input_text))
            return await plain(self, image_data=image_data, input_text=input_text, **more)

        kind.process_mm_data_async = process
        return processor

    multimodal_processor.get_mm_processor = made


def name_absent_kernels() -> None:
    """Let modules be imported that name kernels which are not there; whoever calls one is told."""
    import sgl_kernel  # noqa: F401

    kernels = torch.ops.sgl_kernel
    for name in ABSENT:
        if not hasattr(kernels, name):
            setattr(kernels, name, functools.partial(_refuse_kernel, name))


def _refuse_kernel(name: str, *given: Any, **named: Any) -> None:
    raise NotImplementedError(f"this sgl_kernel has no {name}")


def read_images(processor: Any, text: str, ids: list[int]) -> Any:
    """Turn a request's images into what the scheduler takes.

    Args:
        processor: of the model that is served.
        text: the request's `image_data`.
        ids: the request's token ids.

    Raises:
        ValueError: they do not fit the prompt or the model.
    """
    from sglang.srt.managers.schedule_batch import Modality, MultimodalDataItem, MultimodalProcessorOutput

    header, _, numbers = text.removeprefix(PREFIX).partition("\n")
    values = torch.frombuffer(bytearray(base64.b64decode(numbers)), dtype=torch.int32)
    axes, values = values[: 3 * len(ids)].view(3, -1).long(), values[3 * len(ids) :].view(torch.float32)
    token, merged, items = processor.mm_tokens.image_token_id, processor.spatial_merge_size, []
    for one in json.loads(header):
        first, count, patches = one["offset"], one["count"], math.prod(one["sides"])
        if ids[first : first + count] != [token] * count or patches != count * merged**2:
            raise ValueError(
                f"an image of {patches} patches is {count} tokens from place {first} on; for this model it is "
                f"{patches // merged**2} tokens of the id {token}, and there stand {ids[first : first + count]}"
            )
        if one["width"]:
            hold(one["digest"], values[: patches * one["width"]].view(patches, -1).clone())
            values = values[patches * one["width"] :]
        elif one["digest"] not in held:
            raise ValueError(f"{FORGOTTEN} {one['digest']}")
        held.move_to_end(one["digest"])
        sides = torch.tensor([one["sides"]])
        feature, offsets = held[one["digest"]], [(first, first + count - 1)]
        item = MultimodalDataItem(modality=Modality.IMAGE, feature=feature, offsets=offsets)
        item.set("image_grid_thw", sides)
        item.set_identity(bytes.fromhex(one["digest"]))
        items.append(item)
    return MultimodalProcessorOutput(
        input_ids=ids,
        padded_input_ids=MultimodalProcessorOutput.build_padded_input_ids(ids, items),
        mm_items=items,
        im_start_id=processor.vision_start_token_id,
        im_end_id=processor.vision_end_token_id,
        im_token_id=token,
        mrope_positions=axes,
        mrope_position_delta=(axes.max() + 1 - len(ids)).reshape(1, 1),
    )


def hold(digest: str, feature: torch.Tensor) -> None:
    """Hold an image's numbers; those that were used last stay."""
    held[digest] = feature
    while len(held) > 1 and sum(each.nbytes for each in held.values()) > HELD_BYTES:
        held.popitem(last=False)


def forget_features() -> None:
    """Have the server forget the tower's features whenever weights are loaded."""
    from sglang.srt.managers.scheduler_components.weight_updater import SchedulerWeightUpdaterManager as Manager

    for name in ("update_weights_from_disk", "update_weights_from_distributed", "update_weights_from_tensor"):
        setattr(Manager, name, _forgetting(getattr(Manager, name)))


def _forgetting(load: Any) -> Any:
    def loaded(*given: Any, **named: Any) -> Any:
        from sglang.srt.managers import mm_schedule

        try:
            return load(*given, **named)
        finally:
            if mm_schedule.embedding_cache is not None:
                mm_schedule.embedding_cache.clear()

    return loaded
