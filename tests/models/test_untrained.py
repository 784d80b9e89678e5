"""What a folder holds beside the language model is in every export, read from the files themselves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForImageTextToText

from agentrl.config import AlgoConfig
from agentrl.models.untrained import notes
from agentrl.train.trainers import make_trainer
from agentrl.train.trainers.torch_trainer.settings import TorchConfig

HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
LINEAR = {"linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 16}
TEXT = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "vocab_size": 64, **HEADS, **LINEAR}
VISION = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 32}


@pytest.fixture
def qwen(tmp_path: Path) -> Path:
    """Qwen3.5 as published, reduced in size: bfloat16, a vision tower, a layer that predicts several tokens."""
    torch.manual_seed(0)
    text = {**TEXT, "linear_value_head_dim": 16, "tie_word_embeddings": True}
    config = AutoConfig.for_model(
        "qwen3_5", text_config=text, vision_config={**VISION, "num_position_embeddings": 4}, tie_word_embeddings=True
    )
    folder = tmp_path / "qwen"
    AutoModelForImageTextToText.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    file = folder / "model.safetensors"
    more = {"mtp.fc.weight": torch.ones(3, 2, dtype=torch.bfloat16)}
    save_file({**load_file(file), **more}, file, metadata={"format": "pt"})
    return folder


def held(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}


@pytest.mark.slow
def test_towers_and_further_layers_are_in_an_export_as_they_were(qwen: Path, tmp_path: Path) -> None:
    before = held(qwen)
    trainer = make_trainer(qwen, TorchConfig(device="cpu"), AlgoConfig())
    try:
        (qwen / "model.safetensors").unlink()  # a folder may be gone by then
        trainer.export(out := tmp_path / "out")
    finally:
        trainer.close()
    after = held(out)
    assert set(after) == set(before)
    assert all(torch.equal(after[name].float(), before[name].float()) for name in before)
    beside = [name for name in before if name.startswith(("mtp.", "model.visual."))]
    assert len(beside) > 10
    assert {after[name].dtype for name in beside} == {torch.bfloat16}
    index = json.loads((out / "model.safetensors.index.json").read_text())["weight_map"]
    assert set(index) == set(after)
    settings = json.loads((out / "config.json").read_text())
    assert (settings["model_type"], settings["dtype"]) == ("qwen3_5", "float32")
    _, report = AutoModelForImageTextToText.from_pretrained(out, output_loading_info=True)
    assert not report["missing_keys"]


@pytest.mark.slow
def test_a_run_says_what_is_not_trained_and_what_its_checkpoints_hold(qwen: Path) -> None:
    beside, kept = notes(qwen)
    assert beside.startswith("not trained, and copied into every checkpoint as they are: model.visual.")
    assert kept == "checkpoints hold float32 weights; the model's files have BF16"
