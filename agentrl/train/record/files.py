"""Changes to files that a crash, or a full disk, leaves either undone or done."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator
from itertools import compress
from pathlib import Path
from typing import Any, TypeVar, overload

import orjson

from agentrl import faults
from agentrl.errors import ConfigError

T = TypeVar("T")


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name the file in an error of its file system that names none, as those of writing and flushing are."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise


def disk_error(error: Exception, run: Path) -> str:
    """Say what a disk's error is, with a file or the folder that it is about, and what to do where that is full."""
    about = "" if getattr(error, "filename", None) else f" (perhaps in {run})"
    full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
    free = f": {shutil.disk_usage(run).free >> 20:,} MiB are free in {run}; make room there" if full else ""
    return f"{error}{about}{free}"


def write_atomically(path: Path, data: bytes) -> None:
    """Write beside and rename: a reader sees the old file or the new one, also where the disk is full."""
    beside = path.with_name(f".{path.name}.partial")
    try:
        with naming(path), open(beside, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        faults.point("file.replace", beside)
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise


def append(path: Path, data: bytes) -> None:
    """Add to the end of a file, and flush it to the disk."""
    with naming(path), open(path, "ab") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def whole_lines(path: Path) -> list[bytes]:
    """The lines of a file, without a torn last one; none where it is gone."""
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    return [line for line in lines if line.endswith(b"\n")]


@overload
def read_rows(path: Path) -> list[Any]: ...
@overload
def read_rows(path: Path, read: Callable[[Any], T]) -> list[T]: ...
def read_rows(path: Path, read: Callable[[Any], Any] = lambda row: row) -> list[Any]:
    """Return what `read` makes of each line of a file of JSON lines, as `whole_lines` has them.

    Raises:
        ConfigError: a line is damaged.
    """
    try:
        return [read(orjson.loads(line)) for line in whole_lines(path)]
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ConfigError(f"{path} is damaged: {error}") from None


def read_sound_rows(path: Path) -> list[dict[str, Any]]:
    """Return the JSON lines of a file; torn ones, behind which others may have been added, are left out."""
    rows: list[dict[str, Any]] = []
    for line in path.read_bytes().splitlines() if path.exists() else ():
        with contextlib.suppress(ValueError):
            rows.append(orjson.loads(line))
    return rows


def read_metrics(path: Path) -> list[dict[str, float]]:
    """Return the rows of a file of metrics; numbers that are not finite, which are null in it, are NaN."""
    return read_rows(path, lambda row: {name: math.nan if value is None else value for name, value in row.items()})


def are_same(one: float | None, other: float | None) -> bool:
    """Return whether two metrics are equal, or neither is finite: a file does not say which of these they were."""
    if one is None or other is None:
        return one is other
    return one == other or not (math.isfinite(one) or math.isfinite(other))


def keep_lines(path: Path, step: int) -> None:
    """Keep of a file of JSON lines those up to a step (their field `step`), byte for byte; nothing where it is gone."""
    if path.exists():
        steps = read_rows(path, lambda row: row["step"] <= step)
        write_atomically(path, b"".join(compress(whole_lines(path), steps)))


def sync(folder: Path) -> None:
    """Write a folder's names to the disk; a file system that can't is left alone."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def run_path(env: str, run_dir: str | None, rerun: str | None = None, prefix: str = "") -> Path:
    """Return a new run's folder: `run_dir`, or a name made of its environment and the time."""
    name = Path(env.partition(":")[0]).stem
    if rerun and not run_dir:
        return Path(f"{rerun.rstrip('/')}-rerun")
    return Path(run_dir or f"runs/{prefix}{name}-{time.strftime('%Y%m%d-%H%M%S')}")
