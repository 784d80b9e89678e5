"""agentrl's vLLM on a CPU, without agentrl installed: `python -m agentrl_vllm`, and methods that workers get.

Workers get them by `--worker-extension-cls agentrl_vllm.WorkerExtension`.

On a CPU vLLM 0.32 multiplies by packed copies of matrices. A reload packs what it loads again, but not the output layer
of a model whose embeddings are tied: it has no weights in the checkpoint, so it keeps the ones of before. The
parameters of packed matrices are empty, so vLLM's checksums, which are of parameters, tell nothing of them.

vLLM does not load a Qwen-VL without torchvision, of which PyPI has no build for a CPU's torch. Only its processors need
it, and agentrl's images are processed: here it gets those that Pillow does, and none of videos. Processes that vLLM
spawns import this module as well.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import runpy
import sys
import types
from typing import Any

ROWS = 256
"""Rows of a matrix that are read back at a time."""


class WorkerExtension:
    """Added to the bases of vLLM's own worker class."""

    model_runner: Any

    def pack_weights_again(self) -> int:
        """Pack all matrices that are still there unpacked; how many they were."""
        from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

        packed = 0
        for layer in self.model_runner.get_model().modules():
            weight = getattr(layer, "weight", None)
            if hasattr(layer, "cpu_linear") and weight is not None and weight.ndim == 2 and weight.numel():
                dispatch_cpu_unquantized_gemm(layer, remove_weight=False)
                packed += 1
        return packed

    def packed_checksums(self) -> dict[str, str]:
        """A digest of each matrix that is packed, by the layer's name.

        The packed form can't be read. But a layer multiplies what it is given by its matrix, so the rows of the
        identity give the matrix itself, and exactly: all other products are zeros.
        """
        import torch

        sums = {}
        for name, layer in self.model_runner.get_model().named_modules():
            if not hasattr(layer, "cpu_linear") or layer.weight.is_meta:
                continue
            width, digest = _inputs(layer), hashlib.sha256()
            for start in range(0, width, ROWS):
                rows = torch.zeros(min(ROWS, width - start), width, dtype=layer.weight.dtype)
                rows[:, start:].fill_diagonal_(1)
                found = layer.cpu_linear(rows, layer.weight, None)
                digest.update(found.contiguous().view(-1).view(torch.uint8).numpy())
            sums[name] = digest.hexdigest()
        return sums


def _inputs(layer: Any) -> int:
    """The number of a layer's inputs; its matrix may have gone."""
    if layer.weight.numel():
        return int(layer.weight.shape[1])
    return int(getattr(layer, "input_size_per_partition", None) or layer.input_size)


Worker = WorkerExtension
"""The name in the commands of servers that users start."""


def do_without_torchvision() -> None:
    """Have Qwen-VL's processors be Pillow's, and know of videos only what vLLM asks at its start."""
    from transformers import processing_utils
    from vllm.model_executor.models import registry

    registry._run_in_subprocess = lambda look: look()  # in that process transformers is as it was
    models = "transformers.models.qwen2_vl.image_processing"
    sys.modules[f"{models}_qwen2_vl"] = importlib.import_module(f"{models}_pil_qwen2_vl")
    size = {"shortest_edge": 1 << 12, "longest_edge": 1 << 16}
    videos = types.SimpleNamespace(
        valid_kwargs=processing_utils.VideosKwargs, size=size, temporal_patch_size=2, patch_size=16, merge_size=2
    )
    for family in ("qwen2_5_vl.processing_qwen2_5_vl.Qwen2_5_VL", "qwen3_vl.processing_qwen3_vl.Qwen3VL"):
        module, _, name = f"transformers.models.{family}Processor".rpartition(".")
        kind = getattr(importlib.import_module(module), name)
        kind.get_attributes = classmethod(lambda _kind: ["image_processor", "tokenizer"])
        kind.video_processor = videos


if __name__ in ("__main__", "__mp_main__") and importlib.util.find_spec("torchvision") is None:
    do_without_torchvision()
if __name__ == "__main__":
    runpy.run_module("vllm.entrypoints.cli.main", run_name="__main__")
