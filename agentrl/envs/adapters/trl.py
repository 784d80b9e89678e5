"""`env=trl:file.py:Class`: environments that TRL's `environment_factory` makes.

An instance has `reset(**row)`, whose text is added to the prompt's last message; its other public methods are tools,
and `get_reward()` is its reward where it has one. Each episode has an instance of its own. As in TRL, what a tool
raises is told to the model.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from agentrl.common.imports import load
from agentrl.envs.base import reward
from agentrl.envs.builtin.prompts import Prompts, messages_of
from agentrl.envs.scoring.functions import EVERYTHING, call_function, nothing, one_of, trl_batch
from agentrl.envs.state import resolve
from agentrl.errors import AgentRLError, ConfigError, EnvError, StateUnsupported, ToolError
from agentrl.tools.tool import Tool
from agentrl.types import Message, Session, Task

OWN = ("reset", "get_reward")
"""Methods that are no tools."""


class Trl(Prompts):
    """An environment for TRL's `environment_factory`, as in env=trl:my_env.py:WordGame env.path=rows.jsonl."""

    max_turns = None

    def __init__(
        self,
        source: str,
        path: str | None = None,
        eval_path: str | None = None,
        prompt: str = "prompt",
        where: dict[str, Any] | str | None = None,
        reward_funcs: Sequence[str] = (),
        episodes: int = 1000,
    ) -> None:
        """Make an instance, and its tools.

        Args:
            source: the import path of the class, or of another callable without arguments that makes one.
            path: the rows, as of env=prompts; without it the environment has the data, and a task is a number.
            eval_path: rows of the split `eval`.
            prompt: the column with the prompt.
            where: which rows.
            reward_funcs: import paths of TRL's reward functions, which are given the instance as `environments`; the
                session's reward is their sum, and the environment's own.
            episodes: tasks of a split where there is no `path`.
        """
        super().__init__(path or "", eval_path, prompt, where)
        self.source, self.episodes = source, episodes
        self._where = f"env=trl:{source}"
        names = [reward_funcs] if isinstance(reward_funcs, str) else reward_funcs
        self._functions = {name: load(name, f"env.reward_funcs={name!r}") for name in names}
        for name, function in self._functions.items():
            if isinstance(function, type) or not callable(function):
                raise ConfigError(f"env.reward_funcs={name!r} is {function!r:.80}: allowed: a function")
        make = load(source, self._where)
        try:
            self._world = make()
        except AgentRLError:
            raise
        except Exception as error:
            raise ConfigError(f"{self._where}: making one raised {type(error).__name__}: {error}") from error
        methods = dict(inspect.getmembers(type(self._world), predicate=inspect.isfunction))
        if "reset" not in methods:
            raise ConfigError(f"{self._where}: {type(self._world).__name__} has no method reset")
        self._scores = "get_reward" in methods
        if not self._scores and not self._functions:
            raise ConfigError(
                f"{self._where}: {type(self._world).__name__} has no get_reward: name functions in env.reward_funcs"
            )
        for name in methods:
            if not name.startswith("_") and name not in OWN:
                self.tools.add(_tool(getattr(self._world, name)))

    def tasks(self, split: str = "train") -> list[Task]:
        """The rows, or numbers where the environment has the data."""
        if self.path:
            return super().tasks(split)
        return [Task(id=f"{split}-{number}", data={}) for number in range(self.episodes)]

    async def reset(self, task: Task, *, seed: int | None = None) -> list[Message]:  # type: ignore[override]
        """The prompt, with what the instance's reset returns at the end of its last message."""
        opening = messages_of(task) if "prompt" in task.data else [Message(role="user", content="")]
        said = await call_function(self._world.reset, **copy.deepcopy(task.data))
        if said is None:
            return opening
        if not isinstance(said, str):
            raise EnvError(f"{self._where}: reset returned {type(said).__name__}: allowed: a text or None")
        last = opening[-1]
        return [*opening[:-1], last.model_copy(update={"content": f"{last.text}{said}"})]

    def state(self) -> None:
        raise StateUnsupported(f"{self._where}: its episodes can't be saved")

    @reward(range=EVERYTHING)
    async def score(self, session: Session) -> float | None:
        """The sum of `get_reward` and of the functions; what each gave is in `info["metrics"]`."""
        given: dict[str, Any] = {}
        if self._scores:
            given[type(self._world).__name__] = await call_function(self._world.get_reward)
        batch = trl_batch(session)
        batch.pop("prompt", None)
        for name, function in self._functions.items():
            more = {"trainer_state": None, "log_extra": nothing, "log_metric": nothing}
            found = await call_function(function, **{**batch, **more, "environments": [self._world]})
            given[name] = one_of(found, name)
        session.info["metrics"] = given
        values = [value for value in given.values() if value is not None]
        return float(sum(values)) if values else None


def _tool(method: Callable[..., Any]) -> Tool:
    """A method as a tool; what it raises is the model's to read, and what it returns is text."""
    tool = Tool.of(method)

    async def invoke(arguments: dict[str, Any], sandbox: Any) -> str:
        try:
            return str(await resolve(tool.invoke(arguments, sandbox)))
        except AgentRLError:
            raise
        except Exception as error:
            raise ToolError(str(error)) from error

    return Tool(tool.name, tool.description, tool.parameters, invoke, tool.check)
