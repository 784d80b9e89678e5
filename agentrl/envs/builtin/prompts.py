"""`env=prompts`: rows with a prompt, kept as they are; the rewards of a run read their other columns.

For data whose reward is a function of one's own: TRL's, verl's and slime's reward functions read columns of a row by
their names (`rewards.NAME=trl`, `verl`, `slime`). Where answers are compared by a rule that agentrl has, `questions` is
the environment.
"""

from __future__ import annotations

import json
from typing import Any

from agentrl.common.untrusted import safe_json
from agentrl.envs.base import Env
from agentrl.envs.builtin.questions.images import column_of_images
from agentrl.envs.data.dataset import Dataset
from agentrl.envs.data.rows import decode_messages
from agentrl.envs.data.splits import TaskList, divide
from agentrl.errors import ConfigError
from agentrl.types import Message, Task

NAMES = ("id", "task_id", "unique_id", "index")
"""Columns that name a row."""


class Prompts(Env):
    """Rows with a prompt, a text or messages; the rewards are the run's (`rewards.NAME=…`).

    Args:
        path: a .jsonl, .json, .csv or .parquet file, a folder with files for its splits, or hf://OWNER/NAME.
        eval_path: another one for the split `eval`; without it `path` has both, or a tenth is held out.
        prompt: the column with the prompt; `a.b` is inside a column.
        where: which rows: env.where.level=[4,5], env.where.year.min=2024, or path/to/file.py:function.
    """

    max_turns: int | None = 1

    def __init__(
        self,
        path: str,
        eval_path: str | None = None,
        prompt: str = "prompt",
        where: dict[str, Any] | str | None = None,
    ) -> None:
        self.path, self.eval_path, self.prompt, self.where = path, eval_path, prompt, where

    def tasks(self, split: str = "train") -> list[Task]:
        """The split's rows, in the files' order; a task's data is its row, with None for a column that others have."""
        separate = self.eval_path is not None
        path = self.eval_path if separate and split == "eval" else self.path
        columns = {} if self.prompt == "prompt" else {"prompt": self.prompt}
        data = Dataset(str(path), columns, self.where)
        rows = list(data.every_row() if separate else data.rows(split))
        checked = [_check_row(row, place) for place, row in rows]
        lacking = dict.fromkeys(name for row in checked for name in row)  # None, as in a table
        tasks = [
            Task(id=_id(row, place), data={**lacking, **row}) for (place, _), row in zip(rows, checked, strict=True)
        ]
        where, left_out = f"env.path = {str(path)!r}", data.left_out["where"]
        without = f"rows that env.where leaves out: {left_out:,}"
        if not tasks:
            raise ConfigError(
                f"{where}: it holds no prompts for the split {split!r}{f' ({without})' if left_out else ''}"
            )
        if len({task.id for task in tasks}) < len(tasks):
            tasks = [Task(id=place, data=task.data) for task, (place, _) in zip(tasks, rows, strict=True)]
        notes = [f"{where}: {without}"] if left_out else []
        found = TaskList(tasks, [*notes, *([] if separate else data.note_unread())])
        return found if separate or not data.shared() else divide(found, split, _content, where)

    def reset(self, task: Task, *, seed: int | None = None) -> list[Message]:
        """The prompt."""
        return messages_of(task)

    def state(self) -> None:
        """Nothing but the task."""

    def restore(self, task: Task, state: None) -> None:
        """Continue with the task."""


def messages_of(task: Task) -> list[Message]:
    """Return a row's prompt as messages; a text is the user's."""
    prompt = task.data.get("prompt")
    if isinstance(prompt, str):
        return [Message(role="user", content=prompt)]
    given = [{name: part for name, part in each.items() if part is not None} for each in prompt or ()]
    return [Message.model_validate(each) for each in given]


def _id(row: dict[str, Any], place: str) -> str:
    return str(next((row[name] for name in NAMES if row.get(name) not in (None, "")), place))


def _check_row(row: dict[str, Any], place: str) -> dict[str, Any]:
    """A row as plain data.

    Raises:
        ConfigError: it has no prompt, one that is neither text nor messages, or images.
    """
    if shown := column_of_images(row):
        raise ConfigError(
            f"{place}: the column {shown!r} holds images, which env=prompts does not show to the model: env=questions "
            "does, and compares its answers (rewards.NAME=… adds a reward of your own)"
        )
    data: dict[str, Any] = safe_json(row, whole=True, integers=True)
    prompt = data["prompt"] = decode_messages(data.get("prompt"))
    if not prompt:
        raise ConfigError(f"{place}: no prompt (env.prompt names its column; columns: {', '.join(map(str, row))})")
    try:
        messages_of(Task(id=place, data=data))
    except (ValueError, TypeError, AttributeError):
        raise ConfigError(f"{place}: prompt = {prompt!r:.80}: allowed: a text, or a list of messages") from None
    return data


def _content(task: Task) -> str:
    return json.dumps(task.data["prompt"], sort_keys=True)
