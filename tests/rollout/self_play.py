"""A small run of self-play against earlier versions of the policy, in the example's game of hiding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentrl.overrides import merge, read_yaml

EXAMPLE = Path(__file__).parents[2] / "examples" / "several_agents" / "hiding.yaml"
SMALL: dict[str, Any] = {
    "env": str(EXAMPLE.with_name("hiding.py:Hiding")),
    "rollout": {"group_size": 4, "turn_tokens": 8},
    "eval": {"n": 1},
    "engine": {"threads": 1, "proof": False},
    "trainer": {"threads": 1, "proof": False},
    "warm_start": {"demos": 32, "batch": 16},
    "policies": {"earlier": {"past": {"every": 1, "size": 2, "current": 0.25}, "engine": {"threads": 1}}},
}


def self_play(**settings: Any) -> dict[str, Any]:
    """The example's settings, made small, and these."""
    return merge(merge(read_yaml(EXAMPLE), SMALL), settings)
