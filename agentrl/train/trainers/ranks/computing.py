"""Computing with a trainer's ranks, by the process that started them or by another one.

Each rank is sent its share of the forests; what they answer is put together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from agentrl.cluster import Address
from agentrl.config import AlgoConfig
from agentrl.train.algorithms import Algorithm, make_algorithm
from agentrl.train.forest.forest import Forest, token_counts
from agentrl.train.trainers.ranks.balance import Division
from agentrl.train.trainers.ranks.calls import ConnectedRanks, RankCalls
from agentrl.train.trainers.ranks.joined import per_token


class RankComputing:
    """Computation on ranks, with a critic."""

    ranks: RankCalls
    version: int
    _division: Division
    _algorithm: Algorithm

    def step(
        self,
        forests: Sequence[Forest],
        state: Mapping[str, Any] | None = None,
        value_forests: Sequence[Forest] = (),
    ) -> dict[str, float]:
        """Learn from a batch; see `JointCritic.step`. A batch without trained tokens changes no weight."""
        if state is not None:
            self._algorithm.load_snapshot(state)
        self._algorithm.mark(forests)
        trained, read = ([forest for forest in each if forest.trained] for each in (forests, value_forests))
        metrics: dict[str, float] = self._call_each("step", trained, state, beside=read)
        self.version += 1
        return metrics | token_counts(forests)

    def logprobs(self, forests: Sequence[Forest], *, reference: bool = False) -> list[Tensor]:
        """Log-probabilities of the trained tokens; see `Trainer.logprobs`."""
        return per_token(forests, self._call_each("logprobs", forests, reference) if forests else [])

    def values(self, forests: Sequence[Forest], start: float = 0.0) -> list[Tensor]:
        """The critic's values of the trained tokens; see `Critic.values`."""
        return per_token(forests, self._call_each("values", forests, start) if forests else [])

    def _call_each(self, method: str, forests: Sequence[Forest], *more: Any, beside: Sequence[Forest] = ()) -> Any:
        """Call each rank with its share of the forests, and of those that stand beside them, where there are any."""
        shares = self._division.shares(forests)
        others = [(share,) for share in self._division.shares(beside)] if beside else [()] * len(shares)
        given = {id(share): (share, *more, *other) for share, other in zip(shares, others, strict=True)}
        return self.ranks.call_each(method, [given[id(share)] for share in shares])


class RankConnection(RankComputing):
    """A connection to the trainer's ranks, with a critic."""

    ranks: ConnectedRanks

    def __init__(self, access: RankAccess) -> None:
        self.version, self._division = access.version, access.division
        self._algorithm = make_algorithm(access.algo)
        self.ranks = ConnectedRanks(access.addresses, access.timeout)

    def close(self) -> None:
        """Close the connections to all ranks."""
        self.ranks.close()


@dataclass(frozen=True)
class RankAccess:
    """Another process's way to the ranks.

    Attributes:
        addresses: of each rank.
        division: how the ranks divide batches.
        algo: the phase's algorithm.
        timeout: seconds that a call may take.
        version: the weights' policy version.
    """

    addresses: tuple[Address, ...]
    division: Division
    algo: AlgoConfig
    timeout: float
    version: int

    def open(self) -> RankConnection:
        return RankConnection(self)
