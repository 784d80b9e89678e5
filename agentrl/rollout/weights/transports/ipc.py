"""Weights by shared memory: trainer and engine on one machine, handles are sent instead of bytes.

A bucket's tensors are pickled as torch's multiprocessing does it: CUDA tensors as IPC handles of the memory that
they lie in, CPU tensors as names of shared-memory files (file descriptors would need both processes to share a
secret). The memory must outlive the call, so a bucket is kept until every engine has answered.
"""

from __future__ import annotations

import asyncio
import base64
import io
import threading
from collections.abc import Iterable, Mapping
from functools import partial
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import torch.multiprocessing as mp

from agentrl.errors import AgentRLError
from agentrl.rollout.weights.buckets import Bucket, Named, buckets, prefetch
from agentrl.rollout.weights.receiver import LoadCommit, Receiver
from agentrl.rollout.weights.transports.base import Sent, each
from agentrl.rollout.weights.transports.distributed import with_last_flag

_STRATEGY = threading.Lock()


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

    async def stage(self, weights: Iterable[Named], version: int) -> None:
        """Keep the weights where they are."""
        self._weights = weights

    async def send(self, receivers: Mapping[str, Receiver], commit: LoadCommit) -> Sent:
        """Send every bucket to every engine; one that fails gets no later ones."""
        errors: dict[str, AgentRLError | None] = dict(await each(receivers, lambda receiver: receiver.begin()))
        source = prefetch(with_last_flag(buckets(self._weights, self.limit)))
        try:
            while (item := await asyncio.to_thread(next, source, None)) is not None:
                bucket, last = item
                text, _held = await asyncio.to_thread(serialise, bucket)
                payloads = [text] * self.ranks
                final = commit if last else None
                errors |= await each(_working(receivers, errors), partial(_load, payloads=payloads, commit=final))
        finally:
            source.close()  # type: ignore[attr-defined]
        errors |= await each(_working(receivers, errors), lambda receiver: receiver.end())
        return errors

    def folder(self) -> Path | None:
        """Return None: nothing is on a disk."""
        return None

    async def close(self) -> None:
        """Do nothing: nothing is held."""


def serialise(bucket: Bucket) -> tuple[str, list[Named]]:
    """(name, tensor) pairs as base64 text of a pickle that holds handles, and what must live until it was read."""
    buffer = io.BytesIO()
    pairs = [(name, tensor.contiguous()) for name, tensor in zip(bucket.names, bucket.tensors, strict=True)]
    with _STRATEGY:
        before = mp.get_sharing_strategy()  # type: ignore[no-untyped-call]
        mp.set_sharing_strategy("file_system")  # type: ignore[no-untyped-call]
        try:
            # Sharing moves a CPU tensor's storage: the trainer's own parameters must stay where they are.
            pairs = [(name, tensor if tensor.is_cuda else tensor.clone()) for name, tensor in pairs]
            ForkingPickler(buffer).dump(pairs)
        finally:
            mp.set_sharing_strategy(before)  # type: ignore[no-untyped-call]
    return base64.b64encode(buffer.getvalue()).decode(), pairs


async def _load(receiver: Receiver, payloads: list[str], commit: LoadCommit | None) -> None:
    await receiver.load_bucket(payloads, commit)


def _working(receivers: Mapping[str, Receiver], errors: Mapping[str, AgentRLError | None]) -> dict[str, Receiver]:
    return {name: receiver for name, receiver in receivers.items() if errors.get(name) is None}
