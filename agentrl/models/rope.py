"""Rotary angles that change with the length of the row, and the length up to which they don't.

Under longrope (arXiv:2402.13753, Phi-3) all angles of a row differ once it is longer than the model's original context;
under dynamic scaling once it is longer than its context. In a tree a long and a short path would need both sets of
angles at the tokens that they share, so no choice is correct. Where no path is that long the angles are fixed, and the
model computes the same in every row.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any


def fixed_angle_length(config: Any) -> int | None:
    """The tokens of the longest row whose angles don't depend on its length; None where no row's do."""
    text = config.get_text_config()
    limits = []
    for rope in _ropes(text):
        if rope.get("rope_type") == "dynamic":
            limits.append(int(text.max_position_embeddings))
        elif rope.get("rope_type") == "longrope" and list(rope["long_factor"]) != list(rope["short_factor"]):
            own = getattr(text, "original_max_position_embeddings", None)
            limits.append(int(rope.get("original_max_position_embeddings") or own or text.max_position_embeddings))
    return min(limits, default=None)


def too_long(config: Any, context: int | None) -> str:
    """Return why paths of up to `context` tokens (None: the model's limit) have no fixed angles; '' where they do."""
    limit, most = fixed_angle_length(config), int(getattr(config.get_text_config(), "max_position_embeddings", 0))
    longest = most if context is None else min(context, most)
    if limit is None or longest <= limit:
        return ""
    return (
        f"its rotary angles differ in rows of more than {limit} tokens, and two paths of a tree may need both at the "
        f"tokens that they share; engine.max_context={limit} limits paths to shorter ones"
    )


def with_short_row_angles(config: Any) -> Any:
    """A copy of a configuration that has the angles of short rows in every row."""
    config = copy.deepcopy(config)
    for rope in _ropes(config.get_text_config()):
        if rope.get("rope_type") == "dynamic":
            rope["rope_type"] = "default"
        elif rope.get("rope_type") == "longrope":
            rope["long_factor"] = list(rope["short_factor"])
    return config


def _ropes(text: Any) -> Iterator[dict[str, Any]]:
    """The settings of rotary embeddings: one, or one for each kind of layer."""
    rope = getattr(text, "rope_parameters", None) or {}
    several = bool(rope) and all(isinstance(value, dict) for value in rope.values())
    yield from rope.values() if several else [rope]
