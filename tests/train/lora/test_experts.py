"""Adapters on experts that a layer holds as one tensor: each expert's matrices are its own, as PEFT stacks them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from agentrl.errors import ConfigError, InvalidWeights
from agentrl.models.adapter_merge import merge_adapter
from agentrl.models.adapters import read_adapter
from agentrl.train.trainers.torch_trainer.settings import TorchConfig
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from tests.train.backends.megatron import zoo
from tests.train.backends.test_torch import forests_for
from tests.train.lora.test_lora import ALGO, learn, logits, same, trainer_on, weights


@pytest.fixture(scope="module")
def moe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return zoo.write("qwen3_moe_raw", tmp_path_factory.mktemp("moe") / "model")


@pytest.mark.slow
def test_experts_learn_with_matrices_of_their_own_and_a_saved_trainer_goes_on_bit_for_bit(
    moe: Path, tmp_path: Path
) -> None:
    """Its folder in PEFT's format begins another with the same weights, which whole weights have merged."""
    first, again = (trainer_on(moe, rank=2, experts=True) for _ in range(2))
    before = weights(first)
    learned = weights(learn(first))
    changed = {name for name in before if not torch.equal(before[name], learned[name])}
    kinds = {name.rpartition("experts.")[2].partition(".")[2] for name in changed if ".experts." in name}
    assert kinds == {"gate_proj.weight", "up_proj.weight", "down_proj.weight"}
    assert all(name.endswith("_proj.weight") for name in changed)
    assert first.parts() == {}  # engines' files name each expert by itself
    first.save(tmp_path / "trainer")
    assert all("lora" in name for name in torch.load(tmp_path / "trainer", weights_only=True)["model"])
    again.load(tmp_path / "trainer")
    for trainer in (first, again):
        trainer.step(forests_for(ALGO, 4))
    assert same(weights(first), weights(again))
    first.export(tmp_path / "model")
    folder = tmp_path / "model" / "adapter"
    assert same(weights(trainer_on(moe, adapter=str(folder))), weights(first))
    merge_adapter(moe, folder, tmp_path / "merged")
    assert (logits(tmp_path / "merged") - logits(tmp_path / "model")).abs().max() < 1e-5
    assert (logits(tmp_path / "model") - logits(moe)).abs().max() > 1e-3
    first.begin(ALGO, 2, whole=True)
    assert same(weights(first), weights(TorchTrainer(tmp_path / "model", TorchConfig(device="cpu"), ALGO)))


@pytest.mark.slow
def test_gradients_of_experts_matrices_are_those_of_the_merged_tensor(moe: Path, tmp_path: Path) -> None:
    """dB = scale dW A' and dA = scale B' dW for each expert; also where activations are computed again."""
    trainer = trainer_on(moe, trainer=TorchConfig(device="cpu", recompute="full"), rank=2, experts=True)
    with torch.no_grad():
        for name, matrix in trainer.model.named_parameters():
            if name.endswith("lora_B"):
                matrix.normal_(std=0.02, generator=torch.Generator().manual_seed(1))
    trainer.export(tmp_path / "model")
    whole = TorchTrainer(tmp_path / "model", TorchConfig(device="cpu"), ALGO)
    for each in (trainer, whole):
        for forest in forests_for(ALGO, 2):
            each.backward(each.prepare(forest))
    own, theirs = (dict(each.model.named_parameters()) for each in (trainer, whole))
    names = [name for name in theirs if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]
    assert len(names) == 2 * zoo.LAYERS
    scale = trainer.lora.shape.scale if trainer.lora else 0.0
    for name in names:
        gradient, a, b = theirs[name].grad, own[f"{name}__lora_A"], own[f"{name}__lora_B"]
        assert gradient is not None
        assert a.grad is not None
        assert b.grad is not None
        experts = len(gradient)
        each_a = a.detach().reshape(experts, 2, -1)
        each_b = b.detach().reshape(-1, 2, experts).permute(2, 0, 1)
        found_b = b.grad.reshape(-1, 2, experts).permute(2, 0, 1)
        torch.testing.assert_close(found_b, scale * gradient @ each_a.transpose(1, 2), atol=1e-5, rtol=1e-4)
        found_a = a.grad.reshape(experts, 2, -1)
        torch.testing.assert_close(found_a, scale * each_b.transpose(1, 2) @ gradient, atol=1e-5, rtol=1e-4)


@pytest.mark.slow
def test_experts_where_there_are_none_or_others_are_refused(moe: Path, tiny_llama: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"lora\.experts: no layer of the model has experts in one tensor"):
        trainer_on(tiny_llama, experts=True)
    trainer_on(moe, rank=2, experts=True).export(tmp_path / "model")
    with pytest.raises(InvalidWeights, match="belongs to another base"):
        trainer_on(tiny_llama, adapter=str(tmp_path / "model" / "adapter"))
    with pytest.raises(ConfigError, match=r"lora\.experts: the model's experts are laid out in columns .*as GPT-OSS"):
        trainer_on(zoo.write("gpt_oss", tmp_path / "columns"), experts=True)
    names = set(read_adapter(tmp_path / "model" / "adapter").matrices)
    assert {f"model.layers.{n}.mlp.experts.gate_up_proj" for n in range(zoo.LAYERS)} <= names
