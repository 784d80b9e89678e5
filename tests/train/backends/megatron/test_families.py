"""Families by model type, name and import path; what they refuse, and how that is said."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoConfig
from typer.testing import CliRunner

from agentrl.cli import app
from agentrl.errors import ConfigError
from agentrl.models.loading import new_causal_lm
from agentrl.train.trainers import proof
from agentrl.train.trainers.megatron import check
from agentrl.train.trainers.megatron.check import shrink
from agentrl.train.trainers.megatron.models import FAMILIES, family
from agentrl.train.trainers.proof.comparison import compare
from tests.conftest import need
from tests.train.backends.megatron import zoo
from tests.train.backends.megatron.world import World, open_world

WORK = "tests.train.backends.megatron.work_models"


LONGROPE = {"rope_type": "longrope", "rope_theta": 1e4, "long_factor": [4.0] * 3, "factor": 2.0}


def folder_with(tmp_path: Path, kind: str, **settings: Any) -> str:
    case = {**zoo.CASES, **zoo.MORE}[kind][1]
    (tmp_path / "config.json").write_text(json.dumps({**case, "model_type": kind, **settings}))
    return str(tmp_path)


@pytest.mark.parametrize(
    ("model_type", "family"),
    [
        ("llama", "llama"),
        ("qwen2", "qwen2"),
        ("qwen3", "qwen3"),
        ("qwen3_moe", "qwen3_moe"),
        ("glm4", "glm4"),
        ("glm4_moe", "glm4_moe"),
        ("deepseek_v3", "deepseek_v3"),
        ("kimi_k2", "deepseek_v3"),
        ("smollm3", "smollm3"),
        ("mistral", "mistral"),
        ("mixtral", "mixtral"),
        ("phi3", "phi3"),
        ("granite", "granite"),
        ("gpt_oss", "gpt_oss"),
        ("olmo2", "olmo2"),
        ("olmo3", "olmo3"),
        ("olmoe", "olmoe"),
        ("qwen2_moe", "qwen2_moe"),
        ("gemma", "gemma"),
        ("gemma2", "gemma2"),
        ("gemma3_text", "gemma3_text"),
    ],
)
@pytest.mark.slow
def test_a_model_type_names_its_family(model_type: str, family: str, world: World, tmp_path: Path) -> None:
    case = {"kimi_k2": "deepseek_v3"}.get(model_type, model_type)
    folder = folder_with(tmp_path, case, model_type=model_type)
    assert world.run(f"{WORK}:family_name", folder) == [family]


@pytest.mark.slow
def test_code_that_a_folder_brings_is_not_run(world: World, tmp_path: Path) -> None:
    trap = {"AutoConfig": "configuration.Config"}
    folder = folder_with(tmp_path, "deepseek_v3", model_type="kimi_k2", auto_map=trap)
    (tmp_path / "configuration.py").write_text("raise SystemExit('foreign code ran')")
    assert world.run(f"{WORK}:family_name", folder) == ["deepseek_v3"]


@pytest.mark.slow
def test_an_unknown_model_type_lists_what_is_known(world: World, tmp_path: Path) -> None:
    folder = folder_with(tmp_path, "llama", model_type="lama")
    kind, message = world.run(f"{WORK}:refusal", folder)[0]
    assert kind == "UnknownName"
    assert "did you mean 'llama'" in message
    assert "glm4_moe" in message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "settings", "words"),
    [
        ("llama", {"attention_bias": True}, "attention_bias=True"),
        ("llama", {"mlp_bias": True}, "mlp_bias=True"),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "'dynamic'"),
        ("qwen2", {"layer_types": ["full_attention"] * 3 + ["chunked_attention"]}, "chunked_attention"),
        ("mixtral", {"router_jitter_noise": 0.1}, "router_jitter_noise=0.1"),
        ("phi3", {"rope_parameters": {**LONGROPE, "short_factor": [1.0] * 3}}, "'longrope'"),
        ("phi3", {"rope_parameters": {**LONGROPE, "short_factor": [1.0]}}, "must have length 3"),
        ("granite", {"attention_bias": True}, "attention_bias=True"),
        ("gpt_oss", {"attention_bias": False}, "attention_bias=False"),
        ("olmoe", {"clip_qkv": 8.0}, "clip_qkv=8.0"),
        ("gemma2", {"hidden_act": "gelu", "hidden_activation": "gelu_pytorch_tanh"}, "name two functions"),
        ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention=True"),
        ("gemma3_text", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping=50.0"),
        ("glm4_moe", {"norm_topk_prob": False}, "norm_topk_prob=False"),
        ("deepseek_v3", {"num_experts_per_tok": 6}, "best 2"),
        ("deepseek_v3", {"attention_bias": True}, "attention_bias=True"),
    ],
)
def test_what_a_family_cannot_express_is_refused_by_name(
    case: str, settings: dict[str, Any], words: str, world: World, tmp_path: Path
) -> None:
    kind, message = world.run(f"{WORK}:refusal", folder_with(tmp_path, case, **settings))[0]
    assert kind == "InvalidInput"
    assert words in message


@pytest.mark.slow
def test_norms_over_all_heads_are_refused_where_ranks_share_a_head(world: World, tiny: Callable[[str], Path]) -> None:
    for kind, message in world.run(f"{WORK}:refusal", str(tiny("olmo2")), size=4, tensor=4):
        assert kind == "InvalidInput"
        assert "trainer.tensor_parallel=4 does not divide the 2 heads that are normed together" in message


@pytest.mark.slow
def test_experts_with_biases_are_refused_where_tensor_ranks_would_cut_them(
    world: World, tiny: Callable[[str], Path]
) -> None:
    for kind, message in world.run(f"{WORK}:refusal", str(tiny("gpt_oss")), size=2, tensor=2):
        assert kind == "InvalidInput"
        assert "trainer.tensor_parallel=2 would cut experts that have biases" in message


PLUGIN = '''
"""A family of one file: Llama under a name that nobody claims, and by mistake without its rotation's base."""

import dataclasses

from agentrl.train.trainers.megatron.models.families.llama import LLAMA, head_dim
from agentrl.train.trainers.megatron.models.family import register
from agentrl.train.trainers.megatron.models.rotary import Rotary

RIGHT = register(dataclasses.replace(LLAMA, name="mine"))
WRONG = dataclasses.replace(LLAMA, name="wrong", rotary=lambda hf: Rotary.of(hf, head_dim(hf), neighbours=True))
'''


@pytest.mark.slow
def test_a_family_in_a_file_is_found_by_its_path(world: World, tmp_path: Path, tiny: Callable[[str], Path]) -> None:
    plugin = tmp_path / "plugin.py"
    plugin.write_text(PLUGIN)
    assert world.run(f"{WORK}:family_name", str(tiny("llama")), f"{plugin}:RIGHT") == ["mine"]
    assert world.run(f"{WORK}:family_name", str(tiny("llama")), "mine") == ["mine"], "registered by its file"


@pytest.mark.slow
def test_the_family_in_the_documentation_computes_what_transformers_does(world: World, tmp_path: Path) -> None:
    text = (Path(__file__).resolve().parents[4] / "docs" / "families.md").read_text()
    (tmp_path / "ministral.py").write_text(text.split("```python\n")[1].split("```")[0])
    kinds = ["sliding_attention", "full_attention"] * 2
    settings = {**zoo.CASES["qwen3"][1], "sliding_window": 5, "layer_types": kinds}
    model = zoo.random_model("ministral", settings)
    model.save_pretrained(tmp_path / "model")
    tokens = torch.arange(40) % zoo.VOCABULARY
    with torch.no_grad():
        want = model(tokens[None]).logits[0]
    name = f"{tmp_path}/ministral.py:MINISTRAL"
    (got,) = world.run(f"{WORK}:logits", str(tmp_path / "model"), tokens, None, None, name)
    assert float((got - want).abs().max()) < 1e-5


@pytest.mark.slow
def test_a_family_that_claims_anothers_models_leaves_the_other_its_name(forget_names: Callable[[Any], None]) -> None:
    """It took the other's place: with trainer.family=llama the new one was meant."""
    forget_names(FAMILIES)
    llama = FAMILIES.find("llama")
    mine = family.register(dataclasses.replace(llama, name="mine"))
    assert family.family_of(SimpleNamespace(model_type="llama")) is mine
    assert family.family_of(SimpleNamespace(model_type="qwen3"), "llama") is llama
    assert family.family_of(SimpleNamespace(model_type="other"), "kimi_k2") is FAMILIES.find("deepseek_v3")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("absent.py:FAMILY", "UnknownName"),
        ("json:dumps", "ConfigError"),
        ("no.such.module:X", "UnknownName"),
        ("mine_not", "UnknownName"),
    ],
)
def test_a_family_that_is_not_there_is_refused_by_its_name(
    name: str, error: str, world: World, tiny: Callable[[str], Path]
) -> None:
    kind, message = world.run(f"{WORK}:refusal", str(tiny("llama")), name)[0]
    assert kind == error
    assert name.partition(":")[0] in message


@pytest.mark.slow
@pytest.mark.usefixtures("own_proofs")
def test_a_family_that_computes_something_else_is_refused_at_start_with_the_numbers(
    tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    need(_has_megatron(), "megatron-core is not installed")
    (tmp_path / "plugin.py").write_text(PLUGIN)
    with pytest.raises(
        ConfigError, match=r"'mine' \(llama\) can't be trained by trainer=megatron.*differ by up to .* nats"
    ):
        proof.require(tiny("llama"), "mine", subject="megatron", family=f"{tmp_path}/plugin.py:WRONG")


@pytest.mark.slow
def test_the_gate_goes_through_the_function_that_the_model_names(tmp_path: Path) -> None:
    """Megatron went through SiLU whatever the configuration said: 0.99 nats off for a Llama with GELU."""
    need(_has_megatron(), "megatron-core is not installed")
    kind, settings = zoo.CASES["llama"]
    config = AutoConfig.for_model(kind, **settings, hidden_act="gelu_pytorch_tanh")
    assert compare(config, subject="megatron").passed
    refused = compare(AutoConfig.for_model(kind, **settings, hidden_act="tanh"), subject="megatron")
    assert "hidden_act='tanh' is not supported, only silu or" in str(refused)


def _has_megatron() -> bool:
    import importlib.util

    return importlib.util.find_spec("megatron") is not None


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(FAMILIES.known()))
def test_a_model_of_every_kind_can_be_made_small_for_the_check(name: str) -> None:
    kind = FAMILIES.find(name)
    usual = AutoConfig.for_model(kind.model_types[0])
    with torch.device("meta"):
        model = new_causal_lm(shrink(usual, kind), torch.float32, "eager")
    assert sum(parameter.numel() for parameter in model.parameters()) < 1_000_000


@pytest.mark.slow
def test_models_check_prints_the_difference_and_agrees(tiny: Callable[[str], Path]) -> None:
    need(_has_megatron(), "megatron-core is not installed")
    command = [sys.executable, "-W", "ignore", "-m", "agentrl", "models", "check", str(tiny("deepseek_v3"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    assert "family deepseek_v3" in done.stdout
    assert "e-0" in done.stdout
    assert "0 of" in done.stdout


@pytest.mark.slow
@pytest.mark.usefixtures("own_proofs")
def test_models_check_finds_a_family_that_rotates_otherwise(
    tiny: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command in this process, but for what changes torch for good."""
    need(_has_megatron(), "megatron-core is not installed")
    (tmp_path / "plugin.py").write_text(PLUGIN)
    wrong = f"{tmp_path}/plugin.py:WRONG"
    with open_world() as world:
        monkeypatch.setattr(check, "check", lambda folder, name: world.run(f"{WORK}:checked", str(folder), name)[0])
        done = CliRunner().invoke(
            app, ["models", "check", str(tiny("llama")), "--family", wrong], env={"COLUMNS": "400"}
        )
    assert done.exit_code == 1, done.stdout
    assert "✗ trainer=megatron: log-probabilities differ" in done.stdout
    assert "family wrong" in done.stdout
