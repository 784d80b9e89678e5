"""Deltas: only what changed since the last publication is sent; a replica patches its checkpoint with a delta.

An update at a small learning rate leaves most bfloat16 weights exactly as they were, and those that change are
scattered everywhere. So tensors are compared in blocks of 65,536 elements, and a changed block is sent as
whichever is smaller: all its values, or the changed ones with their indices in the block (16 bits each).

A delta names its parent. A replica applies only the delta whose parent it is, verifies every checksum before it writes
anything, and keeps the delta beside its checkpoint while patching: patching is idempotent, so a replica that was killed
half-way patches again and is complete (a redo log). Given up: a replica can't go back to an earlier version, and
corrupted bytes on its disk are noticed only by comparing engines.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import struct
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from torch import Tensor

from agentrl.errors import EngineError
from agentrl.rollout.weights.buckets import Named, prefetch
from agentrl.rollout.weights.snapshot import DTYPES, raw, read_header

BLOCK = 1 << 16
"""Elements compared at a time: indices in a block fit 16 bits."""
THREADS = 2
"""Tensors that are compared at a time; each takes its own size in memory meanwhile."""
_FAULT = 4
"""The pages that are written in the time that the first change of a mapped one takes (5, measured on ext4)."""
STATE = "replica.json"
REDO = "replica.delta"
_MAGIC = b"agentrl delta 1\n"
_WORDS: dict[int, np.dtype[Any]] = {1: np.dtype("u1"), 2: np.dtype("<u2"), 4: np.dtype("<u4"), 8: np.dtype("<u8")}
_FRAME = struct.Struct("<QII")
_SIZES = {name: dtype.itemsize for dtype, name in DTYPES.items()}

Words = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class TensorChange:
    """The change of one tensor.

    `dense`: numbers of the blocks that are sent whole; `sparse`: block numbers and how many elements changed in
    each. `payload` holds the dense blocks' values, then the sparse blocks' indices (u16) and values.
    """

    file: str
    name: str
    start: int
    count: int
    word: int
    dense: list[int]
    sparse: list[tuple[int, int]]
    payload: bytes | memoryview

    @property
    def pages(self) -> int:
        """Return how many pages of memory it touches at most."""
        changed = len(self.dense) * BLOCK + sum(count for _, count in self.sparse)
        return min(changed, (len(self.dense) + len(self.sparse)) * -(-BLOCK * self.word // mmap.PAGESIZE))


def compare(old: Words, new: Words, file: str, name: str, start: int) -> TensorChange | None:
    """The change from `old` to `new` (words of the same size and number); None where there is none."""
    word = new.dtype.itemsize
    places = np.flatnonzero(old != new)
    if not len(places):
        return None
    counts = np.diff(np.searchsorted(places, np.arange(0, len(new) + BLOCK, BLOCK)))
    blocks = np.flatnonzero(counts)
    counts = counts[blocks]
    whole = counts * (2 + word) >= np.minimum(BLOCK, len(new) - blocks * BLOCK) * word
    dense, thin = blocks[whole], blocks[~whole]
    if len(dense):
        places = places[np.repeat(~whole, counts)]
    parts = [new[b * BLOCK : (b + 1) * BLOCK].tobytes() for b in dense]
    parts += [(places % BLOCK).astype("<u2").tobytes(), new[places].tobytes()]
    sparse = list(zip(thin.tolist(), counts[~whole].tolist(), strict=True))
    return TensorChange(file, name, start, len(new), word, dense.tolist(), sparse, b"".join(parts))


def patch(words: Words, change: TensorChange) -> None:
    """Set a tensor's words to the new values of `compare`; idempotent."""
    at = 0
    for block in change.dense:
        piece = words[block * BLOCK : (block + 1) * BLOCK]
        piece[:] = np.frombuffer(change.payload, words.dtype, len(piece), at)
        at += piece.nbytes
    total = sum(count for _, count in change.sparse)
    if total:
        blocks, counts = np.array(change.sparse, dtype=np.int64).T
        places = np.frombuffer(change.payload, "<u2", total, at).astype(np.int64)
        words[np.repeat(blocks, counts) * BLOCK + places] = np.frombuffer(
            change.payload, words.dtype, total, at + 2 * total
        )


class Replica:
    """A checkpoint folder that deltas update. Opening one finishes a patch that a crash interrupted.

    Args:
        folder: a Hugging Face folder with safetensors files.
        identity: which publication it holds, if it is new; one that was opened before knows.
        synced: a patch is on the disk when it is done: it survives the machine, and other hosts see it. Without that it
            survives this process, and takes a fraction of the time: a scattered change touches every page.
    """

    def __init__(self, folder: Path, identity: str | None = None, *, synced: bool = True) -> None:
        self.folder, self.synced = folder, synced
        if not (folder / STATE).exists():
            if identity is None:
                raise EngineError(f"{folder} is no replica: it has no {STATE}")
            self._record(identity)
        self.identity: str = json.loads((folder / STATE).read_text())["identity"]
        self._headers = {path.name: read_header(path) for path in sorted(folder.glob("*.safetensors"))}
        # mapped once: a mapping for each tensor of each publication would have new pages
        self._files = {name: np.memmap(folder / name, np.uint8, "r+") for name in self._headers}
        if (folder / REDO).exists():
            self._patch(read_delta(folder / REDO))

    def words(self, file: str, name: str) -> Words:
        """A tensor's words in the file, writable."""
        dtype, _, start, end = self._headers[file][name]
        return self._files[file][start:end].view(_WORDS[_SIZES[dtype]])

    def names(self) -> dict[str, str]:
        return {name: file for file, header in self._headers.items() for name in header}

    def encode(self, weights: Iterable[Named], out: Path) -> str:
        """Write the delta from the replica to `weights`; the replica itself is not changed.

        Returns:
            The delta's identity: what a replica is once it has taken it.

        Raises:
            EngineError: a tensor is unknown, missing, or of another dtype or shape.
        """
        return write_delta(self._changes(weights), self.identity, out)

    def _changes(self, weights: Iterable[Named]) -> Iterator[TensorChange]:
        with ThreadPoolExecutor(THREADS) as pool:
            comparing: deque[Future[TensorChange | None]] = deque()
            for file, name, tensor in self._check_weights(weights):
                comparing.append(pool.submit(self._compare, file, name, tensor))
                if len(comparing) > THREADS and (change := comparing.popleft().result()) is not None:
                    yield change
            yield from (change for each in comparing if (change := each.result()) is not None)

    def _compare(self, file: str, name: str, tensor: Tensor) -> TensorChange | None:
        old = self.words(file, name)
        return compare(old, raw(tensor).numpy().view(old.dtype), file, name, self._headers[file][name][2])

    def _check_weights(self, weights: Iterable[Named]) -> Iterator[tuple[str, str, Tensor]]:
        """Yield weights that fit, each with its file."""
        files = self.names()
        left = set(files)
        for name, tensor in prefetch(weights):
            if name not in left:
                raise EngineError(f"weights hold {name!r}, which the replica lacks or has had already")
            left.remove(name)
            dtype, shape, *_ = self._headers[files[name]][name]
            if (dtype, shape) != (DTYPES[tensor.dtype], tuple(tensor.shape)):
                found = f"{DTYPES[tensor.dtype]} {tuple(tensor.shape)}"
                raise EngineError(f"weights hold {name!r} as {found}, the replica as {dtype} {shape}")
            yield files[name], name, tensor
        if left:
            raise EngineError(f"weights lack {min(left)!r}, which the replica has")

    def apply(self, delta: Path) -> None:
        """Apply a delta.

        Raises:
            EngineError: the delta is damaged, or its parent is another; nothing was changed.
        """
        read = read_delta(delta)
        if read.parent != self.identity:
            raise EngineError(f"{delta}: its parent is {read.parent}, this replica is {self.identity}")
        beside = self.folder / (REDO + ".partial")
        beside.write_bytes(read.data)
        self._sync(beside)
        beside.replace(self.folder / REDO)
        self._patch(read)

    def _patch(self, delta: _ReadDelta) -> None:
        """Patch with what was written beside the checkpoint before."""
        with ThreadPoolExecutor(THREADS) as pool:
            for _ in pool.map(self._patch_tensor, delta.changes):
                pass
        for file in {change.file for change in delta.changes} if self.synced else ():
            self._files[file].flush()
        self._record(delta.identity)
        (self.folder / REDO).unlink()

    def _patch_tensor(self, change: TensorChange) -> None:
        words = self.words(change.file, change.name)
        if change.pages * _FAULT < words.nbytes // mmap.PAGESIZE:
            patch(words, change)
            return
        patched = np.array(words)
        patch(patched, change)
        view = memoryview(patched.view(np.uint8))  # type: ignore[arg-type]  # numpy's arrays are buffers
        with (self.folder / change.file).open("r+b", buffering=0) as file:
            file.seek(self._headers[change.file][change.name][2])
            while view:
                view = view[file.write(view) :]

    def _record(self, identity: str) -> None:
        beside = self.folder / (STATE + ".partial")
        beside.write_text(json.dumps({"identity": identity}))
        self._sync(beside)
        beside.replace(self.folder / STATE)
        self.identity = identity

    def _sync(self, path: Path) -> None:
        if self.synced:
            with path.open("rb") as file:
                os.fsync(file.fileno())


# ---------------------------------------------------------------------------------------- the file
# The magic, then records: a length (u64), a crc32 (u32), a JSON head of u32 length, a payload. The first record's
# head names the parent, the last one's the identity: a digest over all the records between.


def write_delta(changes: Iterable[TensorChange], parent: str, out: Path) -> str:
    """Write changes beside and rename; returns the delta's identity."""
    digest = hashlib.blake2b(parent.encode(), digest_size=16)
    beside = out.with_name(out.name + ".partial")
    with beside.open("wb") as file:
        file.write(_MAGIC)
        _write_record(file, {"parent": parent}, b"")
        for change in changes:
            head = {slot: getattr(change, slot) for slot in TensorChange.__slots__ if slot != "payload"}
            digest.update(json.dumps(head).encode())
            digest.update(change.payload)
            _write_record(file, head, change.payload)
        identity = digest.hexdigest()
        _write_record(file, {"identity": identity}, b"")
    beside.replace(out)
    return identity


@dataclass(frozen=True, slots=True)
class _ReadDelta:
    """A delta whose checksums fit; the changes' payloads lie in `data`, the file's bytes."""

    parent: str
    identity: str
    changes: list[TensorChange]
    data: bytes


def read_delta(path: Path) -> _ReadDelta:
    """Read and check a delta.

    Raises:
        EngineError: the file is cut off, or a checksum does not fit.
    """
    parent = identity = None
    changes, data = [], path.read_bytes()
    for head, payload in _records(data, path):
        parent, identity = head.get("parent", parent), head.get("identity", identity)
        if "file" in head:
            changes.append(
                TensorChange(**{**head, "sparse": [tuple(pair) for pair in head["sparse"]]}, payload=payload)
            )
    if parent is None or identity is None:
        raise EngineError(f"{path} is no whole delta")
    return _ReadDelta(parent, identity, changes, data)


def _write_record(file: IO[bytes], head: dict[str, Any], payload: bytes | memoryview) -> None:
    text = json.dumps(head).encode()
    crc = zlib.crc32(payload, zlib.crc32(text))
    file.write(_FRAME.pack(len(payload), len(text), crc))
    file.write(text)
    file.write(payload)


def _records(data: bytes, path: Path) -> Iterator[tuple[dict[str, Any], memoryview]]:
    if not data.startswith(_MAGIC):
        raise EngineError(f"{path} is no delta")
    view, at = memoryview(data), len(_MAGIC)
    while at < len(data):
        if at + _FRAME.size > len(data):
            raise EngineError(f"{path} is cut off")
        size, length, crc = _FRAME.unpack_from(data, at)
        begin = at + _FRAME.size + length
        at = begin + size
        if at > len(data):
            raise EngineError(f"{path} is damaged: its header gives more bytes than it has")
        text, payload = view[begin - length : begin], view[begin:at]
        if zlib.crc32(payload, zlib.crc32(text)) != crc:
            raise EngineError(f"{path} is damaged: a checksum does not fit")
        yield json.loads(bytes(text)), payload
