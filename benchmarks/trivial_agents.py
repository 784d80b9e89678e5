"""`python -m benchmarks.trivial_agents [N]`: what six agents that understand nothing get in the built-in environments.

Prints the table of docs/worlds.md: mean scores in N tasks (50) of `eval` of every built-in environment that needs
nothing, and of its levels. What an agent gets that says nothing, or always the same, is given away.
"""

from __future__ import annotations

import sys
from typing import Any

from agentrl.envs.reference import references
from agentrl.envs.registry import list_envs, make
from agentrl.envs.trivial import AGENTS

LEVELS: dict[str, tuple[dict[str, Any], ...]] = {
    "retail": tuple({"level": level} for level in (1, 2, 3)),
    "text_adventure": tuple({"level": level} for level in (1, 2, 3)),
}


def worlds() -> list[tuple[str, dict[str, Any]]]:
    """Names and options of the environments that are played."""
    ready = [env.name for env in list_envs() if env.ready]
    return [(name, options) for name in ready for options in ({}, *LEVELS.get(name, ()))]


def row(name: str, options: dict[str, Any], n: int) -> dict[str, float | None]:
    """Mean scores by agent."""
    return {each.agent: each.reward for each in references(name, options, n)}


def main(n: int = 50) -> None:
    """Print the table."""
    columns = ("expert", *AGENTS)
    print("| environment |", " | ".join(name.removesuffix(" agent") for name in columns), "| chance |")
    print("|---|" + "---|" * (len(columns) + 1))
    for name, options in worlds():
        scores = row(name, options, n)
        words = " ".join([f"`{name}`", *(f"{key}={value}" for key, value in options.items())])
        cells = ["" if scores.get(each) is None else f"{scores[each]:.2f}" for each in columns]
        chance = make(name, **options).chance
        print(f"| {words} |", " | ".join(cells), f"| {'' if chance is None else chance} |", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
