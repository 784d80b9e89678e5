"""agentrl trains language-model agents by reinforcement learning on multi-turn, tool-using tasks.

The public names are loaded at first use, so that `import agentrl` stays quick and an environment's author
never pays for torch. `agentrl.train` is a package and can be called: calling it is `agentrl.train.driver.api.train`.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentrl.envs.base import Env, reward
    from agentrl.envs.check import check_env
    from agentrl.envs.registry import make, register
    from agentrl.errors import InfraError, ToolError
    from agentrl.overrides import parse_words
    from agentrl.sessions.store.query import Between
    from agentrl.sessions.store.store import Store
    from agentrl.tools.tool import tool
    from agentrl.train.driver.api import evaluate, train
    from agentrl.train.driver.rollouts import rollouts
    from agentrl.types import Message, StepResult, Task, image

__version__ = "0.1.0"

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
"""Read by OpenMP when torch is loaded: threads that wait awake take the core that the one they wait for needs."""

_HOMES = {
    "Between": "agentrl.sessions.store.query",
    "Env": "agentrl.envs.base",
    "InfraError": "agentrl.errors",
    "Message": "agentrl.types",
    "StepResult": "agentrl.types",
    "Store": "agentrl.sessions.store.store",
    "Task": "agentrl.types",
    "ToolError": "agentrl.errors",
    "check_env": "agentrl.envs.check",
    "evaluate": "agentrl.train.driver.api",
    "image": "agentrl.types",
    "make": "agentrl.envs.registry",
    "parse_words": "agentrl.overrides",
    "register": "agentrl.envs.registry",
    "reward": "agentrl.envs.base",
    "rollouts": "agentrl.train.driver.rollouts",
    "tool": "agentrl.tools.tool",
}

__all__ = [
    "Between",
    "Env",
    "InfraError",
    "Message",
    "StepResult",
    "Store",
    "Task",
    "ToolError",
    "check_env",
    "evaluate",
    "image",
    "make",
    "parse_words",
    "register",
    "reward",
    "rollouts",
    "tool",
    "train",
]


if not TYPE_CHECKING:  # to a type checker every name would be there

    def __getattr__(name: str) -> Any:
        if name == "train":
            return importlib.import_module("agentrl.train")
        if name not in _HOMES:
            raise AttributeError(f"module 'agentrl' has no attribute {name!r}")
        value = getattr(importlib.import_module(_HOMES[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
