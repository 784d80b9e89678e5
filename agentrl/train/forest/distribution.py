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


@dataclass(frozen=True, slots=True)
class VocabularyPart:
    """A part of the vocabulary: `size` tokens from `first` on, or those `columns` of them, ascending."""

    first: int
    size: int
    columns: Tensor | None = None

    def find(self, token: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens' places in the part, 0 where they are not in it, and whether they are."""
        local = token.long() - self.first
        if self.columns is None:
            inside = (local >= 0) & (local < self.size)
            return local.where(inside, 0), inside
        place = torch.searchsorted(self.columns, local).clamp_(max=len(self.columns) - 1)
        inside = self.columns[place] == local
        return place.where(inside, 0), inside


class Slopes(NamedTuple):
    """The places where logits are multiplied by a penalty, and the derivative there: [N] each; it is 1 elsewhere."""

    row: Tensor
    place: Tensor
    slope: Tensor


@dataclass(frozen=True, slots=True)
class Drawn:
    """The distributions that the targets of P rows were drawn from; None where no row has anything of the kind."""

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
        before, penalties, bias = self.before, self.penalties, self.bias
        return Drawn(
            self.kept[at],
            None if before is None else before[at],
            None if penalties is None else penalties[at],
            None if bias is None else bias[at],
        )

    def change(self, logits: Tensor, part: VocabularyPart) -> tuple[Tensor, Slopes | None]:
        """Apply penalties and bias, in place where no gradient is wanted.

        Args:
            logits: [P, V], at temperature 1, float32, of a part of the vocabulary.
            part: which part that is.
        """
        slopes, put = None, Tensor.index_put if torch.is_grad_enabled() else Tensor.index_put_
        if self.before is not None and self.penalties is not None:
            row, token = self.before.pairs()
            repetition, presence, frequency, own = self.penalties.to(logits).unbind(1)
            first_own = self.before.length.cumsum(0) - own.long()
            of_turn = torch.arange(len(row), device=row.device) >= first_own[row]
            place, inside = part.find(token)
            key, index = torch.unique((row * logits.shape[1] + place)[inside], return_inverse=True)
            count = torch.zeros(len(key), device=key.device).index_add_(0, index, of_turn[inside].float())
            row, place = key // logits.shape[1], key % logits.shape[1]
            found = logits[row, place]
            slope = torch.where(found.detach() > 0, 1 / repetition[row], repetition[row])
            added = frequency[row] * count + presence[row] * (count > 0)
            logits, slopes = put(logits, (row, place), found * slope - added), Slopes(row, place, slope)
        if self.bias is not None:
            row, entry = self.bias.pairs()
            place, inside = part.find(entry[:, 0])
            logits = put(logits, (row[inside], place[inside]), entry[inside, 1].to(logits), accumulate=True)
        return logits, slopes

    def hide(self, logits: Tensor, part: VocabularyPart) -> Tensor:
        """Logits in which what is not in the kept sets is `NEVER`, in place where no gradient is wanted."""
        row, entry = self.kept.pairs()
        excluded = entry < 0
        place, inside = part.find(torch.where(excluded, -1 - entry, entry))
        listed = torch.zeros(len(self.kept), dtype=torch.bool, device=row.device)
        listed[row[~excluded]] = True
        kept, left_out = inside & ~excluded, inside & excluded
        if torch.is_grad_enabled():
            hidden = listed[:, None].expand_as(logits).clone()
            hidden[row[inside], place[inside]] = excluded[inside]
            return logits.masked_fill(hidden, NEVER)
        found = logits[row[kept], place[kept]]
        logits.index_fill_(0, listed.nonzero()[:, 0], NEVER)
        logits[row[kept], place[kept]] = found
        logits[row[left_out], place[left_out]] = NEVER
        return logits

    def part(self, first: int, size: int) -> VocabularyPart:
        """The part of the vocabulary that these rows need of `size` tokens from `first` on.

        Where each row has a list of kept ids, that is the tokens of all lists; else all of them.
        """
        entry = self.kept.values
        ids = [entry[start : start + length] for start, length in _spans(self.kept)]
        if not ids or bool((self.kept.length == 0).any()) or any(bool(each[0] < 0) for each in ids):
            return VocabularyPart(first, size)
        local = torch.unique(torch.cat(ids)).long() - first
        columns = local[(local >= 0) & (local < size)]
        if 2 * len(columns) > size:
            return VocabularyPart(first, size)
        return VocabularyPart(first, size, columns if len(columns) else columns.new_zeros(1))


def _spans(column: SharedColumn) -> list[tuple[int, int]]:
    """The distinct lists of a column."""
    return sorted({pair for pair in zip(column.start.tolist(), column.length.tolist(), strict=True) if pair[1]})
