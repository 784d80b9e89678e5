"""One base with the adapters of many training runs: whichever run's turn it is, its matrices are on the base's layers.

The base is held once, and frozen. Each run's requests are computed in passes of their own, of the shapes that it would
have alone, so what one run computes does not depend on which others there are (`lora.tenants=separate`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from agentrl.config import LoraConfig
from agentrl.errors import InvalidInput
from agentrl.models.adapters import AdapterShape, SavedAdapter
from agentrl.models.rope import fixed_angle_length
from agentrl.train.server.losses import find_loss
from agentrl.train.server.messages import Datum, PassRequest
from agentrl.train.server.prefixes import SharedPass, check_data, shared_passes
from agentrl.train.trainers.lora import Lora, adapted, add, linear_layers, remove
from agentrl.train.trainers.torch_trainer.batch import computing, trunk_of
from agentrl.train.trainers.torch_trainer.settings import TorchConfig
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer


@dataclass(frozen=True, slots=True)
class AdapterSpec:
    """A new adapter, as a client asks for it: which layers, and the seed of its matrices."""

    rank: int
    seed: int
    alpha: float = 32.0
    attention: bool = True
    mlp: bool = True


@dataclass(frozen=True, slots=True)
class AdamStep:
    """The settings of one update, by the wire's names; `grad_clip_norm` 0 clips nothing."""

    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0


@dataclass(slots=True)
class RunAdapter:
    """A training run's part of the memory: its matrices with their gradients, and its optimizer's moments."""

    shape: AdapterShape
    matrices: dict[str, tuple[nn.Parameter, nn.Parameter]]
    optimizer: torch.optim.AdamW
    steps: int = 0

    @classmethod
    def of(cls, saved: SavedAdapter, device: torch.device) -> RunAdapter:
        """Make one with an adapter's matrices, and an optimizer that has made no step."""
        matrices = {
            name: (_parameter(a, device), _parameter(b, device)) for name, (a, b) in sorted(saved.matrices.items())
        }
        return cls(saved.shape, matrices, torch.optim.AdamW(_listed(matrices), lr=0.0, weight_decay=0.0))

    def parameters(self) -> list[nn.Parameter]:
        """Return the matrices, in the order of their layers' names."""
        return _listed(self.matrices)

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

    def state(self) -> dict[str, Any]:
        """Return matrices, gradients, moments and counts, for `restore`."""
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
        found.optimizer.load_state_dict(state["optimizer"])
        for parameter, gradient in zip(found.parameters(), state["gradients"], strict=True):
            parameter.grad = None if gradient is None else gradient.to(device)
        found.steps = state["steps"]
        return found


def _parameter(tensor: Tensor, device: torch.device) -> nn.Parameter:
    return nn.Parameter(tensor.detach().to(device, torch.float32, copy=True))


def _listed(matrices: dict[str, tuple[nn.Parameter, nn.Parameter]]) -> list[nn.Parameter]:
    return [matrix for pair in matrices.values() for matrix in pair]


@dataclass(frozen=True, slots=True)
class PassResult:
    """What a pass computed: the log-probabilities of each datum's targets, in their shape, and metrics."""

    logprobs: list[NDArray[np.float32]]
    metrics: dict[str, float] = field(default_factory=dict)


class SharedBase(TorchTrainer):
    """The base, and the passes of whichever run's adapter is on it.

    Args:
        path: a Hugging Face folder.
        config: device, precision, and the token budget of a forest.
    """

    def __init__(self, path: Path, config: TorchConfig) -> None:
        super().__init__(path, config)
        self.model.requires_grad_(False)
        self._on: RunAdapter | None = None
        settings: Any = self.model.config
        text = settings.get_text_config()
        self.vocabulary = int(text.vocab_size)
        most = fixed_angle_length(settings) or getattr(text, "max_position_embeddings", None)
        self.context = int(most or 1 << 20)

    def new_adapter(self, spec: AdapterSpec) -> RunAdapter:
        """Return an adapter that leaves the base's outputs as they are.

        Raises:
            InvalidInput: no layer is chosen.
        """
        self._put(None)
        names = [n for n in linear_layers(self.model) if (spec.attention if is_attention(n) else spec.mlp)]
        if not names:
            raise InvalidInput("lora_config: train_attn=false and train_mlp=false leave no layer to train")
        lora = Lora(LoraConfig(rank=spec.rank, alpha=spec.alpha, targets=tuple(names)), spec.seed, self.source)
        lora.attach(self.model)
        saved = lora.saved(self.model, str(self.source)).copied()
        for _, layer in list(adapted(self.model)):
            remove(layer)
        return RunAdapter.of(saved, self.device)

    def layer_names(self) -> list[str]:
        """Return the names of the layers that an adapter could be on."""
        return list(linear_layers(self.model))

    def _put(self, adapter: RunAdapter | None) -> None:
        """Have the base's layers compute with a run's matrices, or with none."""
        if adapter is self._on:
            return
        for _, layer in list(adapted(self.model)):
            remove(layer)
        self._on = adapter
        if adapter is not None:
            layers = linear_layers(self.model)
            for name, (a, b) in adapter.matrices.items():
                add(layers[name], a, b, adapter.shape.scale)

    @computing
    def run_pass(self, adapter: RunAdapter, request: PassRequest) -> PassResult:
        """Compute a request's log-probabilities, and unless it is forward only, add its gradient to the run's.

        Raises:
            InvalidInput: the request can't be computed; no gradient has changed.
        """
        loss = find_loss(request.loss)
        settings = loss.read_settings(request.settings)
        limits = {"vocabulary": self.vocabulary, "longest": self.context}
        check_data(request.data, loss.inputs, wide=loss.wide, **limits)
        self._put(adapter)
        logprobs: list[NDArray[np.float32]] = [np.empty(0, np.float32)] * len(request.data)
        total = tokens = 0.0
        for shared in shared_passes(request.data, self.config.token_budget):
            with torch.set_grad_enabled(not request.forward_only):
                logp = self._logprobs_of(shared)
                summed = torch.zeros((), device=logp.device)
                for index, place in shared.places.items():
                    datum = request.data[index]
                    own = logp[place.to(logp.device)]
                    logprobs[index] = own.detach().cpu().numpy().reshape(datum.inputs["target_tokens"].shape)
                    summed = summed + loss.compute(own, _inputs(datum, loss.inputs, logp.device), settings).sum()
            if not request.forward_only:
                summed.backward()  # type: ignore[no-untyped-call]
            total += float(summed.detach())
            tokens += len(shared.forest)
        return PassResult(logprobs, {"loss:sum": total, "computed_tokens:sum": tokens})

    def _logprobs_of(self, shared: SharedPass) -> Tensor:
        batch = self.prepare(shared.forest)
        batch.rows = shared.rows.to(self.device)
        return self._logps(self.model, self._hidden(trunk_of(self.model), batch), batch.rows)[0]


def _inputs(datum: Datum, names: Sequence[str], device: torch.device) -> dict[str, Tensor]:
    return {name: torch.tensor(datum.inputs[name].reshape(-1), dtype=torch.float32, device=device) for name in names}


def is_attention(layer: str) -> bool:
    """Return whether a layer's name says that it is an attention's; all others count as the MLP's."""
    return any("attn" in part or "attention" in part for part in layer.split("."))


def seed_of(name: str) -> int:
    """Return a seed that follows from a run's name."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "big")
