"""Small C programs and libraries of ours, compiled once on the machine that needs them and kept in the user's cache.

Two processes may compile at once: the result is written to a temporary file and renamed. A process compiles once.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from agentrl.errors import MissingExtra

COMPILE_SECONDS = 120.0
_compiling = threading.Lock()


def _forget_lock() -> None:
    """Begin a forked child with a lock that no thread of its parent holds."""
    global _compiling
    _compiling = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_lock)


def cache_dir() -> Path:
    """AGENTRL_CACHE, or agentrl's folder in the user's cache."""
    if chosen := os.environ.get("AGENTRL_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agentrl"


def processor() -> str:
    """Return this machine's kind of processor, in its maker's words where the system knows them."""
    return _describe_processor("model name") or platform.machine()


def list_features() -> frozenset[str]:
    """Return the features of this machine's processor, by Linux's names; none where the system lists none."""
    return frozenset(_describe_processor("flags").split())


def _describe_processor(field: str) -> str:
    """Linux's words on the first processor under a name; '' where it has none."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(field)), "")


def compile_library(sources: Sequence[Path], output: str, flags: Sequence[str], label: str, purpose: str) -> Path:
    """Compile C sources into a cache folder that is named after their content, the flags and this processor.

    Args:
        sources: C files, and the headers that they include.
        output: the result's file name.
        flags: of the compiler.
        label: the prefix of the folder's name.
        purpose: the result's name in error messages.

    Raises:
        MissingExtra: there is no C compiler, or it could not build this.
    """
    digest = hashlib.sha256("\0".join((platform.machine(), *flags)).encode())
    for source in sorted(sources):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    made = cache_dir() / f"{label}-{digest.hexdigest()[:16]}" / output
    with _compiling:
        if not made.is_file():
            _compile([str(source) for source in sorted(sources) if source.suffix == ".c"], made, flags, purpose)
    return made


def _compile(sources: Sequence[str], made: Path, flags: Sequence[str], purpose: str) -> None:
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc") or shutil.which("musl-gcc")
    if not compiler:
        raise MissingExtra(f"{purpose} needs a C compiler once (apt-get install gcc libc6-dev), and finds none")
    try:
        made.parent.mkdir(parents=True, exist_ok=True)
        made.parent.chmod(0o755)
    except OSError as error:
        words = f"{purpose} is compiled into {str(cache_dir())!r}, which can't be written ({error.strerror})"
        raise MissingExtra(f"{words}; XDG_CACHE_HOME=FOLDER names another cache") from None
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
