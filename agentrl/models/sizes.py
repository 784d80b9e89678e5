"""A model's sizes in its `config.json`, whichever names its family has.

transformers' configurations answer to the usual names; the file itself, which is read without transformers, has the
family's own (GPT-2's `n_layer`, MPT's `d_model`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

OTHER_NAMES: Mapping[str, tuple[str, ...]] = {
    "hidden_size": ("n_embd", "d_model"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads", "attention_heads"),
    "num_key_value_heads": ("num_kv_heads",),
    "max_position_embeddings": ("n_positions", "max_seq_len", "n_ctx", "seq_length"),
    "intermediate_size": ("n_inner", "ffn_dim", "d_ff", "ffn_hidden_size"),
}
"""Families' names of a size, by its usual name; the first that is there holds."""


def with_usual_names(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The contents of a `config.json` with its sizes under the usual names as well; those of its text model, if any."""
    found = {**settings, **(settings.get("text_config") or {})}
    for usual, others in OTHER_NAMES.items():
        if found.get(usual) is None:
            value = next((found[name] for name in others if found.get(name) is not None), None)
            found |= {} if value is None else {usual: value}
    if found.get("multi_query") and not found.get("new_decoder_architecture"):  # GPT BigCode, Falcon
        found["num_key_value_heads"] = 1
    return found


def longest_path(config: Any) -> int | None:
    """Tokens of the longest path that a model was made for, by its configuration in transformers; None: unlimited."""
    for name in ("max_position_embeddings", *OTHER_NAMES["max_position_embeddings"]):
        if isinstance(value := getattr(config, name, None), int):
            return value
    return None
