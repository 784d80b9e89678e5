"""Quantising weights for publication: the trainer keeps bfloat16 or float32, the engine runs FP8.

The format is the one that DeepSeek-V3's checkpoints introduced and SGLang and vLLM load as `quant_method: fp8` with
`weight_block_size: [128, 128]`: weights in e4m3, and beside each a `<name>_scale_inv` in float32 with one number
for every 128 by 128 block, so that weight = e4m3 * scale_inv. Scales are amax / 448 per block (448 is e4m3's
largest number; DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, section 3.3).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from agentrl.errors import ConfigError
from agentrl.rollout.weights.buckets import Named, cast

E4M3_MAX = 448.0
SUFFIX = "_scale_inv"
_KEPT = ("embed_tokens", "lm_head", "norm", ".gate.weight")
"""Parts that such checkpoints leave in higher precision: embeddings, head, norms, a mixture's router."""


@dataclass(frozen=True, slots=True)
class Fp8Blocks:
    """The tensors that become FP8, and their blocks.

    Attributes:
        block: rows and columns that share a scale.
        keep: modules that are not quantised, by a part of their names.
    """

    block: tuple[int, int] = (128, 128)
    keep: tuple[str, ...] = ()

    @classmethod
    def from_folder(cls, folder: Path) -> Fp8Blocks | None:
        """The blocks of the model in a folder, by its configuration; None where it is not quantised.

        Raises:
            ConfigError: it is quantised in another way.
        """
        settings = json.loads((folder / "config.json").read_text()).get("quantization_config")
        if not settings:
            return None
        if settings.get("quant_method") != "fp8" or not settings.get("weight_block_size"):
            kind = settings.get("quant_method")
            raise ConfigError(
                f"{folder}: quant_method={kind!r} can't be published to; allowed: fp8 with weight_block_size"
            )
        rows, columns = settings["weight_block_size"]
        return cls((rows, columns), tuple(settings.get("modules_to_not_convert") or ()))

    def applies(self, name: str, tensor: Tensor) -> bool:
        """Return whether this tensor is one that the checkpoint format quantises."""
        linear = tensor.ndim == 2 and name.endswith(".weight") and tensor.is_floating_point()
        return linear and not any(part in name for part in (*_KEPT, *self.keep))

    def __call__(
        self, weights: Iterable[Named], rest: Callable[[Iterable[Named]], Iterable[Named]] = iter
    ) -> Iterator[Named]:
        """The weights with each such tensor replaced by its FP8 form and its scales.

        Args:
            weights: in the trainer's precision: quantising a rounded weight would round twice.
            rest: converts the other tensors.
        """
        for name, tensor in weights:
            if self.applies(name, tensor):
                quantised, scale = quantise(tensor, self.block)
                yield name, quantised
                yield name + SUFFIX, scale
            else:
                yield from rest([(name, tensor)])


def quantise(weight: Tensor, block: Sequence[int] = (128, 128)) -> tuple[Tensor, Tensor]:
    """A matrix in e4m3 and the inverse scales of its blocks.

    Args:
        weight: [N, K], any floating-point dtype; blocks at the edges may be smaller.
        block: rows and columns that share a scale.

    Returns:
        e4m3 [N, K] and float32 [ceil(N / rows), ceil(K / columns)]; a block of zeros has scale 1.
    """
    (n, k), (rows, columns) = weight.shape, block
    down, across = -(-n // rows), -(-k // columns)
    padded = torch.zeros(down * rows, across * columns, dtype=torch.float32, device=weight.device)
    padded[:n, :k] = weight
    blocks = padded.view(down, rows, across, columns)
    amax = blocks.abs().amax((1, 3))
    scale = torch.where(amax > 0, amax / E4M3_MAX, torch.ones_like(amax))
    scaled = (blocks / scale[:, None, :, None]).clamp(-E4M3_MAX, E4M3_MAX)
    return scaled.view(padded.shape)[:n, :k].to(torch.float8_e4m3fn).contiguous(), scale


def converted(weights: Iterable[Named], dtype: torch.dtype, blocks: Fp8Blocks | None) -> Iterator[Named]:
    """Convert weights as engines load them: quantised where the model's folder is, and the rest in `dtype`."""
    if blocks is None:
        return cast(weights, dtype)
    return blocks(weights, partial(cast, dtype=dtype))
