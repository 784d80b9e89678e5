"""One rank: a torch trainer whose model is sharded, and that computes its share of every batch.

All ranks run the same calls in the same order, each with its share of the forests: assigned by cost, as to Megatron's
data-parallel ranks, and as many for each, since FSDP gathers weights for all of them together. A call's result is
complete on rank 0.
"""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from transformers.utils import logging

from agentrl.config import AlgoConfig, LoraConfig
from agentrl.models.adapters import SavedAdapter, with_products
from agentrl.rollout.engines.local.weights import single_experts
from agentrl.train.algorithms import algorithm_settings
from agentrl.train.trainers.fsdp.checkpoint import FsdpCheckpoints
from agentrl.train.trainers.fsdp.settings import FsdpConfig
from agentrl.train.trainers.fsdp.sharding import Gathered, shard_model
from agentrl.train.trainers.learner import RankStepResult
from agentrl.train.trainers.lora import adapter_in, is_adapter
from agentrl.train.trainers.ranks.balance import Division, Share
from agentrl.train.trainers.ranks.joined import Entry, all_gather, join_results, sum_over_ranks
from agentrl.train.trainers.ranks.worker import Builder, RankSettings, join
from agentrl.train.trainers.torch_trainer.batch import TorchBatch, computing

T = TypeVar("T")


class FsdpRank(FsdpCheckpoints):
    """A torch trainer on sharded weights; the default process group must be initialised."""

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
        self,
        folder: str,
        config: FsdpConfig,
        algo: Mapping[str, Any],
        total_steps: int,
        lora: LoraConfig | None = None,
    ) -> FsdpRank:
        gc.collect()  # models are in reference cycles
        return FsdpRank(folder, config, algorithm_settings(algo), total_steps, self.role.seed, lora)
