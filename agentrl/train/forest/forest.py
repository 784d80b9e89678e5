"""A packed batch of token trees: one row, one visibility rule, and (predictor, target) pairs.

Trees lie depth-first in one row of T tokens. `position` is a token's depth along its path (for RoPE), and
`end` is the index one past its subtree. Key k is visible to query q exactly when k <= q < end[k]: that one
rule is padding-free packing (a new root ends everything before it), branching, and prompts shared by a group. Where a
family's image tokens see each other both ways (Gemma 3), the field `block` has the first token of each one's image, -1
for text, and k is also visible to q when both are of one block.

Which token predicts which is given by pairs and not by a shift: a branching point predicts several children,
and roots are not predicted. Per-token facts about training (weight, advantage, …) are stored at the
*target*. The loss is the sum over distinct trained tokens of weight * loss(logp, advantage).

What was given up: a batch dimension. A forest is one row; several forests are several micro-batches, whose
losses simply add, because every normaliser is already inside `weight`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from agentrl.errors import InvalidInput
from agentrl.train.algorithms.sequences import Sequences
from agentrl.train.forest.columns import Column, SharedColumn
from agentrl.train.forest.pictures import AXES, BLOCK, check_axes, check_blocks

PAIRS = ("predictor", "target")
"""The fields that hold pairs; all other tensors hold one entry per token."""
WIDE = ("critic_view", "routed_experts")
"""Fields whose entries are arrays of numbers."""


class Membership(NamedTuple):
    """The update that a forest is a part of, in one epoch (`agentrl.train.driver.minibatches`).

    Attributes:
        place: the update's, among the epoch's; -1 where the forest is in none.
        scale: what the forest's weights are multiplied by there: the batch's denominator over the update's.
    """

    place: int
    scale: float = 1.0


@dataclass(slots=True, kw_only=True)
class TokenColumns:
    """The columns that forests and rows have in common, and not always: None is what was not computed.

    Attributes:
        advantage_minus: float32, the negative part, with two channels.
        old_logp: float32, the log-probability under the policy before a step's first update.
        ref_logp: float32, the log-probability under the reference policy.
        value: float32, what a critic estimated, before the step's first update, of the state before the token.
        returns: float32, what it is to estimate there.
        marked: bool, what the loss treats apart (`PolicyLoss.mark`).
        critic_view: float32, [T, v], what a centralised critic sees besides the token's path.
        sequences: what the trained tokens belong to, for a sequence-level term.
        updates: of each epoch, which update the forest is a part of. Empty: each epoch has one update.
        fields: what the algorithm and its loss declared (`Algorithm.fields`), by name, and the distributions that
            tokens were drawn from (`forest.supports`) where it was not the softmax over the whole vocabulary.
    """

    advantage_minus: Tensor | None = None
    old_logp: Tensor | None = None
    ref_logp: Tensor | None = None
    value: Tensor | None = None
    returns: Tensor | None = None
    marked: Tensor | None = None
    critic_view: Tensor | None = None
    sequences: Sequences | None = None
    updates: tuple[Membership, ...] = ()
    fields: dict[str, Column | SharedColumn] = field(default_factory=dict)

    def to(self, device: torch.device | str) -> Self:
        """The same with its tensors on `device`."""

        def move(column: Any) -> Any:
            return column.to(device, non_blocking=True) if isinstance(column, Tensor) else column.to(device)

        return self._change(move, move)

    def _change(self, column: Callable[[Any], Any], sequences: Callable[[Sequences], Sequences]) -> Self:
        changed: dict[str, Any] = {name: column(tensor) for name, tensor in self._tensors()}
        together = None if self.sequences is None else sequences(self.sequences)
        fields = {name: column(values) for name, values in self.fields.items()}
        return dataclasses.replace(self, **changed, sequences=together, fields=fields)

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        for f in dataclasses.fields(self):
            if isinstance(tensor := getattr(self, f.name), Tensor):
                yield f.name, tensor


@dataclass(slots=True)
class Rows(TokenColumns):
    """The trained (predictor, target) pairs of a forest, P of them, with what training needs to know of the targets.

    Fields have the forest's names, but for `turn`, `session` and `agent`, which are its `node_id`, `session_id` and
    `agent_id`. All are P long, and the tokens of `sequences` are rows here; `updates` is the forest's.
    """

    predictor: Tensor
    target: Tensor
    token_ids: Tensor
    weight: Tensor
    advantage: Tensor
    temperature: Tensor
    behaviour_logp: Tensor
    version: Tensor
    turn: Tensor
    session: Tensor
    agent: Tensor

    def __len__(self) -> int:
        return int(self.target.numel())

    def require_sequences(self) -> Sequences:
        """Return what the rows belong to, for a sequence-level term.

        Raises:
            InvalidInput: the forest was packed without.
        """
        if self.sequences is None:
            raise InvalidInput("the forest was packed without sequences: give `pack` the algorithm's `sequence`")
        return self.sequences

    def take(self, index: Tensor) -> Rows:
        """Return some of the rows, in ascending order: their indices, or a mask."""
        place = torch.full((len(self),), -1, device=self.target.device)
        place[index] = torch.arange(int(place[index].numel()), device=place.device)
        return self._change(lambda column: column[index], lambda sequences: sequences.moved(place))


_NAMES = {"turn": "node_id", "session": "session_id", "agent": "agent_id"}
"""Rows' names of the forest's fields, where they are others."""
_AT_TARGETS = tuple(
    f.name for f in dataclasses.fields(Rows) if f.name not in (*PAIRS, "sequences", "updates", "fields")
)


@dataclass(slots=True)
class Forest(TokenColumns):
    """Trees of tokens, packed. Every tensor but the pairs has length T; `check` states the invariants.

    Attributes:
        token_ids: int64.
        position: int64, the depth along the path; roots are at 0.
        end: int64, one past the subtree's last token.
        node_id: int64, the id of the node (in its session) that the token belongs to; where several sessions
            share a token, the first one's.
        session_id: int64, an index into `sessions`; likewise the first one's.
        agent_id: int64, an index into `agents`: which agent it is of; likewise the first one's.
        weight: float32, 0 where a token is not trained.
        advantage: float32; with two channels, the positive part.
        temperature: float32, what the token was sampled at (1 where it was not sampled).
        behaviour_logp: float32, the engine's log-probability at that temperature.
        version: int64, the policy version that sampled the token, -1 where none did.
        predictor: int64, ascending.
        target: int64, the token that `predictor` predicts.
        sessions: the session ids that `session_id` counts.
        agents: the names that `agent_id` counts.
        routed_experts: int16, [T, layers, k], the experts that the engine sent the token to in each layer that has
            some; -1 where they were not recorded.
    """

    token_ids: Tensor
    position: Tensor
    end: Tensor
    node_id: Tensor
    session_id: Tensor
    agent_id: Tensor
    weight: Tensor
    advantage: Tensor
    temperature: Tensor
    behaviour_logp: Tensor
    version: Tensor
    predictor: Tensor
    target: Tensor
    sessions: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()
    routed_experts: Tensor | None = None

    def __len__(self) -> int:
        return int(self.token_ids.numel())

    @property
    def trained(self) -> int:
        """The number of trained tokens."""
        return int((self.weight > 0).sum())

    def rows(self) -> Rows:
        """The pairs whose target is trained, in the order of their predictors."""
        keep = self.weight[self.target] > 0
        predictor, target = self.predictor[keep], self.target[keep]

        def at(values: Tensor | None) -> Tensor | None:
            return None if values is None else values[target]

        sequences = self.sequences
        if sequences is not None:
            place = torch.full((len(self),), -1, device=target.device)
            place[target] = torch.arange(target.numel(), device=target.device)
            sequences = sequences.moved(place)
        found: dict[str, Any] = {name: at(getattr(self, _NAMES.get(name, name))) for name in _AT_TARGETS}
        fields = {name: column[target] for name, column in self.fields.items()}
        return Rows(predictor, target, **found, sequences=sequences, updates=self.updates, fields=fields)

    def path_sum(self, values: Tensor) -> Tensor:
        """Sum of `values` over each token's path, itself included, without a loop: [T] -> [T].

        A token's value enters a running sum where it stands, and leaves it where its subtree ends.
        """
        leave = torch.zeros(len(self) + 1, dtype=values.dtype, device=values.device).index_add_(0, self.end, values)
        return torch.cumsum(values, 0) - torch.cumsum(leave, 0)[: len(self)]

    def visible(self, query: Tensor, key: Tensor) -> Tensor:
        """The visibility rule, broadcast over index tensors."""
        seen, block = (key <= query) & (query < self.end[key]), self.fields.get(BLOCK)
        if not isinstance(block, Column):
            return seen
        return seen | (block.values[key] == block.values[query]) & (block.values[key] >= 0)

    def padded(self, length: int) -> Forest:
        """The forest with untrained one-token trees behind it, up to `length` tokens (for fixed shapes)."""
        extra = length - len(self)
        if extra < 0:
            raise InvalidInput(f"length {length} is shorter than the forest's {len(self)} tokens")
        if extra == 0:
            return self
        fill = dict.fromkeys(("version", "session_id", "node_id", "agent_id", "routed_experts"), -1) | {
            "temperature": 1.0
        }
        grown = {
            name: torch.cat((tensor, tensor.new_full((extra, *tensor.shape[1:]), fill.get(name, 0))))
            for name, tensor in self._tensors()
            if name not in PAIRS
        }
        grown["end"][len(self) :] = torch.arange(len(self) + 1, length + 1, device=self.end.device)
        fields = {name: column.padded(extra) for name, column in self.fields.items()}
        return dataclasses.replace(self, **grown, fields=fields)  # type: ignore[arg-type]  # only tensors are grown

    def parents(self) -> Tensor:
        """Each token's parent (-1 for a root), derived from `end` alone: [T]."""
        parents: list[int] = []
        path: list[tuple[int, int]] = []
        for index, end in enumerate(self.end.tolist()):
            while path and path[-1][1] <= index:
                path.pop()
            parents.append(path[-1][0] if path else -1)
            path.append((index, end))
        return torch.tensor(parents, dtype=torch.int64)

    def check(self) -> None:
        """Hold the forest to its invariants.

        Raises:
            InvalidInput: naming the field and the first index that breaks its rule.
        """
        length = len(self)
        for name, tensor in self._tensors():
            if name not in PAIRS and tensor.shape[: 1 if name in WIDE else None] != (length,):
                raise InvalidInput(f"{name} has shape {tuple(tensor.shape)}, not ({length},)")
        for name, column in self.fields.items():
            if len(column) != length:
                raise InvalidInput(f"{name} has {len(column)} entries, not {length}")
        index, end = torch.arange(length), self.end.cpu()
        _require("end", (end > index) & (end <= length), "is not after its token and within the row")
        parent = self.parents()
        inner = parent >= 0
        _require("end", ~inner | (end <= end[parent.clamp(min=0)]), "reaches beyond its parent's")
        depth = torch.where(inner, self.position.cpu()[parent.clamp(min=0)] + 1, 0)
        _require("position", self.position.cpu() == depth, "is not the depth along the path")
        if (wrong := check_axes(self.fields, parent.tolist())) is not None:
            raise InvalidInput(f"{AXES}[{wrong}] is not what its path makes it")
        if broken := check_blocks(self.fields, parent.tolist(), self.node_id, self.weight):
            raise InvalidInput(broken)
        _require("weight", torch.isfinite(self.weight) & (self.weight >= 0), "is negative or not finite")
        _require("weight", inner | (self.weight.cpu() == 0), "trains a root, which nothing predicts")
        _require("advantage", torch.isfinite(self.advantage), "is not finite")
        _require("temperature", (self.temperature > 0) | (self.weight == 0), "is not above 0 on a trained token")
        self._check_pairs(parent)

    def _check_pairs(self, parent: Tensor) -> None:
        predictor, target = self.predictor.cpu(), self.target.cpu()
        if predictor.shape != target.shape:
            raise InvalidInput(f"{predictor.numel()} predictors stand against {target.numel()} targets")
        _require("predictor", predictor.diff() >= 0, "is not ascending")
        _require("predictor", parent[target] == predictor, "is not its target's parent")
        expected = torch.nonzero(parent >= 0).flatten()
        if not torch.equal(target.sort().values, expected):
            raise InvalidInput("target does not name every token but the roots exactly once")


def _require(field: str, holds: Tensor, problem: str) -> None:
    if not bool(holds.all()):
        where = int(torch.nonzero(~holds)[0])
        raise InvalidInput(f"{field}[{where}] {problem}")


def sequence_count(forests: Sequence[Forest]) -> int:
    """Return the number of sequences of a batch, where it was packed with them."""
    return next((len(f.sequences.length) for f in forests if f.sequences is not None), 0)


def token_counts(forests: Sequence[Forest]) -> dict[str, float]:
    """The sizes of a batch, as a run logs them."""
    return {
        "tokens/packed": float(sum(map(len, forests))),
        "tokens/trained": float(sum(forest.trained for forest in forests)),
        "tokens/forests": float(len(forests)),
    }
