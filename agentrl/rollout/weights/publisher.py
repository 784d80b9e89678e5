"""A publication: every engine moves from one policy version to the next, or is taken out of service.

    stage    whatever the transport can do while engines still generate (write a snapshot)
    pause    every engine, as the mode requires; nothing is admitted until the end
    send     buckets or a folder; a failed engine is sent everything again, once (a partial update is rolled forward)
    verify   engines' own checksums against each other
    resume   those that have the complete version; the others never run a forward pass with their weights

What a mode means for running requests is in `types.PauseMode`. Only IN_PLACE keeps caches that the old weights
computed; in every other mode the last load flushes them, so that tokens and caches are of one version.

The comparison with the trainer, by a probe prompt's log-probabilities, is the loop's (`train/driver/probe.py`): the
publisher has no trainer.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from agentrl.common.scratch import ScratchFolder
from agentrl.errors import AgentRLError, ConfigError, DeadlineExceeded, EngineError
from agentrl.models.adapters import SavedAdapter
from agentrl.rollout.engines.folder import ModelFacts, check_tensors, tensors
from agentrl.rollout.weights.buckets import ADAPTER, Convert, Named, Save, Shapes, Weights, take_part
from agentrl.rollout.weights.receiver import EngineReceiver, LoadCommit, Receiver
from agentrl.rollout.weights.snapshot import write_part, write_snapshot
from agentrl.rollout.weights.transports.base import Transport, each
from agentrl.types import PauseMode

T = TypeVar("T")


class Target(Protocol):
    """An engine, as a publisher sees it."""

    @property
    def name(self) -> str:
        """The engine's name in errors."""
        ...

    @property
    def receiver(self) -> Receiver:
        """The receiver of a publication."""
        ...

    async def pause(self, mode: PauseMode) -> None:
        """Stop generating, as `mode` requires."""
        ...

    async def resume(self, version: int | None) -> None:
        """Generate again, as policy `version`; None is the one that it had."""
        ...


@dataclass(frozen=True, slots=True)
class PublishOutcome:
    """The result of a publication.

    `done`: engines that have the version. `refused`: those that have their previous weights complete and continue with
    them. `broken`: those that have neither version complete, or no longer answer, and must be restarted. `paused` and
    `sent` are seconds: the whole pause, and sending alone. `checksums`: what engines were compared by, where they were.
    """

    version: int
    done: tuple[str, ...] = ()
    refused: Mapping[str, AgentRLError] = field(default_factory=dict)
    broken: Mapping[str, AgentRLError] = field(default_factory=dict)
    paused: float = 0.0
    sent: float = 0.0
    checksums: Mapping[str, str] = field(default_factory=dict)


class Publisher:
    """Publishes versions to engines by a transport.

    Args:
        transport: how weights are sent.
        base: the model folder that they belong to.
        mode: how running requests are handled.
        transform: converts weights before they are sent; None sends them as they are.
        verify: compare engines' checksums after each publication.
        timeout: seconds for pausing (draining included), and for sending.
        keep: keep a copy in host memory for restarted engines, where the transport keeps none.
        limit: bytes of one file of such a copy.
        takes: the kinds of smaller parts that the engines take (`EnginePlugin.takes`).
    """

    def __init__(
        self,
        transport: Transport,
        base: Path,
        *,
        mode: PauseMode = PauseMode.DRAIN,
        transform: Convert | None = None,
        verify: bool = True,
        timeout: float = 600.0,
        keep: bool = True,
        limit: int = 1 << 29,
        takes: frozenset[str] = frozenset(),
    ) -> None:
        self.transport, self.base, self.mode, self.transform = transport, Path(base), mode, transform
        self.verify, self.timeout, self.keep, self.limit, self.takes = verify, timeout, keep, limit, takes
        self.version: int | None = None
        self._expected, self._tied = tensors(self.base), ModelFacts.read(self.base).tied
        self._held: int | None = None  # the version that the transport's folder, or the kept copy, has complete
        self._kept: dict[str, Named] = {}
        self._adapter: SavedAdapter | None = None  # of the staged version, where engines take it
        self._scratch: ScratchFolder | None = None

    def require_receivers(self, receivers: Iterable[Receiver]) -> None:
        """Refuse a transport that engines can't take, before there is anything to send.

        Raises:
            ConfigError: an engine has `publish` alone, and the transport asks for more.
        """
        call, name = getattr(self.transport, "calls", ""), getattr(self.transport, "name", "")
        for receiver in receivers:
            if call and isinstance(receiver, EngineReceiver) and not receiver.answers(call):
                raise ConfigError(str(receiver.make_error(name)))

    async def stage(self, weights: Iterable[Named], version: int) -> None:
        """Prepare a publication while engines still generate.

        A one-time iterator is first read into a list, where the transport needs the weights for each engine
        or again after a failure: `buckets.Weights` avoids that.
        """
        if not self.transport.stages_weights and iter(weights) is weights:
            weights = list(weights)
        self._held = None
        part = take_part(weights, ADAPTER) if ADAPTER in self.takes else None
        self._adapter = None if part is None else part.copied()
        parts = {} if self._adapter is None else {ADAPTER: self._adapter}
        save = self._saver(weights.save, version) if isinstance(weights, Weights) and weights.save else None
        await self.transport.stage(Weights(lambda: self._stream(weights, version), save, parts), version)
        if parts:
            self._kept.clear()
            self._held = version

    def _saver(self, save: Save, version: int) -> Save:
        """`save` with this publisher's conversion and check."""

        def converted(folder: Path, base: Path, limit: int, convert: Convert | None = None) -> Shapes:
            shapes = save(folder, base, limit, convert or self.transform)
            check_tensors(shapes, self._expected, self._tied)
            self._held = version
            return shapes

        return converted

    def _stream(self, weights: Iterable[Named], version: int) -> Iterator[Named]:
        self._held = None
        stream = self.transform(weights) if self.transform else weights
        copying = self.keep and self.transport.folder() is None
        shapes: Shapes = {}
        for name, tensor in stream:
            if name in shapes:
                raise EngineError(f"weights name {name!r} twice")
            shapes[name] = tuple(tensor.shape)
            if copying:
                self._kept[name] = (name, tensor.detach().to("cpu", copy=True))
            yield name, tensor
        check_tensors(shapes, self._expected, self._tied)
        self._held = version

    async def send(self, targets: Mapping[str, Target], version: int) -> PublishOutcome:
        """Move these engines to the staged version; the outcome has the result of each."""
        began = time.monotonic()
        broken: dict[str, AgentRLError] = {}
        await self._run_for(broken, targets, lambda target: target.pause(self.mode))
        lost = set(broken)
        start = time.monotonic()
        sums = await self._deliver(broken, targets, version)
        sent = time.monotonic() - start
        refused = {n: broken.pop(n) for n in list(broken) if n not in lost and targets[n].receiver.atomic}
        await self._run_for(broken, targets, lambda target: target.resume(None if target.name in refused else version))
        refused = {name: error for name, error in refused.items() if name not in broken}
        done = tuple(name for name in targets if name not in refused and name not in broken)
        if done:
            self.version = version
        checksums = {name: sums[name] for name in done if name in sums}
        return PublishOutcome(version, done, refused, broken, time.monotonic() - began, sent, checksums)

    async def _deliver(
        self, broken: dict[str, AgentRLError], targets: Mapping[str, Target], version: int
    ) -> Mapping[str, str]:
        """Send to those that are paused; the checksums by which they were compared."""
        receivers = {name: target.receiver for name, target in targets.items() if name not in broken}
        failed = await self._send(receivers, version)
        if failed:
            failed = await self._send({name: receivers[name] for name in failed}, version)
        broken |= failed
        if not self.verify:
            return {}
        left = {name: receiver for name, receiver in receivers.items() if name not in broken}
        sums = await self._checksums(broken, left)
        if odd := differing(sums):
            broken |= await self._send({name: left[name] for name in odd}, version)
            left = {name: receiver for name, receiver in left.items() if name not in broken}
            sums = await self._checksums(broken, left)
            for name in differing(sums):
                broken[name] = EngineError(f"engine {name!r} holds other weights than the other engines (checksum)")
        return sums

    async def _send(self, receivers: Mapping[str, Receiver], version: int) -> dict[str, AgentRLError]:
        if not receivers:
            return {}
        try:
            async with asyncio.timeout(self.timeout):
                sent = await self.transport.send(
                    receivers, LoadCommit(version, flush=self.mode is not PauseMode.IN_PLACE)
                )
        except TimeoutError as error:
            late = DeadlineExceeded(f"weights of version {version} were not there within {self.timeout:g} s")
            late.__cause__ = error
            return dict.fromkeys(receivers, late)
        except AgentRLError as error:
            return dict.fromkeys(receivers, error)
        return {name: error for name, error in sent.items() if error is not None}

    async def _checksums(self, broken: dict[str, AgentRLError], receivers: Mapping[str, Receiver]) -> dict[str, str]:
        """Each engine's own; of a single one none, which there is nothing to compare with."""
        if len(receivers) < 2:
            return {}
        sums: dict[str, str] = {}

        async def read(item: tuple[str, Receiver]) -> None:
            sums[item[0]] = await item[1].checksum()

        await self._run_for(broken, {name: (name, receiver) for name, receiver in receivers.items()}, read)
        return sums

    async def _run_for(
        self, broken: dict[str, AgentRLError], items: Mapping[str, T], work: Callable[[T], Awaitable[None]]
    ) -> None:
        """Run `work` for all engines that are not broken; those that fail, or time out, become broken."""

        async def limited(item: T) -> None:
            try:
                async with asyncio.timeout(self.timeout):
                    await work(item)
            except TimeoutError as error:
                raise DeadlineExceeded(f"an engine did not answer within {self.timeout:g} s") from error

        results = await each({name: item for name, item in items.items() if name not in broken}, limited)
        broken |= {name: error for name, error in results.items() if error is not None}

    async def folder(self) -> Path | None:
        """The version that engines have, as a folder that a restarted one loads; None where it was not kept."""
        if self._held != self.version:
            return None
        found = self.transport.folder()
        if found is not None or not (self._kept or self._adapter):
            return found
        if self._scratch is None:
            self._scratch = ScratchFolder()
        folder = self._scratch.path / "latest"
        if self._adapter is not None:
            return await asyncio.to_thread(write_part, self._adapter, folder)
        return await asyncio.to_thread(write_snapshot, list(self._kept.values()), folder, self.base, self.limit)

    async def close(self) -> None:
        await self.transport.close()
        self._kept.clear()
        if self._scratch is not None:
            self._scratch.close()
            self._scratch = None


def differing(sums: Mapping[str, str]) -> list[str]:
    """Engines whose checksum is not the most common one; all of them where there is no most common one."""
    ranking = Counter(sums.values()).most_common(2)
    tie = len(ranking) == 2 and ranking[0][1] == ranking[1][1]
    return [name for name, value in sums.items() if tie or value != ranking[0][0]]
