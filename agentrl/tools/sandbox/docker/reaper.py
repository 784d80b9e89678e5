"""Containers of dead owners: found by label, tested by the owner's lock, removed in whatever state.

A container is removed only where its owner is known on this machine and known to be dead (`owner.alive`). Everything
else stays: containers without the label, of living owners, and of owners elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass

from agentrl.errors import SandboxError
from agentrl.tools.sandbox.docker.container import in_background, remove
from agentrl.tools.sandbox.docker.daemon import Daemon, connect
from agentrl.tools.sandbox.docker.owner import CREATED, LABEL, OWNER, alive, heartbeat_age, newly_dead
from agentrl.tools.sandbox.runner.loop import run_on_loop
from agentrl.tools.threads import in_forked_child

LOOK_SECONDS = 5.0
"""Between two looks of a process at whether another owner has died."""
_watched: set[str | None] = set()
in_forked_child(_watched.clear)


@dataclass(frozen=True, slots=True)
class FoundContainer:
    """A container with the label of sandboxes. `owner_alive` is None where its owner is not known on this machine."""

    id: str
    image: str
    state: str
    owner: str
    owner_alive: bool | None
    age: float
    heartbeat_age: float | None


@run_on_loop
async def find(address: str | None = None) -> list[FoundContainer]:
    """Every container with the label, in whatever state; DaemonError where the daemon does not answer."""
    daemon: Daemon = await connect(address)
    listed = await daemon.call(daemon.api.containers, all=True, filters={"label": LABEL})
    found = []
    for entry in listed:
        labels = entry["Labels"]
        owner = labels.get(OWNER, "")
        created = labels.get(CREATED, "")
        age = time.time() - (int(created) if created.isdigit() else entry["Created"])
        state = entry["State"]
        found.append(FoundContainer(entry["Id"], entry["Image"], state, owner, alive(owner), age, heartbeat_age(owner)))
    return found


@run_on_loop
async def reap(address: str | None = None, *, dry_run: bool = False) -> list[FoundContainer]:
    """Remove dead owners' containers; returns what was, or with `dry_run` would be, removed."""
    dead = [one for one in await find(address) if one.owner_alive is False]
    if not dry_run:
        daemon = await connect(address)
        for one in dead:
            await remove(daemon, one.id)
    return dead


@run_on_loop
async def watch(address: str | None = None) -> None:
    """Remove dead owners' containers now, and those of each that dies from now on, as long as this process lives."""
    seen = newly_dead(set())
    with contextlib.suppress(SandboxError):
        await reap(address)
    if address not in _watched:
        _watched.add(address)
        in_background(_watch(address, seen))


async def _watch(address: str | None, seen: set[str]) -> None:
    again = False  # once more afterwards: a container may have been on its way
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        died = newly_dead(seen)
        if died or again:
            with contextlib.suppress(SandboxError):
                await reap(address)
        seen, again = seen | died, bool(died)
