"""Hugging Face weights into a sharded model and out again, bit for bit, under every kind of sharding."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.train.backends.megatron import zoo
from tests.train.backends.megatron.world import World

WORK = "tests.train.backends.megatron.work_models"

UNEVEN = {"num_layers_in_first_pipeline_stage": 1, "num_layers_in_last_pipeline_stage": 3}


@pytest.mark.parametrize("case", [zoo.marked(case) for case in zoo.CASES])
@pytest.mark.parametrize(
    ("size", "layout", "settings"),
    [
        pytest.param(1, {}, {}, id="one"),
        pytest.param(2, {"tensor": 2}, {}, id="tensor"),
        pytest.param(2, {"pipeline": 2}, {}, id="pipeline"),
        pytest.param(2, {"pipeline": 2, "virtual": 2}, {}, id="interleaved"),
        pytest.param(2, {"pipeline": 2}, UNEVEN, id="uneven"),
        pytest.param(2, {}, {}, id="data"),
    ],
)
@pytest.mark.slow
def test_what_was_loaded_is_exported_bit_for_bit(
    case: str, size: int, layout: dict[str, Any], settings: dict[str, Any], world: World, tiny: Callable[[str], Path]
) -> None:
    differing = world.run(f"{WORK}:round_trip", str(tiny(case)), settings, size=size, **layout)
    assert differing == [[]] * size


@pytest.mark.parametrize("case", zoo.EXPERT_CASES)
@pytest.mark.slow
def test_experts_on_two_ranks_are_exported_bit_for_bit(case: str, world: World, tiny: Callable[[str], Path]) -> None:
    assert world.run(f"{WORK}:round_trip", str(tiny(case)), size=2, expert=2) == [[], []]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "layout"),
    [
        ("smollm2", {"tensor": 2, "pipeline": 2}),
        ("llama", {"tensor": 4}),
        ("glm4", {"tensor": 4}),
        ("glm4_moe", {"tensor": 2, "expert": 2, "expert_tensor": 1}),
        ("deepseek_v3", {"tensor": 2, "pipeline": 2, "expert": 2, "expert_tensor": 1}),
        ("qwen3_moe", {"pipeline": 2, "expert": 2}),
        ("qwen3_moe_raw", {"expert": 4}),
    ],
    ids=str,
)
def test_mixed_layouts_of_four_ranks_are_exported_bit_for_bit(
    case: str, layout: dict[str, Any], world: World, tiny: Callable[[str], Path]
) -> None:
    """Four tensor-parallel ranks share two key-value heads: their shards begin within a head."""
    assert world.run(f"{WORK}:round_trip", str(tiny(case)), size=4, **layout) == [[]] * 4


@pytest.mark.slow
@pytest.mark.parametrize("to", [0, 1])
def test_a_single_consumer_gets_everything_and_the_others_nothing(
    to: int, world: World, tiny: Callable[[str], Path]
) -> None:
    differing = world.run(f"{WORK}:round_trip", str(tiny("smollm2")), {}, to, size=2, pipeline=2)
    assert differing == [[], []]


@pytest.mark.parametrize("case", ["smollm2", "moonlight"])
@pytest.mark.slow
def test_an_export_in_bfloat16_rounds_weights_but_not_routing_corrections(
    case: str, world: World, tiny: Callable[[str], Path]
) -> None:
    assert world.run(f"{WORK}:half_precision", str(tiny(case)), size=2, tensor=2) == [[], []]


@pytest.mark.slow
def test_what_stands_beside_a_parameter_is_exported_in_its_place(world: World, tiny: Callable[[str], Path]) -> None:
    assert world.run(f"{WORK}:gradients_by_name", str(tiny("glm4_moe")), size=2, tensor=2) == [[], []]


@pytest.mark.slow
@pytest.mark.parametrize("layout", [{"tensor": 2}, {"pipeline": 2}], ids=str)
def test_never_more_than_one_parameter_lies_beside_the_model(
    layout: dict[str, Any], world: World, tmp_path: Path
) -> None:
    """One piece while loading; while exporting a parameter's tensors, a shard of it, and what was handed out last."""
    kind, settings = zoo.CASES["llama"]
    zoo.random_model(kind, {**settings, "num_hidden_layers": 16}).save_pretrained(tmp_path)
    for seen in world.run(f"{WORK}:peaks", str(tmp_path), size=2, **layout):
        assert 0 < seen["loading"] <= seen["largest"]
        assert 0 < seen["exporting"] <= 5 * seen["largest"] < seen["model"] / 2


def rewritten(source: Path, folder: Path, change: Callable[[dict[str, Any]], None], **fields: object) -> str:
    """A copy of a folder whose tensors were changed."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(source / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**json.loads((source / "config.json").read_text()), **fields}))
    return str(folder)


GATE = "model.layers.2.mlp.gate_proj.weight"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda tensors: tensors.pop(GATE), f"lacks the tensor {GATE}"),
        (lambda tensors: tensors.update({GATE: tensors[GATE][:40].clone()}), f"{GATE} has shape (40, 48)"),
        (lambda tensors: tensors.update({GATE: tensors[GATE].repeat(2, 1)}), f"{GATE} has shape (128, 48)"),
        (lambda tensors: tensors.update({GATE: tensors[GATE][:, :1].clone()}), f"{GATE} has shape (64, 1)"),
        (lambda tensors: tensors.update({GATE: tensors[GATE].to(torch.int8)}), "has the type int8 and no scales"),
        (
            lambda tensors: tensors.update({"model.layers.1.self_attn.sinks": tensors[GATE].clone()}),
            "does not know: model.layers.1.self_attn.sinks",
        ),
        (lambda tensors: tensors.update({"lm_head.bias": tensors[GATE][0].clone()}), "does not know: lm_head.bias"),
        (
            lambda tensors: tensors.update({GATE.replace("2", "9"): tensors[GATE].clone()}),
            f"does not know: {GATE.replace('2', '9')}",
        ),
    ],
    ids=["missing", "short", "long", "narrow", "packed", "unknown", "outside the layers", "behind the layers"],
)
@pytest.mark.slow
def test_a_folder_that_does_not_fit_its_family_is_refused(
    change: Callable[[dict[str, Any]], None], words: str, world: World, tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    kind, message = world.run(f"{WORK}:loading_refusal", rewritten(tiny("llama"), tmp_path, change))[0]
    assert kind == "InvalidWeights"
    assert words in message


def test_a_further_prediction_layer_and_old_frequencies_are_passed_over(
    world: World, tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    def add(tensors: dict[str, Any]) -> None:
        tensors["model.layers.4.eh_proj.weight"] = tensors[GATE].clone()
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = tensors[GATE][0].clone()

    folder = rewritten(tiny("llama"), tmp_path, add, num_nextn_predict_layers=1)
    assert world.run(f"{WORK}:loading_refusal", folder)[0][0] == ""


def test_a_model_in_several_files_is_loaded_by_its_index(
    world: World, tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny("qwen3"))
    model.save_pretrained(tmp_path, max_shard_size="40KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    one, several = (world.run(f"{WORK}:exported", str(folder))[0] for folder in (tiny("qwen3"), tmp_path))
    assert one.keys() == several.keys()
    assert all(torch.equal(one[name], several[name]) for name in one)
    next(tmp_path.glob("*.safetensors")).unlink()
    assert "which its index names" in world.run(f"{WORK}:loading_refusal", str(tmp_path))[0][1]


def test_four_bit_weights_are_refused_with_the_way_to_widen_them(
    world: World, tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    """As GPT-OSS is published."""

    def quantise(tensors: dict[str, Any]) -> None:
        for name in [n for n in tensors if n.endswith("down_proj")]:
            tensors[f"{name}_blocks"] = tensors.pop(name).to(torch.uint8)

    kind, message = world.run(f"{WORK}:loading_refusal", rewritten(tiny("gpt_oss"), tmp_path, quantise))[0]
    assert kind == "InvalidInput"
    assert "down_proj is quantised (MXFP4)" in message
    assert "Mxfp4Config(dequantize=True)" in message


@pytest.mark.slow
def test_block_quantised_weights_are_widened_slice_by_slice(
    world: World, tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    """As DeepSeek V3 is published: eight-bit weights, and beside each a scale for every block."""
    rows, columns = 5, 7
    whole: dict[str, Any] = {}

    def quantise(tensors: dict[str, Any]) -> None:
        for name in [n for n in tensors if "_proj" in n and tensors[n].dim() == 2]:
            weight = tensors[name].to(torch.float8_e4m3fn)
            height, width = weight.shape
            scale = torch.rand(-(-height // rows), -(-width // columns)) + 0.5
            spread = scale.repeat_interleave(rows, 0)[:height].repeat_interleave(columns, 1)[:, :width]
            whole[name] = weight.float() * spread
            tensors[name], tensors[name + "_scale_inv"] = weight, scale

    folder = Path(rewritten(tiny("deepseek_v3"), tmp_path, quantise))
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [rows, columns]}
    (folder / "config.json").write_text(json.dumps(config))
    for out in world.run(f"{WORK}:exported", str(folder), size=2, tensor=2):
        assert all(torch.equal(out[name], tensor) for name, tensor in whole.items())
        assert not any(name.endswith("_scale_inv") for name in out)
