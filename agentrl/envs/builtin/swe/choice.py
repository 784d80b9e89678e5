"""The choice of an environment's tasks: the built-in ones, a folder's, or a data set's rows; and their splits."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from agentrl.envs.builtin.swe import library
from agentrl.envs.builtin.swe.formats import datasets, harbor, terminal_bench, unread
from agentrl.envs.builtin.swe.task import SweTask
from agentrl.envs.data.rows import describe_content, ending_of
from agentrl.envs.data.splits import BUILT_IN_SHARE, SHARE, TaskList, divide
from agentrl.errors import ConfigError


@lru_cache(maxsize=8)
def choose(
    path: str | None,
    layout: str,
    options: tuple[tuple[str, str], ...],
    difficulty: str | None,
    split: str,
    build: bool = False,
) -> TaskList:
    """The tasks of a split, by the rule of `splits` for what the agent is told; `build`: from Dockerfiles."""
    every, note = _read(path, layout, dict(options), build)
    found = [task for task in every if difficulty in (None, task.difficulty)]
    if not found:
        raise ConfigError(f"env.path = {path!r}, env.difficulty = {difficulty!r}: there are no such tasks")
    where, share = ("env=swe", BUILT_IN_SHARE) if path is None else (f"env.path = {path!r}", SHARE)
    left_out = [f"{len(every) - len(found)} of another difficulty: left out"] if len(found) < len(every) else []
    tasks = TaskList((task.as_task() for task in found), [*filter(None, [note]), *left_out])
    return divide(tasks, split, lambda task: str(task["instruction"]), where, share)


def _read(path: str | None, layout: str, options: dict[str, str], build: bool) -> tuple[list[SweTask], str]:
    """The tasks, and what was found, in words."""
    if path is None:
        return library.builtin(), ""
    if ending_of(path):
        return datasets.read_tasks(path, layout, **options)
    folder = Path(path).expanduser()
    image = options.get("image")
    if terminal_bench.holds(folder):
        return _folder(terminal_bench.read_all(folder, image, build), path, "Terminal-Bench's")
    single = (folder / "task.toml").is_file()
    tasks = [harbor.read(folder, image, build)] if single else harbor.read_all(folder, image, build)
    return _folder(tasks, path, "Harbor's")


def _folder(tasks: list[SweTask], path: str, layout: str) -> tuple[list[SweTask], str]:
    note = describe_content(f"env.path = {path!r}", len(tasks), "tasks", {layout: len(tasks)}, ())
    return tasks, note + unread.describe_unread(Path(path).expanduser(), (task.id for task in tasks))
