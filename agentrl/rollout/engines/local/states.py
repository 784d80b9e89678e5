"""The states that layers carry from token to token (`agentrl.models.mixers`), for each row of the arena.

Keys and values of a path serve every path that begins like it. A state serves only what continues exactly where it was
taken: the row's own next step, and a later request that begins with all that was computed. Whoever shares less computes
its prompt anew. States are never changed once they are noted, so that rows and stored prefixes may hold the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from agentrl.errors import EngineError
from agentrl.models.mixers import LayerState, Mixer


@dataclass(slots=True)
class RowState:
    """The state of all layers after `place` tokens of a path, by the layer's name."""

    place: int
    layers: dict[str, LayerState] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """The memory that it takes."""
        held = (tensor for one in self.layers.values() for tensor in (*one.conv.values(), *one.recurrent.values()))
        return sum(tensor.numel() * tensor.element_size() for tensor in held)


@dataclass(frozen=True, slots=True)
class _Job:
    """Rows that are computed in one call: each one's tokens, by their places in the step, and where they begin."""

    rows: tuple[int, ...]
    tokens: Tensor
    starts: tuple[int, ...]

    @property
    def fresh(self) -> bool:
        """True where the rows begin here."""
        return self.starts[0] == 0


class States:
    """A `StatePlan` for flat steps: decoding rows side by side, prompts row by row.

    Attributes:
        rows: what each row carries.
    """

    def __init__(self) -> None:
        self.rows: dict[int, RowState] = {}
        self._jobs: list[_Job] = []
        self._after: dict[int, RowState] = {}

    def begin(
        self, decode: Sequence[tuple[int, int]], pieces: Sequence[tuple[int, int, int, int]], device: torch.device
    ) -> None:
        """Lay out a step.

        Args:
            decode: (row, place of its token in the path); the row's number is the token's place in the step.
            pieces: of prompts, (row, where it begins in the path, its first token's place in the step, tokens).
            device: where hidden states are.

        Raises:
            EngineError: a row does not carry what its tokens continue.
        """
        self._jobs = []
        for some in ([one for one in decode if one[1]], [one for one in decode if not one[1]]):
            if some:
                rows, starts = zip(*some, strict=True)
                self._jobs.append(_Job(rows, torch.tensor(rows, device=device)[:, None], starts))
        prompts = dict[int, tuple[int, list[int]]]()
        for row, start, place, count in pieces:
            prompts.setdefault(row, (start, []))[1].extend(range(place, place + count))
        for row, (start, places) in prompts.items():
            self._jobs.append(_Job((row,), torch.tensor([places], device=device), (start,)))
        for job in self._jobs:
            for row, start in zip(job.rows, job.starts, strict=True):
                if start and (row not in self.rows or self.rows[row].place != start):
                    raise EngineError(f"row {row} carries no state after {start} tokens")
        self._after = {
            row: RowState(start + job.tokens.shape[1])
            for job in self._jobs
            for row, start in zip(job.rows, job.starts, strict=True)
        }

    def end(self) -> None:
        """The step was computed: rows carry what they ended with."""
        self.rows.update(self._after)

    def __call__(self, mixer: Mixer, hidden: Tensor) -> Tensor:
        """See `agentrl.models.mixers.StatePlan`; tokens of padding get 0."""
        out = torch.zeros_like(hidden[0])
        for job in self._jobs:
            before = None
            if not job.fresh:
                before = LayerState.concatenate([(self.rows[row].layers[mixer.name], 0) for row in job.rows])
            found, after = _computed(mixer, hidden[0][job.tokens], before)
            out[job.tokens] = found.to(out.dtype)
            for at, row in enumerate(job.rows):
                self._after[row].layers[mixer.name] = after.one(at)
        return out[None]


def _computed(mixer: Mixer, hidden: Tensor, state: LayerState | None) -> tuple[Tensor, LayerState]:
    """Several tokens at once; one by one where the layer can't continue otherwise."""
    if state is None or mixer.continues or hidden.shape[1] == 1:
        return mixer.compute(hidden, state)
    found = []
    for at in range(hidden.shape[1]):
        out, state = mixer.compute(hidden[:, at : at + 1], state)
        found.append(out)
    return torch.cat(found, 1), state
