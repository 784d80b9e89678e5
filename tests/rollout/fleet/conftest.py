"""A tiny model, fleets of local engines on it, and of real SGLang servers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from agentrl.config import WEIGHTS, FleetConfig
from agentrl.rollout.engines.local.engine import LocalEngine
from agentrl.rollout.engines.local.plugin import LocalConfig
from agentrl.rollout.fleet.fleet import Fleet
from agentrl.rollout.weights import make_publisher
from agentrl.types import Engine
from tests.rollout.engines.conftest import folder

__all__ = ["folder"]

LOCAL = LocalConfig(max_batch=8, device="cpu", kernel="torch")
"""The slower kernel: faults come while turns are under way."""
QUICK = FleetConfig(probe_every=0.2, probe_timeout=20, stall_timeout=60)


def local_fleet(
    folder: Path, count: int = 2, fleet: FleetConfig = QUICK, make: Callable[[], Engine] | None = None, **weights: Any
) -> Fleet:
    """A fleet in this process."""
    publisher = make_publisher(WEIGHTS.build(weights), folder, LOCAL)
    return Fleet([make or (lambda: LocalEngine(folder, LOCAL))] * count, publisher, fleet)


@pytest.fixture
async def fleet(folder: Path) -> AsyncIterator[Fleet]:
    made = local_fleet(folder)
    yield made
    await made.close()
