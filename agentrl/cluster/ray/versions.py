"""Versions that must be the same on every node of a cluster, and are compared when a worker starts there."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path

from agentrl.errors import ConfigError


@cache
def versions() -> dict[str, str]:
    """The package (a hash of its files), Python and torch on this machine."""
    root = Path(__file__).parents[2]
    digest = hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        digest.update(str(file.relative_to(root)).encode() + b"\0" + file.read_bytes())
    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        torch = "not installed"
    return {"agentrl": digest.hexdigest()[:12], "python": platform.python_version(), "torch": torch}


def require_same(node: str, theirs: Mapping[str, str]) -> None:
    """Refuse a node on which other versions are installed than here.

    Raises:
        ConfigError: with both.
    """
    ours = versions()
    different = [f"{name} {theirs.get(name)} (here {ours[name]})" for name in ours if theirs.get(name) != ours[name]]
    if different:
        raise ConfigError(f"node {node} has other versions: {', '.join(different)}; install the same on every node")
