"""`python -m agentrl_sglang`: SGLang's server on a CPU with adapters, without agentrl installed.

SGLang 0.5.23 puts what its adapters need into pinned memory whatever the device is, and torch asks CUDA's runtime for
that. Without a GPU there is nothing to pin it for. Processes that SGLang spawns import this module as well.
"""

from __future__ import annotations

import functools
import runpy
from typing import Any

import torch

CREATING = ("arange", "empty", "ones", "tensor", "zeros")


def leave_unpinned() -> None:
    """Have torch ignore, in this process, that memory should be pinned."""
    for name in CREATING:
        create = getattr(torch, name)

        @functools.wraps(create)
        def unpinned(*args: Any, create: Any = create, pin_memory: bool = False, **kwargs: Any) -> Any:
            return create(*args, **kwargs)

        setattr(torch, name, unpinned)
    torch.Tensor.pin_memory = lambda self, *_: self  # type: ignore[method-assign]


leave_unpinned()
if __name__ == "__main__":
    runpy.run_module("sglang.launch_server", run_name="__main__")
