"""A training step, the same for every trainer and on every rank: reference scores, updates, critic, counts.

    reference log-probabilities, where they are needed
    for each of `epochs`:                                          none while a critic warms up
        sums over all sequences, where loss or corrections do      a pass without gradient
        the gradient of all forests
        update
    the reference follows the policy, where it does
    the critic's updates

The normalisers of a loss are inside the forests' weights, so gradients of forests add up. `old_logp` costs no pass of
its own: the first of several epochs *is* the old policy. Sums over sequences are complete, over all forests and ranks,
before the gradient of any token is computed, so no split of a batch changes them. Before the first update log-ratios
are all 0, which needs no pass, unless tokens are stale.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from torch import Tensor

from agentrl.config import AlgoConfig
from agentrl.train.algorithms import Algorithm, make_algorithm
from agentrl.train.backends.critic import ValueModel
from agentrl.train.forest import Forest, Rows
from agentrl.train.objective import Meter, empty_sums, known_sums, objective, sums_change
from agentrl.train.tokens import old_policy


class HasRows(Protocol):
    """A forest that is ready to be computed."""

    rows: Rows


B = TypeVar("B", bound=HasRows)


class Updates(Protocol):
    """An optimizer with its schedule; `steps` counts training steps, `skipped` updates with a non-finite gradient."""

    steps: int
    skipped: int

    def rate(self) -> float:
        """The learning rate of this training step."""
        ...

    def step(self) -> float:
        """Clip, update, clear the gradients; returns their norm before clipping."""
        ...


@dataclass
class Learned:
    """What one training step did, on this rank."""

    loss: float = 0.0
    norm: float = 0.0
    rate: float = 0.0
    skipped: int = 0
    epochs: int = 0
    meter: Meter = field(default_factory=Meter)
    critic: Meter = field(default_factory=Meter)

    def metrics(self) -> dict[str, float]:
        """As a run logs them."""
        return {
            "loss": self.loss / max(self.epochs, 1),
            "grad_norm": self.norm,
            "lr": self.rate,
            "skipped_updates": float(self.skipped),
            **self.meter.metrics(),
            **self.critic.metrics(),
        }


class Learner(ABC, Generic[B]):
    """A training step of a trainer or of one of its ranks; `learn` runs its parts in order.

    Attributes:
        algorithm: of the phase, with its settings.
        optimizer: of the policy.
        critic: where the algorithm needs one.
        version: the policy version that the weights are.
        sums: of the batch's sequences, while they are needed; see `empty_sums`.
    """

    algorithm: Algorithm
    optimizer: Updates
    critic: ValueModel | None = None
    version: int = 0
    sums: Tensor | None = None

    def start_phase(self, algo: AlgoConfig) -> None:
        """Set the phase's algorithm."""
        self.algorithm = make_algorithm(algo)

    def begin_step(self, state: Mapping[str, Any] | None) -> None:
        """Take over what the loss depends on besides forests: the state of the run's algorithm; None: as it is."""
        if state is not None:
            self.algorithm.load_snapshot(state)

    def known_sums(self, forests: Sequence[Forest]) -> bool:
        """Whether all sums over sequences are 0 before a batch's first update; ranks ask all of them."""
        return known_sums(self.algorithm, forests, self.version)

    @property
    def algo(self) -> AlgoConfig:
        """The algorithm's settings."""
        return self.algorithm.config

    @property
    def keeps_reference(self) -> bool:
        """Whether the phase needs log-probabilities under the weights that it began with."""
        needs = self.algorithm.needs
        return needs.reference or needs.reward_model or bool(self.algo.kl_coef)

    @property
    def warming_critic(self) -> bool:
        """Whether the phase is at its beginning, where only the critic learns."""
        return self.critic is not None and self.optimizer.steps < self.algorithm.critic_config.value_warmup

    @property
    def scores_reference(self) -> bool:
        """Whether a step itself reads them; a KL penalty in rewards was computed before credit."""
        return self.algorithm.needs.reference or bool(self.algo.kl_coef and self.algo.kl_as == "loss")

    @abstractmethod
    def score_reference(self, batches: Sequence[B]) -> None:
        """Set each batch's `rows.ref_logp`, where there is a reference."""

    @abstractmethod
    def average_reference(self, decay: float) -> None:
        """Make the reference `decay` times itself plus the rest times the policy."""

    @abstractmethod
    def accumulate(self, batches: Sequence[B], meter: Meter, *, first: bool) -> float:
        """Accumulate the gradient of all batches; returns this rank's part of the loss."""

    @abstractmethod
    def sum_sequences(self, batches: Sequence[B], sums: Tensor) -> None:
        """Add every batch's part (`add_sums`) to the sums, over all ranks; no gradient."""

    @abstractmethod
    def fit(self, critic: ValueModel, batches: Sequence[B]) -> Meter:
        """The critic's updates on a batch."""

    def learn(self, batches: Sequence[B], forests: Sequence[Forest], sequences: int) -> Learned:
        """Take a training step; without any batch no weight changes, but the schedule and the version advance.

        Args:
            batches: the step's forests as they are computed, or this rank's share of them.
            forests: the same before they were prepared.
            sequences: how many sequences the whole batch has.
        """
        skipped, epochs = self.optimizer.skipped, self.algo.epochs if batches and not self.warming_critic else 0
        learned = Learned(rate=self.optimizer.rate(), epochs=epochs)
        if epochs and self.scores_reference:
            self.score_reference(batches)
        for epoch in range(epochs):
            if self.algorithm.sequence is not None and (not epoch or sums_change(self.algorithm)):
                self.sums = empty_sums(self.algorithm, sequences)
                if epoch or not self.known_sums(forests):
                    self.sum_sequences(batches, self.sums)
            learned.loss += self.accumulate(batches, learned.meter, first=epoch == 0)
            learned.norm = self.optimizer.step()
        self.sums = None
        if epochs and self.keeps_reference and self.algo.reference_decay is not None:
            self.average_reference(self.algo.reference_decay)
        if self.critic is not None and batches:
            learned.critic = self.fit(self.critic, batches)
        self.optimizer.steps += 1
        if self.critic is not None:
            self.critic.end_step()
        self.version += 1
        learned.skipped = self.optimizer.skipped - skipped
        return learned

    def loss(
        self,
        logp: Tensor,
        entropy: Tensor,
        rows: Rows,
        values: Tensor | None = None,
        meter: Meter | None = None,
        *,
        first: bool = True,
    ) -> Tensor:
        """One forest's loss.

        Args:
            logp: [P].
            entropy: [P].
            rows: the forest's.
            values: [P], where there is a critic.
            meter: accumulates metrics, if given.
            first: no update has been made since the batch began: the current policy is the old policy.
        """
        if first and self.algo.epochs > 1 and rows.old_logp is None:
            rows.old_logp = old_policy(logp, rows, self.version, self.algo.correction.proximal)
        sums = None if self.sums is None else self.sums.to(logp.device)
        loss, tokens = objective(self.algorithm, logp, entropy, rows, version=self.version, values=values, sums=sums)
        if meter is not None:
            meter.add(tokens, rows, engine=self.algorithm.needs.engine, first=first)
        return loss
