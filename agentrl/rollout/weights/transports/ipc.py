"""Weights by shared memory: trainer and engine on one machine, handles are sent instead of bytes.

A bucket's tensors are pickled as torch's multiprocessing does it: CUDA tensors as IPC handles of the memory that
they lie in, CPU tensors as names of shared-memory files (file descriptors would need both processes to share a
secret). CPU tensors are copied into one of two shared buffers, the next bucket while engines load the last. The
buffers are kept for the next publication: a new page costs more than what is copied into it.
"""

from __future__ import annotations

import asyncio
import base64
import io
import threading
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import torch
import torch.multiprocessing as mp

from agentrl.errors import AgentRLError
from agentrl.rollout.weights.buckets import Bucket, Named, buckets, prefetch
from agentrl.rollout.weights.receiver import LoadCommit, Receiver
from agentrl.rollout.weights.transports.base import Sent, each
from agentrl.rollout.weights.transports.distributed import with_last_flag

_STRATEGY = threading.Lock()


class SharedBuffer:
    """Shared memory that buckets are copied into, one after the other; it grows to the largest."""

    def __init__(self) -> None:
        self._bytes = torch.empty(0, dtype=torch.uint8)

    def fill(self, bucket: Bucket) -> list[Named]:
        """Copy a bucket's tensors into the memory, and return them as they lie there; those on a GPU stay."""
        pairs, at = list[Named](), 0
        size = sum(tensor.nbytes for tensor in bucket.tensors if not tensor.is_cuda)
        if len(self._bytes) < max(1, size):
            self._bytes = torch.empty(0, dtype=torch.uint8)
            self._bytes.set_(torch.UntypedStorage._new_using_filename_cpu(max(1, size)))
        for name, tensor in zip(bucket.names, bucket.tensors, strict=True):
            if tensor.is_cuda:
                pairs.append((name, tensor.contiguous()))
                continue
            there = self._bytes[at : at + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            pairs.append((name, there.copy_(tensor)))
            at += tensor.nbytes
        return pairs

    def expect_readers(self, count: int) -> None:
        """Let more than one process open what was pickled: each counts itself out, and the last would remove it."""
        for _ in range(count - 1):
            self._bytes.untyped_storage()._shared_incref()  # type: ignore[no-untyped-call]


class IpcTransport:
    """Handles of shared memory.

    Args:
        limit: bytes of a bucket.
        ranks: tensor-parallel ranks of an engine, each of which is given the same handles.
    """

    stages_weights = False

    def __init__(self, limit: int, ranks: int = 1) -> None:
        self.limit, self.ranks = limit, ranks
        self._weights: Iterable[Named] = ()
        self._buffers = SharedBuffer(), SharedBuffer()

    async def stage(self, weights: Iterable[Named], version: int) -> None:
        """Keep the weights where they are."""
        self._weights = weights

    async def send(self, receivers: Mapping[str, Receiver], commit: LoadCommit) -> Sent:
        """Send every bucket to every engine; one that fails gets no later ones."""
        errors: dict[str, AgentRLError | None] = dict(await each(receivers, lambda receiver: receiver.begin()))
        free = threading.Semaphore(len(self._buffers))
        source = prefetch(self._serialise_all(free, self.ranks * len(_working(receivers, errors))))
        try:
            while (item := await asyncio.to_thread(next, source, None)) is not None:
                text, _held, last = item
                payloads = [text] * self.ranks
                final = commit if last else None
                errors |= await each(_working(receivers, errors), partial(_load, payloads=payloads, commit=final))
                free.release()
        finally:
            free.release(len(self._buffers))  # its thread may wait for one
            source.close()  # type: ignore[attr-defined]
        errors |= await each(_working(receivers, errors), lambda receiver: receiver.end())
        return errors

    def _serialise_all(self, free: threading.Semaphore, readers: int) -> Iterator[tuple[str, list[Named], bool]]:
        """Yield each bucket as text, with what must live until it was read, and whether it is the last.

        Args:
            free: counts the buffers that no engine reads.
            readers: how many processes read each of them.
        """
        for number, (bucket, last) in enumerate(with_last_flag(buckets(self._weights, self.limit))):
            free.acquire()
            buffer = self._buffers[number % len(self._buffers)]
            yield *serialise(bucket, buffer, readers), last

    def folder(self) -> Path | None:
        """Return None: nothing is on a disk."""
        return None

    async def close(self) -> None:
        """Release the shared memory."""
        self._buffers = SharedBuffer(), SharedBuffer()


def serialise(bucket: Bucket, buffer: SharedBuffer, readers: int = 1) -> tuple[str, list[Named]]:
    """(name, tensor) pairs as base64 text of a pickle that holds handles, and what must live until it was read.

    Args:
        bucket: the tensors.
        buffer: where those on a CPU are copied: sharing them would move the trainer's own parameters.
        readers: how many processes read the text, each of them once.
    """
    pickled, pairs = io.BytesIO(), buffer.fill(bucket)
    with _STRATEGY:
        before = mp.get_sharing_strategy()  # type: ignore[no-untyped-call]
        mp.set_sharing_strategy("file_system")  # type: ignore[no-untyped-call]
        try:
            ForkingPickler(pickled).dump(pairs)
        finally:
            mp.set_sharing_strategy(before)  # type: ignore[no-untyped-call]
    if not all(tensor.is_cuda for tensor in bucket.tensors):
        buffer.expect_readers(readers)
    return base64.b64encode(pickled.getvalue()).decode(), pairs


async def _load(receiver: Receiver, payloads: list[str], commit: LoadCommit | None) -> None:
    await receiver.load_bucket(payloads, commit)


def _working(receivers: Mapping[str, Receiver], errors: Mapping[str, AgentRLError | None]) -> dict[str, Receiver]:
    return {name: receiver for name, receiver in receivers.items() if errors.get(name) is None}
