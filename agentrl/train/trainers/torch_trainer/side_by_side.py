"""Gradients of several forests at once, a thread for each, of models so small that a product gains from no second one.

Each thread computes a forest's gradient by itself, and the gradients are added in the forests' order. So the bits are
those of one forest after the other, with any number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor, nn

from agentrl import watchdog
from agentrl.common import cores
from agentrl.models.mixers import mixers_of
from agentrl.train.algorithms.objective import Meter
from agentrl.train.trainers.torch_trainer.batch import TorchBatch
from agentrl.train.trainers.torch_trainer.settings import TorchConfig

LossOf = Callable[[TorchBatch, Meter], Tensor]
"""A forest's loss, whose tokens it counts in a meter."""


class SideBySide:
    """Threads that compute gradients.

    Args:
        threads: how many, each of which computes by itself.
    """

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, "agentrl-gradient", initializer=cores.settle_threads, initargs=(1,))

    @classmethod
    def suited(cls, model: nn.Module, folder: Path, config: TorchConfig, processes: int) -> SideBySide | None:
        """Return one for a small model that has cores to spare; None elsewhere, and where forests share modules' state.

        Args:
            model: that is trained.
            folder: of its weights.
            config: whose `threads`, as the user's own OMP_NUM_THREADS, leaves nothing to spare.
            processes: that compute the same steps on this machine.
        """
        chosen = config.threads is not None or cores.set_by_user() or processes > 1
        free = 1 if chosen or not cores.is_small(folder) else cores.share(1)
        return None if free == 1 or config.recompute == "full" or mixers_of(model) else cls(free)

    def accumulate(self, model: nn.Module, batches: Sequence[TorchBatch], loss_of: LossOf, meter: Meter) -> float:
        """Add the gradient of all forests to the model's; returns their loss."""
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]

        def compute(batch: TorchBatch) -> tuple[float, Sequence[Tensor | None], Meter]:
            watchdog.progress()
            counted = Meter()
            loss = loss_of(batch, counted)
            return float(loss.detach()), torch.autograd.grad(loss, parameters, allow_unused=True), counted

        total = 0.0
        for loss, gradients, counted in self._pool.map(compute, batches):
            total += loss
            meter.join(counted)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                if parameter.grad is None:
                    parameter.grad = gradient
                elif gradient is not None:
                    parameter.grad += gradient
        return total
