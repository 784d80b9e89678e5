"""Which tasks an environment has: the built-in ones, a folder's, or a data set's rows; and how they are split."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

from agentrl.envs.rows import ENDINGS
from agentrl.envs.swe import datasets, harbor, library, terminal_bench
from agentrl.envs.swe.task import SweTask
from agentrl.errors import ConfigError

EVAL_SHARE = 5
"""One task in this many is held out for `eval`."""


@lru_cache(maxsize=8)
def choose(
    path: str | None, layout: str, options: tuple[tuple[str, str], ...], difficulty: str | None, split: str
) -> tuple[SweTask, ...]:
    """The tasks of a split: by a hash of their names, or all of them in both where that would leave one empty."""
    found = _read(path, layout, dict(options))
    found = [task for task in found if difficulty in (None, task.difficulty)]
    if not found:
        raise ConfigError(f"env.path = {path!r}, env.difficulty = {difficulty!r}: there are no such tasks")
    held_out = [task for task in found if _held_out(task.id)]
    rest = [task for task in found if not _held_out(task.id)]
    if not held_out or not rest:
        return tuple(found)
    return tuple(held_out if split == "eval" else rest)


def _read(path: str | None, layout: str, options: dict[str, str]) -> list[SweTask]:
    if path is None:
        return library.builtin()
    if path.endswith(ENDINGS):
        return datasets.read_tasks(path, layout, **options)
    folder = Path(path).expanduser()
    if terminal_bench.holds(folder):
        return terminal_bench.read_all(folder, options.get("image"))
    return [harbor.read(folder)] if (folder / "task.toml").is_file() else harbor.read_all(folder)


def _held_out(name: str) -> bool:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest()) % EVAL_SHARE == 0
