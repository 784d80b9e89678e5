"""A fork rule as a plug-in: at which turns a session is forked and continued several times.

It is a subclass of `ForkRule` with settings of its own (`rollout.branch.*`), or a function of a `ForkPoint`. A rule
sees what was there before the turn, and nothing of what came of it. There is no suite: a rule is a function.

- Named by `rollout.branch=file.py:NAME`, or an entry point in the group `agentrl.fork_rules`.
- Example: `examples/scripts/search.py`, and docs/branching.md.
"""

from agentrl.config import BranchConfig, Fraction
from agentrl.rollout.episodes.fork_rules import FORK_RULES, ForkPoint, ForkRule
from agentrl.types import Branch, Message, Session
from agentrl.types.branches import alone, branch_nodes

__all__ = [
    "FORK_RULES",
    "Branch",
    "BranchConfig",
    "ForkPoint",
    "ForkRule",
    "Fraction",
    "Message",
    "Session",
    "alone",
    "branch_nodes",
]
