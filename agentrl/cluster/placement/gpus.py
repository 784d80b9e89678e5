"""The GPUs that there are: this machine's by `nvidia-smi`, a Ray cluster's by the type that Ray names.

Ray counts GPUs and names their type as a resource of the node (`accelerator_type:H100`); it does not know their memory.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable

SECONDS = 20.0
TYPE = "accelerator_type:"
MEMORY = {
    **{"T4": 14.5, "A10G": 22.0, "L4": 22.0, "L40S": 44.0, "A100-40G": 39.0, "A100-80G": 79.0},
    **{"H100": 79.0, "H20": 95.0, "H200": 139.0, "B200": 178.0},
}
"""GiB of a GPU that a process can have, by Ray's names: what CUDA reports (in PyTorch's errors, the total capacity),
rounded down; `nvidia-smi` shows up to half a GiB more. Ray gives one name to several products: an H100 NVL (94 GB) and
an H20-3e (141 GB) have more than stands here. Where a name says as little as A100 or V100, nothing does."""


def queried(fields: str) -> list[str]:
    """A line of `nvidia-smi --query-gpu=FIELDS` for each GPU of this machine; none where there is no such program."""
    words = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]


def installed() -> list[float]:
    """GiB of each of this machine's GPUs; 0 where the driver does not say."""
    sizes = (line.partition(" ")[0] for line in queried("memory.total"))
    return [float(size) / 1024 if size.isdigit() else 0.0 for size in sizes]


def memory_of(resources: Iterable[str]) -> float:
    """GiB of each GPU of a node with these resources of Ray's; 0 where its type is not known."""
    types = (name.removeprefix(TYPE) for name in resources if name.startswith(TYPE))
    return min((MEMORY[kind] for kind in types if kind in MEMORY), default=0.0)
