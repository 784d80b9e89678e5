"""A store's parts: products, customers, orders, a policy for the agent, and tasks with their criteria.

The layout is that of tau2-bench's retail domain (arXiv:2506.07982): `db.json`, `policy.md`, `tasks.json` and
`split_tasks.json` in one folder. A task says who the customer is and what they want (`scenario`), which tool calls lead
to the right database (`actions`), and what the agent has to say (`communicate`). Its assertions in prose are kept as
data; a judge can score them as a reward of the run's own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from agentrl.envs.data.rows import described
from agentrl.errors import ConfigError
from agentrl.types import Task

Record = dict[str, Any]
FILES = ("db.json", "policy.md", "tasks.json", "split_tasks.json")
READ = {"actions", "communicate_info"}
"""Criteria that rewards are computed from."""
SPLITS = {"train": "train", "eval": "test"}
"""Our splits by the names in `split_tasks.json`."""
SCENARIO = {
    "reason": "reason_for_call",
    "known": "known_info",
    "unknown": "unknown_info",
    "instructions": "task_instructions",
}
"""The parts of a scenario by their names in `tasks.json`."""


@dataclass(frozen=True)
class Database:
    """Records by id. Nothing in it is ever changed: an episode's changes are in its `Store`.

    Attributes:
        products: with their variants by item id.
        users: with their payment methods by id.
        orders: with items, address, status and payments.
    """

    products: Mapping[str, Record] = field(default_factory=dict)
    users: Mapping[str, Record] = field(default_factory=dict)
    orders: Mapping[str, Record] = field(default_factory=dict)


@dataclass(frozen=True)
class World:
    """A database, the policy that the agent follows, and tasks by split."""

    database: Database
    policy: str
    tasks: Mapping[str, tuple[Task, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def read_world(folder: Path) -> World:
    """The world in a folder; read once, unless its files change.

    Raises:
        ConfigError: a file is missing, or holds something else.
    """
    missing = [name for name in FILES if not (folder / name).is_file()]
    if missing:
        raise ConfigError(f"env.path = {str(folder)!r}: it needs the files {', '.join(FILES)}; missing: {missing[0]}")
    return _read(folder, tuple((folder / name).stat().st_mtime_ns for name in FILES))


@lru_cache(maxsize=4)
def _read(folder: Path, stamps: tuple[int, ...]) -> World:
    """`stamps`, the files' modification times, are part of the cache's key."""
    try:
        db, rows, splits = (json.loads((folder / name).read_text("utf-8")) for name in FILES if name != "policy.md")
        tasks = {str(row["id"]): _task(row) for row in rows}
        chosen = {ours: tuple(tasks[str(each)] for each in splits[theirs]) for ours, theirs in SPLITS.items()}
        database = Database(db["products"], db["users"], db["orders"])
    except (KeyError, TypeError, ValueError) as error:
        words = f"{type(error).__name__}: {error}"
        raise ConfigError(f"env.path = {str(folder)!r}: its files don't have tau2-bench's layout ({words})") from None
    criteria = {name for row in rows for name, value in row["evaluation_criteria"].items() if value}
    ignored = [f"evaluation_criteria.{name}" for name in criteria - READ]
    note = described(f"env.path = {str(folder)!r}", len(rows), "tasks", {}, ignored)
    return World(database, (folder / "policy.md").read_text("utf-8").strip(), chosen, (note,))


def _task(row: Mapping[str, Any]) -> Task:
    criteria = row["evaluation_criteria"]
    if row.get("initial_state"):
        raise ValueError(f"task {row['id']!r} has an initial state, which is not supported")
    scenario = row["user_scenario"]["instructions"]
    return Task(
        id=f"retail-{row['id']}",
        data={
            "scenario": {ours: scenario.get(theirs) or "" for ours, theirs in SCENARIO.items()},
            "actions": [{"name": each["name"], "arguments": each["arguments"]} for each in criteria["actions"] or ()],
            "communicate": list(criteria.get("communicate_info") or ()),
            "assertions": list(criteria.get("nl_assertions") or ()),
        },
    )
