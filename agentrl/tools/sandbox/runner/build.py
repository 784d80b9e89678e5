"""The parts that are not Python: the runner, compiled from its sources and cached, and the seccomp profile.

The runner is a static C program, so that it starts in images without Python, a shell or a libc. It is compiled
once for each version of its sources and kept in the user's cache, outside any checkout (`agentrl.common.native`).
"""

from __future__ import annotations

import functools
from pathlib import Path

from agentrl.common.native import compiled
from agentrl.errors import ConfigError

FLAGS = ("-O2", "-std=gnu11", "-static", "-s")


@functools.cache
def assets() -> Path:
    """The folder `sandboxes/`: beside the package in a checkout, inside it when installed.

    Raises:
        ConfigError: it is in neither place.
    """
    package = Path(__file__).resolve().parents[3]
    for folder in (package.parent / "sandboxes", package / "_sandboxes"):
        if (folder / "runner" / "main.c").is_file():
            return folder
    raise ConfigError(f"the folder 'sandboxes' is neither beside nor inside {package}")


@functools.cache
def runner_binary() -> Path:
    """The compiled runner, in a folder of its own that can be mounted.

    Raises:
        MissingExtra: there is no C compiler, or it can't link statically.
    """
    sources = list((assets() / "runner").glob("*.[ch]"))
    return compiled(sources, "agentrl-runner", FLAGS, label="runner", purpose="the sandbox runner")


@functools.cache
def seccomp_profile() -> str:
    """The shipped seccomp profile, as the JSON text that the daemon takes."""
    return (assets() / "seccomp.json").read_text()
