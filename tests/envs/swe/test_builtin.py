"""The built-in tasks through the environment: the expert solves every one of them with the tools, silence none."""

from __future__ import annotations

import asyncio

import pytest

from agentrl.config import RolloutConfig
from agentrl.envs.builtin.swe import library
from agentrl.envs.builtin.swe.env import Swe
from agentrl.envs.check import check_env
from agentrl.envs.episode import EXPERT, NOOP
from agentrl.envs.turns import Actor
from agentrl.rollout.episodes.groups import Rollouts
from agentrl.rollout.episodes.policies import Policy
from agentrl.sessions.renderers.families.null import NullRenderer
from agentrl.types import Session

pytestmark = [pytest.mark.usefixtures("docker"), pytest.mark.slow]


def played(actor: Actor) -> list[Session]:
    """An episode of each built-in task."""
    rollouts = Rollouts(Swe, Policy(NullRenderer()), RolloutConfig(concurrency=4, turn_timeout=300), 0)
    tasks = [task.as_task() for task in library.builtin()]
    groups = asyncio.run(rollouts.collect(tasks, actor, phase="all", n=1))
    return [session for group in groups for session in group.sessions]


def test_the_expert_solves_every_task_through_the_tools() -> None:
    unsolved = {session.task.id: session.info for session in played(EXPERT) if session.reward != 1.0}
    assert not unsolved


def test_who_says_nothing_solves_none() -> None:
    assert {session.reward for session in played(NOOP)} == {0.0}


def test_every_task_is_in_one_split() -> None:
    env = Swe()
    train, held_out = ({task.id for task in env.tasks(split)} for split in ("train", "eval"))
    assert train
    assert held_out
    assert not train & held_out
    assert train | held_out == set(library.names())


def test_both_forms_keep_the_environments_contract() -> None:
    assert check_env("swe", tasks=1, limit=300, scored=2) == []
    assert check_env("swe", tasks=1, limit=300, form="repair", scored=2) == []
