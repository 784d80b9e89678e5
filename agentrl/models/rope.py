"""Rotary angles that change with the length of the row at hand, and up to where they don't.

Under longrope (arXiv:2402.13753, Phi-3) all angles of a row are other ones once it is longer than the model's original
context; under dynamic scaling once it is longer than its context. In a tree a long and a short path ask for both at the
tokens that they share, so nothing is right for both. Where no path is ever that long there is one answer, and the model
is the one that has it everywhere.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any


def same_angles_until(config: Any) -> int | None:
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
    """Why paths of up to `context` tokens (None: the model's own limit) have no right angles; '' where they do."""
    limit, most = same_angles_until(config), int(getattr(config.get_text_config(), "max_position_embeddings", 0))
    longest = most if context is None else min(context, most)
    if limit is None or longest <= limit:
        return ""
    return (
        f"its rotary angles are other ones in rows of more than {limit} tokens, and two paths of a tree may ask for "
        f"both at the tokens that they share; engine.max_context={limit} keeps to shorter ones"
    )


def as_in_short_rows(config: Any) -> Any:
    """A copy of a configuration whose angles are in every row those of short ones."""
    config = copy.deepcopy(config)
    for rope in _ropes(config.get_text_config()):
        if rope.get("rope_type") == "dynamic":
            rope["rope_type"] = "default"
        elif rope.get("rope_type") == "longrope":
            rope["long_factor"] = list(rope["short_factor"])
    return config


def _ropes(text: Any) -> Iterator[dict[str, Any]]:
    """What rotary embeddings there are: one, or one for each kind of layer."""
    rope = getattr(text, "rope_parameters", None) or {}
    several = bool(rope) and all(isinstance(value, dict) for value in rope.values())
    yield from rope.values() if several else [rope]
