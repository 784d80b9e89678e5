"""Trees as tar archives: packing our own, and unpacking those of a sandbox, which are not trusted.

Unpacking accepts directories, regular files and symbolic links with targets inside; anything else raises a
PathError before it has an effect outside the destination. It never follows an existing link: every directory of
a path is opened with O_NOFOLLOW, relative to the one above it. Sizes, counts, depths and lengths
are bounded before anything is written. Hard links, devices, fifos, sparse files and pax headers (which can
redefine an entry's size and name) are refused by their type.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from agentrl.tools.sandbox.base import PathError


@dataclass(frozen=True, slots=True)
class ArchiveLimits:
    """Limits on what an archive may hold."""

    total_bytes: int = 1 << 30
    file_bytes: int = 512 << 20
    entries: int = 100_000
    name_bytes: int = 4096
    depth: int = 100


LIMITS = ArchiveLimits()


def pack(source: Path) -> bytes:
    """A directory's content as a tar archive (GNU format, owners and hard links left out).

    Raises:
        PathError: there is no such directory.
    """
    if not source.is_dir():
        raise PathError(f"{source}: not a directory")
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w", format=tarfile.GNU_FORMAT, dereference=False) as tar:
        for path in sorted(source.rglob("*")):
            info = tar.gettarinfo(str(path), str(path.relative_to(source)))
            if info is None or not (info.isfile() or info.isdir() or info.issym() or info.islnk()):
                continue
            if info.islnk():
                info.type, info.linkname, info.size = tarfile.REGTYPE, "", path.stat().st_size
            info.uid = info.gid = 0
            info.uname = info.gname = ""
            if info.isreg():
                with path.open("rb") as file:
                    tar.addfile(info, file)
            else:
                tar.addfile(info)
    return body.getvalue()


def unpack(file: IO[bytes], destination: Path, limits: ArchiveLimits = LIMITS) -> int:
    """Unpack an untrusted archive into a local directory, which is made where it is missing.

    Args:
        file: a seekable, uncompressed tar archive.
        destination: where everything must stay.
        limits: how much it may hold.

    Returns:
        How many entries were written.

    Raises:
        PathError: the archive is malicious or broken; the entries before the offending one have been written.
    """
    destination.mkdir(parents=True, exist_ok=True)
    root = os.open(destination, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    seen: set[tuple[str, ...]] = set()
    total = 0
    try:
        _scan(file)
        with tarfile.open(fileobj=file, mode="r:", errorlevel=2) as tar:
            for count, member in enumerate(tar, 1):
                parts = _check(member, limits)
                total += member.size
                if count > limits.entries:
                    raise PathError(f"the archive has more than {limits.entries} entries")
                if total > limits.total_bytes:
                    raise PathError(f"the archive holds more than {limits.total_bytes} bytes")
                if not parts:
                    continue
                if parts in seen:
                    raise PathError(f"the archive names {member.name!r} twice")
                seen.add(parts)
                _write(tar, member, parts, root)
        return len(seen)
    except (tarfile.TarError, EOFError, OverflowError, UnicodeError) as error:
        raise PathError(f"broken archive: {error}") from None
    except OSError as error:
        if isinstance(error, PathError):
            raise
        raise PathError(f"archive: {error}") from None
    finally:
        os.close(root)


def _scan(file: IO[bytes]) -> None:
    """Refuse headers that tarfile would read into memory whole."""
    while len(block := file.read(tarfile.BLOCKSIZE)) == tarfile.BLOCKSIZE and any(block):
        header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        if header.type in (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE):
            raise PathError("the archive has pax headers, which are not taken")
        if header.type in (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK) and header.size > 1 << 16:
            raise PathError(f"the archive has a name of {header.size} bytes")
        if header.size < 0:
            raise PathError("the archive has an entry of negative size")
        file.seek(-(-header.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE, io.SEEK_CUR)
    file.seek(0)


def _check(member: tarfile.TarInfo, limits: ArchiveLimits) -> tuple[str, ...]:
    """The entry's path in parts; PathError where it must not be written."""
    name = member.name
    shown = ascii(name[:80])
    if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE):
        raise PathError(f"archive entry {shown} is of a kind that is not taken ({member.type!r})")
    if member.sparse is not None or member.size > limits.file_bytes or member.size < 0:
        raise PathError(f"archive entry {shown} is sparse or longer than {limits.file_bytes} bytes")
    if len(os.fsencode(name)) > limits.name_bytes or name.startswith("/") or "\0" in name:
        raise PathError(f"archive entry {shown} has a name that is absolute, too long or holds a NUL")
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if ".." in parts or len(parts) > limits.depth:
        raise PathError(f"archive entry {shown} is outside or too deep")
    if member.issym() and not _stays_inside(member.linkname, len(parts) - 1):
        raise PathError(f"archive entry {shown} links outside, to {member.linkname[:80]!a}")
    return parts


def _stays_inside(target: str, depth: int) -> bool:
    """True if a link `depth` directories down can't resolve to a path outside, whatever other links there are.

    `..` counts only where the target begins: after another link's name, it would go up from that link's target.
    """
    steps = [part for part in target.split("/") if part not in ("", ".")]
    up = next((index for index, part in enumerate(steps) if part != ".."), len(steps))
    return bool(target) and not target.startswith("/") and up <= depth and ".." not in steps[up:]


def open_file(tar: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    """Return a file's content; PathError where the member is no file."""
    if (body := tar.extractfile(member)) is None:
        raise PathError(f"{member.name[:80]!a} is no file in the archive")
    return body


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, parts: tuple[str, ...], root: int) -> None:
    above = os.dup(root)
    try:
        for part in parts[:-1]:
            below = _step(above, part)
            os.close(above)
            above = below
        name = parts[-1]
        if member.isdir():
            os.close(_step(above, name))
            os.chmod(name, 0o755, dir_fd=above)
        elif member.issym():
            _clear(name, above)
            os.symlink(member.linkname, name, dir_fd=above)
        else:
            _clear(name, above)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(name, flags, 0o755 if member.mode & 0o100 else 0o644, dir_fd=above), "wb") as out:
                shutil.copyfileobj(open_file(tar, member), out, 1 << 20)
    finally:
        os.close(above)


def _step(above: int, part: str) -> int:
    """Open a directory below `above`, made where it is missing; never through a link."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(part, 0o755, dir_fd=above)
    return os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)


def _clear(name: str, above: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=above)
