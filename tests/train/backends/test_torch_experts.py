"""What the torch trainer publishes of a mixture of experts: what a server that reads files can load."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from agentrl.config import AlgoConfig
from agentrl.rollout.engines.folder import check_tensors, tensors
from agentrl.train.trainers import make_trainer
from agentrl.train.trainers.torch_trainer.settings import TorchConfig
from tests.train.backends.megatron import zoo


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen3_moe", "glm4_moe", "smollm2"])
def test_weights_go_by_the_names_and_shapes_that_files_have(name: str, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    folder = zoo.write(name, tmp_path)
    trainer = make_trainer(folder, TorchConfig(device="cpu"), AlgoConfig(), total_steps=1, seed=0)
    given = dict(trainer.weights())
    check_tensors({key: tensor.shape for key, tensor in given.items()}, tensors(folder), tied=name == "smollm2")
    [file] = folder.glob("*.safetensors")
    for key, tensor in load_file(file).items():
        assert torch.equal(given[key], tensor), key
