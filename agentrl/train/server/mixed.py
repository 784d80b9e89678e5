"""Passes over forests with trees of several adapters: the base's products are computed for all rows at once.

An adapter's products are added to the rows of its own trees, so what a run computes is the same up to rounding as in
passes of its own, and its gradient reaches its own matrices alone. A prefix that two requests have in common is
computed for each of them: adapters change it from the first layer on.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from agentrl.train.forest.forest import Forest
from agentrl.train.server.prefixes import SharedPass, shared_passes

if TYPE_CHECKING:
    from agentrl.train.server.learner import PassWork, RunAdapter


@dataclass(frozen=True, slots=True)
class AdapterSegment:
    """The tokens of a forest from `first` to before `end`, computed with one adapter, which learns if `trained`."""

    adapter: RunAdapter
    first: int
    end: int
    trained: bool = True


@dataclass(frozen=True, slots=True)
class MixedPass:
    """Data of several requests that are computed together.

    Attributes:
        works: the request of each part; one with many data may have several.
        parts: data of one request, as a pass of their own would have them.
        segments: whose tokens are where; a run's parts are one behind the other.
        whole: all of them.
    """

    works: tuple[PassWork, ...]
    parts: tuple[SharedPass, ...]
    segments: tuple[AdapterSegment, ...]
    whole: SharedPass

    def divided(self, logp: Tensor) -> Iterator[tuple[PassWork, SharedPass, Tensor]]:
        """Yield each request's part with the log-probabilities of its rows."""
        at = 0
        for work, part in zip(self.works, self.parts, strict=True):
            yield work, part, logp[at : at + len(part.rows)]
            at += len(part.rows)


def mixed_passes(works: Sequence[PassWork], budget: int) -> Iterator[MixedPass]:
    """Yield passes of at most `budget` tokens, unless one datum has more: the largest parts first, then what fits."""
    parts = [(work, shared) for work in works for shared in shared_passes(work.request.data, budget)]
    bins: list[list[tuple[PassWork, SharedPass]]] = []
    sizes: list[int] = []
    for work, shared in sorted(parts, key=lambda part: -len(part[1].forest)):
        size = len(shared.forest)
        place = next((place for place, taken in enumerate(sizes) if taken + size <= budget), None)
        if place is None:
            bins.append([])
            sizes.append(0)
            place = -1
        bins[place].append((work, shared))
        sizes[place] += size
    for each in bins:
        yield _join(each)


def _join(parts: Sequence[tuple[PassWork, SharedPass]]) -> MixedPass:
    order = {key: place for place, key in enumerate(dict.fromkeys(_learner(work) for work, _ in parts))}
    parts = sorted(parts, key=lambda part: order[_learner(part[0])])
    segments, forests, rows, at = list[AdapterSegment](), [], [], 0
    for work, shared in parts:
        end = at + len(shared.forest)
        forests.append(_shift(shared.forest, at))
        rows.append(_shift(shared.rows, at))
        trained = not work.request.forward_only
        if segments and segments[-1].adapter is work.adapter and segments[-1].trained == trained:
            segments[-1] = dataclasses.replace(segments[-1], end=end)
        else:
            segments.append(AdapterSegment(work.adapter, at, end, trained))
        at = end
    whole = SharedPass(_concatenate(forests), _concatenate(rows), {})
    return MixedPass(tuple(w for w, _ in parts), tuple(s for _, s in parts), tuple(segments), whole)


def _learner(work: PassWork) -> tuple[int, bool]:
    return id(work.adapter), work.request.forward_only


def _shift(given: Any, by: int) -> Any:
    """A forest or rows, `by` tokens further on."""
    names = ("end", "predictor", "target") if isinstance(given, Forest) else ("predictor", "target")
    return dataclasses.replace(given, **{name: getattr(given, name) + by for name in names})


def _concatenate(parts: Sequence[Any]) -> Any:
    """Forests or rows with the same fields as one."""
    names = [each.name for each in dataclasses.fields(parts[0]) if isinstance(getattr(parts[0], each.name), Tensor)]
    return dataclasses.replace(parts[0], **{n: torch.cat([getattr(part, n) for part in parts]) for n in names})


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
