"""Which tasks an environment has: the built-in ones, a folder's, or a data set's rows; and how they are split."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from agentrl.envs.rows import ENDINGS
from agentrl.envs.splits import BUILT_IN_SHARE, SHARE, TaskList, divide
from agentrl.envs.swe import datasets, harbor, library, terminal_bench
from agentrl.envs.swe.task import SweTask
from agentrl.errors import ConfigError


@lru_cache(maxsize=8)
def choose(
    path: str | None, layout: str, options: tuple[tuple[str, str], ...], difficulty: str | None, split: str
) -> TaskList:
    """The tasks of a split, by the rule of `splits` for what the agent is told."""
    found = _read(path, layout, dict(options))
    found = [task for task in found if difficulty in (None, task.difficulty)]
    if not found:
        raise ConfigError(f"env.path = {path!r}, env.difficulty = {difficulty!r}: there are no such tasks")
    where, share = ("env=swe", BUILT_IN_SHARE) if path is None else (f"env.path = {path!r}", SHARE)
    return divide([task.as_task() for task in found], split, lambda task: str(task["instruction"]), where, share)


def _read(path: str | None, layout: str, options: dict[str, str]) -> list[SweTask]:
    if path is None:
        return library.builtin()
    if path.endswith(ENDINGS):
        return datasets.read_tasks(path, layout, **options)
    folder = Path(path).expanduser()
    if terminal_bench.holds(folder):
        return terminal_bench.read_all(folder, options.get("image"))
    return [harbor.read(folder)] if (folder / "task.toml").is_file() else harbor.read_all(folder)
