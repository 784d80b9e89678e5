"""Key-value rows for the sequences that are being computed, and a cache of those that may be continued.

Rows of the arena are dense and side by side, so that a decoding step reads them in place, as one view: on a
CPU the memory's speed is the step's speed. A sequence that ends is copied out into the store, and whatever
shares a prefix with it (the session's next turn, the other samples of its group) copies that prefix in: two
copies a turn cost less than gathering scattered pages at every step.

The store finds the longest common token prefix by hashes of whole blocks of 16 tokens, chained; matches of
fewer tokens than a block are not worth a copy. It holds a bounded number of tokens and forgets the least
recently used.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from agentrl.rollout.engines.local.states import RowState

BLOCK = 16
_CANDIDATES = 8


def bucket(length: int) -> int:
    """A key count to pad `length` to: a multiple of 32, coarser for long ones, so that shapes recur."""
    step = 32 if length <= 256 else 64 if length <= 1024 else 256
    return -(-length // step) * step


class Arena:
    """`kv[layer, 0 or 1, row, head, position]`; the last row is scratch, for padding to write into.

    Attributes:
        routed_experts: [row, position, layer with experts, choice], those of what was computed, where `experts` gives
            the number of layers and choices; see `experts.Recorder`.
        slots: which of the first dimension's entries a layer of the model has; those that don't attend have none.
        states: what rows carry in layers that keep a state, where there are such layers.
        touched: positions from here on were not written since the last `clear`; raised by each write.
    """

    def __init__(
        self,
        *,
        layers: int,
        heads: int,
        width: int,
        rows: int,
        budget_bytes: int,
        dtype: torch.dtype,
        device: torch.device,
        experts: tuple[int, int] | None = None,
        slots: Sequence[int] | None = None,
    ) -> None:
        self.slots = {layer: slot for slot, layer in enumerate(range(layers) if slots is None else slots)}
        self.states: dict[int, RowState] | None = None
        self.max_rows, self.rows = rows, rows
        self._budget = budget_bytes
        self.token_bytes = layers * 2 * heads * width * dtype.itemsize
        if experts is not None:
            self.token_bytes += experts[0] * experts[1] * torch.int16.itemsize
        self.length = bucket(256)
        self.touched = 0
        self.rows = self.rows_for(self.length)
        self.kv: Tensor = torch.zeros(layers, 2, self.rows + 1, heads, self.length, width, dtype=dtype, device=device)
        self.routed_experts: Tensor | None = None
        if experts is not None:
            self.routed_experts = torch.zeros(self.rows + 1, self.length, *experts, dtype=torch.int16, device=device)

    @property
    def scratch(self) -> int:
        """The row that is never read."""
        return self.rows

    def rows_for(self, length: int) -> int:
        """Return how many rows of `length` tokens fit in the budget (at least one)."""
        return max(1, min(self.max_rows, self._budget // (bucket(length) * self.token_bytes) - 1))

    def reserve(self, length: int) -> None:
        """Make all rows at least `length` long; rows beyond `rows_for` of the new length are given up."""
        if length <= self.length:
            return
        roomy = bucket(2 * length)  # growing copies everything: do it seldom, where that costs no rows
        length = roomy if self.rows_for(roomy) == self.rows_for(length) else bucket(length)
        rows = self.rows_for(length)
        layers, two, _, heads, _, width = self.kv.shape
        grown = self.kv.new_zeros(layers, two, rows + 1, heads, length, width)
        kept = min(rows, self.rows)
        grown[:, :, :kept, :, : self.length] = self.kv[:, :, :kept]
        if self.routed_experts is not None:
            longer = self.routed_experts.new_zeros(rows + 1, length, *self.routed_experts.shape[2:])
            longer[:kept, : self.length] = self.routed_experts[:kept]
            self.routed_experts = longer
        self.kv, self.rows, self.length = grown, rows, length

    def copy_out(self, row: int, length: int) -> Tensor:
        """A copy of a row's first `length` tokens."""
        return self.kv[:, :, row, :, :length].clone()

    def routed_experts_out(self, row: int, length: int) -> Tensor | None:
        """A copy of the routed experts of a row's first `length` tokens, where they are recorded."""
        return None if self.routed_experts is None else self.routed_experts[row, :length].clone()

    def state_out(self, row: int, length: int) -> RowState | None:
        """Return a row's state after `length` tokens, where layers have one."""
        state = None if self.states is None else self.states.get(row)
        return state if state is not None and state.place == length else None

    def copy_in(self, row: int, kv: Tensor, source: Prefix, length: int) -> None:
        """Take the first `length` tokens of a stored prefix (what `copy_out` and its kin gave) into a row."""
        self.kv[:, :, row, :, :length] = kv[:, :, :, :length]
        if self.routed_experts is not None and source.routed_experts is not None:
            self.routed_experts[row, :length] = source.routed_experts[:length]
        if self.states is not None and source.state is not None:
            self.states[row] = source.state

    def move(self, source: int, target: int, length: int) -> None:
        """Copy a row's first `length` tokens to another row."""
        self.kv[:, :, target, :, :length] = self.kv[:, :, source, :, :length]
        if self.routed_experts is not None:
            self.routed_experts[target, :length] = self.routed_experts[source, :length]
        if self.states is not None and (state := self.state_out(source, length)) is not None:
            self.states[target] = state

    def clear(self) -> None:
        """Zero what was written, so that non-finite values of a bad policy don't remain."""
        self.kv[:, :, :, :, : self.touched].zero_()
        self.touched = 0
        if self.states is not None:
            self.states.clear()


@dataclass(eq=False, slots=True)
class Prefix:
    """A token path whose first `computed` keys and values exist: in the store (`kv`, `routed_experts`) or in a row.

    With a `state` it serves only what begins with all of it; `weight` is the tokens that would take the state's memory.
    """

    owner: str
    ids: Sequence[int]
    computed: int
    chain: tuple[int, ...]
    kv: Tensor | None = None
    row: int | None = None
    routed_experts: Tensor | None = None
    state: RowState | None = None
    weight: int = 0


def chain(ids: Sequence[int]) -> tuple[int, ...]:
    """One hash for each whole block of `ids`, of everything up to the block's end."""
    found: list[int] = []
    last = 0
    for start in range(0, len(ids) - BLOCK + 1, BLOCK):
        last = hash((last, *ids[start : start + BLOCK]))
        found.append(last)
    return tuple(found)


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    limit = min(len(a), len(b))
    if a[:limit] == b[:limit]:
        return limit
    low, high = 0, limit  # a[:low] == b[:low], a[:high] != b[:high]
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if a[low:middle] == b[low:middle] else (low, middle)
    return low


@dataclass(slots=True)
class Prefixes:
    """Everything whose prefix may be shared, by block hashes; stored ones are bounded by `capacity` tokens."""

    capacity: int
    stored: OrderedDict[int, Prefix] = field(default_factory=OrderedDict)
    tokens: int = 0
    _by_hash: dict[int, dict[int, Prefix]] = field(default_factory=dict)

    def find(self, ids: Sequence[int], hashes: Sequence[int]) -> tuple[Prefix | None, int]:
        """The prefix that shares most tokens with `ids`, and how many; (None, 0) where no block is shared."""
        for key in reversed(hashes):
            if key in self._by_hash:
                newest = list(reversed(self._by_hash[key].values()))[:_CANDIDATES]
                best = max(newest, key=lambda prefix: common(ids, prefix.ids))
                length = common(ids, best.ids)
                if length >= BLOCK:
                    if best.kv is not None:
                        self.stored.move_to_end(id(best))
                    return best, length
        return None, 0

    def add(self, prefix: Prefix) -> None:
        """Add it to the index; a stored one counts against the capacity, and the least recently used are evicted."""
        for key in prefix.chain:
            self._by_hash.setdefault(key, {})[id(prefix)] = prefix
        if prefix.kv is not None:
            self.stored[id(prefix)] = prefix
            self.tokens += prefix.computed + prefix.weight
            while self.tokens > self.capacity:
                self.remove(next(iter(self.stored.values())))

    def remove(self, prefix: Prefix) -> None:
        """Forget it; nothing happens where it is already forgotten."""
        for key in prefix.chain:
            known = self._by_hash.get(key)
            if known is not None and known.pop(id(prefix), None) is not None and not known:
                del self._by_hash[key]
        if self.stored.pop(id(prefix), None) is not None:
            self.tokens -= prefix.computed + prefix.weight

    def clear(self) -> None:
        """Forget all prefixes."""
        self.stored.clear()
        self._by_hash.clear()
        self.tokens = 0
