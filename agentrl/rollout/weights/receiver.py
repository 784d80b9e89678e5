"""Receivers of an engine's weights (`Receiver`), and the one of any engine, by its own `publish` (`EngineReceiver`).

The order of calls is the publisher's business: `begin`, the loads, `end`, between a pause and a resume. No load but
the last names a version or flushes, as its `LoadCommit` says. An engine with a way of its own brings its receiver
(`engines.managed.ManagedEngine.receiver`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from agentrl.errors import EngineError
from agentrl.types import Engine

if TYPE_CHECKING:
    from agentrl.rollout.weights.buckets import Bucket

GROUP = "agentrl"
"""The name of the process group over which weights are broadcast."""


@dataclass(frozen=True, slots=True)
class LoadCommit:
    """Passed with the last load of a publication only.

    Attributes:
        version: what the weights are called from now on.
        flush: drop what older weights computed in the same call: a call of its own would make the pause longer.
            Only where no request holds on to it.
    """

    version: int
    flush: bool


@runtime_checkable
class Receiver(Protocol):
    """The engine's side of a publication. Every method raises `EngineError` where the engine refuses.

    Attributes:
        atomic: a load that fails leaves the engine with all of the weights that it had.
        receives_ahead: broadcasts of a group whose name ends as `group.AHEAD` says arrive while it generates. A
            plug-in's receiver may lack it, which is False. One that can be in several groups has a method
            `in_group(name)`, which returns its receiver in that one.
    """

    atomic: bool
    receives_ahead: bool

    async def begin(self) -> None:
        """Prepare for buckets."""
        ...

    async def load_folder(self, folder: Path, commit: LoadCommit) -> None:
        """Load a Hugging Face folder, or an adapter's where the engine takes them; needs neither `begin` nor `end`."""
        ...

    async def load_tensors(self, weights: Iterable[tuple[str, Any]], commit: LoadCommit) -> None:
        """Load (Hugging Face name, tensor) pairs in this process; needs neither `begin` nor `end`."""
        ...

    async def load_bucket(self, payloads: Sequence[str], commit: LoadCommit | None) -> None:
        """Load tensors that were serialised for each of the engine's ranks; `commit` comes with the last bucket."""
        ...

    async def join(self, host: str, port: int, rank: int, world: int, backend: str, name: str) -> None:
        """Join a process group as `rank` (the first of the engine's ranks); returns when all ranks have joined.

        Its name, which all of them use, is a secret of this group.
        """
        ...

    async def receive(self, bucket: Bucket, commit: LoadCommit | None) -> None:
        """Receive a broadcast bucket, flat, and load it; `commit` comes with the last one."""
        ...

    async def leave(self) -> None:
        """Leave the process group."""
        ...

    async def end(self) -> None:
        """End the update: all buckets have been sent."""
        ...

    async def flush(self) -> None:
        """Drop caches that the old weights computed; only where no request uses them."""
        ...

    async def checksum(self) -> str:
        """A digest of the engine's own tensors, equal for equal weights."""
        ...

    async def ping(self) -> None:
        """Answer, from where the model runs, also while paused."""
        ...

    async def sleep(self, tags: Sequence[str]) -> None:
        """Release accelerator memory: "weights", "kv_cache"."""
        ...

    async def wake(self, tags: Sequence[str]) -> None:
        """Allocate it again; the weights are undefined until the next publication."""
        ...


class EngineReceiver:
    """`Receiver` by the `Engine` protocol alone: loads folders and tensors through `publish`, without process groups.

    Args:
        engine: the engine.
        checksum: its digest of its own tensors; None where it has none.
        atomic: its `publish` is all or nothing.
    """

    receives_ahead = False

    def __init__(
        self, engine: Engine, checksum: Callable[[], Awaitable[str]] | None = None, *, atomic: bool = True
    ) -> None:
        self.engine, self.atomic, self._checksum = engine, atomic, checksum

    async def begin(self) -> None:
        """Do nothing: there is nothing to prepare."""

    async def load_folder(self, folder: Path, commit: LoadCommit) -> None:
        """Publish what the folder brings."""
        from agentrl.rollout.weights.snapshot import read_folder

        await self.engine.publish(read_folder(folder), commit.version)

    async def load_tensors(self, weights: Iterable[tuple[str, Any]], commit: LoadCommit) -> None:
        await self.engine.publish(weights, commit.version)

    async def load_bucket(self, payloads: Sequence[str], commit: LoadCommit | None) -> None:
        """Refuse: only whole weights are published."""
        raise self.make_error("ipc")

    async def join(self, host: str, port: int, rank: int, world: int, backend: str, name: str) -> None:
        """Refuse: the engine joins no process group."""
        raise self.make_error("distributed")

    async def receive(self, bucket: Bucket, commit: LoadCommit | None) -> None:
        """Refuse: the engine joins no process group."""
        raise self.make_error("distributed")

    async def leave(self) -> None:
        """Do nothing: the engine is in no group."""

    async def end(self) -> None:
        """Do nothing: there is nothing to finish."""

    async def flush(self) -> None:
        """`publish` has dropped stale caches."""

    async def checksum(self) -> str:
        """The engine's own digest; '' where it has none."""
        return "" if self._checksum is None else await self._checksum()

    async def ping(self) -> None:
        """Ask for the engine's health."""
        health = await self.engine.health()
        if not health.ok:
            raise EngineError(f"the engine is not healthy: {health.detail}")

    async def sleep(self, tags: Sequence[str]) -> None:
        """Do nothing: the engine shares the trainer's memory."""

    async def wake(self, tags: Sequence[str]) -> None:
        """Do nothing: nothing was released."""

    def answers(self, call: str) -> bool:
        """Return whether its class has a call of its own, such as `join`; one by `publish` alone refuses that."""
        return getattr(type(self), call) is not getattr(EngineReceiver, call)

    def make_error(self, transport: str) -> EngineError:
        """The refusal of a transport."""
        name = self.engine.capabilities.name
        return EngineError(f"engine {name!r} can't take weights.transport={transport}; allowed: auto, inproc, disk")
