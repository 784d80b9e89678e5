"""The trainer's protocol.

A trainer receives forests and nothing else. Its methods take and return plain data and tensors, so that a
Ray actor can wrap one without an adapter.

`Computing` is the part of it that takes forests. A trainer whose processes are on a cluster may be `ShareableTrainer`:
another process than the one that started it sends them its forests, over connections of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from agentrl.config import AlgoConfig

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl.train.forest.forest import Forest


@runtime_checkable
class Computing(Protocol):
    """Computation on forests, without learning."""

    version: int
    """The weights' policy version; `step` increments it."""

    def step(self, forests: Sequence[Forest], state: Mapping[str, Any] | None = None) -> dict[str, float]:
        """Learn from a batch: `epochs` optimizer steps over all of its forests; returns flat metrics.

        With `algo.minibatches` above 1 each epoch has an optimizer step for each place in `Forest.updates`, in order;
        a trainer that has no such steps leaves `TrainerPlugin.takes_minibatches` false.

        The learning rate's schedule follows the calls. A batch without trained tokens changes no weight but counts.

        Args:
            forests: the batch.
            state: of the run's algorithm (`Algorithm.snapshot`), for the trainer's own instances of it; None leaves
                those as they are.
        """

    def logprobs(self, forests: Sequence[Forest], *, reference: bool = False) -> list[Tensor]:
        """Return each forest's log-probabilities of trained tokens, [T], 0 elsewhere."""


@runtime_checkable
class Rewarder(Computing, Protocol):
    """A trainer with a reward model where the phase's algorithm needs one; other trainers refuse such algorithms."""

    def token_rewards(self, forests: Sequence[Forest]) -> list[Tensor]:
        """Return each forest's process rewards of trained tokens, [T], 0 elsewhere."""


@runtime_checkable
class Critic(Computing, Protocol):
    """A trainer with a critic where the phase's algorithm needs one; other trainers refuse such algorithms."""

    def values(self, forests: Sequence[Forest], start: float = 0.0) -> list[Tensor]:
        """Return each forest's values of the states before trained tokens, [T], 0 elsewhere.

        At its first call in a phase, a critic predicts `start` everywhere.
        """


@runtime_checkable
class JointCritic(Critic, Protocol):
    """A trainer whose critic may read other forests than the policy; its plug-in says so (`joint_critic`)."""

    def step(
        self, forests: Sequence[Forest], state: Mapping[str, Any] | None = None, value_forests: Sequence[Forest] = ()
    ) -> dict[str, float]:
        """Learn from a batch; see `Computing.step`.

        Args:
            forests: the batch.
            state: of the run's algorithm.
            value_forests: the forests that the critic learns from, with `algo.value_path=joint`: the same tokens are
                trained in them, on other paths.
        """


@runtime_checkable
class Trainer(Computing, Protocol):
    """A trainer of the policy, from forests."""

    threads: int | None
    """CPU threads of each of its processes; None where the environment, or a GPU, decides."""
    deterministic: bool
    """The same steps on the same forests give the same weights, bit for bit, in another process too."""

    def begin(self, algo: AlgoConfig, total_steps: int) -> None:
        """Begin a phase (warm start, reinforcement learning): fresh optimizer, schedule and, if wanted, reference."""

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """(Hugging Face name, tensor) pairs, one at a time, for engines to load.

        One that trains an adapter may have `parts()` beside it: smaller parts that are the same weights on an engine
        that has their base, by their kind (`rollout.weights.buckets.Weights`).
        """

    def save(self, path: Path) -> None:
        """Write everything that resuming bit for bit needs, crash-atomically."""

    def load(self, path: Path) -> None:
        """Load what `save` wrote: weights, moments, counts; the settings remain those of the last `begin`."""

    def export(self, path: Path) -> None:
        """Write a Hugging Face folder, tokenizer included, crash-atomically; the source folder may be gone."""

    def close(self) -> None:
        """Release all resources; idempotent."""


@runtime_checkable
class AdapterTrainer(Trainer, Protocol):
    """A trainer that, made with `lora` settings, trains an adapter; its plug-in says so (`trains_adapters`)."""

    def begin(self, algo: AlgoConfig, total_steps: int, *, whole: bool = False) -> None:
        """Begin a phase; see `Trainer.begin`.

        Args:
            algo: the phase's algorithm.
            total_steps: its length.
            whole: the whole model is trained, and an adapter that it has is merged first; else the adapter is trained,
                which begins now where there is none.
        """

    def set_base(self, folder: Path) -> None:
        """Note that a folder holds the base as it is now, which the trainer exported before its adapter began.

        Checkpoints then say where it is, from the folder that they are in, and hold the adapter alone. The folder must
        stay there.
        """


@runtime_checkable
class BaseSharing(AdapterTrainer, Protocol):
    """A trainer of adapters whose frozen base may be another one's, so that both hold it once."""

    shared_base: bool
    """True where the base is another trainer's, which is the one that trains it in a warm start."""

    def share_base(self, other: Trainer) -> bool:
        """Compute with another trainer's base in place of the own, which is freed; returns whether they are the same.

        Modules that either trains in full stay its own.
        """

    def mixing(self, others: Sequence[Trainer]) -> AbstractContextManager[None]:
        """Within the block make gradient passes together with others on the same base, each stepping in a thread."""

    def prove_mixing(self) -> None:
        """Raise ConfigError where the base computes something else with trees of several adapters than with one's."""

    def end_mixing(self) -> None:
        """Leave the others of `mixing`, which don't wait for it any more; called once its step has ended or failed."""

    def follow_base(self, algo: AlgoConfig, total_steps: int) -> None:
        """Note that the trainer whose base it is has trained it whole, and take its version of the weights."""


@runtime_checkable
class MemoryReleasing(Trainer, Protocol):
    """A trainer that leaves accelerator memory to colocated engines; others keep what they have allocated."""

    def release(self) -> None:
        """Give back the memory that computing needed; what follows takes it again."""


@runtime_checkable
class Averager(Trainer, Protocol):
    """A trainer that may keep a moving average of its weights (`average_decay`)."""

    def averaged_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the averaged weights, as `weights` does.

        Raises:
            InvalidInput: it keeps none.
        """


class TrainerConnection(Computing, Protocol):
    """Computes with a trainer that another process has started; `Critic` and `Rewarder` where that trainer is."""

    def close(self) -> None:
        """Close the connections; the trainer goes on. Idempotent."""


class TrainerAccess(Protocol):
    """Another process's way to a trainer: picklable, and valid until the trainer's next `begin` or `load`."""

    def open(self) -> TrainerConnection:
        """Connect to the trainer's processes.

        A call that fails, or takes longer than the trainer's own may, closes the connections.

        Raises:
            TrainerError: one of them can't be reached.
        """


@runtime_checkable
class ShareableTrainer(Trainer, Protocol):
    """A trainer that another process may compute with, while the one that started it is in a block of its own.

    There it has the other process call what `access().open()` returned, and after it tells the trainer the version:

        with trainer.leased():
            version = await other.call("learn", …, timeout=…)
        trainer.stepped(version)
    """

    def access(self) -> TrainerAccess:
        """Return another process's way to the trainer."""

    def leased(self) -> AbstractContextManager[None]:
        """Let only the other process call the trainer meanwhile.

        Where the block raises, the trainer is ended, because it is not known what it computed last. The error gets a
        note of each of the trainer's processes that has ended by itself.
        """

    def stepped(self, version: int) -> None:
        """The other process has taken steps up to this version of the weights."""
