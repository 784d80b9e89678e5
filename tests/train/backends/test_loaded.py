"""A trainer that computes something else with the weights that it loaded is refused, and the layer is named."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from agentrl.errors import ConfigError
from agentrl.models.small import small_model
from agentrl.train.trainers import loaded
from agentrl.train.trainers.loaded import compare, require_loaded
from agentrl.train.trainers.megatron.settings import MegatronConfig
from agentrl.train.trainers.torch_trainer.settings import TorchConfig
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from tests.conftest import need
from tests.train.backends.test_proof import config_of

CPU = TorchConfig(device="cpu")


def folder_of(path: Path, change: Callable[[Any], None] = lambda model: None, kind: str = "llama") -> Path:
    """A small model's folder, whose weights were changed."""
    torch.manual_seed(0)
    model, why = small_model(config_of(kind, {"max_position_embeddings": 512}))
    assert not why
    with torch.no_grad():
        change(model)
    model.save_pretrained(path)
    return path


@pytest.fixture
def folder(tmp_path: Path, own_cache: None) -> Path:
    """A small model's folder, and a cache of its own."""
    return folder_of(tmp_path / "model")


def permuted_rows(model: Any) -> None:
    """Query rows as another convention of rotary embeddings orders them."""
    weight = model.model.layers[2].self_attn.q_proj.weight
    weight.copy_(weight.unflatten(0, (-1, 2, 8)).transpose(1, 2).reshape_as(weight))


def swapped(model: Any) -> None:
    up, gate = model.model.layers[1].mlp.up_proj.weight, model.model.layers[1].mlp.gate_proj.weight
    both = torch.stack((gate, up))
    up.copy_(both[0])
    gate.copy_(both[1])


def missing(model: Any) -> None:
    model.model.layers[3].self_attn.k_proj.weight.zero_()


def other_rope(model: Any) -> None:
    model.model.rotary_emb.inv_freq *= 0.9


def untied_head(model: Any) -> None:
    model.lm_head.weight.copy_(torch.randn_like(model.lm_head.weight))


FAULTS = {
    permuted_rows: "layer 2 of 4",
    swapped: "layer 1 of 4",
    missing: "layer 3 of 4",
    other_rope: "layer 0, or the embeddings",
    untied_head: "the last norm or the head",
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.slow
def test_a_weight_that_was_loaded_wrong_is_refused_and_its_layer_named(fault: Any, dtype: Any, folder: Path) -> None:
    config = TorchConfig(device="cpu", dtype=dtype)
    trainer = TorchTrainer(folder, config)
    assert compare(trainer, folder, dtype).passed
    with torch.no_grad():
        fault(trainer.model)
    with pytest.raises(ConfigError, match=rf"model='mine': trainer=torch.*nats.*{FAULTS[fault]}.*trainer.proof=false"):
        require_loaded(trainer, folder, "mine", config, "cpu")


@pytest.mark.slow
def test_what_passed_is_cached_until_the_weights_or_the_settings_change(folder: Path, tmp_path: Path) -> None:
    trainer = TorchTrainer(folder, CPU)
    first = require_loaded(trainer, folder, "mine", CPU, "cpu", ("bfloat16",))
    assert 0 < first.logp < 1e-4
    assert 0 < first.own["bfloat16"] < 0.1
    again = require_loaded(trainer, folder, "mine", CPU, "cpu", ("bfloat16",))
    assert again == first
    assert again.cached
    assert not require_loaded(trainer, folder, "mine", CPU, "cpu").cached
    with pytest.raises(ConfigError, match="layer 3 of 4"):
        require_loaded(trainer, folder_of(tmp_path / "other", missing), "mine", CPU, "cpu", ("bfloat16",))


@pytest.mark.slow
def test_layers_that_are_read_one_at_a_time_give_what_the_whole_model_gives(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = TorchTrainer(folder, CPU)
    whole = compare(trainer, folder, precisions=("bfloat16",))
    monkeypatch.setattr(loaded, "free_memory", lambda device: 0)
    assert compare(trainer, folder, precisions=("bfloat16",)) == whole
    with torch.no_grad():
        permuted_rows(trainer.model)
    assert "layer 2 of 4" in compare(trainer, folder).layer


def test_a_folder_that_is_too_large_is_not_read_and_says_so(folder: Path, tmp_path: Path) -> None:
    with open(tmp_path / "model.safetensors", "wb") as file:
        file.truncate(loaded.LARGEST + 1)  # takes nothing on the disk
    found = require_loaded(TorchTrainer(folder, CPU), tmp_path, "mine", CPU, "cpu")
    assert "not compared" in str(found)
    assert not found.passed


@pytest.mark.slow
def test_megatron_names_the_layer_that_it_loaded_wrong_whichever_rank_holds_it(folder: Path, tmp_path: Path) -> None:
    need(importlib.util.find_spec("megatron") is not None, "megatron-core is not installed")
    from agentrl.train.trainers.megatron.trainer import MegatronTrainer

    config = MegatronConfig(ranks=2, tensor_parallel=2, sequence_parallel=True)
    trainer = MegatronTrainer(folder, config)
    try:
        assert compare(trainer, folder).passed
        found = compare(trainer, folder_of(tmp_path / "other", permuted_rows))
    finally:
        trainer.close()
    assert not found.passed
    assert "layer 2 of 4" in found.layer
