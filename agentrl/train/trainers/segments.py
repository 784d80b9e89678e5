"""Forests with trees of several adapters: each adapter's products are added to the rows of its own trees."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from agentrl.models.adapters import AdapterShape


class HeldAdapter(Protocol):
    """An adapter's matrices A [rank, in] and B [out, rank] by their layers' names, and its settings."""

    @property
    def shape(self) -> AdapterShape:
        """Its settings."""

    @property
    def matrices(self) -> Mapping[str, tuple[Any, Any]]:
        """Its matrices by layer."""


@dataclass(frozen=True, slots=True)
class AdapterSegment:
    """The tokens of a forest from `first` to before `end`, computed with one adapter, which learns if `trained`."""

    adapter: HeldAdapter
    first: int
    end: int
    trained: bool = True


@contextmanager
def on_segments(layers: Mapping[str, nn.Linear], segments: Sequence[AdapterSegment]) -> Iterator[None]:
    """Have layers add to each segment's rows its own adapter's products, within the block."""
    names = {name for segment in segments for name in segment.adapter.matrices}
    hooks = [layers[name].register_forward_hook(functools.partial(_add_products, name, segments)) for name in names]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _add_products(
    name: str, segments: Sequence[AdapterSegment], layer: Any, inputs: tuple[Tensor, ...], output: Tensor
) -> Tensor:
    """Add scale · (x A') B' to the rows of each segment; those behind the last are padding."""
    row = inputs[0].flatten(0, -2)
    padding = len(row) - segments[-1].end
    if padding < 0:
        raise RuntimeError(f"{name} computes {len(row)} of {segments[-1].end} tokens: passes can't be mixed")
    cast = not torch.is_autocast_enabled(output.device.type)
    products = []
    parts = torch.split(row, [*(segment.end - segment.first for segment in segments), padding])
    for segment, own in zip(segments, parts[:-1], strict=True):
        pair = segment.adapter.matrices.get(name)
        if pair is None:
            products.append(output.new_zeros(len(own), output.shape[-1]))
            continue
        a, b = (matrix.to(output.dtype) if cast else matrix for matrix in pair)
        if not segment.trained:  # a gradient of zeros is one that an update counts
            a, b = a.detach(), b.detach()
        products.append(functional.linear(functional.linear(own, a) * segment.adapter.shape.scale, b))
    if padding:
        products.append(output.new_zeros(padding, output.shape[-1]))
    return output + (torch.cat(products) if len(products) > 1 else products[0]).reshape(output.shape)
