"""The computation of a forest in layers with a state along the row (`agentrl.models.mixers`).

A forest's tokens form segments: runs of consecutive tokens without a branch. A layer computes a segment from its
parent segment's final state: inner segments level by level, those of one length in one call; then all leaves, whose
final states are not needed, so that leaves of similar length share a call and shorter ones are padded. Every token is
computed once, and gradients flow back through the states into each segment's parent.

A layer that can't compute several tokens from a given state (Mamba's scan in transformers) gets every path from root
to leaf as a row instead; a token of several paths is read from one of them. The result is the same, but a shared
prefix is computed once per path.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from agentrl.models.mixers import LayerState, Mixer
from agentrl.train.forest.forest import Forest

SAME = 64
"""Segments up to this length share a call: layers compute whole chunks of about as many tokens."""
FILLED = 0.7
"""The least length of a longer one, as a fraction of the longest in its call."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Tokens of one path, in order, and the part whose final state they continue, if any."""

    tokens: tuple[int, ...]
    before: int | None
    level: int
    leaf: bool


@dataclass(frozen=True, slots=True)
class _Call:
    """One call of a layer.

    Attributes:
        parts: their numbers.
        tokens: their places in the row, [parts, length]; a shorter one repeats its last token.
        before: the numbers of the parts that they continue; None where they begin.
        keep: whether others continue them.
    """

    parts: tuple[int, ...]
    tokens: Tensor
    before: tuple[int, ...] | None
    keep: bool


@dataclass(frozen=True, slots=True)
class _Schedule:
    """All calls, in order, and each token's index in their outputs: [T]; one past the last where there is none."""

    calls: tuple[_Call, ...]
    found: Tensor


class StateSchedule:
    """One forest's plan for layers with a state (`agentrl.models.mixers.StatePlan`); prepared at its first use."""

    def __init__(self, forest: Forest) -> None:
        self.end, self.device = forest.end.tolist(), forest.end.device

    @functools.cached_property
    def by_segments(self) -> _Schedule:
        """The schedule of segments, for layers that continue from a state."""
        return schedule(segments(self.end), len(self.end), self.device)

    @functools.cached_property
    def by_paths(self) -> _Schedule:
        """The schedule of paths from root to leaf, for other layers."""
        return schedule(paths(self.end), len(self.end), self.device)

    def __call__(self, mixer: Mixer, hidden: Tensor) -> Tensor:
        plan = self.by_segments if mixer.continues else self.by_paths
        outputs, ends = list[Tensor](), dict[int, tuple[LayerState, int]]()
        for call in plan.calls:
            state = None if call.before is None else LayerState.concatenate([ends[part] for part in call.before])
            out, after = mixer.compute(hidden[0][call.tokens], state, keep=call.keep)
            outputs.append(out.flatten(0, 1))
            if call.keep:
                ends.update((part, (after, at)) for at, part in enumerate(call.parts))
        none = hidden.new_zeros(1, hidden.shape[-1])
        return torch.cat((*outputs, none.to(outputs[0].dtype) if outputs else none)).index_select(0, plan.found)[None]


def segments(end: list[int]) -> list[_Part]:
    """The parts of a forest, each continuing the one that it branches off from.

    A tree of one token is not among them: its output is not used. A segment of one token is not computed by itself but
    with each of its children: layers take a single token for the next of a sequence that is being generated, and update
    their state in place.
    """
    starts = [at for at in range(len(end)) if at == 0 or end[at] != end[at - 1]]
    found, above = (
        list[_Part](),
        list[tuple[int, tuple[int, ...], int | None]](),
    )  # (end, lead tokens, part to continue)
    for start, stop in zip(starts, [*starts[1:], len(end)], strict=True):
        while above and above[-1][0] <= start:
            above.pop()
        lead, before = above[-1][1:] if above else ((), None)
        own, leaf = lead + tuple(range(start, stop)), end[start] == stop
        if stop - start == 1 and not leaf:
            above.append((end[start], own, before))
        elif len(own) > 1 or before is not None:
            above.append((end[start], (), len(found)))
            found.append(_Part(own, before, 0 if before is None else found[before].level + 1, leaf))
    return found


def paths(end: list[int]) -> list[_Part]:
    """Every path from a root to a leaf as a part of its own; those of one token are left out."""
    found, path = list[_Part](), list[int]()
    for at, last in enumerate(end):
        while path and end[path[-1]] <= at:
            path.pop()
        path.append(at)
        if last == at + 1 and len(path) > 1:
            found.append(_Part(tuple(path), None, 0, True))
    return found


def schedule(parts: list[_Part], length: int, device: torch.device) -> _Schedule:
    """Assign the parts to calls, in order.

    Args:
        parts: each after the part that it continues.
        length: T, of the row.
        device: of the tokens' indices.
    """
    calls, found, base = list[_Call](), torch.full((length,), -1), 0
    for members in _together(parts):
        held = [parts[part].tokens for part in members]
        width = max(2, *map(len, held))
        tokens = [own + own[-1:] * (width - len(own)) for own in held]
        before = tuple(one for part in members if (one := parts[part].before) is not None)
        keep = not parts[members[0]].leaf
        calls.append(_Call(tuple(members), torch.tensor(tokens, device=device), before or None, keep))
        for at, own in enumerate(held):
            found[list(own)] = base + at * width + torch.arange(len(own))
        base += len(members) * width
    return _Schedule(tuple(calls), torch.where(found < 0, base, found).to(device))


def _together(parts: list[_Part]) -> list[list[int]]:
    """The parts that share a call: inner ones of one level and length, then leaves of about one length."""
    inner = dict[tuple[int, int], list[int]]()
    leaves: dict[bool, list[int]] = {False: [], True: []}
    for part, one in enumerate(parts):
        if one.leaf:
            leaves[one.before is not None].append(part)
        else:
            inner.setdefault((one.level, len(one.tokens)), []).append(part)
    groups = [inner[key] for key in sorted(inner)]
    for some in leaves.values():
        longest = 0
        for part in sorted(some, key=lambda part: -len(parts[part].tokens)):
            own = len(parts[part].tokens)
            if not longest or (SAME < own < FILLED * longest) or (longest > SAME >= own):
                groups.append([])
                longest = own
            groups[-1].append(part)
    return groups
