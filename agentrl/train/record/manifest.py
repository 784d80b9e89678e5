"""A folder's files as they were written, so that damage is found before a run resumes from it.

`manifest.json` has under "files" each file's size and a digest: SHA-256 of the whole of it up to 16 MiB, and of 16
pieces spread evenly over a larger one. That finds files that were truncated, replaced or never flushed, at a cost
that does not grow with the model; it misses single flipped bits in large files. "format" is the manifest's own number
(`agentrl.common.formats`), "seal" the seal before the checkpoint's (`train.record.seals`). Further keys are for others.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agentrl.common import formats
from agentrl.errors import NewerFormat
from agentrl.models.folders import is_weights
from agentrl.train.record.files import sync, write_atomically

NAME = "manifest.json"
TRAINER = "trainer"
PIECE = 1 << 20
PIECES = 16


def write(folder: Path, about: Mapping[str, Any] | None = None) -> None:
    """Flush a folder's files to the disk and record them; files that are recorded already are not read again.

    What is still being written (`*.partial`) is left out: its writer calls this again.
    """
    try:
        manifest: dict[str, Any] = json.loads((folder / NAME).read_text())
    except FileNotFoundError:
        manifest = {"files": {}}
    formats.MANIFEST.check(manifest, folder / NAME)
    manifest |= {**formats.MANIFEST.mark(), **(about or {})}
    for file in _files(folder):
        name = file.relative_to(folder).as_posix()
        if name not in manifest["files"]:
            manifest["files"][name] = {"bytes": file.stat().st_size, "digest": digest(file, flush=True)}
    write_atomically(folder / NAME, json.dumps(manifest, indent=1).encode())
    for inner in {folder, *(file.parent for file in _files(folder))}:
        sync(inner)


def damage(folder: Path) -> str | None:
    """Say what is wrong with a folder that has a manifest; None where it is intact.

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


def has_file(folder: Path, name: str) -> bool:
    """Return whether a folder's manifest has a file of that name, or files in a folder of that name.

    True where the manifest is missing or damaged: it must not be rebuilt from files of unknown origin.
    """
    try:
        files = _read(folder)
    except (OSError, ValueError, KeyError):
        return True
    return any(file == name or file.startswith(f"{name}/") for file in files)


def digests(folder: Path) -> tuple[str, str]:
    """A digest of what a folder's manifest says of its files, and one of what it says of its trainer's.

    The first one is '' where the manifest is missing or damaged, the second one where it has no files of a trainer.
    """
    try:
        files = _read(folder)
    except (OSError, ValueError, KeyError):
        return "", ""
    parts: tuple[dict[str, Any], dict[str, Any]] = {}, {}
    for name, found in files.items():
        parts[name.partition("/")[0] == TRAINER][name] = found
    of_files, of_trainer = (hashlib.sha256(json.dumps(part, sort_keys=True).encode()).hexdigest() for part in parts)
    return of_files, of_trainer if parts[1] else ""


def weights(folder: Path) -> str:
    """A digest of what a folder's manifest says of its weights; '' where it is missing, damaged, or has none."""
    try:
        files = _read(folder)
    except (OSError, ValueError, KeyError):
        return ""
    found = {name: data for name, data in files.items() if "/" not in name and is_weights(Path(name))}
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest() if found else ""


def list_unlisted(folder: Path) -> list[str]:
    """Files of a folder that its manifest does not have; hidden ones, and a trainer's, which may come late, aside.

    Raises:
        OSError: the manifest can't be read.
        ValueError: it is damaged.
    """
    files = _read(folder)
    names = (file.relative_to(folder) for file in _files(folder))
    seen = [name for name in names if name.parts[0] != TRAINER and not any(part.startswith(".") for part in name.parts)]
    return [name.as_posix() for name in seen if name.as_posix() not in files]


def seal(folder: Path) -> str:
    """The seal that a checkpoint's manifest names (`train.record.seals`); '' where it names none."""
    try:
        return str(json.loads((folder / NAME).read_text()).get("seal", ""))
    except (OSError, ValueError, AttributeError):
        return ""


def digest(path: Path, *, flush: bool = False) -> str:
    """A file's digest; see the module's docstring."""
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
    whole = json.loads((folder / NAME).read_text())
    formats.MANIFEST.check(whole, folder / NAME)
    files: dict[str, Any] = whole["files"]
    return files


def _files(folder: Path) -> Iterator[Path]:
    for file in sorted(folder.rglob("*")):
        parts = file.relative_to(folder).parts
        if file.is_file() and parts != (NAME,) and not any(part.endswith(".partial") for part in parts):
            yield file
