"""One rank: what it is built from, how it joins the others, and its role."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.common.imports import load

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl.rollout.weights.buckets import Convert, Shapes

SECOND = 1.0
"""Seconds between two heartbeats, and between two checks."""


@dataclass(frozen=True, slots=True)
class RankSettings:
    """A rank's settings.

    Attributes:
        rank: its number.
        ranks: how many there are.
        store: host:port of the store at which they meet.
        builder: the import path of its `Builder`.
        layout: what the builder needs to know of the parallel layout.
        timeout: seconds that a collective may take.
        seed: of its generators.
    """

    rank: int
    ranks: int
    store: str
    builder: str
    layout: Any
    timeout: float
    seed: int


class Builder(ABC):
    """Joins the ranks' process group when it is made, and builds this rank's part of a model."""

    def __init__(self, role: RankSettings) -> None:
        self.role = role

    @abstractmethod
    def build(self, *arguments: Any) -> Any:
        """Build the object whose methods are called: with `forget`, which frees what would outlive it."""


class RankRole:
    """One rank, as a role of the cluster; it joins the process group when it is made."""

    def __init__(self, role: RankSettings) -> None:
        self._number = role.rank
        self._builder: Builder = load(role.builder, "a builder of ranks")(role)
        self._rank: Any = None
        threading.Thread(target=beat, args=(role,), name="heartbeat", daemon=True).start()

    def run(self, method: str, arguments: tuple[Any, ...]) -> Any:
        """Call one of this class's methods, or of the rank's."""
        return getattr(self if hasattr(type(self), method) else self._rank, method)(*arguments)

    def build(self, *arguments: Any) -> None:
        """Build the rank's part of a model, and free an earlier one."""
        if self._rank is not None:
            self._rank.forget()
        self._rank = None
        self._rank = self._builder.build(*arguments)

    def tensors(self, method: str, arguments: tuple[Any, ...]) -> Iterator[tuple[str, Tensor]]:
        """The named tensors that a method yields, copied, since an average is where the weights are only meanwhile."""
        for name, tensor in getattr(self._rank, method)(*arguments):
            yield name, tensor.detach().to("cpu", copy=True)

    def save_weights(self, folder: Path, base: Path, limit: int, convert: Convert | None, method: str) -> Shapes:
        """Write the weights that `method` yields, which all ranks gather, on rank 0."""
        from agentrl.rollout.weights.snapshot import save_snapshot

        weights = self.tensors(method, ())
        if self._number:
            for _ in weights:
                pass
            return {}
        return save_snapshot(weights if convert is None else convert(weights), folder, base, limit)


def join(role: RankSettings, *, gpus: bool) -> None:
    """Join the default process group: over NCCL (on AMD that is RCCL), each rank on a GPU of its own, or over gloo."""
    import torch
    import torch.distributed as dist

    if gpus:
        torch.cuda.set_device(role.rank % torch.cuda.device_count())
    dist.init_process_group(
        "nccl" if gpus else "gloo",
        store=store_of(role),
        rank=role.rank,
        world_size=role.ranks,
        timeout=timedelta(seconds=role.timeout),
    )


def store_of(role: RankSettings) -> Any:
    """The store at which the ranks meet, of the process that started them."""
    from torch import distributed as dist

    host, _, port = role.store.rpartition(":")
    limit = timedelta(seconds=role.timeout)
    return dist.TCPStore(host, int(port), is_master=False, timeout=limit)  # type: ignore[attr-defined]


def beat(role: RankSettings) -> None:
    """Set a rank's heartbeat every second, as long as the process that started it is there."""
    store, count = store_of(role), 0
    while True:
        count += 1
        try:
            store.set(beat_key(role.rank), str(count))
        except RuntimeError:
            return
        time.sleep(SECOND)


def beat_key(rank: int) -> str:
    """Return the name of a rank's heartbeat in the store."""
    return f"beat-{rank}"
