"""Checkpoints in Megatron's distributed format, from which another layout can resume.

Every rank writes its own shards of weights and optimizer state under global names; a loader with other shards
reads the slices that it needs. The optimizer's state is saved by parameter, in the parameter's own shape (see
`moments`). A folder gets its name only when it is complete: it is written as `NAME.partial`, and renamed when every
rank is done.

    policy/         weights, optimizer state, and the counters that resuming needs
    reference/      the reference's weights, where there is a KL penalty
    average/        the average's, where there is one (`average_decay`)
    contents.json   digests of files and weights, which a loader compares (see `contents`)

With `async_save` a forked process of each rank writes while training goes on, from memory as it was at the
fork; the folder appears when the next call, or the end, finds it finished. Meanwhile the folder around it may get
another name (a run's checkpoints do), so writers find it by an open descriptor and not by its path. What was
given up there: after a crash in between, the newest usable checkpoint is the one before.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import (
    ShardedBase,
    ShardedTensor,
    ShardedTensorFactory,
    apply_factories,
    is_main_replica,
)
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.dist_checkpointing.strategies.async_utils import AsyncCallsQueue
from torch import Tensor

from agentrl.config import AlgoConfig
from agentrl.errors import InvalidInput
from agentrl.train.trainers.copies import WeightCopy
from agentrl.train.trainers.critic import ValueModel
from agentrl.train.trainers.megatron.adapter import RankAdapter
from agentrl.train.trainers.megatron.copies import RankWeightCopy
from agentrl.train.trainers.megatron.settings import MegatronConfig
from agentrl.train.trainers.megatron.update import Update
from agentrl.train.trainers.optimizer import Optimizer
from agentrl.train.trainers.ranks import contents

WITHOUT = {"adapter": False, "base": True, "matrices": {}, "copies": {}}
"""The adapter of a checkpoint whose whole model was trained."""


class _SavedRank(Protocol):
    """A rank as far as its checkpoints read and restore it; see `agentrl.train.trainers.megatron.rank.Rank`."""

    config: MegatronConfig
    models: list[Any]
    adapter: RankAdapter | None
    optimizer: Update | Optimizer
    reference: RankWeightCopy | WeightCopy | None
    average: RankWeightCopy | WeightCopy | None
    critic: ValueModel | None
    version: int

    @property
    def algo(self) -> AlgoConfig: ...
    def begin(self, algo: AlgoConfig | Mapping[str, Any], total_steps: int, whole: bool = False) -> None: ...
    def weights(self) -> Iterator[tuple[str, Tensor]]: ...
    def gather(self, value: Any) -> list[Any] | None: ...
    def all_gather(self, value: Any) -> list[Any]: ...


class Checkpoints:
    """A rank's checkpoints; every method is called on all ranks together."""

    def __init__(self, rank: _SavedRank) -> None:
        self.rank = rank
        self._queue = AsyncCallsQueue()
        self._around: int | None = None

    def save(self, path: Path) -> None:
        """Write a folder, or begin to (`async_save`)."""
        self.finish()
        rank, given = self.rank, path
        self._around = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        path = Path(f"/proc/self/fd/{self._around}") / path.name
        beside = path.with_name(path.name + ".partial")
        if dist.get_rank() == 0:
            shutil.rmtree(beside, ignore_errors=True)
            for name in ("policy", *self._copies()):
                (beside / name).mkdir(parents=True)
        dist.barrier()
        # Created and freed by each save: Megatron's own stays, and would outlive a rank that is killed.
        filesystem_async._results_queue = multiprocessing.get_context("fork").Manager().Queue()
        weights = {"policy": self._sums()}
        for name, copy in self._copies().items():
            with copy.exchanged():
                weights[name] = self._sums()
                dist_checkpointing.save(self._models(), str(beside / name))
        numbers = self._numbers()
        if rank.adapter is not None:
            numbers["base"] = rank.adapter.lora.kept_base(given)
        state = {**self._models(), **self._states(), "numbers": numbers}

        def finalise() -> None:
            dist.barrier()
            contents.record(beside, self._settings(), weights, rank.all_gather, dist.get_rank())
            contents.publish(beside, path)

        if rank.config.async_save:
            request = dist_checkpointing.save(state, str(beside / "policy"), async_sharded_save=True)
            request.add_finalize_fn(finalise)
            self._queue.schedule_async_request(request)
        else:
            dist_checkpointing.save(state, str(beside / "policy"))
            finalise()
            self._release()

    def load(self, path: Path) -> int:
        """Load a folder, with the settings of the last `begin`; returns the version.

        A reference or an average that was not saved is a copy of the loaded policy.

        Raises:
            InvalidInput: no checkpoint is there, it is damaged, belongs to another model or other settings, or what was
                loaded is not what was saved.
        """
        self.finish()
        rank, policy = self.rank, path / "policy"
        held = contents.read(path, self._settings(), rank.all_gather, dist.get_rank())
        numbers = dist_checkpointing.load_common_state_dict(str(policy))["numbers"]
        adapter = numbers.get("adapter") or WITHOUT
        if rank.adapter is not None:
            rank.adapter.lora.find_base(numbers.get("base"), path)
            rank.adapter.prepare(adapter)
        self._check_shapes(path)
        whole = rank.adapter is not None and not adapter["adapter"]
        rank.begin(rank.algo, rank.optimizer.total_steps, whole=whole)
        for name, copy in self._copies().items():
            if name in held["weights"]:
                self._fill(dist_checkpointing.load(self._models(), str(path / name)))
                self._compare(path / name, held["weights"][name])
                copy.renew()
        rank.optimizer.steps, rank.optimizer.skipped = numbers["steps"], numbers["skipped"]
        if models := self._models():
            self._fill(dist_checkpointing.load(models, str(policy)))
        if isinstance(rank.optimizer, Update):
            rank.optimizer.updates = numbers["updates"]
            self._restore(policy, rank.optimizer)
        if rank.adapter is not None:
            rank.adapter.restore(rank.optimizer, self._read_kept(), adapter)
        self._compare(policy, held["weights"]["policy"])
        if rank.critic is not None:
            rank.critic.restore(numbers["critic"])
        for name, copy in self._copies().items():
            if name not in held["weights"]:
                copy.renew()
        rank.version = int(numbers["version"])
        return rank.version

    def _copies(self) -> dict[str, RankWeightCopy]:
        """The sets of weights beside the policy's, by their folders' names."""
        return {name: copy for name, copy in self._read_kept().items() if isinstance(copy, RankWeightCopy)}

    def _read_kept(self) -> dict[str, object]:
        """The same, with those of an adapter alone, and None for none."""
        return {"reference": self.rank.reference, "average": self.rank.average}

    def finish(self) -> None:
        """Wait for a folder that is still being written."""
        self._queue.maybe_finalize_async_calls(blocking=True)
        self._release()

    def _release(self) -> None:
        filesystem_async._results_queue = None
        if self._around is not None:
            os.close(self._around)
            self._around = None

    def _settings(self) -> dict[str, str]:
        config = self.rank.config
        frozen = {"trainer.freeze": ", ".join(config.freeze)} if config.freeze else {}
        frozen |= {"trainer.vision": config.vision} if config.vision != "full" else {}
        adapter = {} if self.rank.adapter is None else {"lora.rank": str(self.rank.adapter.lora.shape.rank)}
        return {"trainer.dtype": config.dtype, "trainer.optimizer": config.optimizer, **frozen, **adapter}

    def _numbers(self) -> dict[str, Any]:
        rank = self.rank
        return {
            "steps": rank.optimizer.steps,
            "updates": rank.optimizer.updates if isinstance(rank.optimizer, Update) else 0,
            "adapter": None if rank.adapter is None else rank.adapter.state(rank.optimizer, self._read_kept()),
            "skipped": rank.optimizer.skipped,
            "version": rank.version,
            "critic": None if rank.critic is None else rank.critic.state(),
        }

    def _models(self) -> dict[str, Any]:
        if self.rank.adapter is not None and not self.rank.adapter.lora.holds_base:
            return {}
        return {f"model{i}": model.sharded_state_dict(metadata={}) for i, model in enumerate(self.rank.models)}

    def _fill(self, state: dict[str, Any]) -> None:
        with torch.no_grad():
            for i, model in enumerate(self.rank.models):
                model.load_state_dict(state[f"model{i}"])

    def _states(self) -> dict[str, ShardedBase]:
        """The optimizer's state in the shape of the weights, as far as this rank writes it, under numbered names."""
        whole = self.rank.optimizer.states() if isinstance(self.rank.optimizer, Update) else {}
        wanted: dict[str, ShardedBase] = {}
        for sharded in nested_values(self._models()):
            if isinstance(sharded, ShardedTensor | ShardedTensorFactory) and is_main_replica(sharded.replica_id):
                for kind, tensor in whole.get(sharded.data, {}).items():
                    wanted[f"optimizer.{len(wanted)}"] = _like(sharded, kind, tensor)
        return wanted

    def _restore(self, policy: Path, optimizer: Update) -> None:
        kinds = optimizer.kinds()
        wanted: dict[str, ShardedBase] = {}
        places: list[tuple[torch.nn.Parameter, str]] = []
        for sharded in nested_values(self._models()):
            if isinstance(sharded, ShardedTensor | ShardedTensorFactory):
                for kind in kinds.get(sharded.data, ()):
                    tensor = torch.empty(sharded.data.shape, dtype=torch.float32)
                    wanted[str(len(places))] = _like(sharded, kind, tensor)
                    places.append((sharded.data, kind))
        loaded = dist_checkpointing.load({"optimizer": wanted}, str(policy))["optimizer"] if places else {}
        states: dict[torch.nn.Parameter, dict[str, Tensor]] = {parameter: {} for parameter in kinds}
        for i, (parameter, kind) in enumerate(places):
            states[parameter][kind] = loaded[str(i)]
        optimizer.restore(states)

    def _check_shapes(self, path: Path) -> None:
        """Raise on every rank where the weights are not of this model's shapes."""
        held = dist_checkpointing.load_tensors_metadata(str(path / "policy"))
        problems = []
        for sharded in self._tensors():
            there = held.get(sharded.key)
            first = 1 if sharded.allow_shape_mismatch else 0  # a vocabulary is padded differently by each layout
            if there is None:
                problems.append(f"{sharded.key} is not in the checkpoint")
            elif there.global_shape[first:] != sharded.global_shape[first:]:
                shapes = f"{list(there.global_shape)} there and {list(sharded.global_shape)} here"
                problems.append(f"{sharded.key} is {shapes}")
        problems_of_all = list(dict.fromkeys(problem for each in self.rank.all_gather(problems) for problem in each))
        if problems_of_all:
            raise InvalidInput(f"{path}: the checkpoint is of another model: {contents.summary(problems_of_all)}")

    def _tensors(self) -> Iterator[ShardedTensor]:
        models = self._models()
        apply_factories(models)
        yield from (sharded for sharded in nested_values(models) if isinstance(sharded, ShardedTensor))

    def _sums(self) -> contents.Sums:
        """Checksums of the weights as engines would get them; on rank 0."""
        return contents.sums(self.rank.weights())

    def _compare(self, folder: Path, recorded: contents.Sums) -> None:
        """Raise on rank 0 where weights are not those that were saved, or ranks hold different copies of one."""
        found = self._sums()
        own = {(sharded.key, sharded.global_offset): contents.checksum(sharded.data) for sharded in self._tensors()}
        everyone = self.rank.gather(own)
        if everyone is None:
            return
        contents.compare(folder, recorded, found)
        copies: dict[Any, str] = {}
        entries = (entry for each in everyone for entry in each.items())
        differ = {place[0] for place, total in entries if copies.setdefault(place, total) != total}
        if differ:
            problems = [f"{key} is not the same on all ranks that hold it" for key in sorted(differ)]
            raise InvalidInput(f"{folder}: the weights are not those that were saved: {contents.summary(problems)}")


def _like(sharded: ShardedTensor | ShardedTensorFactory, kind: str, tensor: Tensor) -> ShardedBase:
    if isinstance(sharded, ShardedTensorFactory):
        return replace(sharded, key=f"optimizer.{kind}.{sharded.key}", data=tensor)
    return replace(sharded, key=f"optimizer.{kind}.{sharded.key}", data=tensor, dtype=tensor.dtype)
