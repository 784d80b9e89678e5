"""`env=harbor:FOLDER`: tasks in Harbor's format or Terminal-Bench's earlier one, by the environment `swe`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentrl.envs.builtin.swe.env import Swe
from agentrl.envs.context import context_of
from agentrl.errors import ConfigError


class Harbor(Swe):
    """A folder of tasks in Harbor's format, as in env=harbor:my-tasks; options are those of env=swe."""

    def __new__(cls, source: str, **options: Any) -> Any:
        env = super().__new__(cls)
        context_of(env).arguments = (source,), options
        return env

    def __init__(self, source: str, **options: Any) -> None:
        """Read the tasks.

        Args:
            source: a folder of tasks, or of one: task.toml, instruction.md, environment/, tests/, solution/; or
                task.yaml, Dockerfile, run-tests.sh, tests/, solution.sh.
            options: of env=swe.

        Raises:
            ConfigError: there is no such folder.
        """
        folder = Path(source).expanduser()
        if not folder.is_dir():
            raise ConfigError(f"env=harbor:{source}: there is no such folder")
        super().__init__(path=source, **options)
