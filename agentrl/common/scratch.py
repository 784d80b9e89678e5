"""Folders that are whole under their name, and temporary ones that go with their process, killed ones included.

Weights take gigabytes, and a process that is killed removes nothing. The kernel releases its lock, though: the next
process that needs such a folder removes those of this user whose lock is free.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

PREFIX = "agentrl-weights-"
LOCK = ".lock"


@contextmanager
def write_folder(folder: Path) -> Iterator[Path]:
    """Yield a new folder beside another one, whose place it takes where the block doesn't raise."""
    beside = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    try:
        yield beside
        remove(folder)
        beside.rename(folder)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def remove(folder: Path) -> None:
    """Remove a folder if it is there: under its name it is whole, or gone."""
    away = folder.with_name(f".{folder.name}.removed")
    shutil.rmtree(away, ignore_errors=True)
    with suppress(FileNotFoundError):
        folder.rename(away)
        shutil.rmtree(away, ignore_errors=True)


class ScratchFolder:
    """A new, empty folder, which is removed by `close`, or by a later process where this one is killed."""

    def __init__(self) -> None:
        remove_abandoned()
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        new = self.path / f"{LOCK}.new"
        self._descriptor: int | None = os.open(new, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        new.rename(self.path / LOCK)  # from here on others look at it, and find it locked

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def remove_abandoned() -> None:
    """Remove the folders of this user's processes that are gone."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        try:
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:  # it has none, or is gone
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # its process is there
            continue
        else:
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(descriptor)
