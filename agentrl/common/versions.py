"""The versions that a report of a bug needs."""

from __future__ import annotations

import platform
from collections.abc import Iterator

REPORTED = ("torch", "transformers", "sglang", "vllm", "megatron-core", "ray", "openai", "docker")
"""Packages that are named where they are installed."""


def version_lines() -> Iterator[str]:
    """Yield a line about Python and the machine, and one about installed packages."""
    from importlib import metadata  # which loads the email package: `agentrl --help` needs none of it

    yield f"Python {platform.python_version()}, {platform.platform()}"
    installed = {each.name: each.version for each in metadata.distributions() if each.name in REPORTED}
    yield ", ".join(f"{name} {installed[name]}" for name in REPORTED if name in installed) or "no extras"
