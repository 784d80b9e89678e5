"""Hugging Face weights in and out of a sharded model, one tensor at a time.

`load` reads the pieces of this rank's shards straight from the files: no more than one piece is ever held.
`export` goes over the whole model in order; the ranks that hold a parameter's shards send them, and who consumes
puts them into the tensors they were cut from. Nobody holds more than one parameter's tensors and one shard.

Which rank holds what is exchanged at the start: (parameter, shard) -> the lowest rank that has it. That replaces every
case distinction between tensor, pipeline, expert and data parallelism, and costs one message for each shard where
a collective over the right group would be fewer. Whoever consumes slowly makes the others wait, not pile up.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from torch import Tensor
from torch.nn import Parameter

from agentrl.errors import InvalidInput
from agentrl.train.trainers.megatron.models.family import Family, read_config
from agentrl.train.trainers.megatron.models.layouts import ParameterLayout, Piece, Shape, whole_shapes
from agentrl.train.trainers.megatron.models.reader import TensorReader
from agentrl.train.trainers.ranks.joined import all_gather

Read = Callable[[Tensor], Tensor | None]

_LAYER = re.compile(r"^decoder\.layers\.(\d+)\.(.*)$")
_EXPERT = re.compile(r"^(.*\.experts)\.local_experts\.(\d+)\.(.*)$")


@dataclass(frozen=True, order=True, slots=True)
class _Place:
    """A parameter's place in the whole model: the order of export."""

    layer: int
    row: int
    expert: int


@dataclass(frozen=True, slots=True)
class _Held:
    """A parameter's shard on this rank."""

    place: _Place
    tensor: Tensor
    index: int
    count: int


@dataclass(frozen=True, slots=True)
class _Shard:
    """A parameter's description for the other ranks."""

    shape: Shape
    dtype: torch.dtype
    index: int
    count: int
    rank: int


def load(
    chunks: Sequence[GPTModel], folder: str | Path, family: Family, drawn: Mapping[str, Tensor] | None = None
) -> None:
    """Fill this rank's chunks from a Hugging Face folder (safetensors), converting to the parameters' precision.

    Raises:
        InvalidInput: the folder lacks a tensor, has one of another shape, or one that the family does not know.
    """
    tables = _rows(family)
    with TensorReader(Path(folder), drawn) as reader, torch.no_grad():
        for held in _list_held(chunks, family):
            layout = tables[held.place.row][1]
            local = layout.filed(tuple(held.tensor.shape))
            cut = layout.shards(local, held.count, chunks[0].sizes)
            shapes = whole_shapes(cut, local)
            if layout.stacked:
                (piece,) = cut[held.index]
                part = reader.read(_name(piece.name, held.place), shapes[piece.name], piece)
                held.tensor.copy_(layout.inward(part))
                continue
            for piece, part in _parts(cut[held.index], held.tensor):
                if piece.name:
                    part.copy_(reader.read(_name(piece.name, held.place), shapes[piece.name], piece))
                else:
                    part.zero_()
        reader.check_known(family, read_config(folder, family))


def export(
    chunks: Sequence[GPTModel],
    family: Family,
    *,
    to: int | None = None,
    dtype: torch.dtype | None = None,
    read: Read | None = None,
) -> Iterator[tuple[str, Tensor]]:
    """(Hugging Face name, whole tensor) pairs in the model's order. Collective: every rank must go through to the end.

    Args:
        chunks: this rank's.
        family: the model's.
        to: the rank that gets the pairs, the others get none; None gives them to all.
        dtype: what weights are converted to, before they are sent; None leaves them as they are.
        read: what to export in a parameter's place (such as its gradient), of the same shape; parameters for which
            it says None are left out, and so are buffers. It must say the same on all ranks.
    """
    mine: dict[tuple[_Place, int], Tensor] = {}
    local: list[tuple[_Place, _Shard]] = []
    rank, tables = dist.get_rank(), _rows(family)
    for held in _list_held(chunks, family, buffers=read is None):
        tensor = held.tensor.detach() if read is None else read(held.tensor)
        if tensor is not None:
            mine[held.place, held.index] = tensor
            local.append((held.place, _Shard(tuple(tensor.shape), tensor.dtype, held.index, held.count, rank)))
    for place, shards in sorted(_holders(local).items()):
        layout, first = tables[place.row][1], shards[0]
        wanted = first.dtype if dtype is None or layout.precise else dtype
        cut = layout.shards(layout.filed(first.shape), first.count, chunks[0].sizes)
        shapes = whole_shapes(cut, layout.filed(first.shape)) if to in (None, rank) else {}
        whole = {name: torch.empty(shape, dtype=wanted, device=_device()) for name, shape in shapes.items()}
        for shard in shards:
            own = mine[place, shard.index] if shard.rank == rank else None
            arrived = _deliver(own, shard, wanted, to)
            if arrived is not None:
                for piece, part in _parts(cut[shard.index], layout.outward(arrived)):
                    if piece.name:
                        whole[piece.name].narrow(piece.dim, piece.start, len(piece)).copy_(part)
        for name in list(whole):
            yield _name(name, place), whole.pop(name)


def named_parameters(chunks: Sequence[GPTModel], family: Family) -> Iterator[tuple[Parameter, int, tuple[str, ...]]]:
    """Yield this rank's parameters, each with its layer and the Hugging Face tensors that it is cut from.

    Embeddings are in layer -1; what is behind the layers is in the one after the last.
    """
    tables = _rows(family)
    for held in _list_held(chunks, family, buffers=False):
        assert isinstance(held.tensor, Parameter)
        names = tables[held.place.row][1].names()
        yield held.tensor, held.place.layer, tuple(_name(name, held.place) for name in names)


def pieces(chunks: Sequence[GPTModel], family: Family, read: Read) -> Iterator[tuple[str, Piece, Tensor]]:
    """Yield, for each shard of this rank, the Hugging Face tensor's name, the piece of it, and that part of the shard.

    Args:
        chunks: this rank's.
        family: the model's.
        read: a tensor of a parameter's shape, whose parts are wanted; parameters for which it says None are left out.
    """
    tables = _rows(family)
    for held in _list_held(chunks, family, buffers=False):
        layout, tensor = tables[held.place.row][1], read(held.tensor)
        if tensor is not None:
            cut = layout.shards(layout.filed(tuple(tensor.shape)), held.count, chunks[0].sizes)
            for piece, part in _parts(cut[held.index], layout.outward(tensor)):
                if piece.name:
                    yield _name(piece.name, held.place), piece, part


def _deliver(own: Tensor | None, shard: _Shard, dtype: torch.dtype, to: int | None) -> Tensor | None:
    """A shard, at whoever consumes; None elsewhere."""
    rank = dist.get_rank()
    if own is not None:
        own = own.to(dtype).contiguous()
    if to is None:
        tensor = own if own is not None else torch.empty(shard.shape, dtype=dtype, device=_device())
        if dist.get_world_size() > 1:
            dist.broadcast(tensor, shard.rank)
        return tensor
    if to == rank:
        if own is not None:
            return own
        tensor = torch.empty(shard.shape, dtype=dtype, device=_device())
        dist.recv(tensor, shard.rank)
        return tensor
    if own is not None:
        dist.send(own, to)
    return None


def _holders(local: list[tuple[_Place, _Shard]]) -> dict[_Place, list[_Shard]]:
    """Every parameter's shards in order, each at the lowest rank that holds it; from what each rank holds."""
    shards: dict[_Place, dict[int, _Shard]] = {}
    for place, shard in (entry for rank in all_gather(local) for entry in rank):
        shards.setdefault(place, {}).setdefault(shard.index, shard)
    return {place: [found[i] for i in range(len(found))] for place, found in shards.items()}


def _list_held(chunks: Sequence[GPTModel], family: Family, *, buffers: bool = True) -> Iterator[_Held]:
    """This rank's shards; of several ranks with the same one, each says so."""
    tables = _rows(family)
    rows = {(outside, name): i for i, (name, _, outside) in enumerate(tables)}
    for chunk in chunks:
        for name, tensor in _tensors(chunk, buffers):
            layer, expert, short = -1, 0, name
            if match := _LAYER.match(name):
                layer, short = chunk.decoder.layers[int(match[1])].layer_number - 1, match[2]
            is_expert = _EXPERT.match(short)
            if is_expert:
                local = int(is_expert[2])
                expert = chunk.config.num_moe_experts // parallel_state.get_expert_model_parallel_world_size()
                expert = expert * parallel_state.get_expert_model_parallel_rank() + local
                short = f"{is_expert[1]}.{is_expert[3]}"
            if (layer < 0, short) not in rows:
                raise InvalidInput(f"family {family.name!r} does not say what {name} is cut from")
            row = rows[layer < 0, short]
            order = chunk.config.num_layers if layer < 0 and not short.startswith("embedding.") else layer
            index, count = _shard(tensor, expert=is_expert is not None)
            if tables[row][1].stacked:
                index, count, expert = expert, chunk.config.num_moe_experts, 0
            yield _Held(_Place(order, row, expert), tensor, index, count)


def _tensors(chunk: GPTModel, buffers: bool) -> Iterator[tuple[str, Tensor]]:
    """Parameters, and the buffers that are part of the model.

    A tied head is its embedding and left out.
    """
    for name, parameter in chunk.named_parameters():
        tied = name == "output_layer.weight" and chunk.share_embeddings_and_output_weights
        if not tied:
            yield name, parameter
    if buffers:
        for name, buffer in chunk.named_buffers():
            if name.endswith("expert_bias"):
                yield name, buffer


def _shard(tensor: Tensor, *, expert: bool) -> tuple[int, int]:
    if not getattr(tensor, "tensor_model_parallel", False):
        return 0, 1
    if expert:
        return (
            parallel_state.get_expert_tensor_parallel_rank(),
            parallel_state.get_expert_tensor_parallel_world_size(),
        )
    return parallel_state.get_tensor_model_parallel_rank(), parallel_state.get_tensor_model_parallel_world_size()


def _rows(family: Family) -> list[tuple[str, ParameterLayout, bool]]:
    """A family's table as one list: name, layout, whether it lies outside of layers."""
    outside = [(name, layout, True) for name, layout in family.outside.items()]
    return outside + [(name, layout, False) for name, layout in family.layer.items()]


def _parts(pieces: list[Piece], shard: Tensor) -> Iterator[tuple[Piece, Tensor]]:
    at = 0
    for piece in pieces:
        yield piece, shard.narrow(piece.dim, at, len(piece))
        at += len(piece)


def _name(template: str, place: _Place) -> str:
    return template.format(layer=place.layer, expert=place.expert)


def _device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
