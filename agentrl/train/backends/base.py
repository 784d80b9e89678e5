"""The trainer's protocol.

A trainer receives forests and nothing else. Its methods take and return plain data and tensors, so that a
Ray actor can wrap one without an adapter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from agentrl.config import AlgoConfig

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl.train.forest import Forest


@runtime_checkable
class Trainer(Protocol):
    """Learns from forests."""

    version: int
    """The weights' policy version; `step` increments it."""
    threads: int | None
    """CPU threads of each of its processes; None where the environment, or a GPU, decides."""
    deterministic: bool
    """Whether the same steps on the same forests give the same weights, bit for bit, in another process too."""

    def begin(self, algo: AlgoConfig, total_steps: int) -> None:
        """Begin a phase (warm start, reinforcement learning): fresh optimizer, schedule and, if wanted, reference."""
        ...

    def step(self, forests: Sequence[Forest], state: Mapping[str, Any] | None = None) -> dict[str, float]:
        """Learn from a batch: `epochs` optimizer steps over all of its forests; returns flat metrics.

        The learning rate's schedule follows the calls. A batch without trained tokens changes no weight but counts.

        Args:
            forests: the batch.
            state: of the run's algorithm (`Algorithm.snapshot`), for the trainer's own instances of it; None leaves
                those as they are.
        """
        ...

    def logprobs(self, forests: Sequence[Forest], *, reference: bool = False) -> list[Tensor]:
        """For each forest the log-probability of every trained token, [T], 0 elsewhere."""
        ...

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """(Hugging Face name, tensor) pairs, one at a time, for engines to load."""
        ...

    def save(self, path: Path) -> None:
        """Write everything that resuming bit for bit needs, crash-atomically."""
        ...

    def load(self, path: Path) -> None:
        """Load what `save` wrote: weights, moments, counts; the settings remain those of the last `begin`."""
        ...

    def export(self, path: Path) -> None:
        """Write a Hugging Face folder, tokenizer included, crash-atomically; the source folder may be gone."""
        ...

    def close(self) -> None:
        """Release all resources; idempotent."""
        ...


@runtime_checkable
class Sharer(Trainer, Protocol):
    """A trainer that leaves accelerator memory to colocated engines; others keep what they have allocated."""

    def release(self) -> None:
        """Give back the memory that computing needed; what follows takes it again."""
        ...


@runtime_checkable
class Rewarder(Trainer, Protocol):
    """A trainer with a reward model where the phase's algorithm needs one; other trainers refuse such algorithms."""

    def token_rewards(self, forests: Sequence[Forest]) -> list[Tensor]:
        """For each forest the process reward of every trained token, [T], 0 elsewhere."""
        ...


@runtime_checkable
class Averager(Trainer, Protocol):
    """A trainer that may keep a moving average of its weights (`average_decay`)."""

    def averaged_weights(self) -> Iterator[tuple[str, Tensor]]:
        """As `weights`, of the average.

        Raises:
            InvalidInput: it keeps none.
        """
        ...


@runtime_checkable
class Critic(Trainer, Protocol):
    """A trainer with a critic where the phase's algorithm needs one; other trainers refuse such algorithms."""

    def values(self, forests: Sequence[Forest], start: float = 0.0) -> list[Tensor]:
        """For each forest the value of the state before every trained token, [T], 0 elsewhere.

        At its first call in a phase, a critic predicts `start` everywhere.
        """
        ...
