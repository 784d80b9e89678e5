"""Plans count an adapter as trainers hold it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from agentrl.config import LoraConfig
from agentrl.train.driver.setup import complete
from agentrl.train.plan.adapter import adapter_parameters, linear_sizes, with_adapter
from agentrl.train.plan.devices import size
from agentrl.train.plan.dry_run import describe_run
from agentrl.train.plan.layouts import PlanConfig, rank_layouts
from agentrl.train.plan.memory import Numbers, Split, trainer_memory
from agentrl.train.plan.shapes import KNOWN, shape_of
from agentrl.train.plan.step import Rates
from agentrl.train.trainers.lora import linear_layers
from tests.train.backends.megatron import zoo
from tests.train.lora.test_lora import trainer_on
from tests.train.test_plan import settings_of


@pytest.mark.parametrize("name", ["smollm2-135m", "qwen2.5-0.5b", "qwen3-30b-a3b", "glm-4.5-air", "deepseek-v3"])
def test_the_layers_of_a_plan_are_those_that_an_adapter_can_be_on(name: str) -> None:
    shape = replace(KNOWN[name], num_hidden_layers=4)
    settings = settings_of(shape)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(settings.pop("model_type"), **settings))
    layers = {name: (layer.in_features, layer.out_features) for name, layer in linear_layers(model).items()}
    assert layers == {name: (columns, rows) for name, columns, rows in linear_sizes(shape)}


@pytest.mark.parametrize(
    "lora",
    [
        {"rank": 4},
        {"rank": 3, "targets": ("*.q_proj", "*.layers.1.mlp.*")},
        {"rank": 2, "full": ("lm_head", "*norm", "*.layers.0.self_attn.o_proj")},
    ],
)
def test_memory_of_an_adapter_is_that_of_the_torch_trainers_tensors(tiny_llama: Path, lora: dict[str, Any]) -> None:
    trainer, shape = trainer_on(tiny_llama, **lora), shape_of(tiny_llama)
    trained = sum(parameter.numel() for parameter in trainer.optimizer.parameters)
    assert adapter_parameters(shape, LoraConfig(**lora)) == trained
    numbers = Numbers("torch", "float32", adapter=trained, reference=True)
    found = with_adapter(trainer_memory(shape, Split(), numbers, 1024), numbers)
    held = sum(parameter.nbytes for parameter in trainer.model.parameters())
    assert found.weights == held if "full" not in lora else found.weights > held  # megatron holds those twice
    assert found.gradients == found.reference == 4 * trained
    assert found.optimizer == 8 * trained


def test_experts_with_matrices_of_their_own_are_counted(tmp_path: Path) -> None:
    folder = zoo.write("qwen3_moe_raw", tmp_path / "model")
    trainer = trainer_on(folder, rank=2, experts=True)
    counted = adapter_parameters(shape_of(folder), LoraConfig(rank=2, experts=True))
    assert counted == sum(parameter.numel() for parameter in trainer.optimizer.parameters)


def test_a_dry_run_counts_the_adapter_and_what_is_published_of_it(tmp_path: Path) -> None:
    """It counted the gradients, the optimizer's state and the publications of the whole model."""
    shape = KNOWN["qwen3-30b-a3b"]
    (tmp_path / "config.json").write_text(json.dumps(settings_of(shape)))

    def described(**more: Any) -> str:
        tree: dict[str, Any] = {"env": "calculator", "model": str(tmp_path), "lora": {"rank": 16}}
        return "\n".join(describe_run(complete({**tree, **more}), Rates()))

    numbers = adapter_parameters(shape, LoraConfig(rank=16))
    published = f"trainer -> 1 engines: {size(4 * numbers)} of weights for each"
    told = described()
    assert f"trained: an adapter of {numbers:,} parameters\n" in told
    assert f"gradients {size(4 * numbers)}, optimizer {size(8 * numbers)}" in told
    assert published in told
    assert published not in described(engine="sglang")  # it is given whole weights
    assert published in described(engine={"name": "sglang", "adapter_rank": 16})
    imitating = described(warm_start={"steps": 1})
    assert "after a warm start of the whole model" in imitating
    assert f"gradients {size(4 * shape.parameters)}" in imitating


def test_layouts_of_an_adapter_need_less_memory_and_name_its_settings() -> None:
    shape, plan = KNOWN["qwen3-30b-a3b"], PlanConfig(model="qwen3-30b-a3b")
    whole, adapter = (
        rank_layouts(shape, each, plan.described)[0] for each in (plan, PlanConfig(model="x", lora_rank=16))
    )
    assert adapter.split.ranks < whole.split.ranks
    assert adapter.settings.endswith("lora.rank=16 engine.adapter_rank=16")
