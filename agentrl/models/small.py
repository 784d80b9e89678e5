"""A small random model of a configuration's kind, to test its architecture.

It keeps one of every kind of layer and the heads' shape. Thresholds on the length or on scores are lowered, so that a
few dozen tokens exceed them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError

from agentrl.models.loading import new_causal_lm, unknown_value
from agentrl.models.sizes import OTHER_NAMES
from agentrl.models.vision_trials import TRIALS

VOCABULARY, LAYERS, WIDTH, NEAR, CAP = 64, 6, 16, 12, 0.5
"""Of the small model: vocabulary, most layers, a head's width; the length from which positions are scaled and windows
apply; the cap of attention scores and logits, where they are capped."""
MOST_PARAMETERS = 200_000_000
"""A model that is larger than this even when reduced is not tested."""


@dataclass(frozen=True, slots=True)
class Shares:
    """The numbers that must divide a small model's layers, widths and experts, as they divide the whole model's.

    Attributes:
        layers: the pipeline stages that they are distributed over.
        width: the ranks that heads and the MLP are sharded over.
        experts: the ranks that they are sharded over.
        check: raises where a configuration does not fit all the same.
    """

    layers: int = 1
    width: int = 1
    experts: int = 1
    check: Callable[[Any], object] = lambda config: None


def small_model(config: Any, shares: Shares = Shares()) -> tuple[Any, str]:
    """A random model of a configuration's kind; None, and why, where none can be made."""
    why = ""
    few, more = (partial(reduce_heads, groups=max(groups, shares.width)) for groups in (2, 8))
    for narrow in (few, more, _narrow_heads, lambda text: None):
        try:
            small = copy.deepcopy(config)
            text = small.get_text_config()
            _fewer_layers(text, shares)
            _lower_thresholds(text)
            narrow(text)
            if small.model_type in TRIALS:
                small.image_token_id = VOCABULARY - 1
                TRIALS[small.model_type].narrow(small)
            shares.check(small)
            with torch.device("meta"):
                size = sum(p.numel() for p in new_causal_lm(small, torch.float32, "eager").parameters())
            if size > MOST_PARAMETERS:
                raise ValueError(f"{text.num_hidden_layers} of its layers have {size / 1e6:.0f} M parameters")
            model = new_causal_lm(small, torch.float32, "eager").eval()
            with torch.no_grad():
                model(input_ids=torch.arange(VOCABULARY)[None, :NEAR], use_cache=False)
                _randomise(model)
            return model, ""
        except Exception as error:  # transformers has hundreds of kinds, with errors of their own
            why = why or f"no small model of its kind can be made: {unknown_value(error, config) or error_text(error)}"
    return None, why


def _randomise(model: Any) -> None:
    """Weights large enough to affect the outputs, biases and norms included."""
    for name, tensor in model.named_parameters():
        if tensor.dim() >= 2 or "norm" not in name:
            tensor.add_(min(0.1, tensor.shape[-1] ** -0.5) * torch.randn_like(tensor))
        else:
            tensor.mul_(1 + 0.3 * torch.randn_like(tensor))


def _fewer_layers(text: Any, shares: Shares) -> None:
    """Fewer and narrower layers (at least one of every kind), a small vocabulary and fewer experts."""
    fields, layers = text.to_dict(), text.num_hidden_layers
    by_layer = {name: value for name, value in fields.items() if isinstance(value, list) and len(value) == layers}
    first = [value.index(kind) for value in by_layer.values() if _hashable(value) for kind in set(value)]
    kept = max([LAYERS, *(place + 1 for place in first if place < 3 * LAYERS)])
    kept = min(layers, _multiple(kept, shares.layers))
    for name, kinds in by_layer.items():
        setattr(text, name, kinds[:kept])
    text.num_hidden_layers = kept
    text.vocab_size = VOCABULARY
    limits = {"n_group": 1, "topk_group": 1, "max_window_layers": 1, "first_k_dense_replace": 1}
    experts = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    limits |= dict.fromkeys(experts, _multiple(8, shares.experts))
    limits |= dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_k"), 2)
    inner = ("intermediate_size", *OTHER_NAMES["intermediate_size"])
    limits |= {name: _multiple(4 * WIDTH, WIDTH * shares.width) for name in fields if name.endswith(inner)}
    keys = getattr(text, "linear_num_key_heads", None)
    if isinstance(keys, int):
        limits |= {
            "linear_num_key_heads": 2,
            "linear_num_value_heads": min(keys, 2) * text.linear_num_value_heads // keys,
        }
        limits |= dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 2 * WIDTH)
    for name, most in limits.items():
        value = getattr(text, name, None)
        if isinstance(value, int) and not isinstance(value, bool):
            setattr(text, name, min(value, most))
    for name in ("bos_token_id", "eos_token_id"):
        if hasattr(text, name):
            setattr(text, name, 0)
    _without_padding(text)


def _without_padding(text: Any) -> None:
    """No padding token; the last one where a class requires one (the ModernBERT decoder's)."""
    if hasattr(text, "pad_token_id"):
        try:
            text.pad_token_id = None
        except (ValueError, TypeError, StrictDataclassError):
            text.pad_token_id = VOCABULARY - 1


def _multiple(least: int, of: int) -> int:
    return -(-least // of) * of


def _hashable(values: list[Any]) -> bool:
    return all(isinstance(value, str | int | float | bool | None) for value in values)


def _lower_thresholds(text: Any) -> None:
    """Lower thresholds on the length and on scores to what the test reaches: rotary tables, windows, caps."""
    rope = getattr(text, "rope_parameters", None) or {}
    several = bool(rope) and all(isinstance(value, dict) for value in rope.values())
    for one in rope.values() if several else [rope]:
        if one.get("original_max_position_embeddings"):
            one["original_max_position_embeddings"] = NEAR
        if one.get("rope_type") == "dynamic":
            text.max_position_embeddings = NEAR
    if getattr(text, "original_max_position_embeddings", None):
        text.original_max_position_embeddings = NEAR
    for name in ("sliding_window", "attention_chunk_size", "floor_scale", "mamba_chunk_size", "chunk_size"):
        if isinstance(getattr(text, name, None), int):
            setattr(text, name, NEAR)
    for name in ("attn_logit_softcapping", "final_logit_softcapping"):  # random weights' scores stay far below most
        if getattr(text, name, None):
            setattr(text, name, CAP)
    # A narrow model's logits are small; scaling them down further hides differences.
    if getattr(text, "logit_scale", None):
        text.logit_scale = max(text.logit_scale, 0.5)
    if getattr(text, "logits_scaling", None) and not isinstance(getattr(type(text), "logits_scaling", None), property):
        text.logits_scaling = min(text.logits_scaling, 2.0)


def reduce_heads(text: Any, groups: int) -> None:
    """Leave few groups of heads, each as wide as before, and all other widths in proportion."""
    fields = text.to_dict()
    counts = [name for name, value in fields.items() if name.endswith(("heads", "n_head")) and isinstance(value, int)]
    heads = getattr(text, "num_attention_heads", None) or (fields[counts[0]] if counts else 8 * groups)
    shared = getattr(text, "num_key_value_heads", None) or heads
    each = heads // shared if heads // shared <= 8 else 4
    few = min(shared, groups) * each
    widths = ("hidden_size", "n_embd", "d_model", "attention_hidden_size", "lru_width", "mamba_d_ssm", "embed_dim")
    for name in (*counts, *(name for name in widths if isinstance(fields.get(name), int))):
        least = 1 if name in counts else WIDTH
        width, rest = divmod(fields[name] * few, heads)  # GLM-4.5's 4096 are no multiple of its 96 heads
        setattr(text, name, max(least, _multiple(width, least) if rest else width))
    if isinstance(getattr(text, "num_key_value_heads", None), int):
        text.num_key_value_heads = min(shared, groups)


def _narrow_heads(text: Any) -> None:
    """As many heads as before, each narrow."""
    text.hidden_size = text.num_attention_heads * WIDTH
    if getattr(text, "head_dim", None) is not None:
        text.head_dim = WIDTH


def error_text(error: Exception) -> str:
    """An exception in one line."""
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0][:160] if str(error).strip() else ''}"
