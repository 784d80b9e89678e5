"""A trainer as a worker of the cluster: the only rank, called as several are, and given forests as they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from agentrl import cluster
from agentrl.cluster import Resources, Role
from agentrl.config import AlgoConfig, ClusterConfig, TrainerConfig
from agentrl.errors import ConfigError
from agentrl.train.algorithms import Algorithm, algorithm_settings, make_algorithm
from agentrl.train.trainers import TRAINERS, AdapterTrainer, Averager, MemoryReleasing, Trainer, make_trainer
from agentrl.train.trainers.ranks.balance import Division
from agentrl.train.trainers.ranks.group import Ranks
from agentrl.train.trainers.ranks.trainer import RankComputing, RankConnection, RankTrainer
from agentrl.train.trainers.ranks.worker import RankRole

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl.models.adapters import SavedAdapter
    from agentrl.train.forest.forest import Forest


class TrainerRole(RankRole):
    """A worker that makes a trainer and calls it."""

    def __init__(self, path: Path, config: TrainerConfig, algo: AlgoConfig, more: Mapping[str, Any]) -> None:
        self._number = 0
        self._rank = make_trainer(path, config, algo, **more)

    def begin(self, algo: Mapping[str, Any], total_steps: int, whole: bool | None = None) -> None:
        """Begin a phase; `whole` is for a trainer of adapters."""
        if whole is None:
            self._rank.begin(algorithm_settings(algo), total_steps)
        else:
            cast(AdapterTrainer, self._rank).begin(algorithm_settings(algo), total_steps, whole=whole)

    def step(self, *arguments: Any) -> tuple[dict[str, float], int]:
        """Take a step; returns its metrics and the weights' version."""
        return self._rank.step(*arguments), self._rank.version

    def logprobs(self, forests: Sequence[Forest], reference: bool) -> list[Tensor]:
        return cast("list[Tensor]", self._rank.logprobs(forests, reference=reference))

    def load(self, path: Path) -> int:
        """Load a checkpoint; returns the weights' version."""
        self._rank.load(path)
        return cast(int, self._rank.version)

    def tensors(self, method: str, arguments: tuple[Any, ...] = ()) -> Iterator[tuple[str, Tensor]]:
        if method == "averaged_weights" and not isinstance(self._rank, Averager):
            raise ConfigError(f"eval.weights=averaged: {type(self._rank).__name__} has no averaged_weights()")
        return ((name, tensor.detach()) for name, tensor in getattr(self._rank, method)())

    def parts(self) -> dict[str, SavedAdapter]:
        """Return the smaller parts by their kind, in host memory."""
        found = cast("dict[str, SavedAdapter]", getattr(self._rank, "parts", dict)())
        return {kind: part.copied() for kind, part in found.items()}

    def set_base(self, folder: Path) -> None:
        if isinstance(self._rank, AdapterTrainer):
            self._rank.set_base(folder)

    def facts(self) -> tuple[int, int | None, bool]:
        """The trainer's version, CPU threads of each of its processes, and whether it is deterministic."""
        return self._rank.version, self._rank.threads, self._rank.deterministic

    def release(self) -> None:
        if isinstance(self._rank, MemoryReleasing):
            self._rank.release()

    def close(self) -> None:
        self._rank.close()


class WorkerComputing(RankComputing):
    """Computation in a trainer's worker, which is sent all forests as they are."""

    def step(
        self, forests: Sequence[Forest], state: Mapping[str, Any] | None = None, value_forests: Sequence[Forest] = ()
    ) -> dict[str, float]:
        beside = (list(value_forests),) if value_forests else ()  # which other trainers don't take
        metrics, self.version = self.ranks.call("step", list(forests), state, *beside)
        return cast(dict[str, float], metrics)

    def logprobs(self, forests: Sequence[Forest], *, reference: bool = False) -> list[Tensor]:
        return cast("list[Tensor]", self.ranks.call("logprobs", list(forests), reference))

    def values(self, forests: Sequence[Forest], start: float = 0.0) -> list[Tensor]:
        return cast("list[Tensor]", self.ranks.call("values", list(forests), start))

    def token_rewards(self, forests: Sequence[Forest]) -> list[Tensor]:
        """Return the reward model's token rewards."""
        return cast("list[Tensor]", self.ranks.call("token_rewards", list(forests)))


class WorkerConnection(WorkerComputing, RankConnection):
    """A connection to a trainer's worker."""


class WorkerTrainer(WorkerComputing, RankTrainer):
    """A trainer on a node, of any plug-in.

    Paths must exist on its node. A call that fails, or takes longer than `cluster.call_timeout` where that is set, ends
    the worker with a TrainerError, so that another one can take its place; a refusal doesn't.
    """

    connection = WorkerConnection

    def __init__(
        self, settings: ClusterConfig, path: Path, config: TrainerConfig, algo: AlgoConfig, **more: Any
    ) -> None:
        """Start the worker; `make_trainer` describes all but the cluster's settings."""
        self.source, self.config = Path(path).absolute(), config
        role = Role(
            "trainer",
            f"{__name__}:TrainerRole",
            (self.source, config, algo, more),
            name=f"trainer={config.name}",
            resources=Resources(gpus=int(config.device == "cuda")),
            threads=config.threads,
            loads=("agentrl.train.trainers.torch_trainer.trainer",),
        )
        self.ranks = Ranks([cluster.current().spawn(role)], settings.call_timeout)
        self.version, self.threads, self.deterministic = self.ranks.call("facts")
        self.note_model(self.make_algorithm(algo), Division((0,), 1), more.get("lora"))

    def make_algorithm(self, algo: AlgoConfig) -> Algorithm:
        return make_algorithm(algo)

    def export(self, path: Path) -> None:
        """Write a Hugging Face folder."""
        self.ranks.call("export", Path(path).absolute())

    def close(self) -> None:
        self.ranks.workers[0].shutdown()  # which closes the trainer
        super().close()


def place_trainer(settings: ClusterConfig, path: Path, config: TrainerConfig, algo: AlgoConfig, **more: Any) -> Trainer:
    """The trainer in this process, or on nodes of the cluster; `make_trainer` describes the arguments.

    One with ranks is in this process, which holds no weights, and its ranks are on the nodes.
    """
    if settings.name == "local" or TRAINERS.find(config.name).has_ranks:
        return make_trainer(Path(path).absolute(), config, algo, **more)
    return WorkerTrainer(settings, path, config, algo, **more)
