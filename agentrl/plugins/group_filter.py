"""A choice of groups as a plug-in: which finished groups are trained on, and which go first.

It is a function of a `Group`: as a filter it says whether to train on it, as a priority the largest value goes first.
There is no suite: it is a function.

- Named by `rollout.filter=file.py:FUNCTION` or `rollout.priority=…`, or an entry point in the groups `agentrl.filters`
  and `agentrl.priorities`.
"""

from agentrl.rollout.stream.filters import FILTERS, PRIORITIES
from agentrl.types import Group, Session, Status

__all__ = ["FILTERS", "PRIORITIES", "Group", "Session", "Status"]
