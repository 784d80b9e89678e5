"""Weights by shared memory: trainer and engine on one machine, handles are sent instead of bytes.

A bucket's tensors are pickled as torch's multiprocessing does it: CUDA tensors as IPC handles of the memory that
they lie in, CPU tensors as names of shared-memory files (file descriptors would need both processes to share a
secret). CPU tensors are copied into shared buffers while engines generate, as many as `ahead` and the machine's shared
memory allow, and are sent in one call: the pause has the engines' own copying, and no more. What is beyond that takes
turns with two more buffers, the next bucket while engines load the last. All of them are kept for later publications:
a new page costs more than what is copied into it.

An engine may compute with what was copied ahead where it lies: it holds a shared lock on the file meanwhile, and
only what can be locked exclusively is written. So two sets of buffers take turns, and a publication is one copy. Memory
that is not to be kept (the two that take turns) stays locked here while it is sent.

Where everything was copied ahead, engines that can (`load_shared`) are told files, names and shapes in place of torch's
handles, and begin, load and end in that one call: reading handles, asking torch's keeper of shared memory for each, and
two more calls took longer than the copy.
"""

from __future__ import annotations

import asyncio
import base64
import io
import itertools
import pickle
import queue
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch.multiprocessing as mp

from agentrl.errors import AgentRLError
from agentrl.rollout.weights.buckets import Named, buckets, prefetch
from agentrl.rollout.weights.receiver import LoadCommit, Receiver
from agentrl.rollout.weights.shared_memory import STRATEGY, SharedBuffer, shared_room
from agentrl.rollout.weights.transports.base import Sent, each
from agentrl.rollout.weights.transports.distributed import with_last_flag


@dataclass(frozen=True, slots=True)
class FilledBuffer:
    """A bucket as it lies in shared memory; `last` is true of a publication's last."""

    pairs: list[Named]
    buffer: SharedBuffer
    last: bool

    def expect_readers(self, count: int) -> None:
        """Let so many processes open it, where any of it is on a CPU."""
        if not all(tensor.is_cuda for _, tensor in self.pairs):
            self.buffer.expect_readers(count)


@runtime_checkable
class SharedReceiver(Protocol):
    """A receiver that may read shared memory by its files' addresses.

    Attributes:
        reads_files: it does.
    """

    reads_files: bool

    async def load_shared(self, payloads: Sequence[str], commit: LoadCommit) -> None:
        """Begin, load what `describe` told for each of the engine's ranks, and end."""
        ...


class IpcTransport:
    """Handles of shared memory.

    Args:
        limit: bytes of a bucket.
        ranks: tensor-parallel ranks of an engine, each of which is given the same handles.
        ahead: bytes that are copied before engines pause; 0 where weights are on a GPU, which would hold them twice.
    """

    name, calls = "ipc", "load_bucket"
    stages_weights = False

    def __init__(self, limit: int, ranks: int = 1, ahead: int = 0) -> None:
        self.limit, self.ranks, self.ahead = limit, ranks, ahead
        self._weights: Iterable[Named] = ()
        self._buffers = list[SharedBuffer]()
        self._locked = 0  # how many of them no engine keeps
        self._room = 0  # bytes of shared memory that may be filled ahead
        self._sizes: list[int] = []  # of the buckets, where the last publication's were all ahead
        self._free: queue.SimpleQueue[SharedBuffer | None] = queue.SimpleQueue()
        self._staged: list[FilledBuffer] = []
        self._source: Iterator[FilledBuffer] | None = None  # of what is staged, and of what comes after it

    async def stage(self, weights: Iterable[Named], version: int) -> None:
        """Copy what may be copied ahead; the rest is kept where it is."""
        await self._drop_staged()
        self._weights = weights
        if self.ahead:
            self._source = self._fill_buffers()
            await asyncio.to_thread(self._stage, self._source)

    def _stage(self, source: Iterator[FilledBuffer]) -> None:
        ahead, room = self.ahead, self._room
        while min(ahead, room) >= self.limit and (filled := next(source, None)) is not None:
            self._staged.append(filled)
            ahead -= filled.buffer.filled
            room -= filled.buffer.nbytes
            filled.buffer.unlock()
            if self._locked < len(self._staged) + 2:
                self._add_buffer()
        whole = bool(self._staged) and self._staged[-1].last
        self._sizes = [each_one.buffer.filled for each_one in self._staged] if whole else []

    async def send(self, receivers: Mapping[str, Receiver], commit: LoadCommit) -> Sent:
        """Send every bucket to every engine; one that fails gets no later ones."""
        source = self._source = self._source or self._fill_buffers()
        staged, self._staged = self._staged, []
        errors: dict[str, AgentRLError | None] = {}
        if staged and staged[-1].last and (described := describe(staged)) is not None:
            able = {name: one for name, one in receivers.items() if isinstance(one, SharedReceiver) and one.reads_files}
            try:
                errors |= await each(able, lambda one: one.load_shared([described] * self.ranks, commit))
            finally:
                receivers = {name: one for name, one in receivers.items() if name not in able}
                if not receivers:
                    await self._drop_staged()
        return errors | (await self._send_handles(receivers, commit, source, staged) if receivers else {})

    async def _send_handles(
        self,
        receivers: Mapping[str, Receiver],
        commit: LoadCommit,
        source: Iterator[FilledBuffer],
        staged: list[FilledBuffer],
    ) -> dict[str, AgentRLError | None]:
        pickling = asyncio.create_task(asyncio.to_thread(serialise, staged))  # while engines begin
        try:
            errors: dict[str, AgentRLError | None] = dict(await each(receivers, lambda receiver: receiver.begin()))
            text = await pickling
            while filled := staged or await asyncio.to_thread(lambda: [*itertools.islice(source, 1)]):
                text, staged = text if staged else await asyncio.to_thread(serialise, filled), []
                working = _working(receivers, errors)
                for each_one in filled:
                    each_one.expect_readers(self.ranks * len(working))
                final = commit if filled[-1].last else None
                errors |= await each(working, partial(_load, payloads=[text] * self.ranks, commit=final))
                for loaded in filled:
                    if loaded.buffer.lock():
                        self._free.put(loaded.buffer)
        finally:
            await self._drop_staged()
        errors |= await each(_working(receivers, errors), lambda receiver: receiver.end())
        return errors

    def _fill_buffers(self) -> Iterator[FilledBuffer]:
        """Yield each bucket in a buffer of its own, as long as none is put back."""
        free = self._free = queue.SimpleQueue()
        locked = [buffer for buffer in self._buffers if buffer.lock()]
        self._locked, self._room = len(locked), shared_room(sum(buffer.nbytes for buffer in locked))
        for buffer in order_by_size(locked, self._sizes):
            free.put(buffer)
        while self._locked < 2:
            self._add_buffer()

        def fill() -> Iterator[FilledBuffer]:
            for bucket, last in with_last_flag(buckets(self._weights, self.limit)):
                if (buffer := free.get()) is None:
                    return
                yield FilledBuffer(buffer.fill(bucket), buffer, last)

        return prefetch(fill())

    def _add_buffer(self) -> None:
        self._buffers.append(SharedBuffer())
        self._locked += 1
        self._free.put(self._buffers[-1])

    async def _drop_staged(self) -> None:
        source, self._source, self._staged = self._source, None, []
        self._free.put(None)  # the source's thread may wait for a buffer
        if source is not None:
            await asyncio.to_thread(source.close)  # type: ignore[attr-defined]

    def folder(self) -> Path | None:
        """Return None: nothing is on a disk."""
        return None

    async def close(self) -> None:
        """Release the shared memory."""
        await self._drop_staged()
        for buffer in self._buffers:
            buffer.close()
        self._buffers, self._free = [], queue.SimpleQueue()


def order_by_size(buffers: Iterable[SharedBuffer], sizes: Iterable[int]) -> list[SharedBuffer]:
    """Order free buffers for buckets of these bytes: one of the size, at most twice as large, else the smallest.

    In any other order small buckets would come to lie in large buffers and small buffers would grow for large buckets,
    until all are large.
    """
    left, chosen = list(buffers), list[SharedBuffer]()
    for nbytes, _ in zip(sizes, tuple(left), strict=False):
        best = min(left, key=lambda buffer: (not nbytes <= buffer.nbytes <= 2 * nbytes, buffer.nbytes))
        left.remove(best)
        chosen.append(best)
    return [*chosen, *left]


def describe(filled: Sequence[FilledBuffer]) -> str | None:
    """Return where the tensors of buckets lie, as base64 text of a pickle of plain lists.

    For each file its address, and of each tensor in it the name, the dtype and the shape, in order and without gaps.
    None where tensors are on a GPU, or the system shows no files of shared memory.
    """
    files = list[tuple[str, list[tuple[str, str, list[int]]]]]()
    for each_one in filled:
        if not each_one.buffer.address or any(tensor.is_cuda for _, tensor in each_one.pairs):
            return None
        tensors = [(name, str(one.dtype).removeprefix("torch."), list(one.shape)) for name, one in each_one.pairs]
        files.append((each_one.buffer.address, tensors))
    return base64.b64encode(pickle.dumps(files)).decode()


def serialise(filled: Sequence[FilledBuffer]) -> str:
    """Buckets' (name, tensor) pairs as base64 text of a pickle that holds handles; they must live until it was read.

    Tensors on a CPU lie in a buffer: sharing them would move the trainer's own parameters. One process may read it, or
    as many as were said to (`expect_readers`), each of them once.
    """
    pickled, pairs = io.BytesIO(), [pair for each_one in filled for pair in each_one.pairs]
    with STRATEGY:
        before = mp.get_sharing_strategy()  # type: ignore[no-untyped-call]
        mp.set_sharing_strategy("file_system")  # type: ignore[no-untyped-call]
        try:
            ForkingPickler(pickled).dump(pairs)
        finally:
            mp.set_sharing_strategy(before)  # type: ignore[no-untyped-call]
    return base64.b64encode(pickled.getvalue()).decode()


async def _load(receiver: Receiver, payloads: list[str], commit: LoadCommit | None) -> None:
    await receiver.load_bucket(payloads, commit)


def _working(receivers: Mapping[str, Receiver], errors: Mapping[str, AgentRLError | None]) -> dict[str, Receiver]:
    return {name: receiver for name, receiver in receivers.items() if errors.get(name) is None}
