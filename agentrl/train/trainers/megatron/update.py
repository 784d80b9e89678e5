"""Megatron's optimizers with our schedule and clipping; a non-finite gradient skips one update.

Weights are decayed where the torch trainer decays them, on matrices only. State may be kept in the CPU's
memory between steps. Plain gradient descent is for tests that compare sharded runs: its updates are proportional to the
gradients, where Adam would amplify the last bits.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from megatron.core.optimizer import OptimizerConfig, ParamKey, get_megatron_optimizer, get_standard_config_overrides
from megatron.core.optimizer.clip_grads import clip_grad_by_total_norm_fp32
from megatron.core.optimizer.optimizer_config import ParamPredicate
from torch.nn import Parameter

from agentrl.config import AlgoConfig
from agentrl.train.trainers.megatron import moments
from agentrl.train.trainers.megatron.muon import Muon
from agentrl.train.trainers.megatron.settings import MegatronConfig
from agentrl.train.trainers.muon import SpreadMuon
from agentrl.train.trainers.optimizer import learning_rate


class Update:
    """The optimizer of one phase.

    Attributes:
        steps: training steps taken, which the schedule follows; the trainer counts them.
        updates: of the weights, in all epochs; those that were skipped, or had no gradient, are not among them.
        skipped: updates that a gradient which was not finite cost.
    """

    def __init__(
        self,
        chunks: Sequence[torch.nn.Module],
        config: MegatronConfig,
        algo: AlgoConfig,
        total_steps: int,
        factors: Mapping[Parameter, float] | None = None,
        muon: Muon | None = None,
    ) -> None:
        self.algo, self.total_steps = algo, total_steps
        self.steps = self.updates = self.skipped = 0
        self.distributed = config.shares_state
        self.adam = config.optimizer != "sgd"
        self.offload = config.offload_optimizer
        self.chunks = list(chunks)
        settings = OptimizerConfig(
            optimizer="adam" if self.adam else "sgd",
            lr=algo.lr,
            min_lr=0.0,
            weight_decay=algo.weight_decay,
            adam_beta1=algo.betas[0],
            adam_beta2=algo.betas[1],
            sgd_momentum=0.0,
            clip_grad=algo.max_grad_norm,
            bf16=config.dtype == "bfloat16",
            params_dtype=torch.bfloat16 if config.dtype == "bfloat16" else torch.float32,
            use_distributed_optimizer=self.distributed,
        )
        overrides = get_standard_config_overrides(settings) | _rates(factors or {})
        with _without(muon.parameters if muon else ()):
            self.inner: Any = get_megatron_optimizer(settings, self.chunks, overrides)
        if muon is not None:
            self.inner = muon.beside(self.inner, settings, algo)

    def rate(self) -> float:
        """The learning rate of this training step."""
        return learning_rate(self.algo, self.steps, self.total_steps)

    @torch.no_grad()
    def step(self) -> float:
        """Clip, update, clear the gradients; returns their norm before clipping, over all ranks.

        Where it is 0 no weight moves, as in `agentrl.train.trainers.optimizer`.
        """
        self._move(device())
        self.inner.prepare_grads()
        norm = float(self.inner.get_grad_norm())
        if not math.isfinite(norm):
            self.skipped += 1
        elif norm > 0:
            for group in self.inner.param_groups:
                group["lr"] = self.rate() * group.get("lr_mult", 1.0)
                group["weight_decay"] = self.algo.weight_decay * group.get("wd_mult", 1.0)
            for each in self.parts():
                if parameters := each.get_parameters():
                    clip_grad_by_total_norm_fp32(parameters, self.algo.max_grad_norm, norm)
            self.inner.step_with_ready_grads()
            self.updates += 1
        self.clear()
        self._move("cpu")
        return norm

    def clear(self) -> None:
        """Set the gradients to zero."""
        for chunk in self.chunks:
            chunk.zero_grad_buffer()  # type: ignore[operator]
        self.inner.zero_grad()

    def parts(self) -> list[Any]:
        """The optimizers that it consists of: of dense parameters, of experts."""
        parts = getattr(self.inner, "chained_optimizers", [self.inner])
        return [part for part in parts if not getattr(part, "is_stub_optimizer", False)]

    def materialise(self) -> None:
        """Create the state that the first step would create, which a checkpoint needs."""
        for each in self.parts():
            for parameter in (p for group in each.optimizer.param_groups for p in group["params"]):
                if isinstance(each.optimizer, SpreadMuon):
                    each.optimizer.momentum(parameter)
                elif self.adam:
                    state = each.optimizer.state[parameter]
                    if not state:
                        state["step"] = torch.tensor(0.0)
                        state["exp_avg"] = torch.zeros_like(parameter.data)
                        state["exp_avg_sq"] = torch.zeros_like(parameter.data)

    def kinds(self) -> dict[Parameter, tuple[str, ...]]:
        """The names of each trained parameter's state tensors; see `moments`."""
        learned = ((each, p) for each in self.parts() for p in moments.parameters(each))
        return {p: moments.kinds(each, p, adam=self.adam) for each, p in learned}

    def states(self) -> dict[Parameter, moments.State]:
        """Each parameter's full state, on at least one rank. Collective."""
        self.materialise()
        return {p: state for each in self.parts() for p, state in moments.whole(each, adam=self.adam)}

    @torch.no_grad()
    def restore(self, states: Mapping[Parameter, moments.State]) -> None:
        """Load a checkpoint's state, after the weights; rates and Adam's bias corrections follow from the counts.

        On every rank the weights are set from what the optimizer updates: rounded float32 masters, where there are any,
        and each data-parallel rank's own shard. So errors in them appear in the weights' checksums.
        """
        self.materialise()
        for each in self.parts():
            moments.fill(each, states)
            for state in each.optimizer.state.values():
                if "step" in state:
                    state["step"] = torch.tensor(float(self.updates))
            for group in each.optimizer.param_groups:  # where Transformer Engine's Adam counts
                if "step" in group or not isinstance(each.optimizer, torch.optim.Adam | torch.optim.SGD | SpreadMuon):
                    group["step"] = self.updates
            if each.config.bf16:
                each._copy_main_params_to_model_params()
        if self.distributed:
            for chunk in self.chunks:
                chunk.start_param_sync()  # type: ignore[operator]
        self._move("cpu")

    def _move(self, to: torch.device | str) -> None:
        """Move the state, where it is offloaded. Megatron's own offloading would detach weights from the model."""
        if self.offload:
            for state in (state for each in self.parts() for state in each.optimizer.state.values()):
                for name, value in state.items():
                    if isinstance(value, torch.Tensor) and value.ndim:
                        state[name] = value.to(to)


@contextlib.contextmanager
def _without(parameters: Sequence[Parameter]) -> Iterator[None]:
    """Leave these parameters out of Megatron's optimizers meanwhile."""
    for parameter in parameters:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)


def _rates(factors: Mapping[Parameter, float]) -> dict[ParamKey, Any]:
    """Groups of parameters by the factor of their learning rate, as Megatron describes them."""

    def has(factor: float) -> ParamPredicate:
        return ParamPredicate(f"learning rate times {factor!r}", lambda parameter: factors.get(parameter) == factor)

    return {ParamKey(predicate=has(factor)): {"lr_mult": factor} for factor in sorted({*factors.values()} - {1.0})}


def device() -> torch.device:
    """Return the device on which this rank computes."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
