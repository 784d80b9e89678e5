"""A small model of an architecture is one that a layout can share."""

from __future__ import annotations

import pytest
from transformers import AutoConfig

from agentrl.errors import ConfigError
from agentrl.models.reach import Reach, reach_of
from agentrl.models.small import Shares, reduce_heads, small_model

SIZES = {"hidden_size": 96, "intermediate_size": 192, "moe_intermediate_size": 96, "vocab_size": 1000}
HEADS = {"num_attention_heads": 12, "num_key_value_heads": 6, "head_dim": 16}
CONFIG = AutoConfig.for_model("qwen3_moe", **SIZES, **HEADS, num_hidden_layers=16, num_experts=12)


def test_what_ranks_share_divides_a_small_model() -> None:
    model, why = small_model(CONFIG, Shares(layers=8, width=3, experts=6))
    assert not why
    small = model.config
    assert small.num_hidden_layers == 8
    assert small.num_experts == 12
    for width in (small.num_attention_heads, small.num_key_value_heads, small.moe_intermediate_size):
        assert width % 3 == 0


def test_a_small_model_that_does_not_fit_is_not_tried() -> None:
    def refuse(config: object) -> None:
        raise ConfigError("it has no place")

    model, why = small_model(CONFIG, Shares(check=refuse))
    assert model is None
    assert "it has no place" in why


@pytest.mark.parametrize("shares", [Shares(), Shares(layers=2, width=2, experts=2)], ids=["alone", "shared"])
def test_a_small_model_is_small(shares: Shares) -> None:
    model, _ = small_model(CONFIG, shares)
    assert sum(parameter.numel() for parameter in model.parameters()) < 1_000_000


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["minicpm3", "modernbert-decoder", "gpt2", "gpt_bigcode"])
def test_a_kind_with_sizes_of_its_own_has_a_small_model(kind: str) -> None:
    """MiniCPM 3 derives a factor that can't be set, the ModernBERT decoder requires a padding token."""
    model, why = small_model(AutoConfig.for_model(kind))
    assert not why
    assert sum(parameter.numel() for parameter in model.parameters()) < 5_000_000


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["exaone4", "exaone_moe", "qwen2_moe", "modernbert-decoder", "gpt2"])
def test_a_layers_window_is_that_of_its_kind_and_not_of_the_whole_model(kind: str) -> None:
    """EXAONE's layers have the model's window as an attribute, also those that attend in full."""
    config = AutoConfig.for_model(kind)
    model, _ = small_model(config)
    kinds = getattr(model.config, "layer_types", ["full_attention"] * 99)
    attending = [m for m in model.modules() if getattr(m, "layer_idx", None) is not None and hasattr(m, "config")]
    for module in attending:
        if kinds[module.layer_idx] == "full_attention":
            assert reach_of(module, None) is None
    assert reach_of(attending[0], 7) == Reach(7)


def test_a_width_that_its_heads_do_not_divide_is_shrunk_to_one_that_kernels_take() -> None:
    """GLM-4.5's 4096 numbers for 96 heads became 341, which no grouped product takes: it could not be tested."""
    wide = {"hidden_size": 4096, "num_attention_heads": 96, "num_key_value_heads": 8, "head_dim": 128}
    config = AutoConfig.for_model("glm4_moe", **wide)
    reduce_heads(config, 2)
    assert config.num_attention_heads == 8
    assert config.hidden_size == 352
