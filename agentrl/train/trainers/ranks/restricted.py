"""Checkpoints of distributed formats hold pickles, which could run anything; what these may hold is read first.

torch's loaders unpickle a checkpoint's metadata, and everything in it that is no tensor, without restriction. A
stranger's checkpoint is therefore read here before it is given to them: its metadata may name the classes of torch's
format alone, and the rest what `torch.load` takes with `weights_only`. Nothing in it may lead out of its folder, or be
compressed. Shapes and types are compared with the model's by whoever loads it.
"""

from __future__ import annotations

import errno
import io
import pickle
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

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
        *("BytesIOWriteData", "SavePlan", "TensorWriteData", "WriteItem", "WriteItemType")
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
    """Refuse a checkpoint whose pickles hold more than its format needs, or that leads elsewhere; none of it is run."""
    for file in sorted(folder.rglob("*")):
        if not file.resolve().is_relative_to(folder.resolve()):
            raise InvalidInput(f"{file}: the checkpoint is refused: it is a link out of the checkpoint's folder")
        if not (file.is_file() or file.is_dir()):
            raise InvalidInput(f"{file}: the checkpoint is refused: it is neither a file nor a folder")
    for file in sorted(folder.rglob("*.pt")):
        with file.open("rb") as stream:
            _check_values(file, stream)
    for file in sorted(folder.rglob(METADATA)):
        try:
            if file.stat().st_size > MOST_METADATA:
                raise pickle.UnpicklingError(f"it has more than {MOST_METADATA} bytes")
            metadata = _Restricted(io.BytesIO(file.read_bytes())).load()
            places = _places(metadata)
        except Exception as error:  # a damaged pickle raises anything
            raise InvalidInput(f"{file}: the checkpoint's metadata is refused: {error}") from None
        for place in places:
            _check_place(file, place)


@dataclass(frozen=True)
class _Place:
    """A file, the first byte and the length of something stored; and whether it is a tensor."""

    name: str
    start: int
    length: int
    is_tensor: bool


def _places(metadata: Any) -> list[_Place]:
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    kinds = metadata.state_dict_metadata
    return [
        _Place(
            str(place.relative_path),
            int(place.offset),
            int(place.length),
            isinstance(kinds.get(index.fqn), TensorStorageMetadata),
        )
        for index, place in metadata.storage_data.items()
    ]


def _check_place(metadata: Path, place: _Place) -> None:
    data = (metadata.parent / place.name).resolve()
    refused = f"{metadata}: the checkpoint's metadata is refused: {place.name}"
    if not data.is_relative_to(metadata.parent.resolve()):
        raise InvalidInput(f"{refused} is not in its folder")
    size = data.stat().st_size if data.is_file() else -1
    if min(place.start, place.length) < 0 or place.start + place.length > size:
        raise InvalidInput(f"{refused} has no bytes from {place.start} to {place.start + place.length}")
    with data.open("rb") as stream:
        part = _Part(stream, place.start, place.length)
        if place.is_tensor:
            refuse_packed(data, part)
        else:
            _check_values(data, part)


class _Part(io.RawIOBase):
    """A range of a file, as a file."""

    def __init__(self, file: BinaryIO, start: int, length: int) -> None:
        self._file, self._start, self._length, self._at = file, start, length, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        at = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._length}[whence] + offset
        if at < 0:
            raise OSError(errno.EINVAL, "before the beginning")
        self._at = at
        return at

    def readinto(self, buffer: Any) -> int:
        self._file.seek(self._start + self._at)
        data = self._file.read(max(0, min(len(buffer), self._length - self._at)))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def refuse_packed(file: Path, stream: Any) -> None:
    """Refuse what is compressed, which torch never writes: a few megabytes could be a thousand times as many.

    Args:
        file: names it.
        stream: what torch is to load; it is left at its beginning.
    """
    if zipfile.is_zipfile(stream):
        stream.seek(0)
        with zipfile.ZipFile(stream) as archive:
            packed = any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist())
        if packed:
            raise InvalidInput(f"{file}: the checkpoint is refused: it is compressed, and torch's are not")
    stream.seek(0)


def _check_values(file: Path, stream: Any) -> None:
    try:
        refuse_packed(file, stream)
        with torch.serialization.safe_globals([io.BytesIO]):
            torch.load(io.BytesIO(stream.read()), map_location="cpu", weights_only=True)
    except InvalidInput:
        raise
    except Exception as error:
        reason = str(error).partition("\n")[0][:300]
        raise InvalidInput(f"{file}: the checkpoint is refused: it holds more than numbers ({reason})") from None
