"""Publishing experts as files name them, one by one, into a model that holds them together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from agentrl.errors import EngineError
from agentrl.rollout.engines.local.weights import load_weights
from tests.train.backends.megatron import zoo

IDS = torch.arange(5, 25)[None]
EXPERT = "model.layers.1.mlp.experts.{}"


def model_of(name: str, folder: Path, seed: int) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(zoo.write(name, folder, seed)).eval()


def file_of(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}


@pytest.mark.parametrize("name", sorted(zoo.EXPERT_CASES))
@pytest.mark.slow
def test_a_file_of_single_experts_makes_the_model_what_the_file_s_own_is(name: str, tmp_path: Path) -> None:
    ours, theirs = model_of(name, tmp_path / "ours", 0), model_of(name, tmp_path / "theirs", 1)
    weights = file_of(tmp_path / "theirs")
    assert EXPERT.format("3.up_proj.weight") in weights
    with torch.no_grad():
        assert not torch.allclose(ours(IDS).logits, theirs(IDS).logits)
        load_weights(ours, weights.items())
        assert torch.equal(ours(IDS).logits, theirs(IDS).logits)
    for key, tensor in theirs.state_dict().items():  # buffers by which experts are selected, too
        assert torch.equal(ours.state_dict()[key], tensor), key


@pytest.mark.slow
def test_what_is_missing_of_the_experts_is_named_and_nothing_changes(tmp_path: Path) -> None:
    ours = model_of("qwen3_moe", tmp_path / "ours", 0)
    model_of("qwen3_moe", tmp_path / "theirs", 1)
    before = {name: tensor.clone() for name, tensor in ours.state_dict().items()}
    weights = file_of(tmp_path / "theirs")
    lost = {EXPERT.format("3.up_proj.weight"), EXPERT.format("5.down_proj.weight")}
    with pytest.raises(EngineError, match=r"weights lack .*experts\.3\.up_proj\.weight'.*experts\.5\.down_proj"):
        load_weights(ours, ((n, t) for n, t in weights.items() if n not in lost))
    none = {name: tensor for name, tensor in weights.items() if not name.startswith(EXPERT.format(""))}
    with pytest.raises(EngineError, match=r"weights lack .*experts\.gate_up_proj', .*experts\.down_proj'"):
        load_weights(ours, none.items())
    whole = {**weights, EXPERT.format("down_proj"): before[EXPERT.format("down_proj")]}
    with pytest.raises(EngineError, match="which is a part of it"):
        load_weights(ours, whole.items())
    wrong = {**weights, EXPERT.format("0.up_proj.weight"): torch.zeros(3, 3)}
    with pytest.raises(EngineError, match=r"experts\.0\.up_proj\.weight' of shape \(3, 3\), not \(32, 48\)"):
        load_weights(ours, wrong.items())
    assert all(torch.equal(tensor, before[name]) for name, tensor in ours.state_dict().items())
