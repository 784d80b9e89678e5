"""FP8 on the way: against a dequantisation written from the format's description alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.errors import ConfigError
from agentrl.rollout.weights.quantize import Fp8Blocks, quantise


def e4m3(byte: int) -> float:
    """A number in e4m3fn by its bits: sign, four of exponent (bias 7), three of mantissa; no infinities."""
    sign, exponent, mantissa = byte >> 7, byte >> 3 & 15, byte & 7
    if exponent == 15 and mantissa == 7:
        return float("nan")
    size = mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    return -size if sign else size


def dequantised(weight: torch.Tensor, scale: torch.Tensor, block: tuple[int, int]) -> torch.Tensor:
    """Each element times its own block's scale."""
    table = torch.tensor([e4m3(byte) for byte in range(256)])
    values = table[weight.view(torch.uint8).long()]
    n, k = weight.shape
    return values * scale[torch.arange(n)[:, None] // block[0], torch.arange(k)[None] // block[1]]


@settings(deadline=None, max_examples=40, derandomize=True)
@given(
    n=st.integers(1, 300),
    k=st.integers(1, 300),
    block=st.sampled_from([(128, 128), (64, 128), (1, 128), (7, 5)]),
    spread=st.floats(-20, 15),
    seed=st.integers(0, 2**31),
)
def test_dequantising_gives_the_weight_back_to_within_a_sixteenth(
    n: int, k: int, block: tuple[int, int], spread: float, seed: int
) -> None:
    """Half a step of a three-bit mantissa is a sixteenth; numbers far below their block's largest lose more."""
    dice = torch.Generator().manual_seed(seed)
    weight = torch.randn(n, k, generator=dice) * 2.0**spread
    quantised, scale = quantise(weight, block)
    assert quantised.dtype == torch.float8_e4m3fn
    assert scale.dtype == torch.float32
    assert scale.shape == (-(-n // block[0]), -(-k // block[1]))
    back = dequantised(quantised, scale, block)
    steps = scale[torch.arange(n)[:, None] // block[0], torch.arange(k)[None] // block[1]] * 2.0**-9
    assert ((back - weight).abs() <= torch.maximum(weight.abs() / 16, steps / 2) * (1 + 1e-5)).all()


def test_each_block_uses_all_of_the_range_and_zeros_stay_zeros() -> None:
    weight = torch.zeros(256, 256)
    weight[:128, :128] = torch.linspace(-3, 3, 128)
    quantised, scale = quantise(weight)
    assert quantised.float().abs().max() == 448
    assert (quantised[128:].float() == 0).all()
    assert torch.isfinite(scale).all()


def test_only_linear_weights_are_quantised_and_scales_carry_the_checkpoints_names() -> None:
    names = {
        "model.embed_tokens.weight": (64, 32),
        "model.layers.0.self_attn.q_proj.weight": (64, 32),
        "model.layers.0.self_attn.q_proj.bias": (64,),
        "model.layers.0.input_layernorm.weight": (32,),
        "model.layers.0.mlp.gate.weight": (8, 32),
        "model.layers.0.mlp.gate_proj.weight": (64, 32),
        "model.layers.1.mlp.experts.3.down_proj.weight": (32, 64),
        "model.layers.2.mlp.up_proj.weight": (64, 32),
        "lm_head.weight": (64, 32),
    }
    blocks = Fp8Blocks((16, 16), keep=("layers.2.",))
    pairs = [(name, torch.randn(shape)) for name, shape in names.items()]
    found = dict(blocks(pairs, lambda rest: ((name, tensor.bfloat16()) for name, tensor in rest)))
    quantised = {name for name, tensor in found.items() if tensor.dtype == torch.float8_e4m3fn}
    assert quantised == {
        "model.layers.0.self_attn.q_proj.weight",
        "model.layers.0.mlp.gate_proj.weight",
        "model.layers.1.mlp.experts.3.down_proj.weight",
    }
    assert {name + "_scale_inv" for name in quantised} == set(found) - set(names)
    assert all(found[name].dtype == torch.bfloat16 for name in set(names) - quantised)


@pytest.mark.slow
def test_what_a_model_folder_requires_is_read(tmp_path: Path) -> None:
    def config(**quantisation: object) -> Fp8Blocks | None:
        (tmp_path / "config.json").write_text(json.dumps({"quantization_config": quantisation or None}))
        return Fp8Blocks.from_folder(tmp_path)

    assert config() is None
    asked = config(quant_method="fp8", weight_block_size=[128, 64], modules_to_not_convert=["lm_head"])
    assert asked == Fp8Blocks((128, 64), ("lm_head",))
    with pytest.raises(ConfigError, match="awq"):
        config(quant_method="awq")
