"""The `Trainer` protocol over a group of rank processes.

This process holds no weights. Each rank is sent its share of the forests; metrics, log-probabilities, and weights (one
tensor at a time) are returned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from agentrl import cluster
from agentrl.cluster import Address, Resources, Role
from agentrl.cluster.placement.inventory import on_gpus
from agentrl.common import cores
from agentrl.config import AlgoConfig, LoraConfig, TrainerConfig
from agentrl.errors import ConfigError
from agentrl.train.algorithms import Algorithm, make_algorithm
from agentrl.train.forest.forest import Forest, token_counts
from agentrl.train.trainers.plugin import own_trunk_refused
from agentrl.train.trainers.ranks.balance import Division
from agentrl.train.trainers.ranks.calls import ConnectedRanks, RankCalls
from agentrl.train.trainers.ranks.group import Ranks, start_ranks
from agentrl.train.trainers.ranks.joined import per_token
from agentrl.train.trainers.ranks.worker import RankSettings


class RankComputing:
    """Computation on ranks, with a critic."""

    ranks: RankCalls
    version: int
    _division: Division
    _algorithm: Algorithm

    def step(
        self, forests: Sequence[Forest], state: Mapping[str, Any] | None = None, value_forests: Sequence[Forest] = ()
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
    """A connection to the trainer's ranks."""

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
        connection: what it opens.
        addresses: of each rank.
        division: how the ranks divide batches.
        algo: the phase's algorithm.
        timeout: seconds that a call may take; None: as long as the ranks live.
        version: the weights' policy version.
    """

    connection: type[RankConnection]
    addresses: tuple[Address, ...]
    division: Division
    algo: AlgoConfig
    timeout: float | None
    version: int

    def open(self) -> RankConnection:
        return self.connection(self)


if TYPE_CHECKING:
    from agentrl.models.adapters import SavedAdapter
    from agentrl.rollout.weights.buckets import Convert, Shapes
    from agentrl.train.trainers.teachers.divergence import VocabularyHead


class RankTrainer(RankComputing):
    """A trainer on ranks; a subclass refuses settings, and says how ranks are built.

    Args:
        path: a Hugging Face folder.
        config: the trainer's settings.
        algorithm: the first phase's.
        total_steps: the first phase's length, for the schedule.
        seed: of the ranks' generators.
        builder: the import path of the ranks' `Builder`.
        loaded: the module that ranks on CPUs load first.
        apart: whether that module changes others for good.
        count: how many ranks there are.
        layout: of the model over them, as the builder needs it.
        timeout: seconds that a call to the ranks may take.
        environment: variables of the ranks beside this process's.
        together: how many consecutive ranks have to be on one node of a cluster.
        first: called once the ranks have started, before they build the model.
        lora: the adapter that is trained in the model's place; None: there is none.

    Attributes:
        device: what the ranks compute on, "cuda" or "cpu"; this process may have another.
        config: the trainer's settings, which a subclass sets first.
        scratch: a folder that all ranks see, for what is written for them; None: any of this machine.
    """

    takes_minibatches: ClassVar[bool] = True
    connection: ClassVar[type[RankConnection]] = RankConnection
    ranks: Ranks
    config: TrainerConfig

    def __init__(
        self,
        path: Path,
        config: TrainerConfig,
        algorithm: Algorithm,
        *,
        total_steps: int,
        seed: int,
        builder: str,
        loaded: str,
        apart: bool = False,
        count: int,
        timeout: float,
        layout: Any = None,
        environment: Mapping[str, str] | None = None,
        together: int = 1,
        first: Callable[[], None] | None = None,
        lora: LoraConfig | None = None,
    ) -> None:
        self.source, self.version = path, 0
        on_gpus = gpus_of(config) > 0
        self.device = "cuda" if on_gpus else "cpu"
        self.threads = None if on_gpus else cores.choose_threads(config.threads, cores.share(count, path))
        self.deterministic = not on_gpus
        hidden = {} if on_gpus else {"CUDA_VISIBLE_DEVICES": ""}
        role = Role(
            "trainer",
            "agentrl.train.trainers.ranks.worker:RankRole",
            resources=Resources(gpus=int(on_gpus)),
            threads=self.threads,
            environment={**hidden, **(environment or {})},
            loads=() if on_gpus else (loaded,),
            apart=loaded if apart and not on_gpus else "",
        )
        self.ranks = start_ranks(RankSettings(0, count, "", builder, layout, timeout, seed), role, together)
        self.scratch = cluster.current().logs
        try:
            if first is not None:
                first()
            self.build(path, config, algorithm, total_steps, lora)
        except BaseException:
            self.ranks.close()
            raise

    def build(
        self, folder: Path, config: TrainerConfig, algorithm: Algorithm, steps: int, lora: LoraConfig | None = None
    ) -> None:
        """Have the ranks build a model; an earlier one is freed."""
        adapter = () if lora is None or not lora.active else (lora,)
        self.ranks.call("build", str(folder), config, algorithm.config.model_dump(), steps, *adapter)
        self.note_model(algorithm, self.ranks.call("division"), lora)

    def note_model(self, algorithm: Algorithm, division: Division, lora: LoraConfig | None) -> None:
        """Note the model that the ranks have built."""
        self._algorithm, self._division = algorithm, division
        self._lora = lora if lora is not None and lora.active else None
        self._teacher: Tensor | None = None

    def set_teacher(self, head: VocabularyHead) -> None:
        """See `Distilling.set_teacher`; a head that stays the same is sent to the ranks once."""
        if self._teacher is not head.weight:
            self.ranks.call("set_teacher", head.carried())
            self._teacher = head.weight

    def make_algorithm(self, algo: AlgoConfig) -> Algorithm:
        """Build a phase's algorithm, or raise for what ranks that share one model can't do; subclasses refuse more."""
        algorithm = make_algorithm(algo)
        if algorithm.needs.critic and algorithm.critic_config.value_trunk == "own":
            raise own_trunk_refused(self.config)
        if algorithm.needs.reward_model:
            raise ConfigError(f"algo={algo.name} needs a reward model, which trainer={self.config.name} does not have")
        return algorithm

    def begin(self, algo: AlgoConfig, total_steps: int, *, whole: bool = False) -> None:
        """Begin a phase: a fresh optimizer and schedule; with a KL penalty, the current weights are its reference.

        See also `AdapterTrainer`.
        """
        adapter = () if self._lora is None else (whole,)
        algorithm = self.make_algorithm(algo)
        self.ranks.call("begin", algorithm.config.model_dump(), total_steps, *adapter)
        self._algorithm = algorithm

    def layer_outputs(self, forest: Forest) -> list[Tensor]:
        """Each decoder layer's output for a forest: [T, d] each, float32, in the CPU's memory."""
        outputs: list[Tensor] = self._call_each("layer_outputs", [forest], len(forest))
        return outputs

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """(Hugging Face name, tensor) pairs, one at a time."""
        return self.ranks.stream("weights")

    def set_base(self, folder: Path) -> None:
        self.ranks.call("set_base", Path(folder).absolute())

    def parts(self) -> dict[str, SavedAdapter]:
        """Return the smaller parts by their kind; see `Trainer.weights`."""
        parts: dict[str, SavedAdapter] = {} if self._lora is None else self.ranks.call("parts")
        return parts

    def averaged_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the averaged weights; see `Averager.averaged_weights`."""
        return self.ranks.stream("averaged_weights")

    def save_weights(
        self, folder: Path, base: Path, limit: int, convert: Convert | None = None, method: str = "weights"
    ) -> Shapes:
        """Have rank 0 write the weights, on a file system that all share."""
        given = (Path(folder).absolute(), Path(base).absolute(), limit, convert, method)
        shapes: Shapes = self.ranks.call("save_weights", *given)
        return shapes

    def save(self, path: Path) -> None:
        """Write a folder from which another number or layout of ranks can resume."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        self.ranks.call("save", Path(path).absolute())

    def load(self, path: Path) -> None:
        """Load a folder that `save` wrote, with its version; the settings remain those of the last `begin`."""
        self.version = self.ranks.call("load", Path(path).absolute())

    def access(self) -> RankAccess:
        addresses, timeout, algo = self.ranks.addresses, self.ranks.timeout, self._algorithm.config
        return RankAccess(self.connection, addresses, self._division, algo, timeout, self.version)

    def leased(self) -> AbstractContextManager[None]:
        return self.ranks.leased()

    def stepped(self, version: int) -> None:
        self.version = version

    def release(self) -> None:
        self.ranks.call("release")

    def close(self) -> None:
        self.ranks.close()


def gpus_of(config: TrainerConfig) -> int:
    """Return the number of GPUs, here or on the cluster's nodes; where there is one, ranks compute on them."""
    if cluster.current().name != "local":
        nodes = [node for node in cluster.current().nodes() if node.alive]
        return sum(node.gpus for node in nodes) if on_gpus(config.device, nodes) else 0
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("trainer.device=cuda: there is no GPU")
    if config.device == "cpu" and torch.cuda.is_available():
        raise ConfigError(f"trainer.device=cpu: trainer={config.name} uses the GPU where there is one; hide it instead")
    return torch.cuda.device_count()
