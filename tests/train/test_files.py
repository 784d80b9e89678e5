"""A disk that fails names the file, and what to do: a run said `[Errno 28] No space left on device`, and no more."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from agentrl.train.record.files import append, disk_error, write_atomically

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
