"""`env=verl:tools.yaml env.path=rows.parquet`: tool classes of verl (`BaseTool`), on verl's rows.

The file is that of verl's `tool_config_path`: classes with their configuration and OpenAI schemas. As in verl's own
loop, each call creates an instance, with the row's `create_kwargs`, executes it and releases it, and what it raises is
told to the model. Rewards of tools are in the session's `info["tool_rewards"]`: verl adds them to no score either.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from agentrl.common.imports import load
from agentrl.common.plain import plain
from agentrl.envs.base import reward
from agentrl.envs.builtin.prompts import Prompts
from agentrl.errors import AgentRLError, ConfigError, EnvError, StateUnsupported, ToolError
from agentrl.tools.tool import Tool
from agentrl.types import Message, Session, Task


class Verl(Prompts):
    """Tool classes of verl on rows of verl; rewards are the run's, as in rewards.score=verl."""

    max_turns = None

    def __init__(
        self,
        source: str,
        path: str,
        eval_path: str | None = None,
        prompt: str = "prompt",
        where: dict[str, Any] | str | None = None,
    ) -> None:
        """Make the tools.

        Args:
            source: the file of tools, as verl's `tool_config_path`.
            path: the rows, as of env=prompts.
            eval_path: rows of the split `eval`.
            prompt: the column with the prompt.
            where: which rows.
        """
        super().__init__(path, eval_path, prompt, where)
        self.source = source
        self._given: Mapping[str, Any] = {}
        self._rewards: list[float] = []
        for tool in _made(source):
            self.tools.add(self._tool(tool))

    def reset(self, task: Task, *, seed: int | None = None) -> list[Message]:
        """The prompt; tools get what the row has for them."""
        self._given = copy.deepcopy((task.data.get("extra_info") or {}).get("tools_kwargs") or {})
        self._rewards = []
        return super().reset(task, seed=seed)

    def state(self) -> None:
        """Tools may keep a state of their own."""
        raise StateUnsupported(f"env=verl:{self.source}: its episodes can't be saved")

    @reward(weight=0.0, range=(float("-inf"), float("inf")))
    def tool_rewards(self, session: Session) -> float:
        """The sum of what tools gave, which is only logged; each is in `info`."""
        session.info["tool_rewards"] = list(self._rewards)
        return sum(self._rewards)

    def _tool(self, tool: Any) -> Tool:
        schema = tool.get_openai_tool_schema().model_dump(exclude_none=True, exclude_unset=True)["function"]
        name = schema["name"]

        async def invoke(arguments: dict[str, Any], _: Any) -> str:
            kwargs = (self._given.get(name) or {}).get("create_kwargs") or {}
            instance = None
            try:
                instance, _ = await tool.create(create_kwargs=kwargs)
                said, given, *_ = await tool.execute(instance, arguments)
            except AgentRLError:
                raise
            except Exception as error:
                raise ToolError(f"Error executing tool '{name}': {error}") from error
            finally:
                if instance is not None:
                    await tool.release(instance)
            self._rewards.append(float(plain(given) or 0.0))
            if getattr(said, "image", None) or getattr(said, "video", None):
                raise EnvError(f"env=verl:{self.source}: {name} answered with pictures: allowed: text")
            return (said if isinstance(said, str) else said.text) or ""

        return Tool(name, schema.get("description", ""), schema.get("parameters") or {}, invoke)


@cache
def _made(source: str) -> list[Any]:
    """The tools of a file; as in verl's worker, all sessions share them."""
    where = f"env=verl:{source}"
    file = Path(source).expanduser()
    if not file.is_file():
        raise ConfigError(f"{where}: there is no such file; it is the file of verl's tool_config_path")
    try:
        listed = yaml.safe_load(file.read_text())["tools"]
        given = [(each["class_name"], dict(each.get("config") or {}), each.get("tool_schema")) for each in listed]
    except (yaml.YAMLError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{where}: no file of tools: {type(error).__name__}: {error}") from None
    parse = load("verl.tools.schemas:OpenAIFunctionToolSchema", f"{where} needs verl").model_validate
    paths = [_path(name, file.parent) for name, *_ in given]
    made = zip(paths, given, strict=True)
    return [_one(path, config, parse(schema) if schema else None, where) for path, (_, config, schema) in made]


def _path(name: str, folder: Path) -> str:
    """The import path of a class: a module's name with dots, as in verl, may be of a file beside the tools'."""
    module, _, cls = name.rpartition(".")
    beside = folder / f"{module.replace('.', '/')}.py"
    return name if ":" in name else f"{beside}:{cls}" if beside.is_file() else f"{module}:{cls}"


def _one(path: str, config: dict[str, Any], schema: Any, where: str) -> Any:
    """One tool; verl's base class prints its schema, which is kept from the terminal."""
    found = load(path, f"{where}, class_name={path!r}")
    missing = [each for each in ("create", "execute", "release") if not hasattr(found, each)]
    if missing:
        raise ConfigError(f"{where}: {path} has no {missing[0]}: allowed: a subclass of verl's BaseTool")
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return found(config=config, tool_schema=schema)
    except Exception as error:
        raise ConfigError(
            f"{where}: {path} with {json.dumps(config, default=str)} raised {type(error).__name__}: {error}"
        ) from error
