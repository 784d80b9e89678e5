"""A small model of an architecture is one that a layout can share."""

from __future__ import annotations

import pytest
from transformers import AutoConfig

from agentrl.errors import ConfigError
from agentrl.models.small import Shares, small_model

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
