"""Rewards that see all sessions of a group: when they are computed, and what they leave in the sessions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from agentrl import tracing
from agentrl.envs.base import Env, RewardMark, reward_methods
from agentrl.envs.results import record_failure
from agentrl.envs.reward_marks import close_gates
from agentrl.envs.rewards import list_group_rewards
from agentrl.errors import AgentRLError, Blame
from agentrl.types import GREEDY, Session, Status


async def give_group_rewards(make_env: Callable[[], Env], sessions: Sequence[Session]) -> bool:
    """Give the sessions of a group the rewards that compare them (`RewardedEnvs.of_groups`).

    Where one fails, all sessions that it was to compare end as INFRA_ERROR: values of some of them would be a baseline
    that the failure decided.

    Args:
        make_env: makes their environments, with the rewards.
        sessions: the group's; those that count are compared, and a greedy one, which is no member, is not.

    Returns:
        Whether anything was given; sessions that have the rewards already, from a run that was killed, keep them.

    Raises:
        AgentRLError: the user has to mend something.
    """
    rewards = list_group_rewards(make_env)
    gates, given = _gates(make_env()) if rewards else (), False
    for reward in rewards:
        shared = [each for each in sessions if _counts(each)]
        name = reward.name
        if not shared or all(name in each.rewards for each in shared):
            continue
        given = True
        open_ = [each for each in shared if name not in close_gates(gates, each.rewards)]
        try:
            with tracing.span("reward", reward=name):
                values = await reward(open_)
        except AgentRLError as error:
            if error.blame is Blame.USER:
                raise
            for session in shared:
                record_failure(session, error)
                session.reward, session.rewards, session.agent_rewards = None, {}, {}
            continue
        found = {session.id: value for session, value in zip(open_, values, strict=True)}
        for session in shared:
            _add(session, reward.mark, found.get(session.id, reward.mark.zero))
    return given


def _gates(env: Env) -> list[RewardMark]:
    """The marks of an environment's rewards that may close those of groups."""
    return [mark for mark, _ in reward_methods(env) if mark.gates]


def _counts(session: Session) -> bool:
    """Return whether a session is compared: it ended, and a prompt that left no room for a turn is not its agent's."""
    ended = session.status in (Status.COMPLETED, Status.TRUNCATED, Status.AGENT_ERROR)
    return ended and session.phase != GREEDY and not (session.overlong and session.reward is None)


def _add(session: Session, mark: RewardMark, value: float | None) -> None:
    before = session.rewards.pop(mark.name, None)
    if value is None and before is None:
        return
    more = mark.weight * ((value or 0.0) - (before or 0.0))
    if value is not None:
        session.rewards[mark.name] = value
    by_agent: Mapping[str, float | None] = session.agent_rewards
    if by_agent:
        session.agent_rewards = {agent: (own or 0.0) + more for agent, own in by_agent.items()}
        session.reward = fmean(own for own in session.agent_rewards.values() if own is not None)
    else:
        session.reward = (session.reward or 0.0) + more
