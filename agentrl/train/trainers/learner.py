"""A training step, the same for every trainer and on every rank: reference scores, updates, critic, counts.

    reference log-probabilities, where they are needed
    log-probabilities of all minibatches but the first             where there are several
    for each of `epochs`:                                          none while a critic warms up
        for each minibatch, in the epoch's order:
            sums over its sequences, where loss or corrections do  a pass without gradient, or none
            the gradient of its forests
            update
    the reference follows the policy, where it does
    the critic's updates

The normalisers of a loss are inside the forests' weights, so gradients of forests add up; a minibatch's own denominator
is a factor of its loss. A batch is one minibatch unless `algo.minibatches` says otherwise. `old_logp` costs the first
minibatch no pass of its own: its first gradient is computed under the old policy. Sums over sequences are complete,
over all forests and ranks, before the gradient of any token is computed, so no split of a batch changes them. Before
the first update log-ratios are all 0, which needs no pass, unless tokens are stale; nor does a batch of which every
sequence, and every pair, lies in one forest: its sums are those of the forward pass that the gradient needs anyway.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from agentrl.config import AlgoConfig
from agentrl.errors import InvalidInput
from agentrl.train.algorithms import Algorithm, make_algorithm
from agentrl.train.algorithms.objective import (
    Meter,
    add_sums,
    empty_sums,
    hold_sequences,
    known_sums,
    objective,
    sums_change,
)
from agentrl.train.algorithms.tokens import old_policy
from agentrl.train.forest.forest import Membership, Rows
from agentrl.train.trainers.critic import ValueModel, ValueUpdates

if TYPE_CHECKING:
    from agentrl.train.trainers.teachers.divergence import VocabularyHead


class HasRows(Protocol):
    """A forest that is ready to be computed."""

    rows: Rows


B = TypeVar("B", bound=HasRows)


class KeptWeights(Protocol):
    """A copy of the policy's weights, such as the reference."""

    def exchanged(self) -> AbstractContextManager[None]:
        """Swap the policy's weights and these within the block."""

    def move_towards(self, decay: float) -> None:
        """Make these `decay` times themselves plus the rest times the policy's."""


class Updates(Protocol):
    """An optimizer with its schedule; `steps` counts training steps, `skipped` updates with a non-finite gradient."""

    steps: int
    skipped: int

    def rate(self) -> float:
        """The learning rate of this training step."""

    def step(self) -> float:
        """Clip, update, clear the gradients; returns their norm before clipping."""


@dataclass
class Minibatch(Generic[B]):
    """The data of one update, on this rank.

    Attributes:
        batches: forests as they are computed.
        scale: what their weights are multiplied by; see `Membership`.
    """

    batches: list[B]
    scale: float

    def scaled(self, rows: Rows) -> Rows:
        """Rows with their weights in this update."""
        return replace(rows, weight=rows.weight * self.scale)


def minibatches(batches: Sequence[B], epoch: int) -> list[Minibatch[B]]:
    """An epoch's minibatches, in order: one, where forests don't say; behind the last epoch, those of the first."""
    found: dict[int, Minibatch[B]] = {}
    for batch in batches:
        updates = batch.rows.updates or (Membership(0),)
        place, scale = updates[epoch % len(updates)]
        if place >= 0:
            found.setdefault(place, Minibatch([], scale)).batches.append(batch)
    return [found[place] for place in sorted(found)]


@dataclass
class RankStepResult:
    """The outcome of one training step, on this rank.

    Attributes:
        loss: added up over its updates.
        norm: of the gradient before clipping, the largest of the last epoch's updates.
        rate: the learning rate.
        skipped: updates that were not made, since their gradient was not finite.
        epochs: passes over the batch.
        minibatches: updates of each; None where the settings say one.
        meter: metrics of tokens.
        critic: the same of the critic's.
    """

    loss: float = 0.0
    norm: float = 0.0
    rate: float = 0.0
    skipped: int = 0
    epochs: int = 0
    minibatches: int | None = None
    meter: Meter = field(default_factory=Meter)
    critic: Meter = field(default_factory=Meter)

    def metrics(self) -> dict[str, float]:
        """Return the metrics that a run logs."""
        each = 1 if self.minibatches is None else self.minibatches
        return {
            "loss": self.loss / max(self.epochs * each, 1),
            "grad_norm": self.norm,
            "lr": self.rate,
            "skipped_updates": float(self.skipped),
            **({} if self.minibatches is None else {"minibatches": float(self.minibatches)}),
            **self.meter.metrics(),
            **self.critic.metrics(),
        }


class StepLearner(ABC, Generic[B]):
    """A training step of a trainer or of one of its ranks; `learn` runs its parts in order.

    Attributes:
        algorithm: of the phase, with its settings.
        optimizer: of the policy.
        critic: where the algorithm needs one.
        reference: the weights that the phase began with, where it `keeps_reference`.
        version: the policy version that the weights are.
        sums: of the batch's sequences, those of the minibatch under way among them, while they are needed; see
            `empty_sums`.
        sums_are_local: each forest's sums are its own, and are made in the pass that computes its loss.
        scale: of the minibatch under way.
        teacher: the teacher's head, where a divergence is over the whole vocabulary.
        takes_minibatches: see `agentrl.train.trainers.plugin.TrainerPlugin`.
    """

    takes_minibatches: ClassVar[bool] = True
    algorithm: Algorithm
    optimizer: Updates
    critic: ValueModel | None = None
    reference: KeptWeights | None = None
    version: int = 0
    sums: Tensor | None = None
    sums_are_local: bool = False
    scale: float = 1.0
    teacher: VocabularyHead | None = None

    def start_phase(self, algo: AlgoConfig) -> None:
        """Compute the credit and the loss of the coming steps by this algorithm."""
        self.algorithm = make_algorithm(algo)

    def begin_step(self, state: Mapping[str, Any] | None) -> None:
        """Take over what the loss depends on besides forests: the state of the run's algorithm; None: as it is."""
        if state is not None:
            self.algorithm.load_snapshot(state)

    def known_sums(self, batches: Sequence[B]) -> bool:
        """Return whether all sums over sequences are 0 before a batch's first update; ranks ask all of them."""
        return known_sums(self.algorithm, [batch.rows for batch in batches], self.version)

    def holds_sequences(self, batches: Sequence[B]) -> bool:
        """Return whether each sequence, with its pair, lies whole in the rows of one batch; ranks ask all of them."""
        return not self.algorithm.needs.labels and all(hold_sequences(batch.rows) for batch in batches)

    @property
    def algo(self) -> AlgoConfig:
        """The settings of the phase's algorithm."""
        return self.algorithm.config

    @property
    def keeps_reference(self) -> bool:
        """True where the phase needs log-probabilities under the weights that it began with."""
        needs = self.algorithm.needs
        return needs.reference or needs.reward_model or bool(self.algo.kl_coef)

    @property
    def warming_critic(self) -> bool:
        """True at the beginning of a phase, where only the critic learns."""
        return self.critic is not None and self.optimizer.steps < self.algorithm.critic_config.value_warmup

    @property
    def scores_reference(self) -> bool:
        """True where a step itself reads reference log-probabilities; a KL penalty in rewards is computed before it."""
        return self.algorithm.needs.reference or bool(self.algo.kl_coef and self.algo.kl_as == "loss")

    def require_reference(self) -> KeptWeights:
        """Return the reference."""
        if self.reference is None:
            raise InvalidInput(f"algo={self.algo.name} keeps no reference: it needs none, and algo.kl_coef is 0")
        return self.reference

    def require_critic(self) -> ValueModel:
        """Return the critic."""
        if self.critic is None:
            raise InvalidInput(f"algo={self.algo.name} has no critic: it needs none")
        return self.critic

    @abstractmethod
    def score_reference(self, batches: Sequence[B]) -> None:
        """Set each batch's `rows.ref_logp`, where there is a reference."""

    @abstractmethod
    def score_old(self, batches: Sequence[B], meter: Meter) -> None:
        """Call `keep_old` with each batch's log-probabilities; no gradient."""

    @abstractmethod
    def accumulate(self, batches: Sequence[B], meter: Meter, *, first: bool) -> float:
        """Accumulate the gradient of all batches; returns this rank's part of the loss."""

    @abstractmethod
    def sum_sequences(self, batches: Sequence[B], sums: Tensor) -> None:
        """Add every batch's part (`add_sums`) to the sums, over all ranks; no gradient."""

    @abstractmethod
    def fit(self, critic: ValueModel, batches: Sequence[B]) -> Meter:
        """The critic's updates on a batch."""

    def learn(self, batches: Sequence[B], sequences: int, read: Sequence[B] = ()) -> RankStepResult:
        """Take a training step; without any batch no weight changes, but the schedule and the version advance.

        Args:
            batches: the step's forests as they are computed, or this rank's share of them.
            sequences: how many sequences the batch has, on all ranks; see `sequence_count`.
            read: what a critic of joint paths learns from, in place of these.
        """
        skipped, epochs = self.optimizer.skipped, self.algo.epochs if batches and not self.warming_critic else 0
        learned, later = RankStepResult(rate=self.optimizer.rate(), epochs=epochs), minibatches(batches, 0)[1:]
        if self.algo.minibatches > 1:
            learned.minibatches = len(minibatches(batches, 0))
        if epochs and self.scores_reference:
            self.score_reference(batches)
        if epochs and later and self.algorithm.needs.engine:
            self.score_old([batch for part in later for batch in part.batches], learned.meter)
        for epoch in range(epochs):
            norms = [
                self._update(part, learned, sequences, epoch=epoch, first=epoch == number == 0)
                for number, part in enumerate(minibatches(batches, epoch))
            ]
            learned.norm = max(norms, key=lambda norm: (math.isnan(norm), norm))
        self.sums, self.sums_are_local, self.scale = None, False, 1.0
        if epochs and self.keeps_reference and self.algo.reference_decay is not None:
            self.require_reference().move_towards(self.algo.reference_decay)
        if self.critic is not None and batches:
            joint = self.algorithm.reads_joint_paths
            if joint and not read:
                raise InvalidInput("algo.value_path=joint: the critic learns from forests of its own; none were given")
            learned.critic = self.fit(self.critic, read if joint else batches)
        self.optimizer.steps += 1
        if self.critic is not None:
            self.critic.end_step()
        self.version += 1
        learned.skipped = self.optimizer.skipped - skipped
        return learned

    def _update(self, part: Minibatch[B], learned: RankStepResult, sequences: int, *, epoch: int, first: bool) -> float:
        """Make one update, the step's first one or a later one; returns the gradient's norm before clipping."""
        changing = sums_change(self.algorithm)
        if self.algorithm.sequence is not None and (changing or epoch == 0):
            sums = empty_sums(self.algorithm, sequences)
            known = first and self.known_sums(part.batches)
            self.sums_are_local = not known and changing and self.holds_sequences(part.batches)
            if not known and not self.sums_are_local:
                self.sum_sequences(part.batches, sums)
            self.sums = sums if changing or self.sums is None else self.sums + sums
        self.scale = part.scale
        learned.loss += self.accumulate(part.batches, learned.meter, first=first)
        return self.optimizer.step()

    def value_updates(self, batches: Sequence[B], read: Callable[[B], Iterable[tuple[Tensor, Rows]]]) -> ValueUpdates:
        """A critic's updates on a batch.

        Args:
            batches: the batch's.
            read: a forest's hidden states with the rows that they predict; nothing, where another rank has them.
        """

        def weighed(part: Minibatch[B]) -> Iterator[tuple[Tensor, Rows]]:
            return ((states, part.scaled(rows)) for batch in part.batches for states, rows in read(batch))

        return lambda epoch: map(weighed, minibatches(batches, epoch))

    def keep_old(self, logp: Tensor, rows: Rows, meter: Meter) -> None:
        """Set `rows.old_logp` before the step's first update, and compare with the engine, as `loss` does then."""
        rows.old_logp = old_policy(logp, rows, self.version, self.algo.correction.proximal)
        meter.compare(logp, rows, self.version)

    def loss(
        self,
        logp: Tensor,
        entropy: Tensor,
        rows: Rows,
        values: Tensor | None = None,
        meter: Meter | None = None,
        *,
        first: bool = True,
        divergence: Tensor | None = None,
    ) -> Tensor:
        """One forest's loss.

        Args:
            logp: [P].
            entropy: [P].
            rows: the forest's.
            values: [P], where there is a critic.
            meter: accumulates metrics, if given.
            first: no update has been made since the batch began: the current policy is the old policy.
            divergence: [P], from the teacher, where the algorithm reads one.
        """
        if first and self.algo.epochs > 1 and rows.old_logp is None:
            rows.old_logp = old_policy(logp, rows, self.version, self.algo.correction.proximal)
        sums = None if self.sums is None else self.sums.to(logp.device)
        if sums is not None and self.sums_are_local:
            sums = torch.zeros_like(sums)
            add_sums(self.algorithm, sums, logp, rows, self.version)
        of_rows = {"values": values, "sums": sums, "divergence": divergence}
        loss, tokens = objective(self.algorithm, logp, entropy, rows, version=self.version, **of_rows)
        if meter is not None:
            needs = self.algorithm.needs
            meter.add(tokens, rows, engine=needs.engine, first=first, scores=needs.head is not None)
        return loss * self.scale
