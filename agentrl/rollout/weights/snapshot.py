"""A model on disk, as engines load it: safetensors files of bounded size beside the model's other files.

Written without `save_pretrained`, because a publication streams: each bucket becomes one file as
soon as it is gathered, its tensors written from where they lie, without a copy of the whole. The folder is
written beside and renamed, so that a folder of that name is complete.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from agentrl.common.scratch import write_folder
from agentrl.errors import EngineError
from agentrl.models.adapters import SETTINGS, SavedAdapter, read_adapter, with_products, write_adapter
from agentrl.rollout.engines.folder import tensors
from agentrl.rollout.weights.buckets import ADAPTER, Bucket, Named, Shapes, Weights, buckets, prefetch, take_part

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""The safetensors format's names of dtypes."""
INDEX = "model.safetensors.index.json"
_WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt", ".pth", ".msgpack", ".h5")


def write_snapshot(weights: Iterable[Named], folder: Path, base: Path, limit: int) -> Path:
    """Write a Hugging Face folder.

    Args:
        weights: what the model shall be.
        folder: where; what is there is replaced.
        base: a folder whose other files (configuration, tokenizer) go with the weights.
        limit: bytes of one file.

    Returns:
        `folder`.
    """
    if isinstance(weights, Weights) and weights.save is not None:
        weights.save(folder, base, limit)
        return folder
    with write_folder(folder) as beside:
        copy_others(base, beside)
        weight_map: dict[str, str] = {}
        for number, bucket in enumerate(prefetch(buckets(weights, limit))):
            name = f"model-{number:05d}.safetensors"
            write_bucket(bucket, beside / name)
            if again := weight_map.keys() & set(bucket.names):
                raise EngineError(f"weights name {min(again)!r} twice")
            weight_map |= dict.fromkeys(bucket.names, name)
        index = {"metadata": {"format": "pt"}, "weight_map": weight_map}
        (beside / INDEX).write_text(json.dumps(index))
    return folder


def save_snapshot(weights: Iterable[Named], folder: Path, base: Path, limit: int) -> Shapes:
    """`write_snapshot` in the process that holds the weights, for one that does not; returns what was written."""
    shapes: Shapes = {}

    def seen() -> Iterator[Named]:
        for name, tensor in weights:
            shapes[name] = tuple(tensor.shape)
            yield name, tensor

    write_snapshot(seen(), folder, base, limit)
    return shapes


def write_bucket(bucket: Bucket, path: Path) -> None:
    """Write one safetensors file."""
    at, header = 0, {}
    for name, tensor in zip(bucket.names, bucket.tensors, strict=True):
        header[name] = {
            "dtype": DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [at, at + tensor.nbytes],
        }
        at += tensor.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb", buffering=0) as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in bucket.tensors:
            if tensor.nbytes:
                view = memoryview(raw(tensor).numpy())  # type: ignore[arg-type]  # numpy's arrays are buffers
                while view:
                    view = view[file.write(view) :]


def raw(tensor: Tensor) -> Tensor:
    """A tensor's bytes on the CPU, uint8 [nbytes]; a view where the tensor is contiguous there."""
    return tensor.detach().to("cpu").contiguous().view(-1).view(torch.uint8)


def read_snapshot(folder: Path) -> Iterator[Named]:
    """A folder's tensors, file by file."""
    from safetensors import safe_open

    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - the library's handle is no mapping
                yield name, file.get_tensor(name)


def write_part(adapter: SavedAdapter, folder: Path) -> Path:
    """Write an adapter as a folder of its own, which is complete when it has its name; returns `folder`."""
    with write_folder(folder) as beside:
        write_adapter(beside, adapter, adapter.matrices)
    return folder


def read_folder(folder: Path) -> Iterable[Named]:
    """Return what a folder brings: a model's tensors, or an adapter, which only an engine with its base can take."""
    if not (folder / SETTINGS).exists():
        return read_snapshot(folder)
    adapter = read_adapter(folder)
    return Weights(lambda: whole_of(adapter), parts={ADAPTER: adapter})


def whole_of(adapter: SavedAdapter, base: Path | None = None) -> Iterator[Named]:
    """Yield all tensors of a base's folder, with an adapter's products added.

    Args:
        adapter: on the base.
        base: the folder; None is the one that the adapter names.
    """
    yield from with_products(read_snapshot(base or Path(adapter.shape.base or "")), adapter)


def merge_on(base: Path, weights: Iterable[Named]) -> Iterable[Named]:
    """Return weights that take no more from the trainer than their adapter, where an engine with this base may.

    That is on the same folder, or on one with the same tensors, such as a warm start's.
    """
    adapter = weights.parts.get(ADAPTER) if isinstance(weights, Weights) else None
    if adapter is None or not is_like(base, adapter.shape.base):
        return weights
    take_part(weights, ADAPTER)
    return whole_of(adapter)


def is_like(base: Path, other: str | None) -> bool:
    """Return whether another folder is a base's, or has tensors of the same names and shapes."""
    if other is None or not Path(other).is_dir():
        return False
    return Path(other).resolve() == base.resolve() or tensors(Path(other)) == tensors(base)


def read_header(path: Path) -> dict[str, tuple[str, tuple[int, ...], int, int]]:
    """The tensors of a safetensors file: name to (dtype, shape, first byte, end) in the file."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    found = {}
    for name, entry in header.items():
        start, end = (8 + length + offset for offset in entry["data_offsets"])
        found[name] = (entry["dtype"], tuple(entry["shape"]), start, end)
    return found


def copy_others(base: Path, folder: Path) -> None:
    """Copy everything of a model folder except its weights; linked where the file system supports it."""
    for file in base.iterdir():
        if not file.is_file() or file.suffix in _WEIGHTS or file.name.endswith(".index.json"):
            continue
        try:
            os.link(file.resolve(), folder / file.name)
        except OSError:
            shutil.copy2(file, folder / file.name)
