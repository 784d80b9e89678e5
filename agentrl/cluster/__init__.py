"""The machines that roles run on: this one, or the nodes of a Ray cluster. See `base.py` for the contract.

`open_cluster` chooses a run's cluster; `current` is the one that roles are started on, this machine where none is open.
Only `cluster`, `groups` and `starter` of `agentrl.cluster.ray` import Ray.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl.cluster.base import Cluster, ClusterNode, Resources, Role, RoleProcess, Worker
from agentrl.cluster.local import LocalCluster
from agentrl.cluster.wire.connection import Address, Connection, connect
from agentrl.cluster.wire.interfaces import use_for_gloo
from agentrl.common.concurrency import current_task
from agentrl.errors import InfraError

if TYPE_CHECKING:
    from agentrl.config import ClusterConfig

__all__ = [
    "Address",
    "Cluster",
    "Connection",
    "LocalCluster",
    "ClusterNode",
    "RoleProcess",
    "Resources",
    "Role",
    "Worker",
    "connect",
    "current",
    "opened",
    "while_not_lost",
]

_current: Cluster = LocalCluster()


def current() -> Cluster:
    """The cluster on which roles are started."""
    return _current


@contextmanager
def open_cluster(config: ClusterConfig, logs: Path | None) -> Iterator[Cluster]:
    """Start roles on a run's cluster within the block; all of them have ended after it.

    Raises:
        MissingExtra: it needs Ray, which is not installed.
        ConfigError: no cluster answers at its address.
    """
    global _current
    before = _current
    if config.name == "ray":
        from agentrl.cluster.ray.cluster import RayCluster

        _current = RayCluster(config.address, logs)
        _current.resources = config.resources
        use_for_gloo(_current.host)
    else:
        _current = LocalCluster(logs)
    _current.start_timeout, _current.encrypted = config.start_timeout, config.encrypted
    _current.silence_timeout, _current.variables = config.silence_timeout, config.environment
    try:
        yield _current
    finally:
        _current.close()
        _current = before


@asynccontextmanager
async def while_not_lost(lost: Future[InfraError]) -> AsyncIterator[None]:
    """Cancel the block when a cluster is lost, and raise the InfraError that `lost` got."""
    loop, task = asyncio.get_running_loop(), current_task()
    over = False

    def cancel() -> None:
        if not over:
            task.cancel()

    lost.add_done_callback(lambda _: loop.call_soon_threadsafe(cancel))
    try:
        yield
    except BaseException as error:  # also what failed because of it
        if lost.done():
            task.uncancel()
            raise lost.result() from error
        raise
    finally:
        over = True
