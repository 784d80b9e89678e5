"""An adapter on Megatron's linear layers, under any layout of ranks (LoRA, arXiv:2106.09685).

One of Megatron's matrices may hold several of the files' (query, key and value; gate and up), cut and interleaved. The
adapter stays as PEFT's files name it: every rank has all of its matrices in float32, and takes from them, by the
layouts that weights are loaded by, the rows or columns that belong to its own shards (`adapter_products`). So it is the
same tensors on every trainer, and what saves, publishes, averages or clips it need not know of ranks.

Gradients are summed over all ranks before an update: each has those of its own rows, columns, layers and tokens, and 0
elsewhere. Nothing else is sent: a layer's product is added before the layer's own reduction over tensor-parallel ranks.

The names come from a transformers model without weights (`skeleton`), which holds the matrices. Of a module in full it
holds the whole tensors too, in float32 on every rank: they are updated there, and copied into the ranks' shards. Their
gradients are reduced by Megatron, as a whole model's are, and gathered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor, nn

from agentrl.config import AlgoConfig, LoraConfig
from agentrl.errors import ConfigError
from agentrl.models.adapters import SavedAdapter, is_stacked, with_products, write_adapter
from agentrl.models.loading import new_causal_lm, read_config
from agentrl.rollout.weights.buckets import ADAPTER
from agentrl.train.trainers.copies import WeightCopy
from agentrl.train.trainers.lora import Lora, is_adapter, linear_layers, list_adapted, remove
from agentrl.train.trainers.lora_full import names_of
from agentrl.train.trainers.megatron.chunks import share_embedding, wrap_chunk, wrap_frozen
from agentrl.train.trainers.megatron.models.adapter_products import (
    AdaptedForward,
    ExpertRows,
    FiledMatrices,
    ShardProduct,
    find_experts,
    list_cuts,
)
from agentrl.train.trainers.megatron.models.family import Family
from agentrl.train.trainers.megatron.models.weights import export, load, named_parameters, pieces
from agentrl.train.trainers.megatron.update import device
from agentrl.train.trainers.optimizer import Optimizer, to_cpu
from agentrl.train.trainers.parameters import trained_parameters
from agentrl.train.trainers.ranks.joined import all_gather, sum_over_ranks

if TYPE_CHECKING:
    from agentrl.train.trainers.megatron.layout import ParallelLayout
    from agentrl.train.trainers.megatron.settings import MegatronConfig


class RankAdapter:
    """The adapter of a trainer's settings, on a rank's part of the model."""

    def __init__(
        self, config: LoraConfig, seed: int, folder: Path, models: Sequence[Any], family: Family, control: Any
    ) -> None:
        self.lora, self.control = Lora(config, seed, folder), control
        self.models, self.family = models, family
        with torch.device("meta"):
            self.skeleton: nn.Module = new_causal_lm(read_config(folder), torch.float32, "eager")
        self._cuts = list(list_cuts(models, family))
        mine = {name: None for layer in self._cuts for name, *_ in layer.cuts}
        everyone = all_gather(mine | find_experts(self._cuts, self.skeleton), control)
        self._known: dict[str, ExpertRows | None] = {name: at for rank in everyone for name, at in rank.items()}
        self._full = set(names_of(self.skeleton, self.lora.full_modules(self.skeleton)))
        self._ties = self._full.issuperset(names_of(self.skeleton, [self.skeleton.get_input_embeddings()]))
        named = named_parameters(models, family) if self._full else ()
        self._trained = {id(parameter) for parameter, _, own in named if self._full.intersection(own)}
        self.buffers: list[Any] = []  # chunks with gradients of modules in full
        for model in models:
            if model.pre_process:  # recomputed layers and stages have gradients only where their input has one
                model.embedding.register_forward_hook(lambda _, __, output: output.requires_grad_())

    @property
    def attached(self) -> bool:
        """True if the model has the adapter: it is trained, and the base is frozen."""
        return self.lora.attached

    def begin(self, *, whole: bool) -> None:
        """Merge the adapter, for a phase that trains the whole model; or see to it that there is one."""
        if whole and self.attached:
            self._merge()
        if not whole and not self.attached:
            self._gather_full()
        self.lora.begin(self.skeleton, whole=whole, device=device())
        self._place()
        self.buffers = []
        if not whole:
            self.put_full()

    def _export_full(self, read: Callable[[Any], Tensor]) -> dict[str, Tensor]:
        """Return what `read` has of modules in full, whole and in float32, on every rank; collective."""
        if not self._full:
            return {}
        found = export(self.models, self.family, read=lambda p: read(p) if id(p) in self._trained else None)
        return {name: tensor.float() for name, tensor in found if name in self._full}

    def _gather_full(self) -> None:
        """Give the skeleton the tensors of modules in full, as the ranks' shards have them."""
        held = self._parameters()
        new = {id(held[name]): nn.Parameter(t) for name, t in self._export_full(lambda p: p.detach()).items()}
        for name in self._full:
            if id(held[name]) not in new:
                raise ConfigError(f"lora.full: trainer=megatron holds no tensor {name} of its own; use trainer=torch")
        for module in self.skeleton.modules():
            module._parameters.update({n: new[id(p)] for n, p in module._parameters.items() if id(p) in new})

    def _parameters(self) -> dict[str, nn.Parameter]:
        return dict(self.skeleton.named_parameters(remove_duplicate=False))

    @torch.no_grad()
    def put_full(self) -> None:
        """Copy the skeleton's tensors of modules in full into the ranks' shards; collective."""
        if not self._full:
            return
        held = self._parameters()
        for name, piece, part in pieces(self.models, self.family, lambda p: p if id(p) in self._trained else None):
            if name in self._full:
                part.copy_(held[name].narrow(piece.dim, piece.start, len(piece)))
        tied = self.models[0].share_embeddings_and_output_weights
        if tied and parallel_state.get_pipeline_model_parallel_world_size() > 1:
            share_embedding(self.models)

    def wrap(self, layout: ParallelLayout) -> list[Any]:
        """Return the rank's chunks as they are trained, with gradients of modules in full alone."""
        chunks = [wrap_frozen(model, layout) for model in self.models]
        if not self._full:
            return chunks
        for model in self.models:
            for parameter in model.parameters():
                parameter.requires_grad_(id(parameter) in self._trained)
            if model.share_embeddings_and_output_weights and not model.pre_process and model.post_process:
                model.output_layer.weight.requires_grad_(self._ties)
        chunks = [wrap_chunk(model, layout, shares_state=False) for model in self.models]
        self.buffers = chunks
        return chunks

    def _place(self) -> None:
        """Have this rank's layers compute with the matrices that there are, or without any."""
        for name, layer in list(list_adapted(self.skeleton)):
            if name not in self._known:
                remove(layer)
        saved = self.saved().matrices
        matrices = FiledMatrices(saved, self._known)
        if self.attached and not matrices:
            raise ConfigError("lora.targets: trainer=megatron computes none of these layers by itself")
        if unknown := set(filter(is_stacked, saved)) - {at.stack for at in self._known.values() if at is not None}:
            raise ConfigError(f"lora.experts: trainer=megatron does not know {min(unknown)}; use trainer=torch or fsdp")
        for each in self._cuts:
            each.module.__dict__.pop("_forward_impl", None)
            if any(name in matrices for name, *_ in each.cuts):
                product = ShardProduct(each.cuts, matrices, self.lora.shape.scale, each.module.weight.device)
                each.module._forward_impl = AdaptedForward(each.module._forward_impl, product)

    @torch.no_grad()
    def _merge(self) -> None:
        for module in (layer.module for layer in self._cuts):
            if isinstance(forward := module.__dict__.get("_forward_impl"), AdaptedForward):
                weight, product = module.weight, forward.product.whole()
                weight.copy_(torch.where(product == 0, weight, weight + product))

    def optimizer(self, config: MegatronConfig, algo: AlgoConfig, total_steps: int) -> Optimizer:
        """The optimizer of its matrices, which takes the same steps on every rank."""
        trained = trained_parameters(self.skeleton, config, optimizer=config.optimizer)
        return _AdapterOptimizer(self, trained, algo, total_steps, offload=config.offload_optimizer)

    def reduce(self, parameters: Sequence[Tensor]) -> None:
        """Sum the gradients of the skeleton's parameters over ranks, and gather those of modules in full."""
        named = self._parameters()
        full = {id(named[name]): g for name, g in self._export_full(lambda p: p.main_grad).items()}
        for parameter in parameters:
            zeros = parameter.grad is None and id(parameter) not in full
            parameter.grad = torch.zeros_like(parameter) if zeros else full.get(id(parameter), parameter.grad)
        self._sum([p.grad for p in parameters if id(p) not in full and p.grad is not None])

    def end_update(self) -> None:
        """Copy what was updated into the shards, and clear the gradients there."""
        self.put_full()
        for chunk in self.buffers:
            chunk.zero_grad_buffer()

    def _sum(self, gradients: Sequence[Tensor]) -> None:
        """Sum over ranks; `passes` scales a loss by what Megatron divides gradients by."""
        sum_over_ranks(gradients, self.control)
        for gradient in gradients:
            gradient.div_(parallel_state.get_data_parallel_world_size(with_context_parallel=True))

    def gradients(self) -> dict[str, Tensor]:
        """Each gradient, summed over ranks; for tests and tools."""
        found = {
            name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
            for name, p in self.skeleton.named_parameters()
            if is_adapter(name)
        }
        self._sum(list(found.values()))
        return found | self._export_full(lambda p: p.main_grad)

    def parts(self) -> dict[str, SavedAdapter]:
        """Return the smaller parts that are the same weights, on rank 0 and in the CPU's memory."""
        part = self.lora.part(self.skeleton) if dist.get_rank() == 0 else None
        return {} if part is None else {ADAPTER: part.copied()}

    def saved(self) -> SavedAdapter:
        """Return it as files hold it, with the scale of its products."""
        return self.lora.saved(self.skeleton, "base" if self.lora.changed else str(self.lora.source.absolute()))

    def merged(self, base: Iterator[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Return the base's tensors, which rank 0 gets, with the products added there."""
        if dist.get_rank() or not self.attached:
            return base
        saved = self.saved()
        return with_products(base, replace(saved, matrices=FiledMatrices(saved.matrices, self._known)))

    def write(self, folder: Path) -> bool:
        """Write a folder in PEFT's format on rank 0, where it is attached; returns whether no folder holds its base."""
        if not self.attached:
            return False
        if dist.get_rank() == 0:
            folder.mkdir()
            write_adapter(folder, self.saved(), linear_layers(self.skeleton))
        return self.lora.changed

    def state(self, optimizer: object, copies: Mapping[str, object]) -> dict[str, Any]:
        """Return what a checkpoint holds of it, beside a base that no folder holds."""
        own = {n: tensor for n, tensor in self.skeleton.state_dict().items() if is_adapter(n) or n in self._full}
        return {
            "adapter": self.attached,
            "base": self.lora.holds_base,
            "matrices": to_cpu(own if self.attached else {}),
            "copies": {n: to_cpu(copy.state_dict()) for n, copy in copies.items() if isinstance(copy, WeightCopy)},
            "optimizer": optimizer.state() if isinstance(optimizer, Optimizer) else None,
        }

    def prepare(self, state: Mapping[str, Any]) -> None:
        """Make it that of a checkpoint, whose base the caller loads where there is one."""

        def source() -> nn.Module:
            load(self.models, self.lora.source, self.family)
            return self.skeleton

        self.lora.prepare(self.skeleton, source, adapter=state["adapter"], base=state["base"], device=device())
        if self.attached:
            self._gather_full()
        self._place()
        with torch.no_grad():
            for name, parameter in self.skeleton.named_parameters():
                if name in state["matrices"]:
                    parameter.copy_(state["matrices"][name])
            self.put_full()

    def restore(self, optimizer: object, copies: Mapping[str, object], state: Mapping[str, Any]) -> None:
        """Load the rest of a checkpoint's state, once the phase has begun; see `state`."""
        if isinstance(optimizer, Optimizer):
            optimizer.restore(dict(state["optimizer"]))
        for name, copy in copies.items():
            if isinstance(copy, WeightCopy) and name in state["copies"]:
                copy.load_state_dict(state["copies"][name])


class AdapterCopy(WeightCopy):
    """A copy of an adapter as it is now; the ranks' shards of modules in full follow an exchange."""

    def __init__(self, adapter: RankAdapter) -> None:
        super().__init__(adapter.skeleton)
        self.adapter = adapter

    def _exchange(self) -> None:
        super()._exchange()
        self.adapter.put_full()


class _AdapterOptimizer(Optimizer):
    """The optimizer of an adapter's matrices and modules in full, which are whole on every rank."""

    def __init__(self, adapter: RankAdapter, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.adapter = adapter

    def step(self) -> float:
        norm = super().step()
        self.adapter.end_update()
        return norm

    def _reduce(self) -> None:
        self.adapter.reduce(self.parameters)
