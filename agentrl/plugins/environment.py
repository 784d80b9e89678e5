"""An environment as a plug-in: tasks, what answers the agent, and rewards.

It is a subclass of `Env` with the methods `tasks`, `reset`, and `step` or tools, and rewards marked with `@reward`;
these names and what a first environment needs are in `agentrl` itself. Here are those besides: wrappers, states that
can be saved, fixtures of tests, and episodes without a model.

- Named by `env=file.py:Class`, `agentrl.register`, or an entry point in the group `agentrl.envs`.
- Proven by `check_env`, which `agentrl check env=…` runs.
- Examples: `examples/environments/`, and docs/environments.md.
"""

from typing import TYPE_CHECKING

from agentrl.config.secrets import Secret, Secrets
from agentrl.envs import calls
from agentrl.envs.base import Env, has_state, reward
from agentrl.envs.calls import Rewards
from agentrl.envs.check import check_env
from agentrl.envs.episode import play
from agentrl.envs.fixtures import Fixture, FixtureCredit
from agentrl.envs.registry import make, register
from agentrl.envs.state import EnvState
from agentrl.envs.wrappers import TimeLimit, TokenBudget, Transcript, TurnLimit, Wrapper
from agentrl.errors import EnvError, InfraError, StateUnsupported, ToolError
from agentrl.plugins.later import import_later
from agentrl.tools.tool import tool
from agentrl.types import FunctionCall, Message, Node, Session, Status, StepResult, Task, Text, ToolCall

if TYPE_CHECKING:
    from agentrl.envs.adapters.as_gymnasium import AsGymnasium
    from agentrl.envs.builtin.code import code_exec
else:
    __getattr__ = import_later(__name__, "agentrl.envs.builtin.code", "agentrl.envs.adapters.as_gymnasium")

__all__ = [
    "AsGymnasium",
    "FixtureCredit",
    "Env",
    "EnvError",
    "EnvState",
    "Fixture",
    "FunctionCall",
    "InfraError",
    "Message",
    "Node",
    "Rewards",
    "Secret",
    "Secrets",
    "Session",
    "StateUnsupported",
    "Status",
    "StepResult",
    "Task",
    "Text",
    "TimeLimit",
    "TokenBudget",
    "ToolCall",
    "ToolError",
    "Transcript",
    "TurnLimit",
    "Wrapper",
    "calls",
    "check_env",
    "code_exec",
    "has_state",
    "make",
    "play",
    "register",
    "reward",
    "tool",
]
