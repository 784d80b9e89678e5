"""The configurations of examples/search_r1: their settings exist, are the published ones, and can be planned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentrl.config import RunConfig
from agentrl.envs.registry import factory
from agentrl.overrides import typed, validate
from agentrl.train.plan.dry_run import described
from agentrl.train.plan.step import Rates

CONFIGS = sorted((Path(__file__).parents[2] / "examples" / "search_r1" / "configs").glob("*.yaml"))
QWEN = {"model_type": "qwen2", "vocab_size": 151_936, "tie_word_embeddings": True, "rope_theta": 1e6}
LLAMA = {"model_type": "llama", "vocab_size": 49_152, "tie_word_embeddings": True}


def sizes(hidden: int, layers: int, heads: int, kv: int, inner: int) -> dict[str, Any]:
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "intermediate_size": inner,
    }


MODELS = {
    "qwen2.5-0.5b": (494_032_768, QWEN | sizes(896, 24, 14, 2, 4864)),
    "qwen2.5-3b": (3_085_938_688, QWEN | sizes(2048, 36, 16, 2, 11_008)),
    "qwen2.5-7b": (
        7_615_616_512,
        QWEN | sizes(3584, 28, 28, 4, 18_944) | {"vocab_size": 152_064, "tie_word_embeddings": False},
    ),
    "smollm2-1.7b": (1_711_376_384, LLAMA | sizes(2048, 24, 32, 32, 8192)),
    "smollm2-135m": (134_515_008, LLAMA | sizes(576, 30, 9, 3, 1536)),
}
"""By the beginning of a configuration's name: its model's parameters, and what its config.json says."""


@pytest.mark.slow
@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.stem)
def test_every_configuration_of_the_example_can_be_planned_from_its_models_config_json(
    file: Path, tmp_path: Path
) -> None:
    [(parameters, settings)] = [each for name, each in MODELS.items() if file.stem.startswith(name)]
    (model := tmp_path / "config.json").write_text(json.dumps(settings))
    (tmp_path / "train.jsonl").write_text('{"question": "q", "golden_answers": ["a"]}\n')
    config = validate(typed([f"model={model}", f"env.data={tmp_path}", "dry_run=true"], file), RunConfig)
    assert config.env.name == "search_r1"
    assert factory("search_r1", **config.env.kwargs)().tasks("train")
    lines = list(described(config, Rates()))
    assert lines[1].startswith(f"model: {parameters:,} parameters")
    assert ("critic" in "".join(lines)) is ("ppo" in file.stem)


@pytest.mark.slow
@pytest.mark.parametrize("size", ["3b", "7b"])
@pytest.mark.parametrize("algorithm", ["ppo", "grpo"])
def test_the_published_hyper_parameters_are_those_of_the_paper(size: str, algorithm: str) -> None:
    """As the paper (arXiv:2503.09516) and its scripts have them; base and instruct models differ in the model alone."""
    file = CONFIGS[0].parent / f"qwen2.5-{size}-{algorithm}.yaml"
    for model in (f"Qwen2.5-{size.upper()}", f"Qwen2.5-{size.upper()}-Instruct"):
        config = validate(typed([f"model={model}"], file), RunConfig)
        assert config.model.name == model
        algo, rollout, env = config.algo.model_dump(), config.rollout, config.env.kwargs
        assert (config.steps, algo["lr"], algo["kl_coef"]) == (500, 1e-6, 0.001)
        assert (algo["warmup_steps"], algo["entropy_coef"]) == (int(0.285 * config.steps), 0.001)
        assert (algo["loss"]["clip_low"], algo["loss"]["clip_high"]) == (0.2, 0.2)
        assert (rollout.groups_per_step, rollout.temperature, rollout.top_p) == (512, 1.0, 1.0)
        assert (rollout.turn_tokens, rollout.session_tokens) == (500, 4096)
        assert (env["max_searches"], env["topk"]) == (4, 3)
        if algorithm == "grpo":
            assert rollout.group_size == 5
        else:
            assert rollout.group_size == 1
            assert (algo["gamma"], algo["gae_lambda"]) == (1.0, 1.0)
            assert (algo["value_trunk_lr"], algo["value_lr"], algo["value_lr_warmup"]) == (1e-5, 1e-5, 7)
            assert (algo["value_epochs"], algo["value_clip"]) == (1, 0.5)
