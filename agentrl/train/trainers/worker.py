"""A trainer as a worker of the cluster: the same trainer in a process on a node, behind the trainer's protocol."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from agentrl import cluster
from agentrl.cluster import Address, Connection, Resources, Role, Worker
from agentrl.config import AlgoConfig, ClusterConfig, LoraConfig, TrainerConfig
from agentrl.errors import ConfigError, DeadlineExceeded, InfraError, TrainerError, TrainerTimeout
from agentrl.train.trainers import TRAINERS, AdapterTrainer, Averager, MemoryReleasing, Trainer, make_trainer

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl.rollout.weights.buckets import Convert, Shapes
    from agentrl.train.forest.forest import Forest
    from agentrl.train.trainers.teachers.divergence import VocabularyHead


class TrainerRole:
    """A worker that makes a trainer and calls it."""

    def __init__(
        self,
        path: Path,
        config: TrainerConfig,
        algo: AlgoConfig,
        total_steps: int,
        seed: int,
        prove: str | None,
        lora: LoraConfig | None = None,
    ) -> None:
        self.trainer = make_trainer(path, config, algo, total_steps=total_steps, seed=seed, prove=prove, lora=lora)

    def run(self, method: str, *arguments: Any) -> Any:
        """Call one of the trainer's methods; returns its result and the version after it."""
        return getattr(self.trainer, method)(*arguments), self.trainer.version

    def begin(self, algo: AlgoConfig, total_steps: int, whole: bool) -> None:
        """Begin a phase of a trainer of adapters."""
        cast(AdapterTrainer, self.trainer).begin(algo, total_steps, whole=whole)

    def logprobs(self, forests: Sequence[Forest], reference: bool) -> list[Tensor]:
        return self.trainer.logprobs(forests, reference=reference)

    def tensors(self, method: str) -> Iterator[tuple[str, Tensor]]:
        """The named tensors that a method yields."""
        if method == "averaged_weights" and not isinstance(self.trainer, Averager):
            raise ConfigError(f"eval.weights=averaged: {type(self.trainer).__name__} has no averaged_weights()")
        return ((name, tensor.detach()) for name, tensor in getattr(self.trainer, method)())

    def save_weights(self, folder: Path, base: Path, limit: int, convert: Convert | None, method: str) -> Shapes:
        """Write the weights that `method` yields."""
        from agentrl.rollout.weights.snapshot import save_snapshot

        weights = self.tensors(method)
        return save_snapshot(weights if convert is None else convert(weights), folder, base, limit)

    def facts(self) -> tuple[int, int | None, bool]:
        """The trainer's version, CPU threads of each of its processes, and whether it is deterministic."""
        return self.trainer.version, self.trainer.threads, self.trainer.deterministic

    def release(self) -> None:
        if isinstance(self.trainer, MemoryReleasing):
            self.trainer.release()

    def close(self) -> None:
        self.trainer.close()


class WorkerComputing(ABC):
    """Computation in a trainer's worker: forests are sent to the trainer as they are.

    Attributes:
        worker: what is called: the trainer's worker, or a connection to it.
        version: the weights' policy version.
    """

    worker: Worker | Connection
    version: int
    _timeout: float | None

    def step(
        self,
        forests: Sequence[Forest],
        state: Mapping[str, Any] | None = None,
        value_forests: Sequence[Forest] = (),
    ) -> dict[str, float]:
        beside = (list(value_forests),) if value_forests else ()  # which other trainers don't take
        return cast(dict[str, float], self._call("step", list(forests), state, *beside))

    def logprobs(self, forests: Sequence[Forest], *, reference: bool = False) -> list[Tensor]:
        return cast("list[Tensor]", self._run("logprobs", list(forests), reference))

    def values(self, forests: Sequence[Forest], start: float = 0.0) -> list[Tensor]:
        return cast("list[Tensor]", self._call("values", list(forests), start))

    def token_rewards(self, forests: Sequence[Forest]) -> list[Tensor]:
        """Return the reward model's token rewards."""
        return cast("list[Tensor]", self._call("token_rewards", list(forests)))

    def _call(self, method: str, *arguments: Any) -> Any:
        result, self.version = self._run("run", method, *arguments)
        return result

    def _run(self, method: str, *arguments: Any) -> Any:
        try:
            return self.worker.run(method, *arguments, timeout=self._timeout)
        except InfraError as error:
            raise self._make_error(error) from None

    def _make_error(self, error: InfraError) -> TrainerError:
        self._end()
        if isinstance(error, TrainerError):
            return error
        return (TrainerTimeout if isinstance(error, DeadlineExceeded) else TrainerError)(str(error))

    @abstractmethod
    def _end(self) -> None:
        """A call failed: make no other one."""


class WorkerConnection(WorkerComputing):
    """A connection to a trainer's worker."""

    worker: Connection

    def __init__(self, access: WorkerAccess) -> None:
        self.version, self._timeout = access.version, access.timeout
        try:
            self.worker = cluster.connect(access.address)
        except InfraError as error:
            raise TrainerError(str(error)) from None

    def close(self) -> None:
        self.worker.close()

    def _end(self) -> None:
        self.close()


@dataclass(frozen=True)
class WorkerAccess:
    """Another process's way to a trainer's worker.

    Attributes:
        address: of the trainer's worker.
        timeout: seconds that a call may take; None: as long as the worker lives.
        version: the weights' policy version.
    """

    address: Address
    timeout: float | None
    version: int

    def open(self) -> WorkerConnection:
        return WorkerConnection(self)


class WorkerTrainer(WorkerComputing):
    """A trainer on a node: `Averager`, `Critic`, `ShareableTrainer`, `Rewarder` and `MemoryReleasing`.

    Forests are sent to it as they are; paths must exist on its node. A call that fails, or takes longer than
    `cluster.call_timeout` where that is set, ends the worker with a TrainerError, so that another one can take its
    place.
    """

    worker: Worker

    def __init__(
        self,
        settings: ClusterConfig,
        path: Path,
        config: TrainerConfig,
        algo: AlgoConfig,
        *,
        total_steps: int = 1,
        seed: int = 0,
        prove: str | None = None,
        lora: LoraConfig | None = None,
    ) -> None:
        self._timeout, self._teacher = settings.call_timeout, cast("Tensor | None", None)
        self.worker = cluster.current().spawn(
            Role(
                "trainer",
                "agentrl.train.trainers.worker:TrainerRole",
                (Path(path).absolute(), config, algo, total_steps, seed, prove, lora),
                name=f"trainer={config.name}",
                resources=Resources(gpus=int(config.device == "cuda")),
                threads=config.threads,
                loads=("agentrl.train.trainers.torch_trainer.trainer",),
            )
        )
        try:
            self.version, self.threads, self.deterministic = self._start(settings.start_timeout)
        except BaseException:
            self.close()
            raise

    def begin(self, algo: AlgoConfig, total_steps: int, *, whole: bool = False) -> None:
        """Begin a phase; see also `AdapterTrainer`."""
        if whole:
            self._run("begin", algo, total_steps, whole)
        else:
            self._call("begin", algo, total_steps)

    def set_teacher(self, head: VocabularyHead) -> None:
        """See `RankTrainer.set_teacher`."""
        if self._teacher is not head.weight:
            self._call("set_teacher", head.carried())
            self._teacher = head.weight

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        return self._stream("weights")

    def averaged_weights(self) -> Iterator[tuple[str, Tensor]]:
        return self._stream("averaged_weights")

    def _stream(self, method: str) -> Iterator[tuple[str, Tensor]]:
        try:
            yield from self.worker.iterate("tensors", method, timeout=self._timeout)
        except InfraError as error:
            raise self._make_error(error) from None

    def save_weights(
        self, folder: Path, base: Path, limit: int, convert: Convert | None = None, method: str = "weights"
    ) -> Shapes:
        """Write the weights from the trainer's process, on a file system that all share."""
        paths = Path(folder).absolute(), Path(base).absolute()
        return cast("Shapes", self._run("save_weights", *paths, limit, convert, method))

    def save(self, path: Path) -> None:
        self._call("save", Path(path).absolute())

    def load(self, path: Path) -> None:
        self._call("load", Path(path).absolute())

    def export(self, path: Path) -> None:
        """Write a Hugging Face folder."""
        self._call("export", Path(path).absolute())

    def release(self) -> None:
        self._run("release")

    def access(self) -> WorkerAccess:
        return WorkerAccess(self.worker.address, self._timeout, self.version)

    @contextmanager
    def leased(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            if (ended := self.worker.poll()) is not None:
                error.add_note(str(ended))
            self._end()
            raise

    def stepped(self, version: int) -> None:
        self.version = version

    def close(self) -> None:
        self.worker.shutdown()

    def _start(self, timeout: float) -> Any:
        try:
            self.worker.wait_ready(timeout)
        except InfraError as error:  # its node has died, say
            raise self._make_error(error) from None
        return self._run("facts")

    def _end(self) -> None:
        self.worker.kill()


def place_trainer(settings: ClusterConfig, path: Path, config: TrainerConfig, algo: AlgoConfig, **more: Any) -> Trainer:
    """The trainer in this process, or on nodes of the cluster; `make_trainer` describes the arguments.

    One with ranks is in this process, which holds no weights, and its ranks are on the nodes.
    """
    if settings.name == "local" or TRAINERS.find(config.name).has_ranks:
        return make_trainer(Path(path).absolute(), config, algo, **more)
    return WorkerTrainer(settings, path, config, algo, **more)
