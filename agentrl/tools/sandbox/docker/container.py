"""Creating containers under a known name, and removing them reliably."""

from __future__ import annotations

import asyncio
import io
import logging
import secrets
import tarfile
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, cast

from agentrl.common import processes
from agentrl.common.concurrency import hold_task
from agentrl.common.retries import doubling, retry
from agentrl.errors import ConfigError, SandboxError
from agentrl.tools.sandbox.base import DaemonError, Sandbox, SnapshotRefused
from agentrl.tools.sandbox.docker.daemon import WORKERS, Daemon
from agentrl.tools.sandbox.docker.hardening import RUNNER_DIR, container_config
from agentrl.tools.sandbox.docker.owner import LABEL, OWNER, alive, is_own, owner
from agentrl.tools.sandbox.runner import loop
from agentrl.tools.sandbox.runner.loop import on_loop, run_on_loop
from agentrl.tools.sandbox.snapshot import OWN, Entries, read_entries, too_large, write_entries
from agentrl.tools.sandbox.spec import SandboxSpec, below

logger = logging.getLogger(__name__)
_tasks: set[asyncio.Task[None]] = set()
_left: dict[str, set[str]] = {}
"""By daemon, containers that it did not remove, being down; it is asked again as soon as it creates another."""
CHANGED, ADDED, REMOVED = range(3)
"""Kinds of change, as the daemon numbers them."""
MOUNTS = ("/dev", "/proc", "/sys", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/.dockerenv", RUNNER_DIR)
"""Mounts that every container has."""
MAX_CALLS = 2000
"""Paths that are read one by one; each takes the daemon some milliseconds."""
FIRST_ENTRY = 1 << 20
"""Bytes in which an archive's first entry, its name and attributes included, has ended."""
SECONDS = 120.0
ARGUMENTS = 500
"""The most paths of one command."""


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
        """The added and changed files as an archive from the root, and the paths that were removed.

        The daemon lists the changed paths (`docker diff`) and returns their files as archives. Nothing runs inside the
        container, so no program of the image is needed and none that an agent replaced is trusted. A path that was
        added includes all that is below it; of a changed directory only its own entry is read, since changes below it
        are listed.
        """
        call = self.daemon.call(_read, self.daemon.api, self.id, self.spec.trees, limit, timeout=SECONDS)
        return await on_loop(call)

    async def _write_layer(self, layer: bytes, removed: tuple[str, ...]) -> None:
        for start in range(0, len(removed), ARGUMENTS):
            command = ["rm", "-rf", "--", *removed[start : start + ARGUMENTS]]
            done = await cast(Sandbox, self).exec(command, cwd="/", timeout=SECONDS)
            if not done.ok:
                raise SnapshotRefused(f"files of the image could not be removed: {done.text()[-300:]}")
        await on_loop(self.daemon.call(_write, self.daemon.api, self.id, layer, timeout=SECONDS))


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


def _read(api: Any, container: str, trees: tuple[str, ...], limit: int) -> tuple[bytes, list[str]]:
    own = _user(api, container)
    entries: Entries = {}
    removed: list[str] = []
    whole: list[str] = []  # directories that are included with all that is below them
    size = calls = 0
    for change in sorted(api.diff(container) or (), key=lambda change: change["Path"].split("/")):
        path, kind = change["Path"], change["Kind"]
        if any(below(path, mount) for mount in (*MOUNTS, *trees)) or any(below(path, above) for above in whole):
            continue
        calls += 1
        if calls > MAX_CALLS:
            raise SnapshotRefused(f"more than {MAX_CALLS} paths of the image were changed")
        if kind == REMOVED:
            removed.append(path)
        data = _archive(api, container, path, limit - size, only_itself=kind == CHANGED)
        if data is None and kind != REMOVED:
            raise SnapshotRefused(f"the changed file {path!a} can't be read")
        if data is None:
            continue
        found = read_entries(data, limit - size, path.rpartition("/")[0])
        inner = {name: entry for name, entry in found.items() if not any(below(f"/{name}", tree) for tree in trees)}
        size += sum(len(body) + 2 * tarfile.BLOCKSIZE for _, body in inner.values())
        entries |= inner
        if kind != CHANGED:
            whole.append(path)
    for header, _ in entries.values():
        header.uname = OWN if header.uid == own[0] else ""
        header.gname = OWN if header.gid == own[1] else ""
        header.uid, header.gid = 0 if header.uname else header.uid, 0 if header.gname else header.gid
    return (write_entries(entries) if entries else b""), removed


def _archive(api: Any, container: str, path: str, limit: int, only_itself: bool) -> bytes | None:
    """A path's archive, of a directory perhaps its own entry alone; None where there is nothing."""
    from docker import errors

    try:
        stream, _ = api.get_archive(container, path)
    except errors.NotFound:
        return None
    data = bytearray()
    for chunk in stream:
        data += chunk
        if len(data) > limit + (1 << 20):
            raise too_large(limit)
        if only_itself and len(data) <= FIRST_ENTRY and (own := _own_entry(data)):
            stream.close()
            return own
    return bytes(data)


def _own_entry(data: bytearray) -> bytes | None:
    """The beginning of an archive up to the end of its first entry, where that is a directory."""
    if len(data) < 4 * tarfile.BLOCKSIZE:
        return None
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
            first = tar.next()
            return bytes(data[: first.offset_data]) if first is not None and first.isdir() else None
    except tarfile.TarError:
        return None  # a long name that is not complete yet


def _write(api: Any, container: str, layer: bytes) -> None:
    if not layer:
        return
    uid, gid = _user(api, container)
    entries = dict(_entries(layer))
    for header, _ in entries.values():
        header.uid, header.gid = uid if header.uname else header.uid, gid if header.gname else header.gid
        header.uname = header.gname = ""
    api.put_archive(container, "/", write_entries(entries))


def _entries(layer: bytes) -> Iterator[tuple[str, tuple[tarfile.TarInfo, bytes]]]:
    with tarfile.open(fileobj=io.BytesIO(layer), mode="r:") as tar:
        for member in tar:
            source = tar.extractfile(member) if member.isreg() else None
            yield member.name, (member, source.read() if source else b"")


def _user(api: Any, container: str) -> tuple[int, int]:
    uid, _, gid = str(api.inspect_container(container)["Config"]["User"]).partition(":")
    return (int(uid), int(gid or uid)) if uid.isdigit() and (gid or uid).isdigit() else (0, 0)
