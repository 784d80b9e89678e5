"""Checkpoints in torch's distributed format, from which any number of ranks resumes with the same numbers.

Every rank writes its own shards of weights and optimizer state; a loader with other shards reads the slices that it
needs. A folder gets its name when it is complete: it is written as `NAME.partial`, and renamed when every rank is done.

    tensors/        weights, optimizer state, and the reference's and the average's weights where they are kept
    numbers.pt      counts, version, critic, generators
    contents.json   digests of files and weights, which a loader compares (see `agentrl.train.trainers.ranks.contents`)
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException

from agentrl.errors import InvalidInput
from agentrl.train.trainers.ranks import contents

if TYPE_CHECKING:
    from agentrl.train.trainers.fsdp.rank import FsdpRank


def save(rank: FsdpRank, path: Path) -> None:
    """Write a folder; called on all ranks together."""
    beside = path.with_name(path.name + ".partial")
    if rank.rank == 0:
        shutil.rmtree(beside, ignore_errors=True)
        (beside / "tensors").mkdir(parents=True)
        torch.save(_numbers(rank, path), beside / "numbers.pt")
    dist.barrier(rank.control)
    state_dict_saver.save(_tensors(rank), checkpoint_id=beside / "tensors", process_group=rank.control)
    weights = {"policy": contents.sums(rank.weights())}
    contents.record(beside, _settings(rank), weights, rank.all_gather, rank.rank)
    contents.publish(beside, path, rank.control)


def load(rank: FsdpRank, path: Path) -> None:
    """Load a folder, with the settings of the last `begin`; called on all ranks together.

    A reference or an average that was not saved is a copy of the loaded policy.

    Raises:
        InvalidInput: no checkpoint is there, it is damaged, of another model or other trained parameters, or what was
            loaded is not what was saved.
    """
    held = contents.read(path, _settings(rank), rank.all_gather, rank.rank)
    numbers = torch.load(path / "numbers.pt", map_location="cpu", weights_only=True)
    if rank.lora is not None:
        rank.lora.find_base(numbers.get("base"), path)
        rank.lora.prepare(
            rank.model, lambda: rank.sharded().model, **(numbers.get("lora") or {"adapter": False, "base": True})
        )
    _read(path, {"model": _model(rank)}, rank)
    whole = rank.lora is not None and not rank.lora.attached
    rank.begin(rank.algo, rank.optimizer.total_steps, whole=whole)  # copies that were not saved are of this policy
    wanted = _tensors(rank)
    copies = {name for name in ("reference", "average") if name in wanted and name not in numbers["copies"]}
    _read(path, {name: part for name, part in wanted.items() if name not in copies}, rank)
    rank.optimizer.steps, rank.optimizer.skipped = numbers["steps"], numbers["skipped"]
    if rank.critic is not None and numbers["critic"] is not None:
        rank.critic.restore(numbers["critic"])
    rank.version = numbers["version"]
    torch.set_rng_state(numbers["rng"])
    found = contents.sums(rank.weights())
    if rank.rank == 0:
        contents.compare(path, held["weights"]["policy"], found)


def _settings(rank: FsdpRank) -> dict[str, str]:
    adapter = {} if rank.lora is None else {"lora.rank": str(rank.lora.shape.rank)}
    return {"trainer.optimizer": rank.config.optimizer, **adapter}


def _model(rank: FsdpRank) -> dict[str, Any]:
    """The model's state; with an adapter, without a base that the trainer's folder holds."""
    return rank.model.state_dict() if rank.lora is None else rank.lora.state(rank.model)


def _read(path: Path, state: dict[str, Any], rank: FsdpRank) -> None:
    try:
        state_dict_loader.load(state, checkpoint_id=path / "tensors", process_group=rank.control)
    except CheckpointException as error:
        causes = dict.fromkeys(str(cause) for cause, _ in error.failures.values())
        raise InvalidInput(f"{path}: the checkpoint is of another model: {contents.summary(list(causes))}") from None


def _tensors(rank: FsdpRank) -> dict[str, Any]:
    """The sharded state, by part and name; optimizer state that the first update would make is made."""
    names = {parameter: name for name, parameter in rank.model.named_parameters()}
    states = {names[parameter]: state for parameter, state in rank.optimizer.moments().items()}
    copies = {"reference": rank.reference, "average": rank.average}
    return {
        "model": _model(rank),
        "optimizer": states,
        **{name: copy.state_dict() for name, copy in copies.items() if copy is not None},
    }


def _numbers(rank: FsdpRank, path: Path) -> dict[str, Any]:
    copies = {"reference": rank.reference, "average": rank.average}
    return {
        "base": None if rank.lora is None else rank.lora.kept_base(path),
        "lora": None if rank.lora is None else {"adapter": rank.lora.attached, "base": rank.lora.holds_base},
        "steps": rank.optimizer.steps,
        "skipped": rank.optimizer.skipped,
        "copies": [name for name, copy in copies.items() if copy is not None],
        "critic": None if rank.critic is None else rank.critic.state(),
        "version": rank.version,
        "rng": torch.get_rng_state(),
    }
