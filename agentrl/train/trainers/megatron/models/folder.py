"""Weights of an exported Hugging Face folder: files of bounded size, written by the rank that has them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from torch import Tensor

FILE_BYTES = 2 << 30
"""The bytes of one file; its tensors are in the CPU's memory until it is written."""


def write_weights(folder: Path, weights: Iterator[tuple[str, Tensor]]) -> dict[str, int]:
    """Write safetensors files of at most `FILE_BYTES` and, of several, their index; returns elements by dtype."""
    from safetensors.torch import save_file

    files: dict[str, int] = {}
    dtypes = Counter[str]()
    held = total = count = 0
    current: dict[str, Tensor] = {}

    def flush() -> None:
        nonlocal count
        save_file(current, folder / f"part-{count}", metadata={"format": "pt"})
        count += 1
        current.clear()

    for name, tensor in weights:
        if current and held + tensor.nbytes > FILE_BYTES:
            flush()
            held = 0
        current[name] = tensor.detach().to("cpu", copy=True).contiguous()  # it may be a view of what changes
        files[name] = count
        held, total = held + tensor.nbytes, total + tensor.nbytes
        dtypes[str(tensor.dtype).removeprefix("torch.")] += tensor.numel()
    flush()
    if count == 1:
        (folder / "part-0").rename(folder / "model.safetensors")
        return dict(dtypes)
    final = [f"model-{i + 1:05d}-of-{count:05d}.safetensors" for i in range(count)]
    for i, name in enumerate(final):
        (folder / f"part-{i}").rename(folder / name)
    index = {"metadata": {"total_size": total}, "weight_map": {name: final[i] for name, i in files.items()}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    return dict(dtypes)
