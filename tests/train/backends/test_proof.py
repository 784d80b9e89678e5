"""An architecture for which forests don't mean what paths mean is found out by trying it, whatever it is called."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM
from typer.testing import CliRunner

import agentrl
from agentrl import cli
from agentrl.errors import ConfigError, EngineError, InfraError, UnknownName
from agentrl.models import tiny
from agentrl.rollout.engines.local.flat import StepLayout
from agentrl.rollout.engines.local.runner import ModelRunner
from agentrl.train.driver.engine_check import path_forest
from agentrl.train.trainers import attention, proof
from agentrl.train.trainers.attention import BlockPlan
from agentrl.train.trainers.proof import prove, require
from agentrl.train.trainers.proof.comparison import compare
from agentrl.train.trainers.proof.subjects import Proof, engine_logps
from agentrl.train.trainers.reference import compute_rows, random_forest
from agentrl.train.trainers.report import report
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from tests.conftest import need

HEADS = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 4}
DYNAMIC = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "long_factor": [4.0] * 8,
    "short_factor": [1.0] * 8,
    "original_max_position_embeddings": 4096,
}
FIRST = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 0)
YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0, "original_max_position_embeddings": 2048}
EXACT: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama with yarn": ("llama", {"rope_parameters": YARN}),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "qwen2 with windows that paths don't reach": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 2},
    ),
    "mistral": ("mistral", {"sliding_window": 4096}),
    "windows in some layers": (
        "smollm3",
        {"use_sliding_window": True, "sliding_window": 512},
    ),
    "windows that the layers keep to themselves": (
        "qwen2_moe",
        {"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 2, "num_experts": 4},
    ),
    "windows, caps of scores and of logits": ("gemma2", {"head_dim": 16}),
    "windows and sinks": ("gpt_oss", {"head_dim": 16, "num_local_experts": 4}),
    "windows, and logits that are scaled": ("cohere2", {"head_dim": 16}),
    "chunks and queries scaled by their place": ("llama4_text", {"attn_scale": 0.1}),
    "logits that are divided": ("granite", {"logits_scaling": 8.0}),
    "phi3": ("phi3", {}),
    "olmo2": ("olmo2", {}),
    "gpt_neox": ("gpt_neox", {"num_key_value_heads": None}),
    "gpt2, with learned positions": ("gpt2", {"num_key_value_heads": None}),
    "a layer between the states and the output matrix": ("modernbert-decoder", {"num_key_value_heads": None}),
    "mixtral": ("mixtral", {"num_local_experts": 4}),
    "the gated delta rule": (
        "qwen3_next",
        {"head_dim": 16, "layer_types": ["linear_attention", "full_attention"] * 2, "num_experts": 4},
    ),
    "convolutions": ("lfm2", {"layer_types": ["conv", "full_attention"] * 2}),
    "states that nothing continues": ("jamba", {"attn_layer_period": 2, "attn_layer_offset": 1}),
}
WRONG: dict[str, tuple[str, dict[str, Any]]] = {
    "biases by place (ALiBi)": ("bloom", {"num_key_value_heads": None}),
    "states along the row": ("rwkv", {"num_attention_heads": None, "num_key_value_heads": None}),
}
MLA = {
    "num_key_value_heads": 4,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "n_routed_experts": 4,
    "first_k_dense_replace": 1,
}
PLAYED: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: EXACT[name] for name in EXACT if "windows" in name or name in ("llama", "gpt2, with learned positions")},
    "latent attention": ("deepseek_v3", MLA),
}
REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "through transformers' attention interface": ("falcon", {"num_key_value_heads": None}),
    "does not pass keyword arguments on to attention": ("stablelm", {}),
}


def config_of(kind: str, more: dict[str, Any]) -> Any:
    fields = {name: value for name, value in {**HEADS, **more}.items() if value is not None}
    return AutoConfig.for_model(kind, **fields)


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.slow
def test_an_architecture_that_a_forest_can_express_is_proved(name: str) -> None:
    found = compare(config_of(*EXACT[name]))
    assert found.passed, str(found)
    assert found.logp > 0, "two implementations that agree to the last bit are one"


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.slow
def test_an_architecture_that_would_train_wrong_without_a_word_is_found_out(name: str) -> None:
    found = compare(config_of(*WRONG[name]))
    assert not found.fault
    assert not found.untested
    assert not found.passed
    assert found.logp > 0.05


@pytest.mark.slow
@pytest.mark.parametrize("subject", ["torch", "local"])
def test_longrope_is_exact_as_long_as_no_path_is_longer_than_the_original_context(subject: str, tmp_path: Path) -> None:
    """Beyond it all angles of a row are other ones: a tree's paths would ask for both."""
    config_of("phi3", {"rope_parameters": LONG, "max_position_embeddings": 131072}).save_pretrained(tmp_path)
    assert prove(tmp_path, subject=subject, context=4096).passed
    for context in (None, 4097):
        refused = prove(tmp_path, subject=subject, context=context)
        assert "engine.max_context=4096" in refused.fault
    with pytest.raises(ConfigError, match=r"rows of more than 4096 tokens.*engine\.max_context=4096"):
        require(tmp_path, "phi", subject=subject)


@pytest.mark.slow
def test_dynamic_scaling_is_exact_within_a_models_context(tmp_path: Path) -> None:
    config_of("llama", {"rope_parameters": DYNAMIC}).save_pretrained(tmp_path)
    assert prove(tmp_path).passed
    assert prove(tmp_path, subject="local").passed


@pytest.mark.slow
def test_trainer_and_engine_take_the_angles_of_short_rows_and_refuse_longer_ones(tmp_path: Path) -> None:
    short = {"rope_parameters": LONG | {"original_max_position_embeddings": 64}, "max_position_embeddings": 256}
    config = config_of("phi3", {**short, "original_max_position_embeddings": 64, "vocab_size": 64, **FIRST})
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    model.save_pretrained(tmp_path)
    trainer = TorchTrainer(tmp_path)
    forest = random_forest(random.Random(0), 64)
    assert int(forest.position.max()) < 64
    want = compute_rows(model, forest, "cpu").logp
    assert float((trainer.logprobs([forest])[0] - want).abs().max()) < 1e-5
    runner = ModelRunner(tmp_path, "cpu", "float32", 8, 1 << 28, context=64)
    assert float((engine_logps(runner, forest) - want).abs().max()) < 1e-5
    with pytest.raises(EngineError, match=r"engine\.max_context=64"):
        ModelRunner(tmp_path, "cpu", "float32", 8, 1 << 28)
    with pytest.raises(ConfigError, match=r"engine\.max_context=64"):
        trainer.logprobs([path_forest([*range(64), 0])])
    assert trainer.logprobs([path_forest(list(range(64)))])[0].shape == (64,)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mistral", "windows in some layers"])
def test_a_window_that_were_not_kept_would_be_found_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BlockPlan, "within", lambda plan, window: plan)
    assert compare(config_of(*EXACT[name])).logp > 0.05


@contextmanager
def computed_by(function: Callable[..., Any]) -> Iterator[None]:
    """Have a function compute the trainer's attention within the block."""
    AttentionInterface.register(attention.NAME, function)
    try:
        yield
    finally:
        AttentionInterface.register(attention.NAME, attention.forest_attention)


@pytest.mark.slow
@pytest.mark.parametrize("forgotten", [{"softcap": None}, {"s_aux": None}], ids=str)
def test_caps_and_sinks_that_were_forgotten_would_be_found_out(forgotten: dict[str, None]) -> None:
    def forgetful(*inputs: Any, **options: Any) -> Any:
        return attention.forest_attention(*inputs, **{**options, **forgotten})

    name = "windows and sinks" if "s_aux" in forgotten else "windows, caps of scores and of logits"
    with computed_by(forgetful):
        assert not compare(config_of(*EXACT[name])).passed


@pytest.mark.parametrize("subject", ["torch", "local"])
@pytest.mark.slow
def test_in_bfloat16_ours_is_off_by_no_more_than_twice_what_transformers_is(subject: str) -> None:
    found = compare(config_of(*EXACT["llama"]), subject=subject, dtype="bfloat16")
    assert found.passed, str(found)
    assert found.logp > 1e-3, "rows in float32 are what it is held to"
    assert found.logp_bound < 0.05
    assert "in bfloat16" in str(found)
    assert "twice transformers' own error" in str(found)


@pytest.mark.slow
def test_what_is_right_in_float32_and_too_rough_in_bfloat16_is_found_out() -> None:
    """Values that a kernel holds in eight bits, where the model is in sixteen."""

    def rough(module: Any, query: Tensor, key: Tensor, value: Tensor, *inputs: Any, **options: Any) -> Any:
        if value.dtype == torch.bfloat16:
            value = value.to(torch.float8_e5m2).to(value.dtype)
        return attention.forest_attention(module, query, key, value, *inputs, **options)

    with computed_by(rough):
        assert compare(config_of(*EXACT["llama"])).passed
        found = compare(config_of(*EXACT["llama"]), dtype="bfloat16")
    assert not found.passed
    assert not found.fault


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["minimax", "recurrent_gemma"])
def test_recurrent_architectures_are_found_out_at_the_sizes_of_their_defaults(kind: str) -> None:
    found = compare(AutoConfig.for_model(kind))
    assert not found.passed
    assert found.logp > 0.05


@pytest.mark.parametrize("why", REFUSED)
@pytest.mark.parametrize("subject", ["torch", "local"])
@pytest.mark.slow
def test_what_can_not_be_computed_is_refused_in_words_and_before_the_first_step(why: str, subject: str) -> None:
    found = compare(config_of(*REFUSED[why]), subject=subject)
    assert why in found.fault
    assert not found.passed


@pytest.mark.parametrize("name", PLAYED)
@pytest.mark.slow
def test_the_local_engine_computes_what_rows_mean(name: str) -> None:
    found = compare(config_of(*PLAYED[name]), subject="local")
    assert found.passed, str(found)
    assert found.logp > 0
    assert found.gradient is None


@pytest.mark.slow
def test_a_window_that_the_local_engine_forgot_would_be_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = StepLayout._mask
    monkeypatch.setattr(StepLayout, "_mask", lambda layout, decoding, keys, window: whole(layout, decoding, keys, None))
    assert compare(config_of(*EXACT["mistral"]), subject="local").logp > 0.05


@pytest.mark.slow
def test_an_architecture_that_the_local_engine_would_play_wrong_is_found_out(tmp_path: Path) -> None:
    config_of("diffllama", {}).save_pretrained(tmp_path / "model")
    with pytest.raises(ConfigError, match=r"can't be run by engine=local.*nats.*engine=sglang.*engine.proof=false"):
        require(tmp_path / "model", "mine", subject="local")


@pytest.mark.parametrize(
    ("kind", "more", "why"),
    [
        ("deepseek_v32", MLA, "it has layers of another kind (indexed_attention), which refuse a forest"),
        ("mpt", {"num_key_value_heads": None}, "its layers need more than a forest gives them: transformers' code"),
        ("falcon", {"num_key_value_heads": None}, "its layers don't attend through"),
    ],
)
@pytest.mark.slow
def test_what_layers_raise_from_their_insides_is_said_as_a_sentence(kind: str, more: dict[str, Any], why: str) -> None:
    assert compare(config_of(kind, more)).fault.startswith(why)


def test_an_architecture_that_can_not_be_tried_does_not_pass() -> None:
    assert not Proof(untested="its configuration can't be shrunk").passed


@pytest.fixture
def folder(tmp_path: Path, own_cache: None) -> Path:
    """A folder of dynamic RoPE, and a cache of its own."""
    config_of(*WRONG["biases by place (ALiBi)"]).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.slow
def test_a_run_with_such_a_model_is_refused_with_the_numbers_and_the_way_out(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"model='mine' \(bloom\).*nats.*trainer.proof=false"):
        require(folder, "mine")


@pytest.mark.slow
def test_short_memory_is_said_and_refuses_no_model_for_ever(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was cached as the architecture's fault until the cache was emptied."""

    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError("no room")

    with monkeypatch.context() as short:
        short.setattr(TorchTrainer, "logprobs", full)
        with pytest.raises(InfraError, match=r"not enough memory.*no room"):
            prove(folder)
    assert not prove(folder).fault


@pytest.mark.slow
def test_a_copy_of_a_folder_needs_no_proof_of_its_own(folder: Path, tmp_path: Path) -> None:
    one = prove(folder)
    shutil.copytree(folder, tmp_path / "copy")
    assert prove(tmp_path / "copy") == one
    assert len(list((tmp_path / "cache" / "agentrl" / "proofs").iterdir())) == 1
    assert prove(folder, subject="local") != one
    assert len(list((tmp_path / "cache" / "agentrl" / "proofs").iterdir())) == 2


@pytest.mark.usefixtures("own_cache")
@pytest.mark.slow
def test_a_run_is_refused_before_its_engine_starts_and_leaves_no_folder(tmp_path: Path) -> None:
    model = tiny.build(tmp_path / "model", ["<|im_start|>user\nWhat is 1 + 1?<|im_end|>\n"])
    settings = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(
        json.dumps({**settings, "rope_parameters": LONG, "max_position_embeddings": 8192})
    )
    with pytest.raises(ConfigError, match="can't be trained by trainer=torch"):
        agentrl.train("calculator", model=str(model), steps=1, run_dir=str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_proof_is_cached_until_something_it_depends_on_changes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []
    monkeypatch.setattr(proof, "compare", lambda config, device, seed, *_: (tried.append(seed), Proof(logp=0.5))[1])
    assert prove(folder) == prove(folder) == Proof(logp=0.5)
    assert tried == [0, 1], "what fails is tried twice, and not again"
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, "num_hidden_layers": 3}))
    prove(folder)
    assert len(tried) == 4
    monkeypatch.setattr(proof.transformers, "__version__", "0")
    prove(folder)
    assert len(tried) == 6
    prove(folder, dtype="bfloat16")
    assert tried[6:] == [0, 1, 2], "each precision has a proof of its own"
    assert prove(folder).cached


def test_a_model_that_no_family_serves_can_not_be_trained_on_megatron_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    found = prove(tmp_path, subject="megatron")
    assert found.fault.startswith("unknown model family 'gpt2'")
    assert not found.passed


def checked(*words: object) -> tuple[int, str]:
    """The exit code of `agentrl models check`, and what it printed."""
    printed = CliRunner().invoke(cli.app, ["models", "check", *map(str, words)], env={"COLUMNS": "400"})
    return printed.exit_code, printed.stdout


@pytest.mark.slow
def test_models_check_prints_a_line_for_the_trainer_and_one_for_the_engine(folder: Path) -> None:
    code, printed = checked(folder)
    assert "✗ trainer=torch: log-probabilities differ" in printed
    assert "- engine=local: 4 of its 4 layers don't attend" in printed
    assert code == 1


@pytest.mark.usefixtures("own_cache")
@pytest.mark.slow
def test_models_check_ends_well_for_a_model_that_megatron_alone_refuses_unless_megatron_was_named(
    tmp_path: Path,
) -> None:
    config_of(*EXACT["gpt2, with learned positions"]).save_pretrained(tmp_path / "model")
    code, printed = checked(tmp_path / "model")
    assert code == 0, printed
    assert "✓ trainer=torch" in printed
    assert "✓ engine=local" in printed
    need(find_spec("megatron") is not None, "megatron-core is not installed")
    assert "- trainer=megatron: unknown model family 'gpt2'" in printed
    code, printed = checked(tmp_path / "model", "--trainer", "megatron")
    assert code == 1
    assert "torch" not in printed
    assert checked(tmp_path / "model", "--trainer", "torch", "--engine", "local")[0] == 0


@pytest.mark.slow
def test_models_check_ends_with_1_where_the_engine_that_was_named_refuses(folder: Path) -> None:
    code, printed = checked(folder, "--engine", "local")
    assert code == 1
    assert "trainer" not in printed


def test_models_check_names_what_it_can_try(folder: Path) -> None:
    with pytest.raises(UnknownName, match=r"unknown engine to try 'sglang' \(known: local\)"):
        report(folder, Console(), engine="sglang")
