"""An adapter's products for a rank's shards of Megatron's matrices; see `agentrl.train.trainers.megatron.adapter`.

Files name each expert's matrices by themselves, and an adapter has those of a layer's experts stacked, as transformers
has their weights. So an expert's are cut out of the stack, and of them what belongs to the rank's shard.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from torch import Tensor, nn
from torch.nn import functional

from agentrl.models.adapters import EXPERTS, merged_product
from agentrl.train.trainers.lora_experts import stacked_tensors
from agentrl.train.trainers.megatron.copied import copy_to_ranks
from agentrl.train.trainers.megatron.models.family import Family
from agentrl.train.trainers.megatron.models.weights import pieces

Cut = tuple[str, int, int, int]
"""A part of one of Megatron's matrices: the layer's name in the files, the dimension, and where it begins and ends."""
_LAYER, _EXPERT = re.compile(r"\blayers\.(\d+)\."), re.compile(r"\blayers\.(\d+)\..*\bexperts\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class CutLayer:
    """One of Megatron's layers that an adapter may be on.

    Attributes:
        module: the layer.
        cuts: what its weight is cut from, in order.
        stacked: of an expert's layer, the tensor in which transformers has such layers of all experts.
    """

    module: Any
    cuts: list[Cut]
    stacked: str | None = None


@dataclass(frozen=True, slots=True)
class ExpertRows:
    """The place of an expert's layer, as files name it, in the tensor in which transformers has all experts'.

    Attributes:
        stack: the tensor's name.
        expert: the expert's number.
        experts: how many the layer has.
        start: the first of its rows among an expert's.
        stop: the one after its last.
    """

    stack: str
    expert: int
    experts: int
    start: int
    stop: int

    def cut(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """Return the layer's A [rank, in] and B [out, rank] of the stack's, which are stacked as PEFT does it."""
        own_b = b[self.start : self.stop, self.expert :: self.experts]
        return a.reshape(self.experts, -1, a.shape[1])[self.expert], own_b


class FiledMatrices(Mapping[str, tuple[Tensor, Tensor]]):
    """An adapter's matrices by the names that layers have in files.

    Args:
        matrices: as the adapter has them.
        known: the layers' names; those of experts with their places in the stacks.
    """

    def __init__(self, matrices: Mapping[str, tuple[Tensor, Tensor]], known: Mapping[str, ExpertRows | None]) -> None:
        self._matrices, self._known = matrices, known
        self._names = [name for name, at in known.items() if (name if at is None else at.stack) in matrices]

    def __getitem__(self, name: str) -> tuple[Tensor, Tensor]:
        at = self._known[name]
        return self._matrices[name] if at is None else at.cut(*self._matrices[at.stack])

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@dataclass(frozen=True)
class AdaptedForward:
    """One of Megatron's layers' matrix product, with the adapter's added.

    Its input is gathered, or its gradient summed over tensor-parallel ranks, once for both.
    """

    base: Any
    product: ShardProduct

    def __call__(self, input: Tensor, weight: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        states = input
        if kwargs["sequence_parallel"]:
            states = gather_from_sequence_parallel_region(input, tensor_parallel_output_grad=True)
        elif kwargs["allreduce_dgrad"]:
            states = copy_to_ranks(input)
        alone = {**kwargs, "sequence_parallel": False, "allreduce_dgrad": False}
        found: Tensor = self.base(states, weight, *args, **alone) + self.product(states)
        return found


class ShardProduct:
    """The adapter's product for a shard of one of Megatron's matrices.

    Args:
        cuts: the parts of the shard, in order.
        matrices: A [rank, in] and B [out, rank] by layer; of those that are missing there is no product.
        scale: of the product.
        device: the shard's.
    """

    def __init__(
        self, cuts: Sequence[Cut], matrices: Mapping[str, tuple[Tensor, Tensor]], scale: float, device: torch.device
    ) -> None:
        self.scale, self.matrices = scale, matrices
        self.names = list(dict.fromkeys(name for name, *_ in cuts))
        self.cuts = {name: [(dim, start, stop) for n, dim, start, stop in cuts if n == name] for name in self.names}
        places, at = dict[str, list[Tensor]](), 0
        for name, _, start, stop in cuts:
            places.setdefault(name, []).append(torch.arange(at, at + stop - start))
            at += stop - start
        order = torch.cat([torch.cat(places[name]) for name in self.names])
        by_input = cuts[0][1] == 1
        self.order = None if by_input or torch.equal(order, torch.arange(at)) else order.argsort().to(device)

    def _own(self, name: str) -> tuple[Tensor, Tensor] | None:
        """This shard's part of a layer's matrices."""
        if (pair := self.matrices.get(name)) is None:
            return None
        a, b = pair
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


def list_cuts(models: Sequence[Any], family: Family) -> Iterator[CutLayer]:
    """Yield the rank's layers that an adapter may be on, with what their weights are cut from.

    Experts that files have in one tensor are not: transformers lays these out in columns.
    """
    layers = {
        id(module.weight): CutLayer(module, [], _find_stack(path))
        for model in models
        for path, module in model.decoder.layers.named_modules()
        if hasattr(module, "_forward_impl") and module.weight is not None
    }
    now = [0]

    def read(parameter: Tensor) -> Tensor | None:
        now[0] = id(parameter)
        return parameter if now[0] in layers else None

    for name, piece, _ in pieces(models, family, read):
        layers[now[0]].cuts.append((name.removesuffix(".weight"), piece.dim, piece.start, piece.stop))
    for layer in layers.values():
        if layer.stacked is None or all(_EXPERT.search(f"{name}.") for name, *_ in layer.cuts):
            yield layer


def _find_stack(path: str) -> str | None:
    if ".experts." not in f".{path}.":
        return None
    return EXPERTS[0] if path.endswith("linear_fc1") else EXPERTS[1]


def find_experts(layers: Sequence[CutLayer], skeleton: nn.Module) -> dict[str, ExpertRows]:
    """Return by their names in files where experts' layers are in the tensors that transformers has them in."""
    stacks = {
        (int(match[1]), own): (name, cast(Tensor, module._parameters[own]).shape)
        for name, (module, own) in stacked_tensors(skeleton).items()
        if (match := _LAYER.search(name))
    }
    found = {}
    for layer in layers:
        names = list(dict.fromkeys(name for name, *_ in layer.cuts)) if layer.stacked else []
        for place, name in enumerate(names):  # gate before up
            number, expert = map(int, cast(re.Match[str], _EXPERT.search(f"{name}.")).groups())
            if (number, layer.stacked) in stacks:
                stack, (experts, rows, _) = stacks[number, cast(str, layer.stacked)]
                own = rows // len(names)
                found[name] = ExpertRows(stack, expert, experts, place * own, (place + 1) * own)
    return found
