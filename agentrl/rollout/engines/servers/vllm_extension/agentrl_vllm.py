"""Methods that vLLM's workers get by `--worker-extension-cls agentrl_vllm.WorkerExtension`, without agentrl installed.

On a CPU vLLM 0.32 multiplies by packed copies of matrices. A reload packs what it loads again, but not the output layer
of a model whose embeddings are tied: it has no weights in the checkpoint, so it keeps the ones of before. The
parameters of packed matrices are empty, so vLLM's checksums, which are of parameters, tell nothing of them.
"""

from __future__ import annotations

import hashlib
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
