"""A stand-in for NVIDIA's driver library, so that SGLang's kernels can be imported on a machine without it.

They link against `libcuda.so.1` even where the server computes on a CPU. Where the loader finds none, one with the
single function that they look for (libcuda.c) is compiled, and put at the end of the server's library path: a real
driver, wherever it is, is never covered up.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path

from agentrl.common.native import compiled

LIBRARY = "libcuda.so.1"
FLAGS = ("-shared", "-fPIC", f"-Wl,-soname,{LIBRARY}")


def driver_environment() -> dict[str, str]:
    """Return the environment variables with which a server finds a driver library; nothing where there is one.

    Raises:
        MissingExtra: there is no driver, and no C compiler to build the stand-in with.
    """
    folders = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if folder]
    if _installed() or any(Path(folder, LIBRARY).is_file() for folder in folders):
        return {}
    return {"LD_LIBRARY_PATH": os.pathsep.join([*folders, str(stand_in().parent)])}


def stand_in() -> Path:
    """The compiled stand-in.

    Raises:
        MissingExtra: there is no C compiler.
    """
    source = Path(__file__).with_name("libcuda.c")
    return compiled([source], LIBRARY, FLAGS, "driver", f"sglang on a CPU (a stand-in for NVIDIA's {LIBRARY})")


def _installed() -> bool:
    with contextlib.suppress(OSError):
        ctypes.CDLL(LIBRARY)
        return True
    return False
