"""An adapter on Megatron's linear layers, under any layout of ranks (LoRA, arXiv:2106.09685).

One of Megatron's matrices may hold several of the files' (query, key and value; gate and up), cut and interleaved. The
adapter stays as the files name it: every rank has all of its matrices in float32, and takes from them, by the layouts
that weights are loaded by, the rows or columns that belong to its own shards. So the adapter is the same tensors on
every trainer, and what saves, publishes, averages or clips it need not know of ranks.

Gradients are summed over all ranks before an update: each has those of its own rows, columns, layers and tokens, and 0
elsewhere. Nothing else is sent: a layer's product is added before the layer's own reduction over tensor-parallel ranks.

The names come from a transformers model without weights (`skeleton`), which holds the matrices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from torch import Tensor, nn
from torch.nn import functional

from agentrl.config import LoraConfig
from agentrl.errors import ConfigError
from agentrl.models.adapters import SavedAdapter, merged_product, with_products, write_adapter
from agentrl.models.loading import new_causal_lm, read_config
from agentrl.rollout.weights.buckets import ADAPTER
from agentrl.train.trainers.copies import WeightCopy
from agentrl.train.trainers.lora import Lora, adapted, is_adapter, linear_layers, remove
from agentrl.train.trainers.megatron.copied import copied
from agentrl.train.trainers.megatron.models.family import Family
from agentrl.train.trainers.megatron.models.weights import load, pieces
from agentrl.train.trainers.megatron.update import device
from agentrl.train.trainers.optimizer import Optimizer, to_cpu
from agentrl.train.trainers.parameters import trained_parameters
from agentrl.train.trainers.ranks.joined import sum_over_ranks

if TYPE_CHECKING:
    from agentrl.config import AlgoConfig
    from agentrl.train.trainers.megatron.settings import MegatronConfig

Cut = tuple[str, int, int, int]
"""A part of one of Megatron's matrices: the layer's name in the files, the dimension, and where it begins and ends."""


class RankAdapter:
    """The adapter of a trainer's settings, on a rank's part of the model.

    Args:
        config: rank, scale, layers; active.
        seed: of the matrices that begin at random: those of the torch trainer with the same seed.
        folder: the base's.
        models: the rank's chunks, not wrapped.
        family: the model's.
        control: a gloo group of all ranks.
    """

    def __init__(
        self, config: LoraConfig, seed: int, folder: Path, models: Sequence[Any], family: Family, control: Any
    ) -> None:
        self.lora, self.control = Lora(config, seed, folder), control
        self.models, self.family = models, family
        with torch.device("meta"):
            self.skeleton: nn.Module = new_causal_lm(read_config(folder), torch.float32, "eager")
        self._cuts = list(_linear(models, family))
        everyone: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, [name for _, cuts in self._cuts for name, *_ in cuts], group=control)
        self._known = {name for names in everyone for name in names}
        for model in models:
            if model.pre_process:  # recomputed layers and stages have gradients only where their input has one
                model.embedding.register_forward_hook(_with_gradient)

    @property
    def attached(self) -> bool:
        """True if the model has the adapter: it is trained, and the base is frozen."""
        return self.lora.attached

    def begin(self, *, whole: bool) -> None:
        """Merge the adapter, for a phase that trains the whole model; or see to it that there is one."""
        if whole and self.attached:
            self._merge()
        self.lora.begin(self.skeleton, whole=whole, device=device())
        self._place()

    def _place(self) -> None:
        """Have this rank's layers compute with the matrices that there are, or without any."""
        for name, layer in list(adapted(self.skeleton)):
            if name not in self._known:
                remove(layer)
        matrices = self.saved().matrices
        if self.attached and not matrices:
            raise ConfigError("lora.targets: trainer=megatron computes none of these layers by itself")
        for module, cuts in self._cuts:
            module.__dict__.pop("_forward_impl", None)
            if any(name in matrices for name, *_ in cuts):
                module._forward_impl = _Forward(module._forward_impl, _Product(cuts, matrices, self.lora.shape.scale))

    @torch.no_grad()
    def _merge(self) -> None:
        for module, _ in self._cuts:
            if isinstance(forward := module.__dict__.get("_forward_impl"), _Forward):
                weight, product = module.weight, forward.product.whole()
                weight.copy_(torch.where(product == 0, weight, weight + product))

    def optimizer(self, config: MegatronConfig, algo: AlgoConfig, total_steps: int) -> Optimizer:
        """The optimizer of its matrices, which takes the same steps on every rank."""
        trained = trained_parameters(self.skeleton, config, optimizer=config.optimizer)
        return Optimizer(trained, algo, total_steps, offload=config.offload_optimizer, reduce=self._sum)

    def _sum(self, gradients: Sequence[Tensor]) -> None:
        """Sum over ranks; `passes` scales a loss by what Megatron divides gradients by."""
        sum_over_ranks(gradients, self.control)
        for gradient in gradients:
            gradient.div_(parallel_state.get_data_parallel_world_size(with_context_parallel=True))

    def gradients(self) -> dict[str, Tensor]:
        """Each matrix's gradient, summed over ranks; for tests and tools."""
        found = {
            name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
            for name, p in self.skeleton.named_parameters()
            if is_adapter(name)
        }
        self._sum(list(found.values()))
        return found

    def parts(self) -> dict[str, SavedAdapter]:
        """Return the smaller parts that are the same weights, on rank 0 and in the CPU's memory."""
        part = self.lora.part(self.skeleton) if dist.get_rank() == 0 else None
        return {} if part is None else {ADAPTER: part.copied()}

    def saved(self) -> SavedAdapter:
        """Return it as files hold it, with the scale of its products."""
        return self.lora.saved(self.skeleton, "base" if self.lora.changed else str(self.lora.source.absolute()))

    def merged(self, base: Iterator[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Return the base's tensors, which rank 0 gets, with the products added there."""
        return base if dist.get_rank() or not self.attached else with_products(base, self.saved())

    def write(self, folder: Path) -> bool:
        """Write a folder in PEFT's format on rank 0, where it is attached; returns whether no folder holds its base."""
        if not self.attached:
            return False
        if dist.get_rank() == 0:
            folder.mkdir()
            write_adapter(folder, self.saved(), linear_layers(self.skeleton))
        return self.lora.changed

    def state(self, optimizer: object, copies: Mapping[str, object]) -> dict[str, Any]:
        """Return what a checkpoint holds of it, beside a base that no folder holds.

        Args:
            optimizer: of the phase.
            copies: the reference and the average, where they are kept.
        """
        matrices = {name: tensor for name, tensor in self.skeleton.state_dict().items() if is_adapter(name)}
        return {
            "adapter": self.attached,
            "base": self.lora.holds_base,
            "matrices": to_cpu(matrices),
            "copies": {n: to_cpu(copy.state_dict()) for n, copy in copies.items() if isinstance(copy, WeightCopy)},
            "optimizer": optimizer.state() if isinstance(optimizer, Optimizer) else None,
        }

    def prepare(self, state: Mapping[str, Any]) -> None:
        """Make it that of a checkpoint, whose base the caller loads where there is one."""

        def source() -> nn.Module:
            load(self.models, self.lora.source, self.family)
            return self.skeleton

        self.lora.prepare(self.skeleton, source, adapter=state["adapter"], base=state["base"], device=device())
        self._place()
        with torch.no_grad():
            for name, parameter in self.skeleton.named_parameters():
                if is_adapter(name):
                    parameter.copy_(state["matrices"][name])

    def restore(self, optimizer: object, copies: Mapping[str, object], state: Mapping[str, Any]) -> None:
        """Load the rest of a checkpoint's state, once the phase has begun; see `state`."""
        if isinstance(optimizer, Optimizer):
            optimizer.restore(dict(state["optimizer"]))
        for name, copy in copies.items():
            if isinstance(copy, WeightCopy) and name in state["copies"]:
                copy.load_state_dict(state["copies"][name])


@dataclass(frozen=True)
class _Forward:
    """One of Megatron's layers' matrix product, with the adapter's added.

    Its input is gathered, or its gradient summed over tensor-parallel ranks, once for both.
    """

    base: Any
    product: _Product

    def __call__(self, input: Tensor, weight: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        states = input
        if kwargs["sequence_parallel"]:
            states = gather_from_sequence_parallel_region(input, tensor_parallel_output_grad=True)
        elif kwargs["allreduce_dgrad"]:
            states = copied(input)
        alone = {**kwargs, "sequence_parallel": False, "allreduce_dgrad": False}
        found: Tensor = self.base(states, weight, *args, **alone) + self.product(states)
        return found


class _Product:
    """The adapter's product for a shard of one of Megatron's matrices.

    Args:
        cuts: the parts of the shard, in order.
        matrices: A [rank, in] and B [out, rank] by layer; of those that are missing there is no product.
        scale: of the product.
    """

    def __init__(self, cuts: Sequence[Cut], matrices: Mapping[str, tuple[Tensor, Tensor]], scale: float) -> None:
        self.scale, self.matrices = scale, matrices
        self.names = list(dict.fromkeys(name for name, *_ in cuts))
        self.cuts = {name: [(dim, start, stop) for n, dim, start, stop in cuts if n == name] for name in self.names}
        places, at = dict[str, list[Tensor]](), 0
        for name, _, start, stop in cuts:
            places.setdefault(name, []).append(torch.arange(at, at + stop - start))
            at += stop - start
        order = torch.cat([torch.cat(places[name]) for name in self.names])
        by_input = cuts[0][1] == 1
        self.order = None if by_input or torch.equal(order, torch.arange(at)) else order.argsort().to(device())

    def _own(self, name: str) -> tuple[Tensor, Tensor] | None:
        """This shard's part of a layer's matrices."""
        if name not in self.matrices:
            return None
        a, b = self.matrices[name]
        (dim, start, stop), *_ = cuts = self.cuts[name]
        if dim == 1:
            return a[:, start:stop], b
        return a, torch.cat([b[first:last] for _, first, last in cuts])

    def _rows(self, name: str) -> int:
        return sum(stop - start for _, start, stop in self.cuts[name])

    def __call__(self, states: Tensor) -> Tensor:
        """[*, in] -> [*, out], of this shard."""
        found = []
        for name in self.names:
            own = self._own(name)
            if own is None:
                found.append(states.new_zeros(*states.shape[:-1], self._rows(name)))
            else:
                a, b = (matrix.to(states.dtype) for matrix in own)
                found.append(functional.linear(functional.linear(states, a), b) * self.scale)
        joined = torch.cat(found, -1) if len(found) > 1 else found[0]
        return joined if self.order is None else joined.index_select(-1, self.order)

    def whole(self) -> Tensor:
        """Return what it adds to the shard: [out, in], float32."""
        a, _ = next(own for own in map(self._own, self.names) if own is not None)
        found = []
        for name in self.names:
            own = self._own(name)
            zeros = torch.zeros(self._rows(name), a.shape[1], device=a.device) if own is None else None
            found.append(merged_product(*own, self.scale) if own is not None else zeros)
        joined = torch.cat([each for each in found if each is not None])
        return joined if self.order is None else joined[self.order]


def _linear(models: Sequence[Any], family: Family) -> Iterator[tuple[Any, list[Cut]]]:
    """The rank's layers that an adapter may be on, with what their weights are cut from.

    Experts are not: transformers has them in one tensor of a layer, which is no linear layer.
    """
    modules = {
        id(module.weight): module
        for model in models
        for path, module in model.decoder.layers.named_modules()
        if hasattr(module, "_forward_impl") and module.weight is not None and ".experts." not in f".{path}."
    }
    cuts: dict[int, list[Cut]] = {key: [] for key in modules}
    now = [0]

    def read(parameter: Tensor) -> Tensor | None:
        now[0] = id(parameter)
        return parameter if now[0] in modules else None

    for name, piece, _ in pieces(models, family, read):
        cuts[now[0]].append((name.removesuffix(".weight"), piece.dim, piece.start, piece.stop))
    yield from ((module, cuts[key]) for key, module in modules.items())


def _with_gradient(_module: Any, _inputs: Any, output: Tensor) -> Tensor:
    return output.requires_grad_()
