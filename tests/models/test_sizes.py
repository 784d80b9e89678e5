"""A size is found under the name that a family has for it: the file and transformers' class say the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoConfig

from agentrl.errors import InvalidInput
from agentrl.models.sizes import longest_path, with_usual_names
from agentrl.rollout.engines.folder import ModelFacts

USUAL = ("hidden_size", "num_hidden_layers", "num_attention_heads")


@pytest.mark.parametrize("kind", ["gpt2", "gpt_bigcode", "gptj", "gpt_neo", "codegen", "mpt", "bloom", "xglm", "llama"])
def test_sizes_in_the_file_are_those_of_the_configuration(kind: str) -> None:
    config = AutoConfig.for_model(kind)
    read = with_usual_names(config.to_dict())
    assert {name: read[name] for name in USUAL} == {name: getattr(config, name) for name in USUAL}
    assert read.get("max_position_embeddings") == longest_path(config)


@pytest.mark.slow
def test_an_engine_knows_the_limits_of_a_model_of_gpt_2s_kind(tmp_path: Path) -> None:
    """It gave no context, and the engine was refused."""
    config = AutoConfig.for_model("gpt2").to_dict()
    (tmp_path / "config.json").write_text(json.dumps(config))
    facts = ModelFacts.read(tmp_path)
    assert (facts.context, facts.vocab_size, facts.kv_values) == (1024, 50257, 2 * 12 * 768)


@pytest.mark.parametrize("name", ["vocab_size", "max_position_embeddings"])
@pytest.mark.parametrize("value", [None, 0, "many"])
def test_a_size_that_is_missing_or_none_is_named(tmp_path: Path, name: str, value: object) -> None:
    settings = {"vocab_size": 64, "max_position_embeddings": 128, name: value}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    with pytest.raises(InvalidInput, match=rf"config\.json has .*{name}.*positive integer"):
        ModelFacts.read(tmp_path)
