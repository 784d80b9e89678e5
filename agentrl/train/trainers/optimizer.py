"""AdamW and Muon, their schedule, and skipped updates: a non-finite gradient costs an update and not the run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from agentrl.config import AlgoConfig
from agentrl.errors import ConfigError
from agentrl.train.trainers.muon import MOMENTUM, SCALE, SpreadMuon, add_sharded
from agentrl.train.trainers.parameters import TrainedParameter

AWAY = "cpu"
"""The device of moments that are offloaded, between updates."""
ADDED = 1e-6
"""Torch adds this to a norm before it divides the largest one by it."""
CERTAINLY_BELOW = 0.999
"""The share of the largest norm below which no rounding makes a factor other than 1 of it."""


class Optimizer:
    """AdamW with decoupled decay on matrices only, a warm-up, a schedule, and clipping to a global norm.

    The learning rate is a function of the training steps taken alone: the updates of a step's several epochs have the
    same one, and a step without signal counts. So resuming needs nothing but that count. Where parameters say so, Muon
    (torch.optim.Muon) updates them in AdamW's place.

    Args:
        parameters: to update; those that are not trained are ignored.
        algo: rates, decay and clipping.
        total_steps: the phase's length in training steps, for the schedule.
        offload: whether the moments are in the CPU's memory but during updates.
        reduce: sums over ranks, in place, the gradients of parameters that are not sharded, where there are several.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter] | Sequence[TrainedParameter],
        algo: AlgoConfig,
        total_steps: int,
        *,
        offload: bool = False,
        reduce: Callable[[Sequence[Tensor]], None] | None = None,
    ) -> None:
        self.reduce = reduce
        self.algo, self.total_steps, self.offload = algo, total_steps, offload
        self.steps = 0
        self.skipped = 0
        each = [p if isinstance(p, TrainedParameter) else TrainedParameter(p) for p in parameters]
        each = [p for p in each if p.tensor.requires_grad]
        self.parameters = [p.tensor for p in each]
        adam = [p for p in each if not p.muon]
        groups = [*_groups([p for p in adam if p.tensor.ndim >= 2], algo.weight_decay)]
        groups += _groups([p for p in adam if p.tensor.ndim < 2], 0.0)
        self.adam = torch.optim.AdamW(groups, lr=algo.lr, betas=algo.betas, fused=True)
        self.muon: torch.optim.Muon | SpreadMuon | None = None
        if hidden := [p for p in each if p.muon]:
            groups = _groups(hidden, algo.weight_decay)
            if is_sharded(hidden[0].tensor):
                self.muon = SpreadMuon(groups, algo.lr, add_sharded)
            else:
                self.muon = torch.optim.Muon(groups, lr=algo.lr, momentum=MOMENTUM, adjust_lr_fn=SCALE)

    @property
    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """The optimizers of the parameters, by name."""
        return {"adam": self.adam} | ({} if self.muon is None else {"muon": self.muon})

    def rate(self) -> float:
        """The learning rate of this training step."""
        return learning_rate(self.algo, self.steps, self.total_steps)

    def step(self) -> float:
        """Clip, update and clear the gradients; returns their norm before clipping.

        A norm that is not finite skips the update (and counts it). Where it is 0 the batch taught nothing (all of it
        may be masked), and no weight moves: moments and decay would move them. The trainer counts `steps`.
        """
        self._reduce()
        norm = self._clip()
        finite = math.isfinite(norm)
        moves = finite and norm > 0
        if moves:
            self._move(away=False)
        for optimizer in self.optimizers.values():
            if moves:
                for group in optimizer.param_groups:
                    group["lr"] = self.rate() * group["factor"]
                optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self._move(away=True)
        self.skipped += not finite
        return norm

    def _reduce(self) -> None:
        held = [p for p in self.parameters if not is_sharded(p)] if self.reduce is not None else []
        if held and self.reduce is not None:
            for parameter in held:  # of a rank without rows
                parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            self.reduce([parameter.grad for parameter in held if parameter.grad is not None])

    def _clip(self) -> float:
        """Clip the gradients to the global norm, of all ranks' shards where they are sharded; returns the norm."""
        held = [p for p in self.parameters if p.grad is not None]
        kinds = [[p for p in held if is_sharded(p) == sharded] for sharded in (False, True)]
        kinds = [kind for kind in kinds if kind] or [[]]
        norms = []
        for kind in kinds:
            norm: Any = nn.utils.get_total_norm([p.grad for p in kind if p.grad is not None])
            norms.append(norm.full_tensor() if is_sharded(norm) else norm)
        norm = norms[0] if len(norms) == 1 else torch.stack(norms).norm()
        length = float(norm)
        if not length + ADDED < CERTAINLY_BELOW * self.algo.max_grad_norm:  # else all would be multiplied by 1
            for kind in kinds:
                nn.utils.clip_grads_with_norm_(kind, self.algo.max_grad_norm, norm)
        return length

    def _move(self, *, away: bool) -> None:
        """Move the moments to the CPU's memory, or to their parameters' device, where they are offloaded."""
        if self.offload:
            for parameter, state in self._states():
                for name, tensor in state.items():
                    if tensor.ndim:  # counts stay where they are
                        state[name] = tensor.to(AWAY if away else parameter.device)

    def _states(self) -> Iterator[tuple[nn.Parameter, dict[str, Tensor]]]:
        for optimizer in self.optimizers.values():
            for parameter, state in optimizer.state.items():
                yield cast(nn.Parameter, parameter), state

    def moments(self) -> dict[nn.Parameter, dict[str, Tensor]]:
        """The state of each sharded parameter; what its first update would create is created."""
        for parameter in (p for group in self.adam.param_groups for p in group["params"]):
            if not self.adam.state[parameter]:
                means = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
                self.adam.state[parameter] = {"step": torch.zeros((), device=parameter.device), **means}
        if isinstance(self.muon, SpreadMuon):
            for group in self.muon.param_groups:
                for parameter in group["params"]:
                    self.muon.momentum(parameter)
        self._move(away=True)
        return dict(self._states())

    def state(self) -> dict[str, object]:
        """Return all that resuming needs."""
        states = {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()}
        return {**states, "steps": self.steps, "skipped": self.skipped}

    def restore(self, state: dict[str, object]) -> None:
        """Resume from `state`: its moments and counts, with this optimizer's own rates and decays.

        Raises:
            ConfigError: it was saved by another optimizer, or for other parameters.
        """
        ours, saved = (["adam", "muon"] if "muon" in each else ["adam"] for each in (self.optimizers, state))
        if ours != saved:
            names = {1: "adamw", 2: "muon"}
            raise ConfigError(
                f"trainer.optimizer={names[len(ours)]}: the checkpoint is of trainer.optimizer={names[len(saved)]}"
            )
        for name, optimizer in self.optimizers.items():
            settings = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
            try:
                optimizer.load_state_dict(state[name])  # type: ignore[arg-type]
            except ValueError:
                raise ConfigError(
                    "the checkpoint's optimizer has other groups of parameters: resume with its trainer.freeze, "
                    "lr_factors and layer_decay"
                ) from None
            for group, own in zip(optimizer.param_groups, settings, strict=True):
                group.update(own)
        self._move(away=True)
        self.steps, self.skipped = int(state["steps"]), int(state["skipped"])  # type: ignore[call-overload]


def _groups(parameters: Sequence[TrainedParameter], decay: float) -> list[dict[str, Any]]:
    """A group for each factor of the learning rate, with `decay`; one where there are no parameters.

    Sharded parameters are in groups of their own: an update computes a group's tensors together.
    """
    keys = sorted({(is_sharded(p.tensor), p.factor) for p in parameters}) or [(False, 1.0)]
    return [
        {
            "params": [p.tensor for p in parameters if (is_sharded(p.tensor), p.factor) == key],
            "weight_decay": decay,
            "factor": key[1],
        }
        for key in keys
    ]


def is_sharded(tensor: Tensor) -> bool:
    """Return whether ranks hold shards of a tensor (a `DTensor`)."""
    return hasattr(tensor, "full_tensor")


def learning_rate(algo: AlgoConfig, step: int, total_steps: int) -> float:
    """Linear warm-up, then constant, or linearly or along a half cosine to zero at `total_steps`.

    `step` and `total_steps` are training steps, however many updates each of them makes.
    """
    if step < algo.warmup_steps:
        return algo.lr * (step + 1) / (algo.warmup_steps + 1)
    done = min(1.0, (step - algo.warmup_steps) / max(1, total_steps - algo.warmup_steps))
    match algo.schedule:
        case "constant":
            return algo.lr
        case "linear":
            return algo.lr * (1 - done)
        case "cosine":
            return algo.lr * 0.5 * (1 + math.cos(math.pi * done))


def to_cpu(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """A copy of a state dict off the device."""
    return {name: tensor.detach().cpu().clone() for name, tensor in state.items()}
