"""`env=instructions`: requests with instructions whose following is checked, in IFEval's format.

A row has `prompt`, `instruction_id_list` and `kwargs`, one mapping for each instruction, and perhaps `key`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from agentrl.envs.base import Env, reward
from agentrl.envs.builtin.instructions.checks import CHECKS, LANGUAGE, can_tell_languages, list_followed
from agentrl.envs.data.rows import read_tasks, require_file
from agentrl.errors import ConfigError, nearest
from agentrl.types import Session, Task


class Instructions(Env):
    """Follow instructions that code can check: a file of IFEval.

    Args:
        path: the file, such as input_data.jsonl.
        languages: whether requests for another language are played, which needs langdetect; else they are left out.
    """

    splits = ("eval",)
    max_turns = 1

    def __init__(self, path: str, languages: bool = True) -> None:
        self.path, self.languages = require_file("env.path", path), languages
        self._task = Task(id="")

    def tasks(self, split: str = "eval") -> list[Task]:
        tasks = read_tasks(self.path, _task, "requests")
        if not self.languages:
            return tasks.only(lambda task: LANGUAGE not in task["kinds"], "requests for another language")
        if any(LANGUAGE in task["kinds"] for task in tasks) and not can_tell_languages():
            raise ConfigError(
                "requests for another language are checked by langdetect, which is not installed: pip install "
                "langdetect, or leave them out: env.languages=false"
            )
        return tasks

    def reset(self, task: Task, *, seed: int | None = None) -> str:
        self._task = task
        return str(task["prompt"])

    def brief(self, task: Task) -> Task:
        return Task(id=task.id, data={"prompt": task["prompt"]})

    def state(self) -> None:
        """Nothing but the task."""

    def restore(self, task: Task, state: None) -> None:
        self._task = task

    @reward
    def strict(self, session: Session) -> float:
        """1 where all instructions are followed: the prompt-level strict accuracy of the paper."""
        return float(all(self._list_followed(session)))

    @reward(weight=0.0)
    def loose(self, session: Session) -> float:
        """The same, where lines around the answer and asterisks do not matter; it does not count."""
        return float(all(self._list_followed(session, loose=True)))

    @reward(weight=0.0)
    def instructions(self, session: Session) -> float:
        """The share of instructions that are followed; it does not count."""
        found = self._list_followed(session)
        return sum(found) / len(found)

    def _list_followed(self, session: Session, loose: bool = False) -> list[bool]:
        return list_followed(session.answer, self._task["kinds"], self._task["arguments"], loose=loose)


@lru_cache(maxsize=64)
def _parameters(kind: str) -> tuple[str, ...]:
    check = CHECKS[kind]
    return () if check in (str.isupper, str.islower) else tuple(inspect.signature(check).parameters)[1:]


def _task(row: Mapping[str, Any], number: int) -> Task:
    kinds, given = row["instruction_id_list"], row["kwargs"]
    if not isinstance(row["prompt"], str) or not kinds or len(kinds) != len(given):
        raise ValueError("prompt must be text, with kwargs for each of instruction_id_list")
    arguments = []
    for kind, own in zip(kinds, given, strict=True):
        if kind not in CHECKS:
            raise ValueError(f"unknown instruction {kind!r}; the nearest is {nearest(kind, CHECKS)!r}")
        wanted = _parameters(kind)
        if missing := [name for name in wanted if (own or {}).get(name) is None]:
            raise ValueError(f"{kind} lacks {missing[0]}")
        arguments.append({name: own[name] for name in wanted})
    data = {"prompt": row["prompt"], "kinds": list(kinds), "arguments": arguments}
    return Task(id=f"ifeval-{row.get('key', number)}", data=data)
