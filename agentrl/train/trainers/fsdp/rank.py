"""One rank: a torch trainer whose model is sharded, and that computes its share of every batch.

All ranks run the same calls in the same order, each with its share of the forests: assigned by cost, as to Megatron's
data-parallel ranks, and as many for each, since FSDP gathers weights for all of them together. A call's result is
complete on rank 0.

Checkpoints are in torch's distributed format, from which any number of ranks resumes with the same numbers. Every rank
writes its own shards of weights and optimizer state; a loader with other shards reads the slices that it needs. A
folder gets its name when it is complete: it is written as `NAME.partial`, and renamed when every rank is done.

    tensors/        weights, optimizer state, and the reference's and the average's weights where they are kept
    numbers.pt      counts, version, critic, generators
    contents.json   digests of files and weights, which a loader compares (see `agentrl.train.trainers.ranks.contents`)
"""

from __future__ import annotations

import contextlib
import functools
import gc
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.device_mesh import init_device_mesh
from transformers.utils import logging

from agentrl.config import AlgoConfig, LoraConfig
from agentrl.errors import InvalidInput
from agentrl.models.adapters import SavedAdapter, with_products
from agentrl.rollout.engines.local.weights import single_experts
from agentrl.train.algorithms import algorithm_settings
from agentrl.train.trainers.fsdp.settings import FsdpConfig
from agentrl.train.trainers.fsdp.sharding import Gathered, shard_model
from agentrl.train.trainers.learner import RankStepResult
from agentrl.train.trainers.lora import adapter_in, is_adapter
from agentrl.train.trainers.ranks import contents
from agentrl.train.trainers.ranks.balance import Division, Share
from agentrl.train.trainers.ranks.joined import Entry, all_gather, join_results, sum_over_ranks
from agentrl.train.trainers.ranks.worker import Builder, RankSettings, join
from agentrl.train.trainers.torch_trainer.batch import TorchBatch, computing
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer

T = TypeVar("T")


class FsdpRank(TorchTrainer):
    """A torch trainer on sharded weights; the default process group must be initialised."""

    config: FsdpConfig

    def __init__(
        self, path: str, config: FsdpConfig, algo: AlgoConfig, total_steps: int, seed: int, lora: LoraConfig | None
    ) -> None:
        self.rank, self.processes = dist.get_rank(), dist.get_world_size()
        self.control = dist.new_group(backend="gloo")
        self.reduce = functools.partial(sum_over_ranks, group=self.control)
        super().__init__(path, config, algo, total_steps=total_steps, seed=seed, lora=lora)

    def load_model(self) -> nn.Module:
        """The model with this rank's shards; one rank after another has the whole model in the CPU's memory."""
        self._gathered = self.sharded()
        return self._gathered.model

    def sharded(self) -> Gathered:
        """Load the model on one rank after another, and shard it."""
        mesh = init_device_mesh(self.device.type, (self.processes,))
        for turn in range(self.processes):
            if turn == self.rank:
                gathered = shard_model(super().load_model(), mesh, self.config.dtype)
            dist.barrier(self.control)
        return gathered

    # ------------------------------------------------------------------------------------ learning

    def whole(self, compute: Callable[[], T]) -> T:
        found: T = self._gathered(compute)
        return found

    def division(self) -> Division:
        """Return how batches are divided over ranks."""
        width = self.model.config.get_text_config().hidden_size  # type: ignore[union-attr,operator]
        return Division(tuple(range(self.processes)), int(width))

    @computing
    def step(self, share: Share, state: Mapping[str, Any] | None = None, read: Share | None = None) -> dict[str, float]:
        """Train on a batch; its sizes are not among the metrics. `read`: what a critic of joint paths learns from."""
        self.begin_step(state)
        values = [] if read is None else [self.prepare(forest) for forest in read.forests]
        return self.metrics_of([self.prepare(forest) for forest in share.forests], share.sequences, values)

    def known_sums(self, batches: Sequence[TorchBatch]) -> bool:
        """Return whether all sums over sequences are 0 before a batch's first update, on all ranks."""
        return all(self.all_gather(super().known_sums(batches)))

    def holds_sequences(self, batches: Sequence[TorchBatch]) -> bool:
        """Return whether each sequence lies whole in one forest, on all ranks."""
        return all(self.all_gather(super().holds_sequences(batches)))

    def joined(self, learned: RankStepResult) -> RankStepResult:
        return join_results([(True, part) for part in self.all_gather(learned)])

    def sum_sequences(self, batches: Sequence[TorchBatch], sums: Tensor) -> None:
        super().sum_sequences(batches, sums)
        dist.all_reduce(sums, group=self.control)

    def logprobs(self, share: Share, reference: bool = False) -> list[Entry]:  # type: ignore[override]
        return self._entries(share, super().logprobs(share.forests, reference=reference))

    def values(self, share: Share, start: float = 0.0) -> list[Entry]:  # type: ignore[override]
        return self._entries(share, super().values(share.forests, start))

    def _entries(self, share: Share, found: Sequence[Tensor]) -> list[Entry]:
        own = [
            (work.origin, torch.arange(len(values)) + work.offset, values)
            for work, values in zip(share.works, found, strict=True)
        ]
        return [entry for part in self.all_gather(own) for entry in part]

    def all_gather(self, value: Any) -> list[Any]:
        """Gather a value of each rank."""
        return all_gather(value, self.control)

    def _precision(self) -> contextlib.AbstractContextManager[Any]:
        """FSDP casts weights and inputs, so that gathered weights are in the precision that is computed in."""
        return contextlib.nullcontext()

    # -------------------------------------------------------------------------- weights and folders

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the weights on rank 0; every rank must go through to the end."""
        return self._named_weights({})

    def _named_weights(self, instead: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        state = self.model.state_dict() | dict(instead)
        found: Any = self._whole_tensors({name: tensor for name, tensor in state.items() if not is_adapter(name)})
        if self.rank == 0 and self.lora is not None:
            found = with_products(found, adapter_in(state, self.lora.shape.scale))
        for name, tensor in found:
            if tensor is not None:
                yield from single_experts(self.model, name, tensor).items() or [(self.files.get(name, name), tensor)]

    def parts(self) -> dict[str, SavedAdapter]:
        found = super().parts()  # modules in full are gathered on all ranks together
        return {kind: part.copied() for kind, part in found.items()} if self.rank == 0 else {}

    def _whole_tensors(self, state: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor | None]]:
        """Every tensor of the model's state but tied ones, gathered one at a time; None on other ranks than 0."""
        tied = set(getattr(self.model, "all_tied_weights_keys", None) or {})
        for name, tensor in state.items():
            if name not in tied:
                found = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
                yield name, found.detach() if self.rank == 0 else None

    def export(self, path: Path) -> None:
        if self.rank == 0:
            super().export(Path(path))
        else:
            self.write(Path(path))
            if self.average is not None:
                with self.average.exchanged():
                    self.write(Path(path))

    def write(self, folder: Path) -> None:
        """Write the weights as transformers does, on rank 0, where they are gathered in the CPU's memory."""
        whole = self._whole_tensors(self.model.state_dict())
        held = {name: tensor.cpu() for name, tensor in whole if tensor is not None}
        if self.rank == 0:
            self.write_state(folder, held)

    def begin(self, algo: AlgoConfig | Mapping[str, Any], total_steps: int, whole: bool = False) -> None:
        """Begin a phase; settings may come as fields, where their class is unknown in this process."""
        given = algo if isinstance(algo, AlgoConfig) else algorithm_settings(algo)
        super().begin(given, total_steps, whole=whole)

    # --------------------------------------------------------------------------------- checkpoints

    def save(self, path: Path) -> None:
        path = Path(path)
        beside = path.with_name(path.name + ".partial")
        if self.rank == 0:
            shutil.rmtree(beside, ignore_errors=True)
            (beside / "tensors").mkdir(parents=True)
            torch.save(self._numbers(path), beside / "numbers.pt")
        dist.barrier(self.control)
        state_dict_saver.save(self._tensors(), checkpoint_id=beside / "tensors", process_group=self.control)
        weights = {"policy": contents.sums(self.weights())}
        contents.record(beside, self._settings(), weights, self.all_gather, self.rank)
        contents.publish(beside, path, self.control)

    def load(self, path: Path) -> int:  # type: ignore[override]
        """Load a folder, with the settings of the last `begin`; called on all ranks together. Returns the version.

        A reference or an average that was not saved is a copy of the loaded policy.

        Raises:
            InvalidInput: no checkpoint is there, it is damaged, of another model or other trained parameters, or what
                was loaded is not what was saved.
        """
        path = Path(path)
        held = contents.read(path, self._settings(), self.all_gather, self.rank)
        numbers = torch.load(path / "numbers.pt", map_location="cpu", weights_only=True)
        if self.lora is not None:
            self.lora.find_base(numbers.get("base"), path)
            self.lora.prepare(
                self.model, lambda: self.sharded().model, **(numbers.get("lora") or {"adapter": False, "base": True})
            )
        self._read(path, {"model": self._model()})
        whole = self.lora is not None and not self.lora.attached
        self.begin(self.algo, self.optimizer.total_steps, whole=whole)  # copies that were not saved are of this policy
        wanted = self._tensors()
        copies = {name for name in ("reference", "average") if name in wanted and name not in numbers["copies"]}
        self._read(path, {name: part for name, part in wanted.items() if name not in copies})
        self.optimizer.steps, self.optimizer.skipped = numbers["steps"], numbers["skipped"]
        if self.critic is not None and numbers["critic"] is not None:
            self.critic.restore(numbers["critic"])
        self.version = numbers["version"]
        torch.set_rng_state(numbers["rng"])
        found = contents.sums(self.weights())
        if self.rank == 0:
            contents.compare(path, held["weights"]["policy"], found)
        return self.version

    def _settings(self) -> dict[str, str]:
        adapter = {} if self.lora is None else {"lora.rank": str(self.lora.shape.rank)}
        return {"trainer.optimizer": self.config.optimizer, **adapter}

    def _model(self) -> dict[str, Any]:
        """The model's state; with an adapter, without a base that the trainer's folder holds."""
        return self.model.state_dict() if self.lora is None else self.lora.state(self.model)

    def _read(self, path: Path, state: dict[str, Any]) -> None:
        try:
            state_dict_loader.load(state, checkpoint_id=path / "tensors", process_group=self.control)
        except CheckpointException as error:
            causes = dict.fromkeys(str(cause) for cause, _ in error.failures.values())
            raise InvalidInput(
                f"{path}: the checkpoint is of another model: {contents.summary(list(causes))}"
            ) from None

    def _tensors(self) -> dict[str, Any]:
        """The sharded state, by part and name; optimizer state that the first update would make is made."""
        names = {parameter: name for name, parameter in self.model.named_parameters()}
        states = {names[parameter]: state for parameter, state in self.optimizer.moments().items()}
        copies = {"reference": self.reference, "average": self.average}
        return {
            "model": self._model(),
            "optimizer": states,
            **{name: copy.state_dict() for name, copy in copies.items() if copy is not None},
        }

    def _numbers(self, path: Path) -> dict[str, Any]:
        copies = {"reference": self.reference, "average": self.average}
        return {
            "base": None if self.lora is None else self.lora.kept_base(path),
            "lora": None if self.lora is None else {"adapter": self.lora.attached, "base": self.lora.holds_base},
            "steps": self.optimizer.steps,
            "skipped": self.optimizer.skipped,
            "copies": [name for name, copy in copies.items() if copy is not None],
            "critic": None if self.critic is None else self.critic.state(),
            "version": self.version,
            "rng": torch.get_rng_state(),
        }

    def forget(self) -> None:
        """Free what would outlive the rank, before another is built in this process."""
        dist.destroy_process_group(self.control)


class FsdpBuilder(Builder):
    """Builds a rank of FSDP."""

    def __init__(self, role: RankSettings) -> None:
        super().__init__(role)
        join(role, gpus=torch.cuda.is_available())
        logging.disable_progress_bar()  # a rank's output is a log

    def build(
        self, folder: str, config: FsdpConfig, algo: Mapping[str, Any], total_steps: int, lora: LoraConfig | None = None
    ) -> FsdpRank:
        gc.collect()  # models are in reference cycles
        return FsdpRank(folder, config, algorithm_settings(algo), total_steps, self.role.seed, lora)
