"""Rows of data sets, from JSONL or Parquet files, and the tasks that environments make of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError, missing_extra
from agentrl.types import Task

MakeTask = Callable[[Mapping[str, Any], int], Task]
"""Makes a task of a row and the number of its line; ValueError, TypeError or KeyError say that the row is none."""


def read_rows(path: str | Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows of a file whose name ends in `.parquet`, or of a JSONL file, each with its line, or its row, from 1.

    Raises:
        ConfigError: there is no such file, or it is neither.
        MissingExtra: pyarrow is not installed.
    """
    chosen = Path(path).expanduser()
    if not chosen.is_file():
        raise ConfigError(f"path = {str(path)!r}: there is no such file")
    if chosen.suffix == ".parquet":
        yield from enumerate(_parquet(chosen), 1)
        return
    with chosen.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                words = f"{chosen}, line {number}: not a JSON object: {error}; give a .jsonl or a .parquet file"
                raise ConfigError(words) from None
            if not isinstance(row, dict):
                raise ConfigError(f"{chosen}, line {number}: not a JSON object: {line.strip()[:80]}")
            yield number, row


def _parquet(path: Path) -> Iterator[dict[str, Any]]:
    """The rows, a batch in memory at a time: a training set of Search-R1 has 170,000."""
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise missing_extra("pyarrow", "parquet") from None
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(8192):
                yield from batch.to_pylist()
    except pyarrow.ArrowException as error:
        raise ConfigError(f"{path}: not a readable Parquet file: {error}") from None


def read_tasks(path: Path, task: MakeTask, what: str) -> tuple[Task, ...]:
    """A file's tasks; it is read again only where it has changed.

    Args:
        path: JSONL or Parquet.
        task: makes a task of a row; a function of a module, so that the result can be kept.
        what: what the file's rows are, in the plural, for messages.

    Raises:
        ConfigError: a row is wrong, or there is none; the message names it.
        MissingExtra: pyarrow is not installed.
    """
    return _read(path, path.stat().st_mtime_ns, task, what)


@lru_cache(maxsize=16)
def _read(path: Path, stamp: int, task: MakeTask, what: str) -> tuple[Task, ...]:
    """`stamp`, the file's modification time, is part of the cache's key."""
    tasks, unit = [], "row" if path.suffix == ".parquet" else "line"
    for number, row in read_rows(path):
        try:
            tasks.append(task(row, number))
        except KeyError as error:
            raise ConfigError(f"{path}, {unit} {number}: it has no field {error}") from None
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{path}, {unit} {number}: {error}") from None
    if not tasks:
        raise ConfigError(f"{path}: the file holds no {what}")
    return tuple(tasks)
