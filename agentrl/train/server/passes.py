"""A run's adapter in memory, and a request of it while it is computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, NonNegativeFloat
from torch import Tensor, nn

from agentrl.models.adapters import AdapterShape, SavedAdapter
from agentrl.train.server.losses import TARGETS, find_loss
from agentrl.train.server.messages import Datum, PassRequest
from agentrl.train.server.prefixes import SharedPass, check_data


@dataclass(frozen=True, slots=True)
class AdamStep:
    """The settings of one update, by the wire's names; `grad_clip_norm` 0 clips nothing."""

    learning_rate: NonNegativeFloat = 1e-4
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.95
    eps: NonNegativeFloat = 1e-12
    weight_decay: NonNegativeFloat = 0.0
    grad_clip_norm: float = 0.0


@dataclass(slots=True)
class RunAdapter:
    """A training run's part of the memory: its matrices with their gradients, and its optimizer's moments.

    Attributes:
        shape: the adapter's settings.
        matrices: A and B by their layers' names.
        optimizer: of the matrices.
        steps: updates that were made.
        resting: whether the moments are on the disk alone; only an update needs them.
    """

    shape: AdapterShape
    matrices: dict[str, tuple[nn.Parameter, nn.Parameter]]
    optimizer: torch.optim.AdamW
    steps: int = 0
    resting: bool = False

    @classmethod
    def of(cls, saved: SavedAdapter, device: torch.device) -> RunAdapter:
        """Make one with an adapter's matrices, and an optimizer that has made no step."""
        matrices = {
            name: (_parameter(a, device), _parameter(b, device)) for name, (a, b) in sorted(saved.matrices.items())
        }
        return cls(saved.shape, matrices, torch.optim.AdamW(_list_parameters(matrices), lr=0.0, weight_decay=0.0))

    def parameters(self) -> list[nn.Parameter]:
        """Return the matrices, in the order of their layers' names."""
        return _list_parameters(self.matrices)

    def saved(self, base: str) -> SavedAdapter:
        """Return the adapter as files hold it, with its base's name."""
        shape = AdapterShape(self.shape.rank, self.shape.alpha, self.shape.rslora, base)
        return SavedAdapter(shape, {name: (a.detach(), b.detach()) for name, (a, b) in self.matrices.items()})

    def step(self, settings: AdamStep) -> dict[str, float]:
        """Make one update and clear the gradient; a gradient that is not finite changes nothing but is counted."""
        parameters = self.parameters()
        norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        finite = bool(torch.isfinite(norm))
        if finite:
            if settings.grad_clip_norm > 0:
                nn.utils.clip_grads_with_norm_(parameters, settings.grad_clip_norm, norm)
            group = self.optimizer.param_groups[0]
            group["lr"], group["betas"] = settings.learning_rate, (settings.beta1, settings.beta2)
            group["eps"], group["weight_decay"] = settings.eps, settings.weight_decay
            self.optimizer.step()
            self.steps += 1
        self.optimizer.zero_grad(set_to_none=True)
        return {"grad_norm": float(norm), "skipped_updates": float(not finite)}

    def rest(self) -> None:
        """Forget the moments, which a state on the disk has."""
        self.optimizer.state.clear()
        self.resting = True

    def wake(self, state: dict[str, Any]) -> None:
        """Have the moments of a state again."""
        self.optimizer.load_state_dict(state["optimizer"])
        for moments in self.optimizer.state.values():
            moments.update({name: tensor.clone() for name, tensor in moments.items()})  # not the mapped file's
        self.resting = False

    def state(self) -> dict[str, Any]:
        """Return matrices, gradients, moments and counts, for `restore`."""
        assert not self.resting
        return {
            "matrices": {name: (a.detach().cpu(), b.detach().cpu()) for name, (a, b) in self.matrices.items()},
            "gradients": [None if p.grad is None else p.grad.cpu() for p in self.parameters()],
            "shape": [self.shape.rank, self.shape.alpha, self.shape.rslora],
            "optimizer": self.optimizer.state_dict(),
            "steps": self.steps,
        }

    @classmethod
    def restore(cls, state: dict[str, Any], device: torch.device) -> RunAdapter:
        """Make one again from its state, bit for bit."""
        rank, alpha, rslora = state["shape"]
        found = cls.of(SavedAdapter(AdapterShape(rank, alpha, rslora), state["matrices"]), device)
        found.wake(state)
        for parameter, gradient in zip(found.parameters(), state["gradients"], strict=True):
            parameter.grad = None if gradient is None else gradient.to(device, copy=True)
        found.steps = state["steps"]
        return found


def _parameter(tensor: Tensor, device: torch.device) -> nn.Parameter:
    return nn.Parameter(tensor.detach().to(device, torch.float32, copy=True))


def _list_parameters(matrices: dict[str, tuple[nn.Parameter, nn.Parameter]]) -> list[nn.Parameter]:
    return [matrix for pair in matrices.values() for matrix in pair]


@dataclass(frozen=True, slots=True)
class PassResult:
    """The results of a pass: the log-probabilities of each datum's targets, in their shape, and metrics."""

    logprobs: list[NDArray[np.float32]]
    metrics: dict[str, float] = field(default_factory=dict)


class PassWork:
    """A request while it is computed."""

    def __init__(self, adapter: RunAdapter, request: PassRequest, *, vocabulary: int, longest: int) -> None:
        self.adapter, self.request = adapter, request
        self._loss = find_loss(request.loss)
        self._settings = self._loss.read_settings(request.settings)
        check_data(request.data, self._loss.inputs, wide=self._loss.wide, vocabulary=vocabulary, longest=longest)
        self._logprobs: list[NDArray[np.float32]] = [np.empty(0, np.float32)] * len(request.data)
        self._total = self._tokens = 0.0

    @property
    def tokens(self) -> int:
        """The tokens of its data."""
        return sum(len(datum.tokens) for datum in self.request.data)

    def loss_of(self, shared: SharedPass, logp: Tensor) -> Tensor:
        """Return the loss of some of its data, from the log-probabilities of their rows: [P]."""
        summed = torch.zeros((), device=logp.device)
        for index, place in shared.places.items():
            datum = self.request.data[index]
            own = logp[place.to(logp.device)]
            self._logprobs[index] = own.detach().cpu().numpy().reshape(datum.inputs[TARGETS].shape)
            inputs = _inputs(datum, self._loss.inputs, logp.device)
            summed = summed + self._loss.compute(own, inputs, self._settings).sum()
        self._total += float(summed.detach())
        self._tokens += len(shared.forest)
        return summed

    def result(self) -> PassResult:
        """Return what was computed."""
        return PassResult(self._logprobs, {"loss:sum": self._total, "computed_tokens:sum": self._tokens})


def _inputs(datum: Datum, names: Sequence[str], device: torch.device) -> dict[str, Tensor]:
    return {name: torch.tensor(datum.inputs[name].reshape(-1), dtype=torch.float32, device=device) for name in names}
