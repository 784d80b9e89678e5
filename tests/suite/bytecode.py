"""Compiled modules are kept for a run, whatever the environment says: hundreds of its processes import the package."""

from __future__ import annotations

import compileall
import contextlib
import multiprocessing
import os
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "agentrl"
TASKS = re.compile(r"/tasks/")
"""Sources that nobody imports from here: their folders are copied, and stay as they are."""


def keep(config: pytest.Config) -> None:
    """Compile the package once, and let processes of this run keep what they compile (PYTHONDONTWRITEBYTECODE).

    Modules of tests as well, whose assertions pytest rewrites: three workers did so with each at the same time.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    compileall.compile_dir(PACKAGE, quiet=2, rx=TASKS, workers=2)
    if config.getoption("numprocesses", None):
        rewrite(config, modules(config.args))


def modules(arguments: list[str]) -> list[Path]:
    """The modules of tests that pytest was asked for by these words."""
    given = [ROOT / word.partition("::")[0] for word in arguments]
    found = {file for path in given for file in ([path] if path.is_file() else path.rglob("*.py"))}
    return sorted(file for file in found if file.name.startswith("test_") or file.name == "conftest.py")


def rewrite(config: pytest.Config, files: list[Path]) -> None:
    """Have two processes rewrite and keep those that are not kept yet."""
    context = multiprocessing.get_context("fork")
    parts = [context.Process(target=_rewrite, args=(config, files[first::2])) for first in (0, 1)]
    for part in parts:
        part.start()
    for part in parts:
        part.join()


def _rewrite(config: pytest.Config, files: list[Path]) -> None:
    """What pytest does with a module before it runs it; nothing, where another release has it otherwise."""
    with contextlib.suppress(Exception):
        from _pytest.assertion import rewrite as own

        state = config.stash[own.assertstate_key]
        for file in files:
            kept = own.get_cache_dir(file) / (file.name.removesuffix(".py") + own.PYC_TAIL)
            if own._read_pyc(file, kept) is None and own.try_makedirs(kept.parent):
                digest, code = own._rewrite_test(file, config)
                own._write_pyc(state, code, digest, kept)
