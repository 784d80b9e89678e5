"""Columns of a forest's declared fields: one value for each token, or a list of any length for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentrl.train.algorithms.fields import ForestField


@dataclass(frozen=True, slots=True)
class Column:
    """The values of a declared field.

    Attributes:
        values: [T, …], one for each token; of a ragged field [N, …], the tokens' lists one after the other.
        offsets: int64 [T + 1] of a ragged field: token t has `values[offsets[t]:offsets[t + 1]]`. None: not ragged.
        padding: the number where nothing is known.
    """

    values: Tensor
    offsets: Tensor | None = None
    padding: float = 0

    @classmethod
    def of(cls, field: ForestField, values: Sequence[NDArray[Any]]) -> Column:
        """A column of these tokens' values."""
        empty = np.zeros((0, *field.shape), dtype=field.dtype)
        if not field.ragged:
            return cls(torch.from_numpy(np.stack(values) if values else empty), None, field.padding)
        offsets = np.concatenate(([0], np.cumsum([len(value) for value in values], dtype=np.int64)))
        return cls(torch.from_numpy(np.concatenate([empty, *values])), torch.from_numpy(offsets), field.padding)

    def __len__(self) -> int:
        return len(self.values) if self.offsets is None else len(self.offsets) - 1

    def __getitem__(self, index: Tensor | slice) -> Column:
        """The column of some tokens: their indices, a mask or a slice; a copy."""
        if self.offsets is None:
            return replace(self, values=self.values[index].clone())
        start, length = self.offsets[:-1][index], self.offsets.diff()[index]
        offsets = torch.cat((length.new_zeros(1), length.cumsum(0)))
        within = torch.arange(int(offsets[-1]), device=length.device) - offsets[:-1].repeat_interleave(length)
        return replace(self, values=self.values[start.repeat_interleave(length) + within], offsets=offsets)

    def to(self, device: torch.device | str) -> Column:
        """The column on a device."""
        offsets = None if self.offsets is None else self.offsets.to(device, non_blocking=True)
        return replace(self, values=self.values.to(device, non_blocking=True), offsets=offsets)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that it consists of."""
        return (self.values,) if self.offsets is None else (self.values, self.offsets)

    def padded(self, extra: int) -> Column:
        """The column with `extra` tokens behind it, of which nothing is known."""
        if self.offsets is not None:
            return replace(self, offsets=torch.cat((self.offsets, self.offsets[-1:].expand(extra))))
        behind = self.values.new_full((extra, *self.values.shape[1:]), self.padding)
        return replace(self, values=torch.cat((self.values, behind)))


@dataclass(frozen=True, slots=True)
class SharedColumn:
    """Lists of any length for each token, which may overlap: those of tokens with one list are stored once.

    Attributes:
        values: [N, …].
        start: int64 [T]: token t has `values[start[t] : start[t] + length[t]]`.
        length: int64 [T].
    """

    values: Tensor
    start: Tensor
    length: Tensor

    def __len__(self) -> int:
        return len(self.start)

    def __getitem__(self, index: Tensor | slice) -> SharedColumn:
        """The column of some tokens: their indices, a mask or a slice; of a slice only what its tokens have."""
        start, length = self.start[index], self.length[index]
        if not isinstance(index, slice):
            return SharedColumn(self.values, start, length)
        used = length > 0
        first = int(start[used].min()) if bool(used.any()) else 0
        last = int((start + length)[used].max()) if bool(used.any()) else 0
        return SharedColumn(self.values[first:last].clone(), torch.where(used, start - first, 0), length.clone())

    def pairs(self) -> tuple[Tensor, Tensor]:
        """All lists one after the other: the place of each entry's token, and the entries."""
        places = torch.arange(len(self), device=self.length.device).repeat_interleave(self.length)
        before = self.length.cumsum(0) - self.length
        within = torch.arange(len(places), device=places.device) - before[places]
        return places, self.values[self.start[places] + within]

    def to(self, device: torch.device | str) -> SharedColumn:
        """The column on a device."""
        return SharedColumn(*(tensor.to(device, non_blocking=True) for tensor in self.tensors))

    def padded(self, extra: int) -> SharedColumn:
        """The column with `extra` tokens behind it, of which nothing is known."""
        zeros = self.start.new_zeros(extra)
        return SharedColumn(self.values, torch.cat((self.start, zeros)), torch.cat((self.length, zeros)))

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """The tensors that it consists of."""
        return self.values, self.start, self.length
