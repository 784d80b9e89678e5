"""Tiny random models of every family, made by transformers and written as it writes them.

The vocabulary is odd, so that every tensor-parallel layout has to pad it; heads, groups and experts are few but
more than one; weights are large enough for mistakes to show in the logits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentrl.train.trainers.megatron.check import randomise

VOCABULARY = 97
LAYERS = 4

_DENSE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "pad_token_id": None,
}
_HALF_ROTATED = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "mscale": 0.7,
    "mscale_all_dim": 1.3,
    "beta_fast": 32,
    "beta_slow": 1,
    "original_max_position_embeddings": 64,
}
_EXPERTS = {"moe_intermediate_size": 32, "num_experts_per_tok": 2}
_HEADLESS = {name: value for name, value in _DENSE.items() if name != "head_dim"}
_KINDS = {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"] * 2}
_BY_KIND = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 10000.0},
}
_MULTIPLIERS = {
    "embedding_multiplier": 3.0,
    "logits_scaling": 2.0,
    "residual_multiplier": 0.7,
    "attention_multiplier": 0.4,
}
_LATENT: dict[str, Any] = {
    **_HEADLESS,
    **_EXPERTS,
    "num_key_value_heads": 4,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 16,
}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {**_DENSE, "rope_parameters": _LLAMA3}),
    "smollm2": ("llama", {**_DENSE, "tie_word_embeddings": True}),
    "qwen2": ("qwen2", {**_DENSE, "tie_word_embeddings": True}),
    "qwen3": ("qwen3", _DENSE),
    "qwen3_moe": (
        "qwen3_moe",
        {**_DENSE, **_EXPERTS, "num_experts": 8, "norm_topk_prob": True, "mlp_only_layers": [0]},
    ),
    "qwen3_moe_raw": ("qwen3_moe", {**_DENSE, **_EXPERTS, "num_experts": 8, "norm_topk_prob": False}),
    "glm4": ("glm4", {**_DENSE, "rope_parameters": _HALF_ROTATED}),
    "glm4_moe": (
        "glm4_moe",
        {
            **_DENSE,
            **_EXPERTS,
            "n_routed_experts": 8,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
            "use_qk_norm": True,
            "attention_bias": True,
            "routed_scaling_factor": 1.7,
            "rope_parameters": _HALF_ROTATED,
        },
    ),
    "deepseek_v3": (
        "deepseek_v3",
        {
            **_LATENT,
            "q_lora_rank": 24,
            "n_group": 4,
            "topk_group": 2,
            "num_experts_per_tok": 4,
            "rope_parameters": _YARN,
        },
    ),
    "moonlight": (
        "deepseek_v3",
        {**_LATENT, "q_lora_rank": None, "n_group": 1, "topk_group": 1, "n_shared_experts": 2, "rms_norm_eps": 1e-5},
    ),
}
"""By name: transformers' model type, and the settings of its configuration; tried by every test of models."""

MORE: dict[str, tuple[str, dict[str, Any]]] = {
    "smollm3": ("smollm3", {**_DENSE, "tie_word_embeddings": True, "no_rope_layers": [1, 0, 1, 0]}),
    "qwen2_window": ("qwen2", {**_DENSE, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2}),
    "qwen3_moe_window": (
        "qwen3_moe",
        {**_DENSE, **_EXPERTS, "num_experts": 8, "use_sliding_window": True, "sliding_window": 5},
    ),
    "mistral": ("mistral", {**_DENSE, "sliding_window": 5}),
    "mixtral": (
        "mixtral",
        {**_DENSE, "intermediate_size": 32, "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": 7},
    ),
    "phi3": ("phi3", {**_HEADLESS, "sliding_window": 5, "partial_rotary_factor": 0.5}),
    "granite": ("granite", {**_HEADLESS, "tie_word_embeddings": True, **_MULTIPLIERS}),
    "olmo2": ("olmo2", _HEADLESS),
    "olmo3": ("olmo3", {**_HEADLESS, **_KINDS}),
    "olmoe": ("olmoe", {**_HEADLESS, "intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 2}),
    "qwen2_moe": (
        "qwen2_moe",
        {
            **_HEADLESS,
            **_EXPERTS,
            "num_experts": 8,
            "shared_expert_intermediate_size": 40,
            "mlp_only_layers": [1],
            "use_sliding_window": True,
            "sliding_window": 5,
        },
    ),
    "gpt_oss": (
        "gpt_oss",
        {
            **_DENSE,
            **_KINDS,
            "intermediate_size": 32,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "swiglu_limit": 0.5,
            "rope_parameters": {**_YARN, "truncate": False},
        },
    ),
    "gemma": ("gemma", _DENSE),
    "gemma2": (
        "gemma2",
        {**_DENSE, **_KINDS, "attn_logit_softcapping": 0.5, "final_logit_softcapping": 2.0, "query_pre_attn_scalar": 9},
    ),
    "gemma3_text": (
        "gemma3_text",
        {**_DENSE, **_KINDS, "query_pre_attn_scalar": 256, "rope_parameters": _BY_KIND},
    ),
}
"""Families that share their code with those: held to transformers' eager rows (`test_eager_rows`)."""

QUICK = ("llama", "moonlight")
"""A dense and an expert case, which tests of every layout try in `make check`; the others are slow there."""

EXPERT_CASES = tuple(name for name, (_, settings) in CASES.items() if "moe_intermediate_size" in settings)


def marked(*arguments: Any) -> Any:
    """Parameters that begin with a case's name, slow unless it is a quick one."""
    return pytest.param(*arguments, marks=() if arguments[0] in QUICK else pytest.mark.slow)


def write(name: str, folder: Path, seed: int = 0) -> Path:
    """Write a case's random model, in float32."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    random_model(*{**CASES, **MORE}[name], seed=seed).save_pretrained(folder)
    return folder


def random_model(kind: str, settings: dict[str, Any], seed: int = 0) -> Any:
    """A model of transformers whose every tensor is random, biases and corrections too."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(kind, **settings)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    randomise(model, seed)
    return model
