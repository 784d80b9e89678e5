"""The distribution that a row's target was drawn from, applied to the logits of a chunk of rows.

Where a turn was drawn with penalties, a logit bias or from a part of the vocabulary, the row's log-probability is
log-softmax over the kept set of (g(l) + b) / T, for the logits l and the temperature T:

    g  the repetition penalty p: l / p for l > 0, else l * p, on the tokens of prompt and turn before the target
    b  minus the presence penalty on the turn's tokens, minus the frequency penalty for each time that one came, plus
       the logit bias

by the rule that the turn's supports name (`agentrl.attachments.support`). All of it is differentiable in l. With a
vocabulary-parallel head a rank applies what concerns its own part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from agentrl.train.forest.columns import Column, SharedColumn
from agentrl.train.forest.forest import Rows
from agentrl.train.forest.supports import BEFORE, BIAS, KEPT, PENALTIES

NEVER = -1e30
"""The logit of what can't be drawn: finite, so that 0 * logit is 0."""


class Changed(NamedTuple):
    """Logits that penalties and bias have changed, and their derivative by what they were; None where it is 1."""

    logits: Tensor
    slope: Tensor | None


@dataclass(frozen=True, slots=True)
class Drawn:
    """What the targets of rows were drawn from, P of them; None where no row has anything of the kind."""

    kept: SharedColumn
    before: SharedColumn | None = None
    penalties: Tensor | None = None
    bias: SharedColumn | None = None

    @classmethod
    def of(cls, rows: Rows) -> Drawn | None:
        """Return what is known of the rows; None where all were drawn from the softmax over the whole vocabulary."""
        kept, before, penalties, bias = (rows.fields.get(name) for name in (KEPT, BEFORE, PENALTIES, BIAS))
        if not isinstance(kept, SharedColumn):
            return None
        return cls(
            kept,
            before if isinstance(before, SharedColumn) else None,
            penalties.values if isinstance(penalties, Column) else None,
            bias if isinstance(bias, SharedColumn) else None,
        )

    def __getitem__(self, at: slice) -> Drawn:
        """The same of some rows."""
        before, penalties, bias = self.before, self.penalties, self.bias
        return Drawn(
            self.kept[at],
            None if before is None else before[at],
            None if penalties is None else penalties[at],
            None if bias is None else bias[at],
        )

    def change(self, logits: Tensor, first: int = 0) -> Changed:
        """Apply penalties and bias.

        Args:
            logits: [P, V], at temperature 1, float32; of the tokens from `first` on.
            first: the first token of this rank's part of the vocabulary.
        """
        slope = None
        if self.before is not None and self.penalties is not None:
            row, token = self.before.pairs()
            repetition, presence, frequency, own = self.penalties.to(logits).unbind(1)
            place = torch.arange(len(row), device=row.device)
            last = self.before.length.cumsum(0)[row]
            of_turn = place >= last - own.long()[row]
            row, token, of_turn = _inside(row, token.long() - first, logits.shape[1], of_turn)
            seen = torch.zeros_like(logits, dtype=torch.bool)
            seen[row, token] = True
            penalty = repetition[:, None]
            slope = torch.where(seen, torch.where(logits > 0, 1 / penalty, penalty), 1.0)
            logits = logits * slope.detach()
            count = torch.zeros_like(slope)
            count.index_put_((row[of_turn], token[of_turn]), count.new_ones(()), accumulate=True)
            logits = logits - frequency[:, None] * count - presence[:, None] * (count > 0)
        if self.bias is not None:
            row, entry = self.bias.pairs()
            row, token, value = _inside(row, entry[:, 0].long() - first, logits.shape[1], entry[:, 1])
            logits = logits.index_put((row, token), value.to(logits), accumulate=True)
        return Changed(logits, slope)

    def hidden(self, vocabulary: int, first: int = 0) -> Tensor:
        """The tokens that are not in the kept set: bool [P, V], of the `vocabulary` tokens from `first` on."""
        row, entry = self.kept.pairs()
        excluded = entry < 0
        listed = torch.zeros(len(self.kept), dtype=torch.bool, device=row.device)
        listed[row[~excluded]] = True
        hidden = listed[:, None].expand(-1, vocabulary).clone()
        token = torch.where(excluded, -1 - entry, entry).long() - first
        row, token, value = _inside(row, token, vocabulary, excluded)
        hidden[row, token] = value
        return hidden


def _inside(row: Tensor, token: Tensor, size: int, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The entries whose token is in this rank's part."""
    inside = (token >= 0) & (token < size)
    return row[inside], token[inside], value[inside]
