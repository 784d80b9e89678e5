"""Snapshots: a sandbox's files in canonical archives, equal bytes for equal files.

An archive from a sandbox is not trusted. It is read member by member and rewritten: directories, regular files and
symbolic links (which are only unpacked inside another sandbox) are kept, hard links become copies, everything else
(devices, fifos, sockets) is left out. Names outside the root, too many entries and too many bytes are refused. Entries
are sorted and directories come last, deepest first, so that their modes and times are final. `ArchivedSandbox` is what
backends share whose files pass in archives.
"""

from __future__ import annotations

import asyncio
import copy
import io
import posixpath
import tarfile
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from agentrl.errors import InvalidInput
from agentrl.tools.sandbox.archive import LIMITS, pack, unpack
from agentrl.tools.sandbox.base import SNAPSHOT_BYTES, PathError, Sandbox, SandboxDied, Snapshot, SnapshotRefused
from agentrl.tools.sandbox.spec import SandboxSpec

OWN = "sandbox"
"""Owner's name of files of the sandbox's own user, whose uid differs between sandboxes."""
Entry = tuple[tarfile.TarInfo, bytes]
Entries = dict[str, Entry]
"""Headers and contents by path, relative to the archive's root."""


def read_entries(data: bytes, limit: int, prefix: str = "") -> Entries:
    """The entries of an untrusted archive.

    Args:
        data: an uncompressed tar archive.
        limit: bytes that the entries may need in an archive.
        prefix: their directory, relative to the root.

    Raises:
        SnapshotRefused: it is broken, too large, or a name is outside the root.
    """
    found: Entries = {}
    total = 0
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:", errorlevel=2) as tar:
            for member in tar:
                path = _path(member.name, prefix)
                if not path or not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
                    continue
                if member.islnk():
                    original = found.get(_path(member.linkname, prefix))
                    if original is None or not original[0].isreg():
                        raise SnapshotRefused(f"{path!a} is a hard link to something that is not there")
                    body = original[1]
                else:
                    source = tar.extractfile(member) if member.isreg() else None
                    body = source.read() if source else b""
                total += len(body) + 2 * tarfile.BLOCKSIZE
                if total > limit or len(found) >= LIMITS.entries:
                    raise too_large(limit)
                found[path] = _header(member, path, body), body
    except (tarfile.TarError, EOFError, OverflowError, ValueError, UnicodeError) as error:
        if isinstance(error, SnapshotRefused):
            raise
        raise SnapshotRefused(f"the sandbox's files can't be read as an archive: {error}") from None
    return found


def write_entries(entries: Mapping[str, Entry]) -> bytes:
    """An archive of entries; equal entries give equal bytes."""
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w", format=tarfile.GNU_FORMAT, errors="surrogateescape") as tar:
        for path in sorted(path for path, (header, _) in entries.items() if not header.isdir()):
            header, data = entries[path]
            tar.addfile(header, io.BytesIO(data))
        for path in sorted((path for path, (header, _) in entries.items() if header.isdir()), reverse=True):
            tar.addfile(entries[path][0])
    return body.getvalue()


def canonical(data: bytes, limit: int) -> bytes:
    """An untrusted archive of a writable tree, rewritten without owners.

    Raises:
        SnapshotRefused: see `read_entries`.
    """
    entries = read_entries(data, limit)
    for header, _ in entries.values():
        header.uid = header.gid = 0
    return write_entries(entries)


def check_trees(snapshot: Snapshot, spec: SandboxSpec) -> None:
    """Check that a snapshot has the specification's writable trees.

    Raises:
        InvalidInput: it has others, or it changes files of an image that is read-only here.
    """
    if set(snapshot.trees) != set(spec.trees):
        raise InvalidInput(
            f"the snapshot has the writable trees {sorted(snapshot.trees)}, and the sandbox {sorted(spec.trees)}"
        )
    if (snapshot.layer or snapshot.removed) and not spec.writable_root:
        raise InvalidInput("the snapshot changes files of the image, and this sandbox has writable_root=False")


def within(limit: int, parts: Iterable[bytes]) -> None:
    """Check the total size of archives."""
    if sum(map(len, parts)) > limit:
        raise too_large(limit)


def too_large(limit: int) -> SnapshotRefused:
    """The error for too many or too large files."""
    return SnapshotRefused(f"the sandbox's files need more than {limit} bytes, or are more than {LIMITS.entries}")


def _path(name: str, prefix: str) -> str:
    parts = [part for part in f"{prefix}/{name}".split("/") if part not in ("", ".")]
    if ".." in parts or "\0" in name or len(parts) > 2 * LIMITS.depth or len(name) > LIMITS.name_bytes:
        raise SnapshotRefused(f"the name {name[:80]!a} is outside the root, too long or too deep")
    return "/".join(parts)


def _header(member: tarfile.TarInfo, path: str, body: bytes) -> tarfile.TarInfo:
    header = tarfile.TarInfo(path)
    header.type = tarfile.DIRTYPE if member.isdir() else tarfile.SYMTYPE if member.issym() else tarfile.REGTYPE
    header.mode, header.mtime, header.size = member.mode & 0o7777, max(0, int(member.mtime)), len(body)
    header.uid, header.gid = member.uid, member.gid
    header.linkname = member.linkname if member.issym() else ""
    return header


class ArchivedSandbox:
    """The common part of sandboxes whose files pass in archives: their transfer, snapshots and forks.

    Attributes:
        used: a command has run since it was created or emptied.
    """

    id: str
    spec: SandboxSpec
    workdir: str
    used = False
    _given_back = False

    def renewed(self) -> Self:
        self._require_held()
        other = copy.copy(self)
        self._given_back = True
        return other

    def _require_held(self) -> None:
        if self._given_back:
            raise SandboxDied(f"the sandbox {self.id} was given back by whoever had it: another episode may use it")

    async def _pack(self, path: str, limit: int, file: Any = None) -> bytes:
        """The archive of a directory, written into a file where there is one; PathError where it can't be read."""
        raise NotImplementedError

    async def _unpack(self, path: str, body: bytes) -> None:
        """Unpack an archive into a directory, which is made where it is missing; PathError where it can't be."""
        raise NotImplementedError

    async def _empty_trees(self) -> None:
        """Kill all processes, and empty every writable tree."""
        raise NotImplementedError

    async def _another(self) -> Sandbox:
        """Create a sandbox of the same specification."""
        raise NotImplementedError

    async def _read_layer(self, limit: int) -> tuple[bytes, list[str]]:
        """The changes of the image's files and the removed paths, where the backend has an image."""
        return b"", []

    async def _write_layer(self, layer: bytes, removed: tuple[str, ...]) -> None:
        raise InvalidInput("this backend has no image whose files a snapshot could change")

    def _tree(self, tree: str) -> str:
        """The path of a writable tree of the specification."""
        return tree

    def _path(self, path: str) -> str:
        return posixpath.normpath(posixpath.join(self.workdir, path))

    async def upload(self, source: Path | bytes, path: str) -> None:
        body = source if isinstance(source, bytes) else await asyncio.to_thread(pack, source)
        await self._unpack(self._path(path), body)

    async def download(self, path: str, destination: Path) -> None:
        with tempfile.TemporaryFile() as file:
            await self._pack(self._path(path), LIMITS.total_bytes, file)
            file.seek(0)
            await asyncio.to_thread(unpack, file, destination)

    async def snapshot(self, limit: int = SNAPSHOT_BYTES) -> Snapshot:
        trees: dict[str, bytes] = {}
        for tree in self.spec.trees:
            try:
                archived = await self._pack(self._tree(tree), limit)
            except PathError as error:
                raise SnapshotRefused(f"the writable tree {error}") from None
            trees[tree] = await asyncio.to_thread(canonical, archived, limit)
        layer, removed = await self._read_layer(limit) if self.spec.writable_root else (b"", [])
        within(limit, [*trees.values(), layer])
        return Snapshot(trees, layer, tuple(removed))

    async def restore(self, snapshot: Snapshot) -> None:
        check_trees(snapshot, self.spec)
        if self.spec.writable_root and self.used:
            raise InvalidInput("a snapshot of a writable root is restored in a sandbox where no command has run")
        await self._empty_trees()
        self.used = True  # from now on its content is the agent's
        for tree, archived in snapshot.trees.items():
            await self._unpack(self._tree(tree), archived)
        if snapshot.layer or snapshot.removed:
            await self._write_layer(snapshot.layer, snapshot.removed)

    async def fork(self) -> Sandbox:
        snapshot = await self.snapshot()
        other = await self._another()
        try:
            await other.restore(snapshot)
        except BaseException:
            await other.close()
            raise
        return other
