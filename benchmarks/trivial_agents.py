"""`python -m benchmarks.trivial_agents [N] [WORDS]`: what six agents that understand nothing get in what is built in.

Prints the tables of docs/worlds.md: mean scores in N tasks (50) of `eval` of every built-in environment and of its
levels, and of every kind of data set, with rows of our own in the published formats (`trivial_sets`). WORDS choose rows
by their names. Programs run in `sandbox=subprocess`: only scripted agents play. What an agent gets that says nothing,
or always the same, is given away.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from agentrl.envs import calls
from agentrl.envs.base import Env
from agentrl.envs.check.reference import references
from agentrl.envs.check.trivial import AGENTS
from agentrl.envs.registry import EnvFactory, factory, list_envs
from benchmarks.trivial_sets import SETS, search_r1, written

LEVELS = {
    "data_analysis": 3,
    "document_search": 3,
    "math_tools": 5,
    "retail": 3,
    "text_adventure": 3,
    "web_forms": 3,
    "web_shop": 3,
}
ADVISED = ("allocation", "grid_transport")
"""Worlds that may have critics."""
SLOW = 10
"""Tasks of an environment that runs programs, at most."""
COLUMNS = ("expert", *AGENTS)


@dataclass(frozen=True)
class Row:
    """An environment that is played: its name in the table, what makes it, its split, and how many tasks at most."""

    name: str
    target: str | EnvFactory
    options: dict[str, Any] = field(default_factory=dict)
    split: str = "eval"
    at_most: int = sys.maxsize

    def play(self, n: int) -> dict[str, float | None]:
        """Mean scores by agent."""
        found = references(self.target, self.options, min(n, self.at_most), self.split)
        return {each.agent: each.reward for each in found}

    def chance(self, n: int) -> float | None:
        """What the environment says that a guess gets in the same tasks."""
        env: Env = factory(self.target, **self.options)()
        split = self.split if self.split in env.splits else env.splits[0]
        return env.chance_of(list(islice(calls.tasks(env, split), min(n, self.at_most))))


def worlds() -> Iterator[Row]:
    """Those that make their tasks themselves, at each level, and those with a sandbox."""
    for name in (env.name for env in list_envs() if env.ready):
        yield Row(f"`{name}`", name)
        for level in range(1, LEVELS.get(name, 0) + 1):
            yield Row(f"`{name}` level={level}", name, {"level": level})
        if name in ADVISED:
            yield Row(f"`{name}` critics=true", name, {"critics": True})
    programs: dict[str, Any] = {"sandbox": "subprocess"}
    for level in (1, 2, 3):
        yield Row(f"`terminal` level={level}", "terminal", programs | {"level": level}, at_most=SLOW)
    yield Row("`code`", "code", programs, split="train", at_most=SLOW)
    yield Row("`swe` form=repair", "swe", programs | {"form": "repair"}, at_most=SLOW)
    yield Row("`swe`", "swe", programs, at_most=SLOW)


def sets(folder: Path) -> Iterator[Row]:
    """One for each kind of data set."""
    for name in SETS:
        env, options = written(name, folder)
        yield Row(name, env, options)
    yield Row("`search_r1`", search_r1(folder))


def show(what: str, rows: Iterator[Row], n: int, words: list[str]) -> None:
    """Print a table."""
    print(f"| {what} |", " | ".join(name.removesuffix(" agent") for name in COLUMNS), "| chance |")
    print("|---|" + "---|" * (len(COLUMNS) + 1))
    for row in rows:
        if words and not any(word in row.name for word in words):
            continue
        scores, chance = row.play(n), row.chance(n)
        cells = ["" if scores.get(each) is None else f"{scores[each]:.2f}" for each in COLUMNS]
        print(f"| {row.name} |", " | ".join(cells), f"| {'' if chance is None else f'{chance:.2f}'} |", flush=True)
    print()


def main(arguments: list[str]) -> None:
    """Print both tables."""
    numbers, words = [int(each) for each in arguments if each.isdecimal()], [x for x in arguments if not x.isdecimal()]
    n = numbers[0] if numbers else 50
    show("environment", worlds(), n, words)
    with tempfile.TemporaryDirectory() as folder:
        show("data set", sets(Path(folder)), n, words)


if __name__ == "__main__":
    main(sys.argv[1:])
