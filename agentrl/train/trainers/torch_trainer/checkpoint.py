"""The torch trainer's checkpoint: one file, written beside its place and renamed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from agentrl.train.trainers.lora import refuse_state_of_adapter
from agentrl.train.trainers.optimizer import to_cpu
from agentrl.train.trainers.ranks.restricted import refuse_packed

if TYPE_CHECKING:
    from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer


def save(trainer: TorchTrainer, path: Path) -> None:
    """Write model, reference, average, critic, reward model, optimizer, generators and version."""
    state = {
        "model": to_cpu(trainer.lora.state(trainer.model) if trainer.lora else trainer.model.state_dict()),
        "base": None if trainer.lora is None else trainer.lora.kept_base(path),
        "reference": None if trainer.reference is None else to_cpu(trainer.reference.state_dict()),
        "average": None if trainer.average is None else to_cpu(trainer.average.state_dict()),
        "critic": None if trainer.critic is None else trainer.critic.state(),
        "reward_model": None if trainer.reward_model is None else trainer.reward_model.state(),
        "optimizer": trainer.optimizer.state(),
        "version": trainer.version,
        "rng": torch.get_rng_state(),
        "cuda_rng": torch.cuda.get_rng_state_all() if trainer.device.type == "cuda" else [],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def load(trainer: TorchTrainer, path: Path) -> None:
    """Load what `save` wrote; the settings remain those of the last `begin`."""
    with path.open("rb") as file:
        refuse_packed(path, file)
        state = torch.load(file, map_location="cpu", weights_only=True)
    if trainer.lora is None:
        refuse_state_of_adapter(path, state["model"])
        trainer.model.load_state_dict(state["model"])
    else:
        trainer.lora.find_base(state.get("base"), path)
        trainer.lora.restore(trainer.model, state["model"], trainer.load_model)
    whole = trainer.lora is not None and not trainer.lora.attached
    trainer.begin(trainer.algo, trainer.optimizer.total_steps, whole=whole)
    trainer.optimizer.restore(state["optimizer"])
    if trainer.reference is not None and state["reference"] is not None:
        trainer.reference.load_state_dict(state["reference"])
    if trainer.average is not None and state.get("average") is not None:
        trainer.average.load_state_dict(state["average"])
    if trainer.critic is not None and state.get("critic") is not None:
        trainer.critic.restore(state["critic"])
    if trainer.reward_model is not None and state.get("reward_model") is not None:
        trainer.reward_model.restore(state["reward_model"])
    trainer.version = state["version"]
    torch.set_rng_state(state["rng"])
    if state["cuda_rng"]:
        torch.cuda.set_rng_state_all(state["cuda_rng"])
