"""Weights by broadcast: the trainer is rank 0 of a group that all engines' workers join (NCCL, RCCL, gloo).

A bucket is one flat broadcast. The trainer gathers the next bucket while the last one is being sent, and requests
engines to receive the next while they still load the last: a scheduler handles its calls one after the other, and
the previous broadcast is complete by then, so they stay in order.

A receiver that dies breaks the group for all. Then the group is created again with those that still answer, and the
weights are sent again from the start: engines that loaded a part of them are rolled forward.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from agentrl.errors import AgentRLError, EngineError
from agentrl.rollout.weights import group as groups
from agentrl.rollout.weights.buckets import Bucket, Named, buckets, prefetch
from agentrl.rollout.weights.receiver import GROUP, LoadCommit, Receiver
from agentrl.rollout.weights.transports.base import Sent, each


class DistributedTransport:
    """Broadcasts.

    Args:
        limit: bytes of a bucket.
        backend: nccl (RCCL on AMD goes by the same name) or gloo.
        host: an address of this machine that engines can reach.
        timeout: seconds for one broadcast, and for all ranks to join.
        ranks: how many worker ranks an engine has.
    """

    stages_weights = False

    def __init__(
        self, limit: int, backend: str = "nccl", host: str = "127.0.0.1", timeout: float = 120.0, ranks: int = 1
    ) -> None:
        self.limit, self.backend, self.host, self.timeout, self.ranks = limit, backend, host, timeout, ranks
        self._weights: Iterable[Named] = ()
        self._receivers: dict[str, Receiver] = {}
        self._group: Any = None
        self._store: Any = None  # where the group meets; no other reference is kept, so that letting it go ends it

    async def stage(self, weights: Iterable[Named], version: int) -> None:
        """Keep the weights: gathering begins with sending."""
        self._weights = weights

    async def send(self, receivers: Mapping[str, Receiver], commit: LoadCommit) -> Sent:
        """Broadcast all buckets to them; engines that no longer answer are left out and reported."""
        failed: dict[str, AgentRLError] = {}
        left = dict(receivers)
        for _ in range(len(receivers)):
            if not self._is_joined(left):  # joining blocks for long where a rank never joins
                lost = await each(left, lambda receiver: receiver.ping())
                failed |= _failures(lost)
                left = {name: receiver for name, receiver in left.items() if lost[name] is None}
            if not left:
                break
            results = await self._broadcast(left, commit)
            if not any(results.values()):
                return {name: None if name in results else failed[name] for name in receivers}
            failed |= _failures(results)
            await self._dissolve_group()
        return {
            name: failed.get(name) or EngineError("no engine of the group received the weights") for name in receivers
        }

    async def _broadcast(self, receivers: Mapping[str, Receiver], commit: LoadCommit) -> Sent:
        await self._join_group(receivers)
        begun = await each(receivers, lambda receiver: receiver.begin())
        if any(begun.values()):
            return begun
        errors: dict[str, AgentRLError] = {}
        loading: list[asyncio.Task[Sent]] = []
        source = prefetch(
            (bucket, bucket.flat(), last) for bucket, last in with_last_flag(buckets(self._weights, self.limit))
        )
        try:
            while (item := await asyncio.to_thread(next, source, None)) is not None and not errors:
                bucket, flat, last = item
                loading.append(asyncio.create_task(self._receive(receivers, bucket, commit if last else None)))
                try:
                    await asyncio.to_thread(self._broadcast_bucket, flat)
                except RuntimeError as error:
                    errors |= {name: EngineError(f"the broadcast failed: {error}") for name in receivers}
                    await self._leave_group()  # ends the wait of those that expect the rest
                if len(loading) > 1:
                    errors |= _failures(await loading.pop(0))
        finally:
            source.close()  # type: ignore[attr-defined]
            for task in loading:
                errors |= _failures(await task)
        return errors or await each(receivers, lambda receiver: receiver.end())

    async def _receive(self, receivers: Mapping[str, Receiver], bucket: Bucket, commit: LoadCommit | None) -> Sent:
        return await each(receivers, lambda receiver: receiver.receive(bucket, commit))

    def _broadcast_bucket(self, flat: Tensor) -> None:
        groups.send(self._group, flat.cuda() if self.backend == "nccl" else flat.cpu(), self.timeout)

    def _is_joined(self, receivers: Mapping[str, Receiver]) -> bool:
        return self._group is not None and self._receivers == dict(receivers)

    async def _join_group(self, receivers: Mapping[str, Receiver]) -> None:
        if self._is_joined(receivers):
            return
        await self._dissolve_group()
        world = 1 + self.ranks * len(receivers)
        self._store, name = groups.meeting_at(self.host), f"{GROUP}-{secrets.token_hex(16)}"
        port = self._store.port
        reached = groups.store_at(self.host, port)
        join = asyncio.to_thread(groups.join, reached, 0, world, name, self.backend, self.timeout)
        own = asyncio.create_task(join)
        joins = [
            asyncio.create_task(receiver.join(self.host, port, 1 + self.ranks * index, world, self.backend, name))
            for index, receiver in enumerate(receivers.values())
        ]
        tasks = [own, *joins]
        self._receivers = dict(receivers)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            wrong = [error for task in tasks if task.done() and (error := task.exception())]
            if wrong or not all(task.done() for task in tasks):
                await self._give_up_joining(own, joins)
        if wrong:
            raise EngineError(f"the weights' process group could not be created: {wrong[0]}") from wrong[0]
        self._group = own.result()

    async def _give_up_joining(self, own: asyncio.Task[Any], joins: list[asyncio.Task[None]]) -> None:
        """End the wait of all for a rank that will never come: without the store it fails at once."""
        self._store = None
        for task in joins:
            task.cancel()
        await asyncio.wait([own, *joins])
        self._group = None if own.exception() else own.result()
        await self._dissolve_group()

    async def _dissolve_group(self) -> None:
        if self._receivers:
            await each(self._receivers, lambda receiver: receiver.leave())
            await self._leave_group()
            self._receivers = {}

    async def _leave_group(self) -> None:
        group, self._group, self._store = self._group, None, None
        if group is not None:
            await asyncio.to_thread(groups.leave, group)

    def folder(self) -> Path | None:
        """Return None: nothing is on a disk."""
        return None

    async def close(self) -> None:
        await self._dissolve_group()


def _failures(sent: Sent) -> dict[str, AgentRLError]:
    return {name: error for name, error in sent.items() if error is not None}


def with_last_flag(source: Iterable[Bucket]) -> Iterable[tuple[Bucket, bool]]:
    """Each bucket, and whether it is the last."""
    held: Bucket | None = None
    for bucket in source:
        if held is not None:
            yield held, False
        held = bucket
    if held is not None:
        yield held, True
