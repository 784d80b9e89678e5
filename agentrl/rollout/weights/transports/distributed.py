"""Weights by broadcast: the trainer is rank 0 of a group that all engines' workers join (NCCL, RCCL, gloo).

A bucket is one flat broadcast. The trainer gathers the next bucket while the last one is being sent, and requests
engines to receive the next while they still load the last: a scheduler handles its calls one after the other, and
the previous broadcast is complete by then, so they stay in order.

Engines on a CPU that can (`Receiver.receives_ahead`) receive in a thread of their own, two buckets at once: between two
that follow each other the cores would wait. What they may hold beside their
weights they are sent while they generate, and load in one call: a pause has no transfer in it. That begins with the
second publication to the same engines, since their group meets in the first. They say there how much memory they find
free, of which all ranks together are sent at most half.

Where all engines of the group may open this process's shared memory, as their group's store says, what would be sent
ahead is gathered there and not sent at all: they compute with it where it lies (`ipc`). A broadcast within one machine
copies everything twice more.

A receiver that dies breaks the group for all. Then the group is created again with those that still answer, and the
weights are sent again from the start: engines that loaded a part of them are rolled forward. The same goes for a group
whose engines hold what they were never told to load.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agentrl.errors import AgentRLError, EngineError
from agentrl.rollout.weights import group as groups
from agentrl.rollout.weights.buckets import Bucket, Named, buckets, prefetch
from agentrl.rollout.weights.receiver import GROUP, LoadCommit, Receiver
from agentrl.rollout.weights.shared_memory import SharedBuffer, shared_room
from agentrl.rollout.weights.transports.base import Sent, each

_GATHERED = 4
"""Buckets that are in memory at once: two on their way, one that waits for that, one that is being gathered."""


class DistributedTransport:
    """Broadcasts.

    Args:
        limit: bytes of a bucket.
        backend: nccl (RCCL on AMD goes by the same name) or gloo.
        host: an address of this machine that engines can reach.
        timeout: seconds for one broadcast, and for all ranks to join.
        ranks: how many worker ranks an engine has.
        ahead: bytes that an engine may hold beside its weights.
    """

    name, calls = "distributed", "join"
    stages_weights = False

    def __init__(
        self,
        limit: int,
        backend: str = "nccl",
        host: str = "127.0.0.1",
        timeout: float = 120.0,
        ranks: int = 1,
        ahead: int = 0,
    ) -> None:
        self.limit, self.backend, self.host, self.timeout, self.ranks = limit, backend, host, timeout, ranks
        self.ahead = ahead
        self._weights: Iterable[Named] = ()
        self._receivers: dict[str, Receiver] = {}
        self._members: dict[str, Receiver] = {}  # the same in this transport's group, where they may be in several
        self._room = ahead  # of the bytes ahead, those that engines' machines have free
        self._source: Iterator[_Item] | None = None  # the staged weights, as far as they were not sent
        self._held: list[Bucket] = []  # what engines were sent and not told to load, without its values
        self._held_last = False  # whether the last bucket is among them
        self._in_step = True  # engines hold nothing else
        self._announced: groups.Announcements | None = None
        self._sending: list[tuple[Any, Tensor]] = []  # broadcasts that have begun
        self._gathered: list[Tensor | None] = [None] * _GATHERED  # memory that buckets are gathered in by turns
        self._shares = False  # all receivers read this process's shared memory
        self._shared = list[SharedBuffer]()
        self._group: Any = None
        self._store: Any = None  # where the group meets; no other reference is kept, so that letting it go ends it

    async def stage(self, weights: Iterable[Named], version: int) -> None:
        """Send what engines may hold; gathering the rest begins with sending it."""
        if self._held:
            await self._dissolve_group()
        self._close_source()
        self._weights = weights
        if self._announced is not None and self._is_joined(self._receivers):
            try:
                await self._send_ahead()
            except RuntimeError as error:
                if isinstance(error, AgentRLError):
                    raise
                await self._dissolve_group()  # whoever is lost is found when it is paused

    async def _send_ahead(self) -> None:
        source = self._source = self._open_source()
        room, self._in_step = min(self.ahead, self._room), False
        while room >= self.limit and (item := await asyncio.to_thread(next, source, None)) is not None:
            bucket, flat, self._held_last = item
            await asyncio.to_thread(self._broadcast_bucket, flat)
            self._held.append(bucket.without_values())
            room -= bucket.nbytes
        await asyncio.to_thread(self._finish_sending)
        self._in_step = True

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
        self._in_step = False
        errors: dict[str, AgentRLError] = {}
        loading: list[asyncio.Task[Sent]] = []
        source = self._source = self._source or self._open_source()

        def load(bucket: Bucket, last: bool) -> None:
            members = {name: self._members[name] for name in receivers}
            loading.append(asyncio.create_task(self._receive(members, bucket, commit if last else None)))

        threaded = self._announced is not None  # then no broadcast waits for a call, so calls must wait for each other
        if self._held:
            load(Bucket.join(self._held), self._held_last)
            self._held = []
        try:
            while (item := await asyncio.to_thread(next, source, None)) is not None and not errors:
                bucket, flat, last = item
                if not threaded:
                    load(bucket, last)
                errors |= await self._fail_unless_sent(receivers, flat)
                if len(loading) > (not threaded):
                    errors |= _failures(await loading.pop(0))
                if threaded and not errors:
                    load(bucket, last)
            errors |= await self._fail_unless_sent(receivers)
        finally:
            self._close_source()
            for task in loading:
                errors |= _failures(await task)
        self._in_step = not errors
        return errors or await each(receivers, lambda receiver: receiver.end())

    def _open_source(self) -> Iterator[_Item]:
        unused = [buffer for buffer in self._shared if self._shares and buffer.lock()]
        room = min(self.ahead, shared_room(sum(buffer.nbytes for buffer in unused))) if self._shares else 0

        def gather() -> Iterator[_Item]:
            left = room
            for number, (bucket, last) in enumerate(with_last_flag(buckets(self._weights, self.limit))):
                left -= bucket.nbytes
                if left >= 0 and not any(tensor.is_cuda for tensor in bucket.tensors):
                    if not unused:
                        self._shared.append(SharedBuffer())
                        unused.append(self._shared[-1])
                    buffer = unused.pop(0)
                    buffer.fill(bucket)
                    yield bucket, buffer, last
                else:
                    yield bucket, bucket.flat(self._gathered[number % _GATHERED]), last

        if self.backend == "gloo" and self._gathered[0] is None:
            self._gathered = [torch.empty(self.limit, dtype=torch.uint8) for _ in range(_GATHERED)]
        return prefetch(gather())

    def _close_source(self) -> None:
        source, self._source = self._source, None
        if source is not None:
            source.close()  # type: ignore[attr-defined]

    async def _receive(self, receivers: Mapping[str, Receiver], bucket: Bucket, commit: LoadCommit | None) -> Sent:
        return await each(receivers, lambda receiver: receiver.receive(bucket, commit))

    async def _fail_unless_sent(
        self, receivers: Iterable[str], flat: Tensor | SharedBuffer | None = None
    ) -> dict[str, AgentRLError]:
        """Broadcast a bucket, or finish those that have begun; returns everybody's failure where that fails."""
        try:
            await asyncio.to_thread(*((self._finish_sending,) if flat is None else (self._broadcast_bucket, flat)))
        except RuntimeError as error:
            await self._leave_group()  # ends the wait of those that expect the rest
            return {name: EngineError(f"the broadcast failed: {error}") for name in receivers}
        return {}

    def _broadcast_bucket(self, flat: Tensor | SharedBuffer) -> None:
        if isinstance(flat, SharedBuffer):
            assert self._announced is not None
            flat.unlock()
            self._announced.announce(flat.filled, flat.address)
            return
        if self._announced is not None:
            self._announced.announce(flat.nbytes)
        sent = flat.cuda() if self.backend == "nccl" else flat.cpu()
        self._sending.append((groups.begin_send(self._group, sent), sent))
        self._finish_sending(0 if self._announced is None else 1)

    def _finish_sending(self, but: int = 0) -> None:
        """Wait for the broadcasts that have begun, but for the last so many."""
        while len(self._sending) > but:
            groups.finish_send(*self._sending.pop(0), self.timeout)

    def _is_joined(self, receivers: Mapping[str, Receiver]) -> bool:
        return self._group is not None and self._in_step and self._receivers == dict(receivers)

    async def _join_group(self, receivers: Mapping[str, Receiver]) -> None:
        if self._is_joined(receivers):
            return
        await self._dissolve_group()
        world = 1 + self.ranks * len(receivers)
        self._store, name = groups.meeting_at(self.host), f"{GROUP}-{secrets.token_hex(16)}"
        # a plug-in's receiver may lack the attribute
        able = (getattr(receiver, "receives_ahead", False) for receiver in receivers.values())
        ahead = bool(self.ahead) and all(able)
        name += groups.AHEAD if ahead else ""
        port = self._store.port
        reached = groups.store_at(self.host, port)
        join = asyncio.to_thread(groups.join, reached, 0, world, name, self.backend, self.timeout)
        own = asyncio.create_task(join)
        self._receivers = dict(receivers)
        self._members = {key: _in_group(receiver, name) for key, receiver in receivers.items()}
        joins = [
            asyncio.create_task(receiver.join(self.host, port, 1 + self.ranks * index, world, self.backend, name))
            for index, receiver in enumerate(self._members.values())
        ]
        tasks = [own, *joins]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            wrong = [error for task in tasks if task.done() and (error := task.exception())]
            if wrong or not all(task.done() for task in tasks):
                await self._give_up_joining(own, joins)
        if wrong:
            raise EngineError(f"the weights' process group could not be created: {wrong[0]}") from wrong[0]
        self._group = own.result()
        self._announced = groups.Announcements(reached, name) if ahead else None
        if ahead:
            self._room = groups.free_memory(reached, name, world)
        self._shares = ahead and groups.shares_memory(reached, name, world)

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
            if self._announced is not None:
                self._announced.end()
            await each(self._members, lambda receiver: receiver.leave())
            await self._leave_group()
            self._receivers, self._members = {}, {}
        self._close_source()
        self._held, self._in_step = [], True

    async def _leave_group(self) -> None:
        group, self._group, self._store, self._announced = self._group, None, None, None
        self._sending = []
        if group is not None:
            await asyncio.to_thread(groups.leave, group)

    def folder(self) -> Path | None:
        """Return None: nothing is on a disk."""
        return None

    async def close(self) -> None:
        await self._dissolve_group()
        for buffer in self._shared:
            buffer.close()
        self._shared = []


_Item = tuple[Bucket, Tensor | SharedBuffer, bool]
"""A bucket, its bytes or the memory that they lie in, and whether it is the last."""


def _in_group(receiver: Receiver, name: str) -> Receiver:
    """Return a server's receiver in this group alone; a plug-in's receiver may know of one group only."""
    in_group = getattr(receiver, "in_group", None)
    return receiver if in_group is None else in_group(name)


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
