"""Checkpoints of distributed formats hold pickles, which could run anything; what these may hold is read first.

torch's loaders unpickle a checkpoint's metadata, and everything in it that is no tensor, without restriction. A
stranger's checkpoint is therefore read here before it is given to them: its metadata may name the classes of torch's
format alone, and the rest what `torch.load` takes with `weights_only`.
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import torch

from agentrl.errors import InvalidInput

METADATA = ".metadata"
MOST_METADATA = 1 << 30
"""Bytes of metadata that are read."""
_ALLOWED = {
    "torch.distributed.checkpoint.metadata": {
        *("BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta"),
        *("TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING"),
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.distributed.checkpoint.planner": {  # Megatron's has the plans by which it was written
        *("BytesIOWriteData", "SavePlan", "TensorWriteData", "WriteItem", "WriteItemType"),
    },
    "torch.serialization": {"_get_layout"},
    "torch": {"Size", *(name for name, value in vars(torch).items() if isinstance(value, torch.dtype))},
    "pathlib": {"PosixPath", "PurePosixPath"},
    "pathlib._local": {"PosixPath", "PurePosixPath"},
    "collections": {"OrderedDict"},
}


class _Restricted(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if name not in _ALLOWED.get(module, ()):
            raise pickle.UnpicklingError(f"it names {module}.{name}, which is no part of torch's format")
        return super().find_class(module, name)


def check(folder: Path) -> None:
    """Refuse a checkpoint whose pickles hold more than its format needs; nothing of it is run.

    Raises:
        InvalidInput: it does, or can't be read; it names the file.
    """
    for file in sorted(folder.rglob("*.pt")):
        _check_values(file, file.read_bytes())
    for file in sorted(folder.rglob(METADATA)):
        try:
            if file.stat().st_size > MOST_METADATA:
                raise pickle.UnpicklingError(f"it has more than {MOST_METADATA} bytes")
            metadata = _Restricted(io.BytesIO(file.read_bytes())).load()
            places = _places(metadata)
        except Exception as error:  # a damaged pickle raises anything
            raise InvalidInput(f"{file}: the checkpoint's metadata is refused: {error}") from None
        for name, start, length in places:
            data = (file.parent / name).resolve()
            if not data.is_relative_to(file.parent.resolve()):
                raise InvalidInput(f"{file}: the checkpoint's metadata is refused: {name} is not in its folder")
            with data.open("rb") as stream:
                stream.seek(start)
                _check_values(data, stream.read(length))


def _places(metadata: Any) -> list[tuple[str, int, int]]:
    """Where what is no tensor lies: file, first byte, length."""
    from torch.distributed.checkpoint.metadata import BytesStorageMetadata

    held = {name for name, kind in metadata.state_dict_metadata.items() if isinstance(kind, BytesStorageMetadata)}
    found = ((index.fqn, place) for index, place in metadata.storage_data.items())
    return [(str(place.relative_path), int(place.offset), int(place.length)) for name, place in found if name in held]


def _check_values(file: Path, data: bytes) -> None:
    try:
        with torch.serialization.safe_globals([io.BytesIO]):
            torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:
        reason = str(error).partition("\n")[0][:300]
        raise InvalidInput(f"{file}: the checkpoint is refused: it holds more than numbers ({reason})") from None
