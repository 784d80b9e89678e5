"""Compiled modules are kept for a run, whatever the environment says: hundreds of its processes import the package."""

from __future__ import annotations

import compileall
import os
import re
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "agentrl"
TASKS = re.compile(r"/tasks/")
"""Sources that nobody imports from here: their folders are copied, and stay as they are."""


def keep() -> None:
    """Compile the package once, and let processes of this run keep what they compile (PYTHONDONTWRITEBYTECODE)."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    compileall.compile_dir(PACKAGE, quiet=2, rx=TASKS)
