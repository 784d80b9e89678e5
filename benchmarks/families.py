"""Which families are exact, and to what: `python -m benchmarks.families [NAME...]`.

Every family's configuration in transformers goes through the proofs of trainer=torch, engine=local and, where one of
its families serves the model, trainer=megatron. The lines go into the table of docs/families.md; with NAMEs, only
theirs are tried and replaced.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import transformers
from transformers import AutoConfig

from agentrl.models.rope import with_short_row_angles
from agentrl.train.trainers.megatron.models import FAMILIES as KNOWN
from agentrl.train.trainers.proof.comparison import compare
from agentrl.train.trainers.proof.subjects import Proof

PAGE = Path(__file__).resolve().parents[1] / "docs" / "families.md"
BEGIN, END = "<!-- benchmarks.families -->\n", "<!-- end -->\n"
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
    "rope_theta": 500000.0,
}
DYNAMIC = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
LONG = {
    "rope_type": "longrope",
    "long_factor": [4.0] * 8,
    "short_factor": [1.0] * 8,
    "factor": 32.0,
    "original_max_position_embeddings": 4096,
    "rope_theta": 10000.0,
}
WINDOWS = {"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 12}
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 16}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    **{kind: (kind, {}) for kind in ("llama", "qwen2", "qwen3", "qwen3_moe", "mistral", "mixtral")},
    "llama, llama3 scaling": ("llama", {"rope_parameters": LLAMA3, "max_position_embeddings": 131072}),
    "llama, dynamic RoPE": ("llama", {"rope_parameters": DYNAMIC}),
    "qwen2_moe, windows": ("qwen2_moe", WINDOWS),
    **{kind: (kind, {}) for kind in ("gemma", "gemma2", "gemma3_text", "phi3")},
    "phi3, longrope": ("phi3", {"rope_parameters": LONG, "max_position_embeddings": 131072}),
    **{kind: (kind, {}) for kind in ("smollm3", "cohere", "cohere2", "granite", "olmo2", "olmo3", "olmoe", "glm4")},
    **{kind: (kind, {}) for kind in ("glm4_moe", "gpt_oss", "deepseek_v3", "llama4_text")},
    **{kind: (kind, {}) for kind in ("exaone4", "exaone_moe", "minicpm3", "modernbert-decoder")},
    "deepseek_v2": ("deepseek_v2", {"n_routed_experts": 8, "num_experts_per_tok": 2}),
    **{kind: (kind, {}) for kind in ("starcoder2", "gpt2", "gpt_neox", "jetmoe", "diffllama", "stablelm")},
    **{kind: (kind, {}) for kind in ("bloom", "qwen3_next", "qwen3_5_text", "olmo_hybrid")},
    "lfm2": ("lfm2", {"layer_types": ["conv", "full_attention"] * 2}),
    "bamba": ("bamba", {**MAMBA, "attn_layer_indices": [1, 3]}),
    "falcon_h1": ("falcon_h1", {**MAMBA, "mamba_d_ssm": 128}),
    "granitemoehybrid": ("granitemoehybrid", {**MAMBA, "layer_types": ["linear_attention", "full_attention"] * 2}),
    "nemotron_h": ("nemotron_h", {"mamba_num_heads": 8, "mamba_head_dim": 16}),
    "jamba": ("jamba", {"attn_layer_period": 2, "attn_layer_offset": 1}),
    "mamba2": ("mamba2", {"num_heads": 8}),
    **{kind: (kind, {}) for kind in ("mamba", "minimax", "recurrent_gemma", "rwkv")},
}
SMALL = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 4, "head_dim": 16}
"""What all are made with, for speed; the proofs make them small in any case."""


def cell(proof: Proof) -> str:
    """A proof in a few words."""
    if not proof.passed:
        return f"refused: {proof}".replace("|", "/").partition(" (at most")[0]
    logp = f"{proof.logp:.0e}"
    return logp if proof.gradient is None else f"{logp}, gradient {proof.gradient:.0e}"


def tried(config: Any, subject: str) -> Proof:
    """A proof, on another model where numbers were refused: see `agentrl.train.trainers.proof.prove`."""
    proof = compare(config, subject=subject)
    return proof if proof.passed or proof.fault else compare(config, seed=1, subject=subject)


def configuration(name: str) -> Any:
    """A family's default configuration, with narrow heads where it has any."""
    kind, fields = FAMILIES.get(name, (name, {}))
    usual = AutoConfig.for_model(kind)
    small = {field: value for field, value in SMALL.items() if getattr(usual, field, None) is not None}
    if hasattr(usual, "qk_rope_head_dim"):  # latent attention, whose head_dim is that by another name
        small.pop("head_dim", None)
    shared = getattr(usual, "num_key_value_heads", None)
    if shared is not None:
        small["num_key_value_heads"] = 4 if shared == usual.num_attention_heads else 2
    return AutoConfig.for_model(kind, **{**small, **fields})


def row(name: str) -> str:
    """A family's line."""
    config = configuration(name)
    known = any(config.model_type in one.model_types for one in KNOWN.available().values())
    proofs = [tried(with_short_row_angles(config), subject) for subject in ("torch", "local")]
    proofs += [tried(config, "megatron")] * known
    cells = [name, *map(cell, proofs), *["-"] * (not known)]
    return f"| {' | '.join(cells)} |"


def main(names: list[str]) -> None:
    """Print a line for each family, and put them into the page's table."""
    lines = {}
    for name in names or FAMILIES:
        lines[name] = row(name)
        print(lines[name], flush=True)
    write(lines)


def write(found: dict[str, str]) -> None:
    """Put lines into the page's table, in the order of FAMILIES; it keeps the others'."""
    head = "| family | trainer=torch | engine=local | trainer=megatron |\n|---|---|---|---|\n"
    page = PAGE.read_text()
    before, after = page.partition(BEGIN)[0], page.partition(END)[2]
    known = {
        line.split(" | ")[0].removeprefix("| "): line for line in page.partition(BEGIN)[2].splitlines() if "|" in line
    }
    lines = [line for name in FAMILIES if (line := found.get(name, known.get(name)))]
    table = f"transformers {transformers.__version__}:\n\n{head}" + "\n".join(lines) + "\n\n"
    PAGE.write_text(f"{before}{BEGIN}\n{table}{END}{after}")


if __name__ == "__main__":
    main(sys.argv[1:])
