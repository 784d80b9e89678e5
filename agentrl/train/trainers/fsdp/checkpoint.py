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
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException

from agentrl.errors import InvalidInput
from agentrl.train.trainers.fsdp.settings import FsdpConfig
from agentrl.train.trainers.fsdp.sharding import Gathered
from agentrl.train.trainers.ranks import contents
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer


class FsdpCheckpoints(TorchTrainer):
    """Saving and loading of a rank; the attributes are the rank's."""

    config: FsdpConfig
    rank: int
    control: dist.ProcessGroup

    def sharded(self) -> Gathered:
        """See `FsdpRank.sharded`."""
        raise NotImplementedError

    def all_gather(self, value: Any) -> list[Any]:
        """See `FsdpRank.all_gather`."""
        raise NotImplementedError

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
