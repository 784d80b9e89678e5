"""The kernel's library, compiled from kernel.c once on a machine; importing this needs no torch: it can begin early."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from pathlib import Path

from agentrl.common.native import compile_library, list_features
from agentrl.errors import MissingExtra

FLAGS = ("-O3", "-std=gnu11", "-shared", "-fPIC", "-pthread")
BUILDS = {"avx512": ("avx512f",), "avx2": ("avx2", "fma"), "plain": ()}
"""The builds, fastest first, each with the processor's features that it uses beyond those that all have."""


def name() -> str:
    """Return the compiled kernel's name: its build and a digest of its code, of which the same computes the same bits.

    Raises:
        MissingExtra: there is no compiler.
    """
    return name_of(compile_kernel(choose_build()))


def name_of(made: Path) -> str:
    """Return the name of the kernel in a file that `compile_kernel` returned."""
    build = made.parent.name.rpartition("-")[0]
    return f"{build}-{hashlib.sha256(made.read_bytes()).hexdigest()[:16]}"


def choose_build() -> str:
    """Return the fastest build that this machine's processor runs."""
    features = list_features()
    return next(build for build, used in BUILDS.items() if features.issuperset(used))


def compile_kernel(build: str) -> Path:
    """Return the file of a build, compiled where the user's cache lacks it; errors as of `name`."""
    source, flags = Path(__file__).with_name("kernel.c"), [f"-m{feature}" for feature in BUILDS[build]]
    return compile_library([source], "kernel.so", (*FLAGS, *flags), f"kernel-{build}", "the kernel")


def begin_compiling() -> None:
    """Compile the kernel in the background, where the user's cache lacks it: whoever needs it waits for that."""

    def compile_once() -> None:
        with contextlib.suppress(MissingExtra, OSError):  # whoever needs it is told
            compile_kernel(choose_build())

    threading.Thread(target=compile_once, name="agentrl-kernel", daemon=True).start()
