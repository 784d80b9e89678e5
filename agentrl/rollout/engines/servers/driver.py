"""A stand-in for NVIDIA's driver library, so that SGLang's kernels can be imported on a machine without it.

They link against `libcuda.so.1` even where the server computes on a CPU. Where the loader finds none, one with the
single function that they look for (libcuda.c) is compiled, and put at the end of the server's library path: a real
driver, wherever it is, is never covered up.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable
from pathlib import Path

from agentrl.common.native import compile_library

LIBRARY = "libcuda.so.1"
FLAGS = ("-shared", "-fPIC", f"-Wl,-soname,{LIBRARY}")


def driver_environment(library_path: str | None = None, load: Callable[[str], object] = ctypes.CDLL) -> dict[str, str]:
    """Return the environment variables with which a server finds a driver library; nothing where there is one.

    Args:
        library_path: folders of libraries; None: as LD_LIBRARY_PATH says.
        load: loads a library by its name, or raises an OSError.

    Raises:
        MissingExtra: there is no driver, and no C compiler to build the stand-in with.
    """
    path = os.environ.get("LD_LIBRARY_PATH", "") if library_path is None else library_path
    folders = [folder for folder in path.split(os.pathsep) if folder]
    if _is_installed(load) or any(Path(folder, LIBRARY).is_file() for folder in folders):
        return {}
    return {"LD_LIBRARY_PATH": os.pathsep.join([*folders, str(stand_in().parent)])}


def stand_in() -> Path:
    """The compiled stand-in; MissingExtra where there is no C compiler."""
    source = Path(__file__).with_name("libcuda.c")
    return compile_library([source], LIBRARY, FLAGS, "driver", f"sglang on a CPU (a stand-in for NVIDIA's {LIBRARY})")


def _is_installed(load: Callable[[str], object]) -> bool:
    with contextlib.suppress(OSError):
        load(LIBRARY)
        return True
    return False
