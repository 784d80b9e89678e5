"""A container's writable layer: the changes of its image's files, as the daemon reports them.

The daemon lists the changed paths (`docker diff`) and returns their files as archives. Nothing runs inside the
container, so no program of the image is needed and none that an agent replaced is trusted. A path that was added
includes all that is below it; of a changed directory only its own entry is read, since changes below it are listed.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from typing import Any

from agentrl.tools.sandbox.base import Sandbox, SnapshotRefused
from agentrl.tools.sandbox.docker.daemon import Daemon
from agentrl.tools.sandbox.docker.hardening import RUNNER_DIR
from agentrl.tools.sandbox.runner.loop import on_loop
from agentrl.tools.sandbox.snapshot import OWN, Entries, read_entries, too_large, write_entries
from agentrl.tools.sandbox.spec import below

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


async def read_layer(daemon: Daemon, container: str, trees: tuple[str, ...], limit: int) -> tuple[bytes, list[str]]:
    """The added and changed files of a container as an archive from its root, and the paths that were removed.

    Raises:
        SnapshotRefused: there is too much of it, or it can't be read.
    """
    return await on_loop(daemon.call(_read, daemon.api, container, trees, limit, timeout=SECONDS))


async def write_layer(daemon: Daemon, container: str, sandbox: Sandbox, layer: bytes, removed: tuple[str, ...]) -> None:
    """Apply a layer to a new container."""
    for start in range(0, len(removed), ARGUMENTS):
        done = await sandbox.exec(["rm", "-rf", "--", *removed[start : start + ARGUMENTS]], cwd="/", timeout=SECONDS)
        if not done.ok:
            raise SnapshotRefused(f"files of the image could not be removed: {done.text()[-300:]}")
    await on_loop(daemon.call(_write, daemon.api, container, layer, timeout=SECONDS))


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
