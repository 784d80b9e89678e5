"""Named tensors in buckets of bounded size, the next one gathered while the last is being sent.

A publication never holds the whole model: gathering a sharded model yields one tensor at a time, and transports send
buckets that are large enough to be efficient, so two or three buckets are in memory. A single tensor over the limit
is a bucket of its own, since engines load whole tensors.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
from torch import Tensor

if TYPE_CHECKING:
    from agentrl.models.adapters import SavedAdapter

T = TypeVar("T")

Named = tuple[str, Tensor]
"""The Hugging Face name, and the tensor."""

Convert = Callable[[Iterable[Named]], Iterable[Named]]
"""Converts weights before they are sent: another precision, a quantised form."""

Shapes = dict[str, tuple[int, ...]]
"""The shape of each tensor by its name."""

_JOIN_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Bucket:
    """A few named tensors that are sent together."""

    names: tuple[str, ...]
    tensors: tuple[Tensor, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all its tensors."""
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def dtypes(self) -> list[str]:
        """The tensors' dtypes, as torch names them ("bfloat16")."""
        return [str(tensor.dtype).removeprefix("torch.") for tensor in self.tensors]

    @property
    def shapes(self) -> list[list[int]]:
        """The tensors' shapes."""
        return [list(tensor.shape) for tensor in self.tensors]

    def flat(self, memory: Tensor | None = None) -> Tensor:
        """Return all tensors' bytes, uint8 [nbytes], in order without gaps; a single tensor's where they lie.

        Args:
            memory: used where it is large enough and on the tensors' device; new pages cost more than the copy.
        """
        pieces = [tensor.contiguous().view(-1).view(torch.uint8) for tensor in self.tensors]
        if len(pieces) == 1:
            return pieces[0]
        if memory is None or len(memory) < self.nbytes or any(piece.device != memory.device for piece in pieces):
            return torch.cat(pieces)
        return torch.cat(pieces, out=memory[: self.nbytes])

    def without_values(self) -> Bucket:
        """Return tensors of the same names, dtypes and shapes that take no memory."""
        return Bucket(self.names, tuple(tensor.to("meta") for tensor in self.tensors))

    @classmethod
    def join(cls, parts: Iterable[Bucket]) -> Bucket:
        """Return one bucket of several."""
        parts = list(parts)
        names = tuple(name for part in parts for name in part.names)
        return cls(names, tuple(tensor for part in parts for tensor in part.tensors))


class Save(Protocol):
    """A function by which the process that holds weights writes them (`snapshot.write_snapshot`), not this one."""

    def __call__(self, folder: Path, base: Path, limit: int, convert: Convert | None = None) -> Shapes:
        """Write a folder that this process sees as well; returns the shapes of what was written.

        Args:
            folder: as for `write_snapshot`.
            base: likewise.
            limit: likewise.
            convert: applied to the weights first, there; it must be picklable.
        """
        ...


WEIGHTS = "weights"
"""The part that every engine takes: all tensors, an adapter's products added."""
ADAPTER = "adapter"
"""The part that, on the base of the engine's own folder, is the same weights."""


class Weights:
    """The named parts that a trainer hands out as one version; each of them by itself brings an engine to that version.

    Iterating yields the part `weights`, which there always is; again and again, since a transport that failed half-way
    starts over. Whoever takes a smaller part calls `take`.

    Args:
        source: begins a new iteration, e.g. `trainer.weights`.
        save: writes them where they are; None where that is here.
        parts: smaller parts by their kind (`ADAPTER`).

    Attributes:
        moved: the bytes of each part that was taken, by its kind; of several receivers those of the last.
    """

    def __init__(
        self,
        source: Callable[[], Iterable[Named]],
        save: Save | None = None,
        parts: Mapping[str, SavedAdapter] | None = None,
    ) -> None:
        self._source, self.save, self.parts = source, save, dict(parts or {})
        self.moved: dict[str, int] = {}

    @classmethod
    def of(cls, trainer: Any, method: str = "weights") -> Weights:
        """A trainer's weights, or `averaged_weights`; one in another process has `save_weights`.

        That is a `Save` which also takes the method that yields what is written.
        """
        save = getattr(trainer, "save_weights", None)
        parts = getattr(trainer, "parts", dict) if method == "weights" else dict
        return cls(getattr(trainer, method), None if save is None else partial(save, method=method), parts())

    def take(self, kind: str) -> SavedAdapter | None:
        """Return a smaller part; None where there is none of that kind."""
        part = self.parts.get(kind)
        if part is not None:
            self.moved[kind] = part.nbytes
        return part

    def __iter__(self) -> Iterator[Named]:
        self.moved[WEIGHTS] = 0
        for name, tensor in self._source():
            self.moved[WEIGHTS] += tensor.nbytes
            yield name, tensor


def take_part(weights: Iterable[Named], kind: str) -> SavedAdapter | None:
    """Return a smaller part of weights that may be plain pairs, which have none."""
    return weights.take(kind) if isinstance(weights, Weights) else None


def buckets(weights: Iterable[Named], limit: int) -> Iterator[Bucket]:
    """Group tensors, in order, into buckets of at most `limit` bytes.

    A tensor begins a new bucket also where it would not be aligned to its own item size: receivers view the
    flat bytes in place.
    """
    held: list[Named] = []
    size = 0
    for name, tensor in weights:
        tensor = tensor.detach()
        if held and (size + tensor.nbytes > limit or size % tensor.element_size()):
            yield Bucket(*zip(*held, strict=True))
            held, size = [], 0
        held.append((name, tensor))
        size += tensor.nbytes
    if held:
        yield Bucket(*zip(*held, strict=True))


def cast(weights: Iterable[Named], dtype: torch.dtype) -> Iterator[Named]:
    """Floating-point tensors in the engine's precision, in which it would convert them anyway: less to send."""
    for name, tensor in weights:
        yield name, tensor.to(dtype) if tensor.dtype in (torch.float32, torch.bfloat16, torch.float16) else tensor


def prefetch(items: Iterable[T], depth: int = 1) -> Iterator[T]:
    """Yield the same items, read by a thread that is up to `depth` of them ahead.

    All items are read by that one thread, so sources that communicate (a sharded model's gathers) run their
    calls in order. Closing the iterator ends the thread at the next item.
    """
    box: queue.Queue[tuple[T | None, BaseException | None, bool]] = queue.Queue(depth)
    left = threading.Event()

    def put(entry: tuple[T | None, BaseException | None, bool]) -> bool:
        while not left.is_set():
            try:
                box.put(entry, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def produce() -> None:
        try:
            for item in items:
                if not put((item, None, False)):
                    return
            put((None, None, True))
        except BaseException as error:  # whatever the source raises belongs to the consumer
            put((None, error, True))

    thread = threading.Thread(target=produce, name="agentrl-gather", daemon=True)
    thread.start()
    try:
        while True:
            item, error, ended = box.get()
            if error is not None:
                raise error
            if ended:
                return
            yield item  # type: ignore[misc]
    finally:
        left.set()
        thread.join(_JOIN_SECONDS)
