"""What a plan counts on a trainer's device is what Megatron's ranks hold there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from agentrl.train.algorithms.advantages.grpo import GrpoConfig
from agentrl.train.plan.memory import Numbers, Split, trainer_memory
from agentrl.train.plan.shapes import shape_of
from agentrl.train.trainers.megatron.layout import layout_of
from agentrl.train.trainers.megatron.settings import MegatronConfig
from tests.train.backends.megatron import zoo
from tests.train.backends.megatron.batches import random_forests, run
from tests.train.backends.megatron.world import World

SIZES = {
    "vocab_size": 2048,
    "hidden_size": 192,
    "intermediate_size": 384,
    "num_attention_heads": 12,
    "mlp_only_layers": [],
}
"""Large enough that what tensor-parallel ranks keep whole (norms) and the buffers' padding are below a percent."""
LAYOUTS: dict[str, tuple[str, dict[str, Any]]] = {
    "TP2": ("llama", {"tensor_parallel": 2, "dtype": "bfloat16"}),
    "PP2": ("qwen3", {"pipeline_parallel": 2, "dtype": "float32"}),
    "DP2": ("smollm2", {"ranks": 2, "dtype": "bfloat16"}),
    "DP2, the optimizer whole": ("smollm2", {"ranks": 2, "distributed_optimizer": False, "dtype": "bfloat16"}),
    "EP2": ("qwen3_moe", {"expert_parallel": 2, "dtype": "float32"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_ranks_weights_gradients_and_optimizer_state_are_those_of_the_plan_within_a_percent(
    layout: str, tmp_path: Path, world: World
) -> None:
    name, settings = LAYOUTS[layout]
    kind, sizes = zoo.CASES[name]
    zoo.random_model(kind, sizes | SIZES).save_pretrained(tmp_path)
    ranks = run(world, "memory", tmp_path, random_forests(1), algo=GrpoConfig(), **settings)["ranks"]
    config = MegatronConfig.model_validate(settings)
    split = layout_of(config, AutoConfig.from_pretrained(tmp_path))
    numbers = Numbers(dtype=config.dtype, distributed=config.shares_state)
    planned = trainer_memory(
        shape_of(tmp_path),
        Split(split.tensor, split.pipeline, split.context, split.expert, split.data),
        numbers,
        token_budget=100,
    )
    for part in ("weights", "gradients", "optimizer"):
        assert getattr(planned, part) == pytest.approx(max(rank[part] for rank in ranks), rel=0.01), part
