"""A disk that fails names the file, and what to do: a run said `[Errno 28] No space left on device`, and no more."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from agentrl.train.record.files import append, are_same, disk_error, read_metrics, write_atomically

FULL = Path("/dev/full")


@pytest.mark.parametrize(("write", "name"), [(append, "{}"), (write_atomically, ".{}.partial")])
def test_a_full_disk_names_the_file(write: Callable[[Path, bytes], None], name: str, tmp_path: Path) -> None:
    (tmp_path / name.format("rows")).symlink_to(FULL)
    with pytest.raises(OSError, match=rf"No space left on device: '{tmp_path}/rows'"):
        write(tmp_path / "rows", b"a row\n")


def test_an_error_without_a_file_says_which_run_and_how_much_is_free(tmp_path: Path) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    said = disk_error(full, tmp_path)
    assert "No space left on device (perhaps in " in said
    assert f"MiB are free in {tmp_path}; make room there" in said
    full.filename = "elsewhere"
    assert "perhaps" not in disk_error(full, tmp_path)
    assert disk_error(OSError(errno.EIO, "read"), tmp_path) == f"[Errno {errno.EIO}] read (perhaps in {tmp_path})"


@pytest.mark.parametrize("value", [math.nan, math.inf, 0.5])
def test_a_metric_that_is_not_finite_is_read_as_nan_and_equals_itself(value: float, tmp_path: Path) -> None:
    """It was read as None: `keep_best` ended the run with a TypeError, and a rerun of the same numbers diverged."""
    append(tmp_path / "rows", orjson.dumps({"step": 1, "eval/margin": value}) + b"\n")
    (row,) = read_metrics(tmp_path / "rows")
    assert math.isfinite(row["eval/margin"]) == math.isfinite(value)
    assert are_same(value, row["eval/margin"])
    assert not are_same(row.get("eval/loss"), value)
    assert not are_same(0.25, row["eval/margin"])
