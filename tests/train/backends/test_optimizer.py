"""Muon beside AdamW, learning rates and freezing by pattern, and a reference that follows the policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from agentrl.config import AlgoConfig
from agentrl.errors import ConfigError, InvalidInput
from agentrl.train.trainers import optimizer as optimizer_module
from agentrl.train.trainers.torch_trainer.settings import TorchConfig
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from tests.train.backends.test_torch import forests_for, parameters, same

ALGO = AlgoConfig(lr=1e-2)


def trainer_on(folder: Path, algo: AlgoConfig = ALGO, **settings: Any) -> TorchTrainer:
    return TorchTrainer(folder, TorchConfig(device="cpu", **settings), algo, total_steps=4)


def change(folder: Path, algo: AlgoConfig = ALGO, **settings: Any) -> dict[str, Tensor]:
    """What one step adds to each parameter."""
    trainer = trainer_on(folder, algo, **settings)
    before = parameters(trainer)
    trainer.step(forests_for(algo))
    return {name: after - before[name] for name, after in parameters(trainer).items()}


@pytest.mark.slow
def test_muon_moves_hidden_matrices_by_an_orthogonal_update_and_leaves_the_rest_to_adamw(tiny_llama: Path) -> None:
    """By its definition: all singular values of the update are about equal (0.7 to 1.2 after five iterations in
    bfloat16), times AdamW's size, 0.2 · sqrt(max(rows, columns)) · lr. Directions without gradient get less."""
    ours, plain = change(tiny_llama, optimizer="muon"), change(tiny_llama)
    for name, moved in ours.items():
        if moved.ndim == 2 and "embed" not in name and "lm_head" not in name:
            spectrum = torch.linalg.svdvals(moved) / (0.2 * max(moved.shape) ** 0.5 * ALGO.lr)
            assert spectrum.max() < 1.35, name
            assert spectrum[: len(spectrum) // 4].min() > 0.6, name
            assert not torch.allclose(moved, plain[name], atol=ALGO.lr / 10)
        else:
            assert torch.equal(moved, plain[name]), name


@pytest.mark.slow
def test_frozen_weights_stay_and_factors_multiply_the_learning_rate(tiny_llama: Path) -> None:
    settings = {"freeze": ["*.layers.0.mlp.*"], "lr_factors": {"*norm.weight": 0.25}, "layer_decay": 0.5}
    plain, ours = (
        change(tiny_llama, AlgoConfig(lr=1e-2, max_grad_norm=1e9)),
        change(tiny_llama, AlgoConfig(lr=1e-2, max_grad_norm=1e9), **settings),
    )
    layers = 1 + max(int(name.split(".")[2]) for name in plain if ".layers." in name)
    for name, moved in ours.items():
        if ".layers.0.mlp." in name:
            assert not moved.any()
            continue
        below = int(name.split(".")[2]) if ".layers." in name else -1 if "embed" in name else layers - 1
        factor = 0.5 ** (layers - 1 - below) * (0.25 if name.endswith("norm.weight") else 1.0)
        if name != "lm_head.weight":  # may be the embedding itself
            assert torch.allclose(moved, factor * plain[name], atol=2e-7), name


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_with_all_of_it_two_steps_saved_and_two_more_are_four_bit_for_bit(
    optimizer: str, tiny_llama: Path, tmp_path: Path
) -> None:
    algo = AlgoConfig(lr=1e-2, kl_coef=0.1, reference_decay=0.9, schedule="cosine", weight_decay=0.1)
    settings = {
        "optimizer": optimizer,
        "freeze": ["*embed_tokens*"],
        "lr_factors": {"*mlp*": 0.5},
        "layer_decay": 0.8,
    }
    straight, first, second = (trainer_on(tiny_llama, algo, **settings) for _ in range(3))
    expected = [straight.step(forests_for(algo, step)) for step in range(4)]
    found = [first.step(forests_for(algo, step)) for step in range(2)]
    first.save(tmp_path / "trainer")
    second.load(tmp_path / "trainer")
    found += [second.step(forests_for(algo, step)) for step in range(2, 4)]
    assert found == expected
    assert same(parameters(second), parameters(straight))
    assert straight.reference is not None
    assert second.reference is not None
    assert same(dict(second.reference.state_dict()), dict(straight.reference.state_dict()))


@pytest.mark.slow
def test_a_reference_that_follows_is_the_exponential_average_of_the_policies(tiny_llama: Path) -> None:
    algo = AlgoConfig(lr=1e-2, kl_coef=0.1, reference_decay=0.75)
    trainer = trainer_on(tiny_llama, algo)
    mean = {name: weight.double() for name, weight in parameters(trainer).items()}
    for step in range(3):
        trainer.step(forests_for(algo, step))
        mean = {name: 0.75 * mean[name] + 0.25 * weight for name, weight in parameters(trainer).items()}
    assert trainer.reference is not None
    assert all(torch.allclose(w.double(), mean[n], atol=1e-6) for n, w in trainer.reference.state_dict().items())


@pytest.mark.slow
def test_an_average_for_evaluation_follows_the_policy_in_checkpoints_and_changes_nothing_else(
    tiny_llama: Path, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    plain, ours = trainer_on(tiny_llama), trainer_on(tiny_llama, average_decay=0.75)
    mean = {name: weight.double() for name, weight in parameters(ours).items()}
    for step in range(3):
        if step == 2:  # a killed run goes on
            ours.save(tmp_path / "trainer")
            ours = trainer_on(tiny_llama, average_decay=0.75)
            ours.load(tmp_path / "trainer")
        for trainer in (plain, ours):
            trainer.step(forests_for(ALGO, step))
        mean = {name: 0.75 * mean[name] + 0.25 * weight for name, weight in parameters(ours).items()}
    assert same(parameters(plain), parameters(ours))
    sent = dict(ours.averaged_weights())
    assert sent.keys() == dict(ours.weights()).keys()
    assert all(torch.allclose(tensor.double(), mean[name], atol=1e-6) for name, tensor in sent.items())
    with pytest.raises(InvalidInput, match=r"trainer.average_decay is none"):
        plain.averaged_weights()
    ours.export(tmp_path / "model")
    averaged = AutoModelForCausalLM.from_pretrained(tmp_path / "model" / "averaged").state_dict()
    assert all(torch.allclose(weight.double(), mean[name], atol=1e-6) for name, weight in averaged.items())
    assert same(AutoModelForCausalLM.from_pretrained(tmp_path / "model").state_dict(), parameters(plain))
    assert not same(averaged, parameters(plain))


@pytest.mark.slow
def test_settings_that_fit_no_parameter_or_another_checkpoint_are_refused(tiny_llama: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"trainer.freeze: 'visual.\*' matches none"):
        trainer_on(tiny_llama, freeze=["visual.*"])
    with pytest.raises(ConfigError, match="leaves no parameter"):
        trainer_on(tiny_llama, freeze=["*"])
    trainer_on(tiny_llama).save(tmp_path / "trainer")
    with pytest.raises(ConfigError, match=r"trainer.optimizer=muon: the checkpoint is of trainer.optimizer=adamw"):
        trainer_on(tiny_llama, optimizer="muon").load(tmp_path / "trainer")
    with pytest.raises(ConfigError, match="other groups of parameters"):
        trainer_on(tiny_llama, layer_decay=0.5).load(tmp_path / "trainer")


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_offloaded_moments_are_on_the_other_device_between_updates_and_come_back_for_each(
    optimizer: str, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On torch's meta device, which takes tensors and loses what is in them."""
    monkeypatch.setattr(optimizer_module, "AWAY", "meta")
    trainer = trainer_on(tiny_llama, offload_optimizer=True, optimizer=optimizer)
    trainer.step(forests_for(ALGO))
    moments = [t for state in trainer.optimizer.moments().values() for t in state.values() if t.ndim]
    assert len(moments) >= len(trainer.optimizer.parameters)
    assert all(tensor.is_meta for tensor in moments)
    assert not any(parameter.is_meta for parameter in trainer.model.parameters())
    with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
        trainer.step(forests_for(ALGO, 1))


@pytest.mark.slow
def test_a_trainer_that_offloads_its_moments_learns_the_same_bits_and_goes_on_from_one_that_does_not(
    tiny_llama: Path, tmp_path: Path
) -> None:
    plain, offloaded = trainer_on(tiny_llama), trainer_on(tiny_llama, offload_optimizer=True)
    for step in range(2):
        assert plain.step(forests_for(ALGO, step)) == offloaded.step(forests_for(ALGO, step))
        offloaded.release()
    plain.save(tmp_path / "state")
    resumed = trainer_on(tiny_llama, offload_optimizer=True)
    resumed.load(tmp_path / "state")
    found = [trainer.step(forests_for(ALGO, 2)) for trainer in (plain, offloaded, resumed)]
    assert found[1:] == found[:1] * 2
    assert same(parameters(offloaded), parameters(plain))
    assert same(parameters(resumed), parameters(plain))


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_batch_that_is_masked_as_a_whole_moves_no_weight(optimizer: str, tiny_llama: Path) -> None:
    """Neither by the moments of the step before it nor by decay; the step counts for schedule and version."""
    algo = AlgoConfig(lr=1e-2, weight_decay=0.1, correction={"mask_token": (0.99, 1.01)})  # type: ignore[arg-type]
    trainer, forests = trainer_on(tiny_llama, algo, optimizer=optimizer), forests_for(algo)
    for forest, logp in zip(forests, trainer.logprobs(forests), strict=True):
        forest.behaviour_logp = logp
    start = parameters(trainer)
    trainer.step(forests)
    before = parameters(trainer)
    assert not same(start, before)
    for forest in forests:
        forest.behaviour_logp = forest.behaviour_logp - 50
        forest.version = forest.version + 1  # of this trainer's version: the ratio is to its own policy
    masked = trainer.step(forests)
    assert masked["correction/mask_fraction"] == 1
    assert masked["skipped_updates"] == 0
    assert same(before, parameters(trainer))
    assert trainer.version == trainer.optimizer.steps == 2
