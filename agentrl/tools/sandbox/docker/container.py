"""Creating containers under a known name, and removing them reliably."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, cast

from agentrl.common import processes
from agentrl.common.concurrency import hold_task
from agentrl.common.retries import doubling, retry
from agentrl.errors import ConfigError, SandboxError
from agentrl.tools.sandbox.base import DaemonError, Sandbox
from agentrl.tools.sandbox.docker.daemon import WORKERS, Daemon
from agentrl.tools.sandbox.docker.hardening import container_config
from agentrl.tools.sandbox.docker.layer import read_layer, write_layer
from agentrl.tools.sandbox.docker.owner import LABEL, OWNER, alive, is_own, owner
from agentrl.tools.sandbox.runner import loop
from agentrl.tools.sandbox.runner.loop import run_on_loop
from agentrl.tools.sandbox.spec import SandboxSpec

logger = logging.getLogger(__name__)
_tasks: set[asyncio.Task[None]] = set()
_left: dict[str, set[str]] = {}
"""By daemon, containers that it did not remove, being down; it is asked again as soon as it creates another."""


class ContainerSandbox:
    """The part of a sandbox that is a container of the daemon's, whoever runs its commands."""

    id: str
    spec: SandboxSpec
    daemon: Daemon

    @run_on_loop
    async def inspect(self) -> dict[str, Any]:
        """The daemon's inspection of the container."""
        found: dict[str, Any] = await self.daemon.call(self.daemon.api.inspect_container, self.id)
        return found

    async def _read_layer(self, limit: int) -> tuple[bytes, list[str]]:
        return await read_layer(self.daemon, self.id, self.spec.trees, limit)

    async def _write_layer(self, layer: bytes, removed: tuple[str, ...]) -> None:
        await write_layer(self.daemon, self.id, cast(Sandbox, self), layer, removed)


async def describe_end(daemon: Daemon, container: str) -> str:
    """Say how a container ended, or stands; SandboxError where the daemon does not answer, or does not know it."""
    state = (await daemon.call(daemon.api.inspect_container, container, timeout=5.0))["State"]
    what = "ran out of memory" if state.get("OOMKilled") else state.get("Error") or "no error"
    return f"container {state['Status']}, exit code {state['ExitCode']}, {what}"


async def create_container(daemon: Daemon, spec: SandboxSpec) -> str:
    """Create (not start) a container; its id. Its name is chosen before, so that none is ever lost.

    Raises:
        ConfigError: the daemon can't give what the specification asks for.
    """
    process = owner()
    if process.timer is None:
        process.beat(asyncio.get_running_loop())
    processes.register_cleanup(f"containers at {daemon.address}", partial(remove_left, daemon))
    body = container_config(spec, process.labels(spec.key), await daemon.remapped())
    name = f"agentrl-{secrets.token_hex(8)}"
    try:
        created = str((await daemon.call(daemon.api.create_container_from_config, body, name))["Id"])
    except BaseException as error:
        if not isinstance(error, DaemonError) or "daemon refused" not in str(error):  # it may exist all the same
            in_background(remove(daemon, name))
        if not isinstance(error, DaemonError):
            raise
        text = str(error)
        if "storage-opt" in text.lower() or "storage opt" in text.lower() or "project quota" in text.lower():
            raise ConfigError(
                f"this daemon's storage driver can't bound a writable layer (disk_mb={spec.disk_mb}); "
                "use tmpfs_mb trees on a read-only root, or say disk_mb=null to leave it unbounded"
            ) from None
        if "unknown runtime" in text.lower() or "unknown or invalid runtime" in text.lower():
            raise ConfigError(f"runtime={spec.runtime!r} is not known to the daemon: {text}") from None
        raise
    for left in _left.pop(daemon.address, ()):
        in_background(remove(daemon, left))
    return created


def in_background(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine as a background task."""
    hold_task(work, _tasks)


async def remove(daemon: Daemon, container: str) -> None:
    """Remove a container in any state; one that is gone is no error, and a failing daemon is logged."""

    async def attempt() -> None:
        try:
            await daemon.call(daemon.api.remove_container, container, v=True, force=True)
        except SandboxError as error:
            if "no such container" not in str(error).lower():
                raise

    try:
        await retry(attempt, SandboxError, doubling(0.2, 2))
    except SandboxError as error:
        if "already in progress" in str(error).lower():
            return
        if daemon.address not in _left:  # else it has been said
            logger.warning("containers can't be removed until the daemon creates others: %s", error)
        _left.setdefault(daemon.address, set()).add(container)


def remove_left(daemon: Daemon) -> None:
    """Remove the containers of this process, which ends, and of dead ones; from any thread, as far as that goes.

    The sandboxes' event loop is stopped, and calls of the daemon that are under way come to their end, so that no
    container is created afterwards.
    """
    loop.stop()
    for _ in range(2):  # at once those that are there; then those whose creation was under way
        with ThreadPoolExecutor(WORKERS) as threads:
            listed = daemon.api.containers(all=True, filters={"label": LABEL})
            for one in listed:
                if is_own(name := one["Labels"].get(OWNER, "")) or alive(name) is False:
                    threads.submit(daemon.api.remove_container, one["Id"], v=True, force=True)
        daemon.finish()
