"""A reward as a plug-in, for any environment: a judge, a service, a rule.

It is a subclass of `Reward` whose `compute` takes the finished `Session` and returns a number, or None. Its attribute
`settings` is the class of the section `rewards.NAME.*`, a subclass of `RewardConfig`. What it raises is never held
against the model: the session is generated again. A `GroupReward` compares all sessions of a group.

- Named by `rewards.NAME=file.py:CLASS`, `REWARDS.register`, or an entry point in the group `agentrl.rewards`.
- Proven by `check_reward`.
- Example: `examples/plugins/reward_service.py`.
"""

from typing import TYPE_CHECKING

from agentrl.config import Fraction, GroupRewardConfig, RewardConfig
from agentrl.config.secrets import Secret, Secrets
from agentrl.envs.rewards import REWARDS, GroupReward, Reward
from agentrl.errors import InfraError
from agentrl.plugins.later import import_later
from agentrl.plugins.suites.reward import check_reward
from agentrl.types import Message, Node, Session, Status, Task

if TYPE_CHECKING:
    from agentrl.envs.builtin.code import code_exec
else:
    __getattr__ = import_later(__name__, "agentrl.envs.builtin.code")

__all__ = [
    "REWARDS",
    "Fraction",
    "GroupReward",
    "GroupRewardConfig",
    "InfraError",
    "Message",
    "Node",
    "Reward",
    "RewardConfig",
    "Secret",
    "Secrets",
    "Session",
    "Status",
    "Task",
    "check_reward",
    "code_exec",
]
