"""Gates: rewards that count only where another one reaches a value (`rewards.NAME.gates`).

Behind a closed gate a reward is 0 and is not computed, so a judge is not asked about what a rule has refused. A gate
that gave no value (its `where` does not fit the task, say) closes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from agentrl.envs.reward_marks import FinalReward, RewardMark
from agentrl.errors import ConfigError, suggest


def gates_first(rewards: Sequence[FinalReward], others: Iterable[str] = (), agents: int = 1) -> list[FinalReward]:
    """Return the rewards in an order in which each comes after those that may close it; unchanged without gates.

    Args:
        rewards: an environment's.
        others: names of rewards that are computed later, of groups.
        agents: how many the environment has.

    Raises:
        ConfigError: a gate names what is no reward, gates close each other in a circle, or there are several agents.
    """
    left = list(rewards)
    if not any(mark.gates for mark, _ in rewards):
        return left
    if agents > 1:
        raise ConfigError("rewards.NAME.gates is for environments with one agent")
    known = [*(mark.name for mark, _ in rewards), *others]
    for mark, _ in rewards:
        if unknown := [name for name in mark.gates if name not in known]:
            hint = suggest(unknown[0], known)
            raise ConfigError(
                f"rewards.{mark.name}.gates: there is no reward {unknown[0]!r}{hint} (rewards: {', '.join(known)})"
            )
    ordered: list[FinalReward] = []
    while left:
        waiting = {name for mark, _ in left for name in mark.gates}
        ready = [each for each in left if each[0].name not in waiting]
        if not ready:
            raise ConfigError(f"rewards.{left[0][0].name}.gates: rewards close each other in a circle")
        ordered += ready
        left = [each for each in left if each not in ready]
    return ordered


def close_gates(marks: Iterable[RewardMark], values: Mapping[str, float]) -> set[str]:
    """Return the names of the rewards that do not count, given the values of those that may close them."""
    shut = (mark for mark in marks if mark.gates and values.get(mark.name, mark.gate_at) < mark.gate_at)
    return {name for mark in shut for name in mark.gates}
