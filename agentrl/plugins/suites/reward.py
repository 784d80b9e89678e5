"""The conformance suite of rewards."""

from __future__ import annotations

import asyncio
import copy
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentrl.envs.rewards import REWARDS, GroupReward, NamedGroupReward, NamedReward, Reward
from agentrl.plugins.suites.findings import configure, expect, find_problems_async, sampled_groups
from agentrl.rollout.engines.contract import ContractFinding
from agentrl.types import Session, Status

ROUNDING = 1e-9
AT_ONCE = 16
"""Sessions that are scored at the same time."""


@dataclass
class _Subject:
    """A reward with its deadline and checks, and sessions that it scores."""

    reward: NamedReward
    sessions: Sequence[Session]


async def every_session_gets_a_number_in_its_range(subject: _Subject) -> None:
    """Of each session, one that was cut off before the first answer too: None, or a finite number in `range`."""
    for session in subject.sessions:
        await subject.reward(copy.deepcopy(session))


async def many_sessions_are_scored_at_once(subject: _Subject) -> None:
    """One instance scores many sessions at the same time."""
    many = [copy.deepcopy(subject.sessions[number % len(subject.sessions)]) for number in range(AT_ONCE)]
    await asyncio.gather(*(subject.reward(session) for session in many))


async def sessions_stay_as_they_are(subject: _Subject) -> None:
    """It changes neither the messages and tokens of a session nor its task."""
    for session in subject.sessions:
        own = copy.deepcopy(session)
        await subject.reward(own)
        expect((own.nodes, own.task) == (session.nodes, session.task), f"session {session.id} was changed")


async def the_order_of_siblings_makes_no_difference(subject: _Subject) -> None:
    """A reward of groups gives each session the same value in whatever order they come, and takes a single one."""
    reward = subject.reward.reward
    if not isinstance(reward, GroupReward):
        return
    named = NamedGroupReward("checked", reward)
    siblings = [copy.deepcopy(each) for each in subject.sessions if each.task.id == subject.sessions[0].task.id]
    forwards, backwards = await named(siblings), await named(siblings[::-1])
    same = all(
        (one is None) == (other is None) and math.isclose(one or 0.0, other or 0.0, abs_tol=ROUNDING)
        for one, other in zip(forwards, backwards[::-1], strict=True)
    )
    expect(same, f"siblings got {forwards}, and {backwards[::-1]} in another order")
    await named(siblings[:1])


async def it_closes(subject: _Subject) -> None:
    """It releases what it holds."""
    closing = subject.reward.reward.close()
    if closing is not None:
        await closing


CHECKS: tuple[Callable[[_Subject], Awaitable[None]], ...] = (
    every_session_gets_a_number_in_its_range,
    many_sessions_are_scored_at_once,
    sessions_stay_as_they_are,
    the_order_of_siblings_makes_no_difference,
    it_closes,
)


async def check_reward(
    reward: str | type[Reward], sessions: Sequence[Session] | None = None, **settings: Any
) -> list[ContractFinding]:
    """Find promises that a reward does not keep; a service that it needs has to run.

    Args:
        reward: a name, an import path, `file.py:CLASS`, or the class.
        sessions: what it scores, where it reads a task's data, say; None: sessions of random tokens.
        settings: its own, as `rewards.NAME.*`.

    Returns:
        What is wrong; nothing, where the reward keeps its contract.

    Raises:
        UnknownName: there is none of that name.
        ConfigError: it does not have these settings.
    """
    kind, config = configure(REWARDS, reward, settings)
    if sessions is None:
        first, *others = [session for group in sampled_groups(groups=2) for session in group.sessions]
        sessions = [replace(first, status=Status.TRUNCATED, nodes=first.nodes[:1]), *others]
    return await find_problems_async(CHECKS, _Subject(NamedReward("checked", kind(config)), sessions))
