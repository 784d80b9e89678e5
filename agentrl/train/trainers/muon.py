"""Muon for matrices that are spread over ranks.

torch.optim.Muon orthogonalises whole matrices. Here each one's update is gathered, one at a time, orthogonalised on
every rank by torch's own optimizer, and each rank adds its part of the result; momentum stays where the parameter is.
What was given up: the ranks do the same work, where each could do some of the matrices and send them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

MOMENTUM = 0.95
"""The momentum of Muon (kellerjordan.github.io/posts/muon)."""
SCALE = "match_rms_adamw"
"""Updates are as large as AdamW's (Moonlight, arXiv:2502.16982), so one learning rate suits both."""

Updates = Mapping[Tensor, tuple[Tensor, float]]
"""Each parameter's matrix to orthogonalise, spread as the parameter is, and the learning rate."""


def orthogonal_step(update: Tensor, lr: float) -> Tensor:
    """Return what Muon adds to a whole matrix, [rows, columns], for an update."""
    matrix = nn.Parameter(torch.zeros_like(update))
    matrix.grad = update
    muon = torch.optim.Muon([matrix], lr=lr, weight_decay=0.0, momentum=0.0, nesterov=False, adjust_lr_fn=SCALE)
    muon.step()  # type: ignore[no-untyped-call]
    return matrix.detach()


class SpreadMuon(torch.optim.Optimizer):
    """torch.optim.Muon with Nesterov momentum, over parts of matrices.

    Args:
        groups: parameters, with `weight_decay`.
        lr: of groups that have none.
        add: gathers the updates, and adds what `orthogonal_step` makes of them to the parameters; every rank calls it,
            with as many updates.
    """

    def __init__(self, groups: Iterable[dict[str, Any]], lr: float, add: Callable[[Updates], None]) -> None:
        super().__init__(groups, {"lr": lr, "weight_decay": 0.0})
        self.add = add

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        updates: dict[Tensor, tuple[Tensor, float]] = {}
        for group in self.param_groups:
            for parameter in (p for p in group["params"] if p.grad is not None):
                momentum = self.momentum(parameter).lerp_(parameter.grad, 1 - MOMENTUM)
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                updates[parameter] = parameter.grad.lerp(momentum, MOMENTUM), group["lr"]
        self.add(updates)

    def momentum(self, parameter: Tensor) -> Tensor:
        """A parameter's momentum; zeros before its first update."""
        state = self.state[parameter]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        return cast(Tensor, state["momentum_buffer"])


def add_sharded(updates: Updates) -> None:
    """The updates of parameters that are torch's `DTensor`."""
    from torch.distributed.tensor import distribute_tensor

    for parameter, (update, lr) in updates.items():
        sharded = cast(Any, update)
        step = orthogonal_step(sharded.full_tensor(), lr)
        parameter.add_(distribute_tensor(step, sharded.device_mesh, sharded.placements, src_data_rank=None))
