"""The trained tokens, as a loss sees them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from agentrl.errors import InvalidInput
from agentrl.train.forest.columns import Column
from agentrl.train.forest.forest import Rows

Summand = Callable[[Tensor, Tensor], Tensor]
"""A function of log-ratios and of their sequences' mean advantages, [Q] each for (token, sequence) pairs: [Q]."""


NO_SEQUENCES = "this loss reads sequences: its algorithm's `needs.sequence` must be 'turn' or 'session'"
NO_PAIRS = "this loss compares sequences: its algorithm needs `needs.pairs`, and pairs in its credit"


class NeededColumn:
    """A column of `Tokens` that is None where the algorithm did not ask for it; a loss that reads it then is refused.

    Args:
        refusal: what is said then, by InvalidInput.
    """

    def __init__(self, refusal: str) -> None:
        self._refusal = refusal

    def __set_name__(self, owner: type, name: str) -> None:
        self._field = f"_{name}"

    def __get__(self, tokens: Tokens, owner: type) -> Tensor:
        column: Tensor | None = getattr(tokens, self._field)
        if column is None:
            raise InvalidInput(self._refusal)
        return column


@dataclass(slots=True)
class Tokens:
    """The trained tokens of a forest, one entry each; for a sequence-level loss one for each (token, sequence) pair.

    Log-probabilities are in nats, at the temperature that the token was sampled at.

    Attributes:
        logp: [P], under the weights that are being trained; the only field with a gradient, but for
            `sequence_log_ratio` and `sequence_logp`.
        entropy: [P], of the next-token distribution, in nats; without a gradient here.
        old_logp: [P], what a ratio is against. A token that was sampled under an older version than the trainer's:
            the policy that sampled it, unless `algo.correction.proximal` is `recomputed`. Any other: the policy before
            the step's first update, so that its ratio is exactly 1 until then.
        behaviour_logp: [P], as the engine reported it when it sampled the token.
        ref_logp: [P], under the reference; None without one.
        advantage: [P].
        weight: [P], what the loss is multiplied with before it is summed; denominators are inside.
        version: int64 [P], of the policy that sampled the token; -1 where none did.
        trained_version: the policy version that is being trained.
        turn: int64 [P], the node in its session; of tokens that several sessions share, the first one's, as for
            `session` and `agent`.
        session: int64 [P], the session in the batch.
        agent: int64 [P], which agent it is of.
        marked: bool [P], which tokens the loss treats apart (`PolicyLoss.mark`).
        sequence: int64 [P], the number of the token's turn or path in the batch; None without `Needs.sequence`, as all
            that follows.
        sequence_log_ratio: [P], the sum of (logp - old_logp) over the whole sequence, with its exact gradient.
        sequence_term_sum: [P], the sum of the loss's own terms (`Algorithm.summand`) over the whole sequence, with its
            exact gradient; None where it has none.
        sequence_length: [P], trained tokens of the sequence.
        sequence_advantage: [P], the mean advantage of its tokens; with pairs 1 in a chosen sequence, -1 in a rejected.
        sequence_logp: float64 [P], the sum of logp over the whole sequence, with its exact gradient; None without
            `Needs.pairs`, as all that follows.
        partner_logp: float64 [P], the sum over the pair's other sequence, without a gradient: its own entries have it.
        sequence_ref_logp: float64 [P], the sum of ref_logp over the sequence; 0 without a reference.
        partner_ref_logp: float64 [P], that of the pair's other sequence.
        partner_length: [P], trained tokens of it.
        divergence: float64 [P], the mean log-ratio to the reference over the batch's sequences with a verdict of 0
            (`Label`), which estimates the policy's divergence from it; 0 without any; the same for all entries, and
            without a gradient. None without `Needs.labels`.
        judged: [P], the part of each token's weight that labels with a verdict have; None without labels.
        teacher_divergence: [P], of the policy's distribution from the teacher's; with a gradient. None without
            `Algorithm.divergence`.
        fields: the declared fields (`Algorithm.fields`), by name.
        metrics: further numbers for each entry, by their names in the log; the loss may add to it.
        weighted: likewise, averaged by weight: each pair or label counts by its own, whatever its length.
    """

    logp: Tensor
    entropy: Tensor
    old_logp: Tensor
    behaviour_logp: Tensor
    ref_logp: Tensor | None
    advantage: Tensor
    weight: Tensor
    version: Tensor
    trained_version: int
    turn: Tensor
    session: Tensor
    agent: Tensor
    _marked: Tensor | None = None
    sequence: Tensor | None = None
    _sequence_log_ratio: Tensor | None = None
    _sequence_term_sum: Tensor | None = None
    _sequence_length: Tensor | None = None
    _sequence_advantage: Tensor | None = None
    _sequence_logp: Tensor | None = None
    _partner_logp: Tensor | None = None
    _sequence_ref_logp: Tensor | None = None
    _partner_ref_logp: Tensor | None = None
    _partner_length: Tensor | None = None
    _divergence: Tensor | None = None
    judged: Tensor | None = None
    _teacher_divergence: Tensor | None = None
    fields: dict[str, Column] = field(default_factory=dict)
    metrics: dict[str, Tensor] = field(default_factory=dict)
    weighted: dict[str, Tensor] = field(default_factory=dict)
    marked = NeededColumn("this loss marks tokens of a batch: call `Algorithm.mark(forests)` before the step")
    sequence_log_ratio = NeededColumn(NO_SEQUENCES)
    sequence_term_sum = NeededColumn(NO_SEQUENCES)
    sequence_length = NeededColumn(NO_SEQUENCES)
    sequence_advantage = NeededColumn(NO_SEQUENCES)
    sequence_logp = NeededColumn(NO_PAIRS)
    partner_logp = NeededColumn(NO_PAIRS)
    sequence_ref_logp = NeededColumn(NO_PAIRS)
    partner_ref_logp = NeededColumn(NO_PAIRS)
    partner_length = NeededColumn(NO_PAIRS)
    divergence = NeededColumn("this loss reads labels: its algorithm needs `needs.labels`, and labels in its credit")
    teacher_divergence = NeededColumn("this loss reads a teacher's divergence, which this trainer does not compute")

    @classmethod
    def of(cls, logp: Tensor, entropy: Tensor, rows: Rows, version: int, proximal: Proximal = "behaviour") -> Tokens:
        """A forest's rows with their log-probabilities and entropies, [P] each, under the trainer's `version`."""
        return cls(
            logp=logp,
            entropy=entropy.detach(),
            old_logp=old_policy(logp, rows, version, proximal),
            behaviour_logp=rows.behaviour_logp,
            ref_logp=rows.ref_logp,
            advantage=rows.advantage,
            weight=rows.weight,
            version=rows.version,
            trained_version=version,
            turn=rows.turn,
            session=rows.session,
            agent=rows.agent,
            _marked=rows.marked,
            fields={name: one for name, one in rows.fields.items() if isinstance(one, Column)},
        )

    @property
    def stale(self) -> Tensor:
        """True for tokens that an older version than the trainer's sampled: [P]."""
        return is_stale(self.version, self.trained_version)

    @property
    def ratio(self) -> Tensor:
        """The probability ratio pi / pi_old: [P]."""
        return torch.exp(self.logp - self.old_logp)

    def take(self, index: Tensor) -> Tokens:
        """Some of the tokens, by a mask or their indices, with their metrics."""
        metrics = {name: each[index] for name, each in self.metrics.items()}
        return dataclasses.replace(self._at(index), metrics=metrics, weighted={})

    def with_advantage(self, advantage: Tensor) -> Tokens:
        """The same tokens with another advantage channel, and metrics of their own."""
        return dataclasses.replace(self, advantage=advantage, metrics={})

    def by_sequence(self, rows: Rows, sums: Tensor, summand: Summand | None = None) -> Tokens:
        """An entry for each (token, sequence) pair.

        Args:
            rows: these tokens' rows.
            sums: float64 [R, N], of the batch's sequences; see `agentrl.train.algorithms.objective.empty_sums`.
            summand: the terms that the second row is of; None: there is no such row.
        """
        pairs = rows.require_sequences()
        at = self._at(pairs.token)
        step = at.logp - at.logp.detach()  # 0, with a gradient
        total = (pairs.total[pairs.sequence] / pairs.weight) * step
        tokens = dataclasses.replace(
            at,
            weight=pairs.weight,
            advantage=pairs.advantage,
            sequence=pairs.sequence,
            _sequence_log_ratio=sums[0, pairs.sequence].to(at.logp.dtype) + total,
            _sequence_length=pairs.length[pairs.sequence],
            _sequence_advantage=pairs.mean_advantage[pairs.sequence],
            metrics={},
            weighted={},
        )
        if summand is not None:
            terms = summand(at.logp - at.old_logp, pairs.mean_advantage[pairs.sequence])
            share = pairs.total[pairs.sequence] / pairs.weight
            whole = sums[1, pairs.sequence].to(at.logp.dtype) + share * (terms - terms.detach())
            return dataclasses.replace(tokens, _sequence_term_sum=whole)
        if len(sums) < 3 or (len(sums) == 3 and pairs.partner is None):
            return tokens
        _, logp, ref_logp = sums[:3]
        tokens = dataclasses.replace(
            tokens, _sequence_logp=logp[pairs.sequence] + total, _sequence_ref_logp=ref_logp[pairs.sequence]
        )
        if pairs.partner is None:
            measured = (pairs.mean_advantage == 0) & (sums[3] > 0)  # those of this update
            mean = (logp - ref_logp)[measured].mean() if bool(measured.any()) else logp.new_zeros(())
            return dataclasses.replace(tokens, _divergence=mean.expand(len(pairs)))
        partner = pairs.partner[pairs.sequence]
        return dataclasses.replace(
            tokens,
            _partner_logp=logp[partner],
            _partner_ref_logp=ref_logp[partner],
            _partner_length=pairs.length[partner],
        )

    def _at(self, index: Tensor) -> Tokens:
        fields: dict[str, Any] = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        changed: dict[str, Any] = {name: x[index] for name, x in fields.items() if isinstance(x, Tensor)}
        changed["fields"] = {name: column[index] for name, column in self.fields.items()}
        return Tokens(**(fields | changed))


Proximal = Literal["behaviour", "recomputed"]
"""The denominator of an older token's ratio; see `CorrectionConfig.proximal`."""


def old_policy(logp: Tensor, rows: Rows, version: int, proximal: Proximal = "behaviour") -> Tensor:
    """Return the denominator of each row's ratio, [P], without a gradient; see `Tokens.old_logp`."""
    if rows.old_logp is not None:
        return rows.old_logp
    if proximal == "recomputed":
        return logp.detach()
    stale = is_stale(rows.version, version)
    return torch.where(stale, rows.behaviour_logp, logp.detach()) if bool(stale.any()) else logp.detach()


def is_stale(sampled: Tensor, version: int) -> Tensor:
    """Return which tokens an older version than the trainer's sampled; `sampled` and the result have one shape."""
    return (sampled >= 0) & (sampled < version)
