"""What tests of any worker share on disk: made once a run by the first that needs it, read by all.

A recorded run, a tiny model that was trained, a tokenizer that was fetched: each is a folder below the suite's own. A
worker that comes while another makes it waits; one whose maker failed or died is made again. It is made where it stays,
since runs record paths of their own. Nobody changes it: a test that has to, copies it first.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

Once = Callable[[str, Callable[[Path], object]], Path]
"""`once(name, make)`: the folder of that name, which `make` has filled."""


def once(base: Path, name: str, make: Callable[[Path], object]) -> Path:
    """The folder of a name, filled once, whoever asks.

    Args:
        base: a folder that all who share have in common.
        name: the folder's, below it.
        make: fills the empty folder that it is given; after an error of it the next who asks tries again.
    """
    folder, made = base / name, base / f"{name}.made"
    with (base / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # which the kernel takes back from a process that is killed
        if not made.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            made.touch()
    return folder


def common_folder(factory: pytest.TempPathFactory) -> Path:
    """The temporary folder that all workers of this run have in common."""
    own = factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
