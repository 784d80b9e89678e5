"""Small C programs and libraries of ours, compiled once on the machine that needs them and kept in the user's cache.

Two processes that compile at once do no harm: the result is made beside and renamed into place.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from agentrl.errors import MissingExtra

COMPILE_SECONDS = 120.0


def cache_dir() -> Path:
    """AGENTRL_CACHE, or agentrl's folder in the user's cache."""
    if chosen := os.environ.get("AGENTRL_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agentrl"


def compiled(sources: Sequence[Path], output: str, flags: Sequence[str], label: str, purpose: str) -> Path:
    """What C sources become: a file in a cache folder that is named after their content, the flags and this processor.

    Args:
        sources: C files, and the headers that they include.
        output: the result's file name.
        flags: what the compiler is given.
        label: what the folder's name begins with.
        purpose: what errors call the result.

    Raises:
        MissingExtra: there is no C compiler, or it could not build this.
    """
    digest = hashlib.sha256("\0".join((platform.machine(), *flags)).encode())
    for source in sorted(sources):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    made = cache_dir() / f"{label}-{digest.hexdigest()[:16]}" / output
    if not made.is_file():
        _compile([str(source) for source in sorted(sources) if source.suffix == ".c"], made, flags, purpose)
    return made


def _compile(sources: Sequence[str], made: Path, flags: Sequence[str], purpose: str) -> None:
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc") or shutil.which("musl-gcc")
    if not compiler:
        raise MissingExtra(f"{purpose} needs a C compiler once (apt-get install gcc libc6-dev), and finds none")
    made.parent.mkdir(parents=True, exist_ok=True)
    made.parent.chmod(0o755)
    with tempfile.TemporaryDirectory(dir=made.parent.parent) as scratch:
        beside = Path(scratch) / made.name
        command = [compiler, *flags, "-o", str(beside), *sources]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_SECONDS)
        except subprocess.TimeoutExpired:
            raise MissingExtra(f"{compiler} did not build {purpose} within {COMPILE_SECONDS:g} s") from None
        if done.returncode:
            raise MissingExtra(f"{compiler} could not build {purpose}:\n{done.stderr[-2000:]}")
        beside.chmod(0o555)
        beside.rename(made)
