"""Passes over forests with trees of several adapters: the base's products are computed for all rows at once.

An adapter's products are added to the rows of its own trees, so what a run computes is the same up to rounding as in
passes of its own, and its gradient reaches its own matrices alone. A prefix that two requests have in common is
computed for each of them: adapters change it from the first layer on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from agentrl.train.forest.forest import Forest
from agentrl.train.forest.packing import fill_bins
from agentrl.train.server.passes import PassWork
from agentrl.train.server.prefixes import SharedPass, shared_passes
from agentrl.train.trainers.segments import AdapterSegment


@dataclass(frozen=True, slots=True)
class MixedPass:
    """Data of several requests that are computed together.

    Attributes:
        works: the request of each part; one with many data may have several.
        parts: data of one request, as a pass of their own would have them.
        segments: whose tokens are where; a run's parts are one behind the other.
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
    yield from map(_join, fill_bins(parts, lambda part: len(part[1].forest), budget))


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
