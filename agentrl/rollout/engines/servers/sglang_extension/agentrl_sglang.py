"""`python -m agentrl_sglang`: SGLang's server, changed where agentrl needs it, without agentrl installed.

SGLang 0.5.23 puts what its adapters need into pinned memory whatever the device is, and torch asks CUDA's runtime for
that. Without a GPU there is nothing to pin it for.

Its penalties count a request's tokens from the time on that it is in a batch: where the scheduler retracts one, for
memory or at a pause, they begin anew. Here they count again what it has. They are applied in the order of a set's
elements, which is another in each process: here scaling ones come first.

What it does with images is in `agentrl_sglang_images`, with weights in `agentrl_sglang_weights`. Processes that SGLang
spawns import this module as well.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.util
import runpy
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
from agentrl_sglang_images import forget_features, take_images
from agentrl_sglang_weights import keep_mapped, load_whole, place_again, receive_ahead

UPDATER = "sglang.srt.model_executor.model_runner_components.weight_updater"
"""The module of the class that receives and loads weights in each rank."""
MANAGER = "sglang.srt.managers.scheduler_components.weight_updater"
"""The module of the class that has each rank's updaters."""
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


def count_again() -> None:
    """Have penalties count the tokens that requests have already when they join a batch, and scale before they add."""
    from sglang.srt.sampling.penaltylib import orchestrator

    plain = orchestrator.BatchedPenalizerOrchestrator.__init__

    def counted(self: Any, vocab_size: int, batch: Any, penalizers: Iterable[Any]) -> None:
        plain(self, vocab_size, batch, sorted(penalizers, key=lambda one: (not one.is_multiplicative, one.__name__)))
        for row, request in enumerate(batch.reqs):
            if len(request.output_ids):
                ids = torch.tensor(list(request.output_ids), dtype=torch.int64, device=self.device)
                for penalizer in self.penalizers.values():
                    count_row(penalizer, row, ids)

    orchestrator.BatchedPenalizerOrchestrator.__init__ = counted


def count_row(penalizer: Any, row: int, ids: torch.Tensor) -> None:
    """Add a row's tokens to what a penaliser has counted."""
    for kind in ("frequency", "presence", "repetition"):
        counts = getattr(penalizer, f"cumulated_{kind}_penalties", None)
        if counts is None:
            continue
        each = getattr(penalizer, f"{kind}_penalties")[row].expand(len(ids))
        if kind == "frequency":
            counts[row].scatter_add_(0, ids, each)
        else:
            counts[row].scatter_(0, ids, each)


class ChangeLater(importlib.abc.MetaPathFinder):
    """Changes SGLang's updaters where they are imported, which not all of its processes do: it takes seconds."""

    def __init__(self) -> None:
        self._changes: dict[str, Callable[[Any], None]] = {UPDATER: _change_updater, MANAGER: _change_manager}

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        change = self._changes.pop(fullname, None)
        if change is None:
            return None
        spec: Any = importlib.util.find_spec(fullname)
        execute = spec.loader.exec_module

        def executed(module: Any) -> None:
            execute(module)
            change(module)

        spec.loader.exec_module = executed
        return spec


def _change_updater(module: Any) -> None:
    receive_ahead(module.WeightUpdater)
    place_again(module.WeightUpdater)
    keep_mapped(module.WeightUpdater)


def _change_manager(module: Any) -> None:
    from sglang.srt.managers.io_struct import BeginWeightUpdateReqInput, EndWeightUpdateReqInput

    load_whole(module.SchedulerWeightUpdaterManager, BeginWeightUpdateReqInput, EndWeightUpdateReqInput)


if not torch.cuda.is_available():
    leave_unpinned()
if __name__ in ("__main__", "__mp_main__"):
    sys.meta_path.insert(0, ChangeLater())
    if {"--disable-overlap-schedule", "--enable-lora"} & set(sys.argv):
        count_again()
    if "--enable-multimodal" in sys.argv:
        take_images()
        forget_features()
if __name__ == "__main__":
    runpy.run_module("sglang.launch_server", run_name="__main__")
