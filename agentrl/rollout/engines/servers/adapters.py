"""The adapters that an inference server computes beside its base, one for each policy version that is in use.

A turn goes on under the adapter that it began with, however many versions are published meanwhile: its prefixes are
cached under that version, and no token of it is computed by two. Adapters that no turn uses any more are unloaded with
the next publication.

Whole weights, and an adapter on another base, replace the base under all turns that are open: those are ended first, as
`PauseMode.ABORT` does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from agentrl.rollout.engines.folder import tensors

TOGETHER = 4
"""Adapters that a server computes in one batch; turns of others wait."""


ADAPTED = (
    *("q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj"),
    *("gate_proj", "up_proj", "down_proj", "gate_up_proj"),
)
"""Matrices that servers add an adapter's products to, by the last parts of their names; never the output layer, with
which vLLM 0.32 dies where it scores a prompt amid other turns."""


def target_modules(folder: Path) -> list[int | float | str]:
    """Return the last parts of the names of a model's matrices that servers add products to."""
    matrices = {name.split(".")[-2] for name, shape in tensors(folder).items() if len(shape) == 2 and "." in name}
    return [*sorted(matrices & set(ADAPTED))]


def _same(folder: Path, other: Path) -> bool:
    return folder.resolve() == other.resolve()


class AdapterRoutes(Protocol):
    """A server's routes for adapters."""

    async def load_adapter(self, name: str, folder: str) -> None:
        """Load a folder in PEFT's format."""

    async def unload_adapter(self, name: str) -> None:
        """Forget an adapter that no request uses."""


@dataclass
class ServedAdapters:
    """The adapters of a server.

    Attributes:
        routes: the server's.
        base: the folder of the base that it has; None: it got whole weights.
        reload: loads another base, with no turn open.
        in_use: returns the adapters that open turns have.
        current: what new turns have; None: the base alone.
        resident: those that the server holds.
    """

    routes: AdapterRoutes
    base: Path | None
    reload: Callable[[Path], Awaitable[None]]
    in_use: Callable[[], set[str | None]]
    current: str | None = None
    resident: set[str] = field(default_factory=set)

    async def add(self, folder: Path, base: Path, version: int) -> None:
        """Load a version's adapter, which new turns have from now on; before it another base, where it needs that."""
        if self.base is None or not _same(base, self.base):
            await self.reload(base)
            self.base = base
        name = f"version-{version}"
        if name in self.resident:  # sent again, after a failure
            await self._unload(name)
        await self.routes.load_adapter(name, str(folder))
        self.resident.add(name)
        self.current = name
        await self._clear()

    async def replace_base(self, folder: Path) -> None:
        """Load whole weights, which new turns have from now on."""
        await self.reload(folder)
        self.base = self.current = None
        await self._clear()

    async def _clear(self) -> None:
        for old in self.resident - self.in_use() - {self.current}:
            await self._unload(old)

    async def _unload(self, name: str) -> None:
        await self.routes.unload_adapter(name)
        self.resident.discard(name)
