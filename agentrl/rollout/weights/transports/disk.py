"""Weights through a file system that trainer and engines share: whole snapshots, or deltas into a replica.

All writing happens before the pause, so what a publication costs the engines is their own reload. Two snapshots
are kept: the one that engines load, and the one before, which a slow reader may still have open. What is older is
removed before the next is written: the disk would still be busy with it while engines load.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from agentrl.common.scratch import ScratchFolder
from agentrl.errors import EngineError
from agentrl.rollout.weights.buckets import ADAPTER, Named, take_part
from agentrl.rollout.weights.delta import Replica
from agentrl.rollout.weights.receiver import LoadCommit, Receiver
from agentrl.rollout.weights.snapshot import write_part, write_snapshot
from agentrl.rollout.weights.transports.base import Sent, each

KEPT = 2


class DiskTransport:
    """Whole snapshots.

    Args:
        base: the model folder whose configuration and tokenizer go with the weights.
        directory: where snapshots are written; None is one of its own (`ScratchFolder`).
        limit: bytes of one file.
    """

    stages_weights = True

    def __init__(self, base: Path, directory: Path | None, limit: int) -> None:
        self.base, self.limit = Path(base), limit
        self._scratch: ScratchFolder | None = None
        if directory is None:
            self._scratch = ScratchFolder()
            directory = self._scratch.path
        self.directory = Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.written: list[Path] = []
        self.staged_bytes = 0

    async def stage(self, weights: Iterable[Named], version: int) -> None:
        """Write the snapshot, or the adapter where that is what engines take."""
        folder = self.directory / f"version-{version:08d}"
        for old in [path for path in self.written if path != folder][: 1 - KEPT]:
            self.written.remove(old)
            await asyncio.to_thread(shutil.rmtree, old, ignore_errors=True)
        if (adapter := take_part(weights, ADAPTER)) is not None:
            await asyncio.to_thread(write_part, adapter, folder)
        else:
            await asyncio.to_thread(write_snapshot, weights, folder, self.base, self.limit)
        self.staged_bytes = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
        self.written = [path for path in self.written if path != folder] + [folder]

    async def send(self, receivers: Mapping[str, Receiver], commit: LoadCommit) -> Sent:
        """Have every engine load the snapshot."""
        folder = self.folder()
        if folder is None:
            raise EngineError("nothing is staged: there is no snapshot to load")
        return await each(receivers, lambda receiver: receiver.load_folder(folder, commit))

    def folder(self) -> Path | None:
        return self.written[-1] if self.written else None

    async def close(self) -> None:
        for folder in self.written:
            shutil.rmtree(folder, ignore_errors=True)
        self.written.clear()
        if self._scratch is not None:
            self._scratch.close()


class DeltaTransport(DiskTransport):
    """The first publication whole, later ones as deltas that replicas apply.

    The trainer's side keeps a replica of its own, `mirror`, which has what engines have. Each directory of
    `replicas` belongs to one engine host; what crosses the network is the delta file in `directory`.

    Args:
        base, directory, limit: as for whole snapshots.
        replicas: the engine hosts' checkpoint folders; without any, engines load the mirror itself.
    """

    def __init__(self, base: Path, directory: Path | None, limit: int, replicas: Iterable[Path] = ()) -> None:
        super().__init__(base, directory, limit)
        self.paths = [Path(path) for path in replicas]
        self.mirror: Replica | None = None
        self.replicas: list[Replica] = []

    async def stage(self, weights: Iterable[Named], version: int) -> None:
        """Write the delta, or the first snapshot, and update mirror and replicas."""
        await asyncio.to_thread(self._stage, weights, version)

    def _stage(self, weights: Iterable[Named], version: int) -> None:
        if self.mirror is None:
            self._begin(weights, version)
            return
        delta = self.directory / "update.delta"
        try:
            self.mirror.encode(weights, delta)
            self.staged_bytes = delta.stat().st_size
            for replica in (self.mirror, *self.replicas):
                replica.apply(delta)
        finally:
            with contextlib.suppress(FileNotFoundError):
                delta.unlink()

    def _begin(self, weights: Iterable[Named], version: int) -> None:
        mirror = write_snapshot(weights, self.directory / "mirror", self.base, self.limit)
        self.staged_bytes = sum(file.stat().st_size for file in mirror.glob("*.safetensors"))
        identity = f"version-{version}"
        for path in self.paths:
            shutil.rmtree(path, ignore_errors=True)
            shutil.copytree(mirror, path)
            self.replicas.append(Replica(path, identity))
        elsewhere = self._scratch is None and not self.paths  # hosts that see a folder of ours may load the mirror
        self.mirror = Replica(mirror, identity, synced=elsewhere)
        self.written = [mirror, *self.paths]

    async def close(self) -> None:
        self.mirror, self.replicas = None, []  # which map what is removed
        await super().close()

    def folder(self) -> Path | None:
        held = next(iter(self.replicas), self.mirror)
        return None if held is None else held.folder
