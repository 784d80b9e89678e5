"""A folder's files as they were written, so that damage is found before a run resumes from it.

`manifest.json` has under "files" each file's size and a digest: SHA-256 of the whole of it up to 16 MiB, and of 16
pieces spread evenly over a larger one. That finds files that were truncated, replaced or never flushed, at a cost
that does not grow with the model; it misses single flipped bits in large files. "format" is the manifest's own number
(`agentrl.formats`). Further keys are for others.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentrl import formats
from agentrl.errors import NewerFormat
from agentrl.train.files import sync, write_atomically

NAME = "manifest.json"
PIECE = 1 << 20
PIECES = 16


def write(folder: Path) -> None:
    """Flush a folder's files to the disk and record them; files that are recorded already are not read again.

    What is still being written (`*.partial`) is left out: its writer calls this again.
    """
    try:
        manifest: dict[str, Any] = json.loads((folder / NAME).read_text())
    except FileNotFoundError:
        manifest = {"files": {}}
    formats.MANIFEST.check(manifest, folder / NAME)
    manifest |= formats.MANIFEST.mark()
    for file in _files(folder):
        name = file.relative_to(folder).as_posix()
        if name not in manifest["files"]:
            manifest["files"][name] = {"bytes": file.stat().st_size, "digest": digest(file, flush=True)}
    write_atomically(folder / NAME, json.dumps(manifest, indent=1).encode())
    for inner in {folder, *(file.parent for file in _files(folder))}:
        sync(inner)


def damage(folder: Path) -> str | None:
    """What is wrong with a folder that has a manifest, in words; None where it is intact.

    Raises:
        NewerFormat: a later agentrl wrote the manifest.
    """
    try:
        files = _read(folder)
        for name, recorded in files.items():
            size = (folder / name).stat().st_size
            if size != recorded["bytes"]:
                return f"{name} has {size:,} bytes, not {recorded['bytes']:,}"
            if digest(folder / name) != recorded["digest"]:
                return f"{name} has changed since it was written"
    except NewerFormat:
        raise
    except FileNotFoundError as error:
        return f"{Path(error.filename).relative_to(folder)} is missing"
    except OSError as error:
        return f"{error.filename or 'a file'} can't be read: {error.strerror}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{NAME} is damaged"
    return None


def recorded(folder: Path, name: str) -> bool:
    """Whether a folder's manifest has a file of that name, or files in a folder of that name.

    True where the manifest is missing or damaged: it must not be rebuilt from files of unknown origin.
    """
    try:
        files = _read(folder)
    except (OSError, ValueError, KeyError):
        return True
    return any(file == name or file.startswith(f"{name}/") for file in files)


def digest(path: Path, *, flush: bool = False) -> str:
    """A file's digest; see the module's docstring.

    Args:
        path: the file.
        flush: write the file to the disk first (fsync).
    """
    found = hashlib.sha256()
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if flush:
            os.fsync(file.fileno())
        last = size - PIECE
        places = range(0, size, PIECE) if size <= PIECES * PIECE else (last * i // (PIECES - 1) for i in range(PIECES))
        for place in places:
            file.seek(place)
            found.update(file.read(PIECE))
    return found.hexdigest()


def _read(folder: Path) -> dict[str, Any]:
    """The files that a folder's manifest records."""
    whole = json.loads((folder / NAME).read_text())
    formats.MANIFEST.check(whole, folder / NAME)
    files: dict[str, Any] = whole["files"]
    return files


def _files(folder: Path) -> Iterator[Path]:
    for file in sorted(folder.rglob("*")):
        parts = file.relative_to(folder).parts
        if file.is_file() and parts != (NAME,) and not any(part.endswith(".partial") for part in parts):
            yield file
