"""A model's shape from its config.json alone: parameters, key-value cache, activations, floating-point operations.

Decoders of the Llama kind: rotary attention or DeepSeek's latent one, gated MLP or a mixture of such experts, RMS
norms, no biases but those of attention. Counts are exact for these; tests compare them with transformers' models.
Layers that differ (dense ones before those with experts) are counted each as the mean of all. Of Qwen2.5-VL the tower's
parameters are counted besides, but neither what it computes nor its activations.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from agentrl.errors import ConfigError, InvalidInput

LATENT = ("deepseek_v3", "kimi_k2")
KINDS = ("llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "glm4_moe", *LATENT)
"""The values of `model_type` that are counted."""


SEEING = "qwen2_5_vl"
"""The `model_type` whose decoder is a qwen2, beside a tower."""
_TOWER = {
    "depth": 32,
    "hidden_size": 1280,
    "intermediate_size": 3420,
    "patch_size": 14,
    "temporal_patch_size": 2,
    "spatial_merge_size": 2,
}


class UncountedModel(ConfigError):
    """A model's kind is not counted; that says nothing of whether it trains."""


@dataclass(frozen=True)
class Shape:
    """A decoder's sizes, under the names that config.json has for them; of a model that sees, its decoder's.

    Of latent attention `head_dim` is what a query and a key have (nope and rope together), and `num_key_value_heads` is
    1: ranks don't share the cache of latents.
    """

    model_type: str
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    tie_word_embeddings: bool
    attention_bias: bool = False
    num_experts: int = 0
    num_experts_per_tok: int = 0
    moe_intermediate_size: int = 0
    n_shared_experts: int = 0
    first_k_dense_replace: int = 0
    use_qk_norm: bool = False
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    qk_rope_head_dim: int = 0
    v_head_dim: int = 0
    tower: int = 0
    """Parameters of the tower that makes tokens of images, with its projector."""

    @property
    def attention(self) -> int:
        """Parameters of a layer's attention."""
        if self.kv_lora_rank:
            heads, latents = self.num_attention_heads, self.kv_lora_rank
            queries = self.q_lora_rank * (self.hidden_size + 1 + heads * self.head_dim)
            keys = self.hidden_size * (latents + self.qk_rope_head_dim) + latents
            values = latents * heads * (self.head_dim - self.qk_rope_head_dim + self.v_head_dim)
            return queries + keys + values + heads * self.v_head_dim * self.hidden_size
        queries, keys = self.num_attention_heads * self.head_dim, self.num_key_value_heads * self.head_dim
        matrices = self.hidden_size * (2 * queries + 2 * keys)
        norms = 2 * self.head_dim if self.model_type.startswith("qwen3") or self.use_qk_norm else 0
        biases = queries + 2 * keys if self.attention_bias or self.model_type == "qwen2" else 0
        outer = self.hidden_size if self.attention_bias and self.model_type != "glm4_moe" else 0
        return matrices + norms + biases + outer

    @property
    def expert_layers(self) -> int:
        """The number of layers that have experts."""
        return self.num_hidden_layers - self.first_k_dense_replace if self.num_experts else 0

    @property
    def expert(self) -> int:
        return 3 * self.hidden_size * self.moe_intermediate_size

    @property
    def experts(self) -> float:
        """Parameters of a layer's experts, without the router and the shared ones; the mean of all layers."""
        return self.expert_layers * self.num_experts * self.expert / self.num_hidden_layers

    @property
    def all_dense(self) -> int:
        """Parameters of all layers that are no routed expert's: attention, norms, MLPs, routers, shared experts."""
        plain = (self.num_hidden_layers - self.expert_layers) * 3 * self.hidden_size * self.intermediate_size
        beside = self.expert_layers * (self.hidden_size * self.num_experts + self.n_shared_experts * self.expert)
        return self.num_hidden_layers * (self.attention + 2 * self.hidden_size) + plain + beside

    @property
    def dense(self) -> float:
        """`all_dense` of a layer; the mean of all layers."""
        return self.all_dense / self.num_hidden_layers

    @property
    def embeddings(self) -> int:
        """Parameters of the embedding, the head, and the last norm."""
        return self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2) + self.hidden_size

    @cached_property
    def parameters(self) -> int:
        """The number of all parameters."""
        return self.all_dense + self.expert_layers * self.num_experts * self.expert + self.embeddings + self.tower

    @cached_property
    def active(self) -> int:
        """Parameters that each token goes through, without the embedding's."""
        used = self.expert_layers * self.num_experts_per_tok * self.expert
        return self.all_dense + used + self.vocab_size * self.hidden_size

    @cached_property
    def kv_values(self) -> int:
        """Numbers in the key-value cache for each token; of latent attention the latents and one rotated key."""
        if self.kv_lora_rank:
            return self.num_hidden_layers * (self.kv_lora_rank + self.qk_rope_head_dim)
        return self.num_hidden_layers * 2 * self.num_key_value_heads * self.head_dim

    @property
    def layer_activations(self) -> int:
        """Numbers that a layer keeps of each token for the backward pass, with fused attention.

        What the matrices, norms and the gate read: 4 inputs and 2 sums of the hidden width, queries, keys, values and
        the attention's result, and 4 of the MLP's width (as in Korthikanti et al., arXiv:2205.05198, section 4.1, for
        a gated MLP).
        """
        heads = (2 * self.num_attention_heads + 2 * self.num_key_value_heads) * self.head_dim
        if self.kv_lora_rank:  # keys and values are whole while a layer computes
            heads = 2 * self.num_attention_heads * (self.head_dim + self.v_head_dim) + self.q_lora_rank
            heads += self.kv_lora_rank + self.qk_rope_head_dim
        wide = (self.num_experts_per_tok + self.n_shared_experts) * self.moe_intermediate_size
        wide = wide if self.num_experts else self.intermediate_size
        return 6 * self.hidden_size + heads + 4 * wide

    def flops(self, tokens: float, length: float, *, backward: bool) -> float:
        """Floating-point operations for tokens: 2 for each parameter, 6 with the backward pass; attention beside it.

        Args:
            tokens: how many tokens.
            length: mean number of earlier tokens that each attends to.
            backward: whether gradients are computed as well.
        """
        pair = self.head_dim + (self.v_head_dim or self.head_dim)
        attention = self.num_hidden_layers * self.num_attention_heads * pair * length
        return (6 if backward else 2) * tokens * (self.active + attention)


def _qwen3(hidden: int, layers: int, heads: int, kv_heads: int, wide: int, **more: Any) -> Shape:
    kind = "qwen3_moe" if more.get("num_experts") else "qwen3"
    tied = more.pop("tied", False)
    return Shape(kind, hidden, layers, heads, kv_heads, 128, wide, 151936, tied, **more)


def _tower(out: int, settings: Mapping[str, Any] = MappingProxyType({})) -> int:
    """Parameters of Qwen2.5-VL's tower and projector, whose tokens are `out` wide; defaults are those of its sizes."""
    depth, hidden, wide, patch, frames, merged = (
        int(settings.get(name) or default) for name, default in _TOWER.items()
    )
    attention = 4 * hidden * (hidden + 1)
    mlp = 2 * wide * (hidden + 1) + hidden * (wide + 1)
    joined = hidden * merged * merged
    projector = hidden + joined * (joined + 1) + out * (joined + 1)
    return 3 * frames * patch * patch * hidden + depth * (attention + mlp + 2 * hidden) + projector


_OF_128: Mapping[str, Any] = {"num_experts": 128, "num_experts_per_tok": 8}
_LATENT: Mapping[str, Any] = {
    **{"num_experts_per_tok": 8, "moe_intermediate_size": 2048, "n_shared_experts": 1},
    **{"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "v_head_dim": 128},
}
KNOWN: Mapping[str, Shape] = {
    "smollm2-135m": Shape("llama", 576, 30, 9, 3, 64, 1536, 49152, True),
    "qwen2.5-0.5b": Shape("qwen2", 896, 24, 14, 2, 64, 4864, 151936, True),
    "qwen2.5-vl-3b": Shape("qwen2", 2048, 36, 16, 2, 128, 11008, 151936, True, tower=_tower(2048)),
    "qwen2.5-vl-7b": Shape("qwen2", 3584, 28, 28, 4, 128, 18944, 152064, False, tower=_tower(3584)),
    "qwen3-0.6b": _qwen3(1024, 28, 16, 8, 3072, tied=True),
    "qwen3-1.7b": _qwen3(2048, 28, 16, 8, 6144, tied=True),
    "qwen3-8b": _qwen3(4096, 36, 32, 8, 12288),
    "qwen3-30b-a3b": _qwen3(2048, 48, 32, 4, 6144, moe_intermediate_size=768, **_OF_128),
    "qwen3-235b-a22b": _qwen3(4096, 94, 64, 4, 12288, moe_intermediate_size=1536, **_OF_128),
    "glm-4.5-air": Shape(
        *("glm4_moe", 4096, 46, 96, 8, 128, 10944, 151552, False, True),
        **_OF_128,
        moe_intermediate_size=1408,
        n_shared_experts=1,
        first_k_dense_replace=1,
    ),
    "deepseek-v3": Shape(
        *("deepseek_v3", 7168, 61, 128, 1, 192, 18432, 129280, False),
        num_experts=256,
        first_k_dense_replace=3,
        **_LATENT,
    ),
    "kimi-k2": Shape(
        *("kimi_k2", 7168, 61, 64, 1, 192, 18432, 163840, False), num_experts=384, first_k_dense_replace=1, **_LATENT
    ),
}
"""Shapes by name, for plans without the model's files; from the models' config.json."""


def shape_of(model: str | Path) -> Shape:
    """The shape of a model.

    Args:
        model: a name in `KNOWN`, a config.json, or a folder that has one.

    Raises:
        InvalidInput: there is no such file, or it is unreadable or lacks a size.
        UncountedModel: models of this kind are not counted.
    """
    if str(model).lower() in KNOWN:
        return KNOWN[str(model).lower()]
    path = Path(model).expanduser()
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        raise InvalidInput(
            f"model={str(model)!r}: no config.json there; give a model folder, a config.json, or one of: "
            f"{', '.join(KNOWN)}"
        )
    try:
        settings = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise InvalidInput(f"model={str(model)!r}: {file.name} is unreadable: {error}") from None
    return read_shape(settings, str(model))


def read_shape(settings: Mapping[str, Any], model: str) -> Shape:
    """The shape in a config.json's contents; see `shape_of`."""
    kind, tower = settings.get("model_type"), 0
    if kind == SEEING:
        seeing, kind = settings, "qwen2"
        settings = {**settings, **(settings.get("text_config") or {})}
        tower = _tower(int(settings.get("hidden_size") or 0), seeing.get("vision_config") or {})
    if kind not in KINDS:
        raise UncountedModel(
            f"model={model!r}: model_type={kind!r} can't be planned; what can: {', '.join((*KINDS, SEEING))}"
        )
    if settings.get("mlp_only_layers") or settings.get("decoder_sparse_step", 1) != 1:
        raise UncountedModel(f"model={model!r} has layers without experts among others, which can't be planned")
    for name in ("num_local_experts", "n_routed_experts"):  # transformers 5's name, and DeepSeek's
        if name in settings:
            settings = {**settings, "num_experts": settings[name]}
    names = ["hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"]
    if kind in ("qwen3_moe", "glm4_moe", *LATENT):
        names += ["num_experts", "num_experts_per_tok", "moe_intermediate_size"]
    if kind in LATENT:
        names += ["q_lora_rank", "kv_lora_rank", "qk_rope_head_dim", "v_head_dim", "qk_nope_head_dim"]
    for name in names:
        if not isinstance(settings.get(name), int) or settings[name] < 1:
            raise InvalidInput(
                f"model={model!r}: config.json has {name}={settings.get(name)!r}, not a positive integer"
            )
    sizes = {name: int(settings[name]) for name in names}
    heads = sizes["num_attention_heads"]
    kv_heads = int(settings.get("num_key_value_heads") or heads)
    head_dim = int(settings.get("head_dim") or sizes["hidden_size"] // heads)
    if kind in LATENT:
        kv_heads, head_dim = 1, sizes.pop("qk_nope_head_dim") + sizes["qk_rope_head_dim"]
    return Shape(
        model_type=str(kind),
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        n_shared_experts=int(settings.get("n_shared_experts") or 0),
        first_k_dense_replace=int(settings.get("first_k_dense_replace") or 0),
        use_qk_norm=bool(settings.get("use_qk_norm", False)),
        tie_word_embeddings=bool(settings.get("tie_word_embeddings", False)),
        attention_bias=bool(settings.get("attention_bias", False)),
        tower=tower,
        **sizes,
    )
