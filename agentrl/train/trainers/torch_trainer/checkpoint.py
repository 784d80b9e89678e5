"""The torch trainer's checkpoint: one file, written beside its place and renamed."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import nn

from agentrl.config import AlgoConfig
from agentrl.train.trainers.copies import WeightCopy
from agentrl.train.trainers.learner import StepLearner
from agentrl.train.trainers.lora import Lora, refuse_state_of_adapter
from agentrl.train.trainers.optimizer import Optimizer, to_cpu
from agentrl.train.trainers.ranks.restricted import refuse_packed
from agentrl.train.trainers.reward_model import RewardModel
from agentrl.train.trainers.torch_trainer.batch import TorchBatch


class TorchCheckpoints(StepLearner[TorchBatch]):
    """Saving and loading of a `TorchTrainer`; the attributes are the trainer's."""

    model: nn.Module
    device: torch.device
    lora: Lora | None
    optimizer: Optimizer
    reference: WeightCopy | None
    average: WeightCopy | None
    reward_model: RewardModel | None

    def begin(self, algo: AlgoConfig, total_steps: int, *, whole: bool = False) -> None:
        raise NotImplementedError

    def load_model(self) -> nn.Module:
        """See `TorchTrainer.load_model`."""
        raise NotImplementedError

    def save(self, path: Path) -> None:
        """Write model, reference, average, critic, reward model, optimizer, generators and version into one file."""
        path = Path(path)
        state = {
            "model": to_cpu(self.lora.state(self.model) if self.lora else self.model.state_dict()),
            "base": None if self.lora is None else self.lora.kept_base(path),
            "reference": None if self.reference is None else to_cpu(self.reference.state_dict()),
            "average": None if self.average is None else to_cpu(self.average.state_dict()),
            "critic": None if self.critic is None else self.critic.state(),
            "reward_model": None if self.reward_model is None else self.reward_model.state(),
            "optimizer": self.optimizer.state(),
            "version": self.version,
            "rng": torch.get_rng_state(),
            "cuda_rng": torch.cuda.get_rng_state_all() if self.device.type == "cuda" else [],
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(path.name + ".partial")
        with partial.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)

    def load(self, path: Path) -> None:
        """Load what `save` wrote; the settings remain those of the last `begin`."""
        path = Path(path)
        with path.open("rb") as file:
            refuse_packed(path, file)
            state = torch.load(file, map_location="cpu", weights_only=True)
        if self.lora is None:
            refuse_state_of_adapter(path, state["model"])
            self.model.load_state_dict(state["model"])
        else:
            self.lora.find_base(state.get("base"), path)
            self.lora.restore(self.model, state["model"], self.load_model)
        whole = self.lora is not None and not self.lora.attached
        self.begin(self.algo, self.optimizer.total_steps, whole=whole)
        self.optimizer.restore(state["optimizer"])
        if self.reference is not None and state["reference"] is not None:
            self.reference.load_state_dict(state["reference"])
        if self.average is not None and state.get("average") is not None:
            self.average.load_state_dict(state["average"])
        if self.critic is not None and state.get("critic") is not None:
            self.critic.restore(state["critic"])
        if self.reward_model is not None and state.get("reward_model") is not None:
            self.reward_model.restore(state["reward_model"])
        self.version = state["version"]
        torch.set_rng_state(state["rng"])
        if state["cuda_rng"]:
            torch.cuda.set_rng_state_all(state["cuda_rng"])
