"""Muon for a rank's part of the model: the matrices that it updates are those of Hugging Face files.

Megatron keeps query, key and value, or gate and up-projection, as one parameter, and cuts matrices over tensor-parallel
ranks. Muon's update depends on where a matrix begins and ends, so updates are gathered as weights are exported, and
what comes out is cut as weights are loaded. That is the torch trainer's Muon in every layout.

What was given up: Megatron-core's own (`get_megatron_muon_optimizer`), which needs the package `emerging_optimizers`,
takes gate and up-projection for one matrix, and splits query, key and value of some models only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.optimizer import OptimizerConfig
from megatron.core.optimizer.optimizer import ChainedOptimizer, Float16OptimizerWithFloat16Params, FP32Optimizer
from torch import Tensor
from torch.nn import Parameter

from agentrl.config import AlgoConfig
from agentrl.models.vision import of_vision
from agentrl.train.trainers.megatron import moments
from agentrl.train.trainers.megatron.models import Family, export
from agentrl.train.trainers.megatron.models.layouts import Piece
from agentrl.train.trainers.megatron.models.weights import named_parameters, pieces
from agentrl.train.trainers.muon import SpreadMuon, Updates, orthogonal_step


class Muon:
    """The matrices of a rank's hidden layers, and the optimizer that updates them."""

    def __init__(self, models: Sequence[Any], family: Family, factors: Mapping[Parameter, float]) -> None:
        self.models, self.family, self.factors = models, family, factors
        layers = models[0].config.num_layers
        self.parameters = [
            parameter
            for parameter, layer, names in named_parameters(models, family)
            if parameter.requires_grad
            and parameter.ndim == 2
            and (0 <= layer < layers or of_vision(names[0]))
            and not any(map(_expert, names))
        ]
        self._mains: dict[Parameter, Tensor] = {}

    def beside(self, adam: ChainedOptimizer, settings: OptimizerConfig, algo: AlgoConfig) -> ChainedOptimizer:
        """Muon and the optimizer of all other parameters as one."""
        factors = sorted({self.factors.get(p, 1.0) for p in self.parameters}) or [1.0]
        groups = [
            {
                "params": [p for p in self.parameters if self.factors.get(p, 1.0) == factor],
                "weight_decay": algo.weight_decay,
                "lr_mult": factor,
                "is_expert_parallel": False,
            }
            for factor in factors
        ]
        inner = SpreadMuon(groups, algo.lr, self._add)
        part = (
            Float16OptimizerWithFloat16Params(inner, settings, None, _nothing)
            if settings.bf16
            else FP32Optimizer(inner, settings, _nothing)
        )
        part.grad_stats_parallel_group = parallel_state.get_model_parallel_group()
        self._mains = moments.mains(part)
        return ChainedOptimizer([part, *adam.chained_optimizers])

    def _add(self, updates: Updates) -> None:
        own = {parameter: updates[main] for parameter, main in self._mains.items() if main in updates}
        steps = {parameter: torch.zeros_like(update) for parameter, (update, _) in own.items()}
        rates = {
            name: own[parameter][1]
            for parameter, _, names in named_parameters(self.models, self.family)
            for name in names
            if parameter in own
        }
        places: dict[str, list[tuple[Piece, Tensor]]] = defaultdict(list)
        for name, piece, part in pieces(self.models, self.family, lambda p: steps.get(p)):  # type: ignore[call-overload]
            places[name].append((piece, part))
        for name, update in export(self.models, self.family, read=lambda p: own[p][0] if p in own else None):  # type: ignore[index]
            if name in places:  # this rank has a part of it
                step = orthogonal_step(update, rates[name])
                for piece, part in places[name]:
                    part.copy_(step.narrow(piece.dim, piece.start, len(piece)))
        for parameter, step in steps.items():
            self._mains[parameter].add_(step)


def _expert(name: str) -> bool:
    """True for a routed expert's tensor: transformers stacks them, and AdamW updates them."""
    return ".experts." in name


def _nothing(*_: Any) -> None:
    """State is created when it is needed."""
