"""A policy that breaks its tools wherever it would lose, so that the session is drawn again, loses its games anyway.

What the infrastructure fails is never trained on and never scored. That must be no way out of a game.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterable, Sequence

import pytest

from agentrl.config import RolloutConfig
from agentrl.envs.base import Env, reward
from agentrl.envs.episode import ScriptedActor
from agentrl.errors import SandboxError
from agentrl.rollout.episodes.groups import Rollouts
from agentrl.rollout.episodes.policies import Policy
from agentrl.sessions.renderers.families.null import NullRenderer
from agentrl.tools.tool import tool
from agentrl.types import Message, Session, Status, Task

pytestmark = pytest.mark.slow
GAMES, SIDES = 40, 4
LIMITS = RolloutConfig(tool_timeout=20, turn_timeout=30, timeout=60, concurrency=16)
ERRORS: dict[str, Callable[[], Exception]] = {
    "a connection": lambda: ConnectionResetError("it was asked for something that ends its service"),
    "a disk": lambda: OSError(errno.ENOSPC, "it was asked for a file that fills the disk"),
    "a sandbox": lambda: SandboxError("it was asked for what its daemon can't do"),
}


class Dice(Env):
    """A die is shown by a tool; 0 loses. The tool's second use breaks it, if it is asked to."""

    max_turns = 5
    side = 0

    def __init__(self, error: Callable[[], Exception]) -> None:
        self.error = error

    def tasks(self, split: str = "train") -> Iterable[Task]:
        return [Task(id=f"game-{number}") for number in range(GAMES)]

    def reset(self, task: Task, *, seed: int | None = None) -> str:
        self.side = random.Random(f"{task.id}/{seed}").randrange(SIDES)
        return "roll"

    @tool
    async def roll(self, extremely: bool = False) -> str:
        """Roll.

        Args:
            extremely: beyond what the table holds.
        """
        if extremely:
            raise self.error()
        return str(self.side)

    @reward
    def won(self, session: Session) -> float:
        return float(self.side > 0)


def honest(env: Env, messages: Sequence[Message]) -> Message:
    return env.call("roll") if len(messages) == 1 else Message(role="assistant", content="that was it")


def breaks_when_it_loses(env: Env, messages: Sequence[Message]) -> Message:
    return env.call("roll", extremely=True) if messages[-1].text == "0" else honest(env, messages)


def breaks_always(env: Env, messages: Sequence[Message]) -> Message:
    return env.call("roll", extremely=True)


async def games(
    policy: Callable[[Env, Sequence[Message]], Message], error: Callable[[], Exception], retries: int = LIMITS.retries
) -> list[Session]:
    limits = LIMITS.model_copy(update={"retries": retries})
    rollouts = Rollouts(lambda: Dice(error), Policy(NullRenderer()), limits, seed=5)
    tasks = [Task.model_validate(task) for task in Dice(error).tasks()]
    groups = await rollouts.collect(
        [Task.model_validate(task) for task in tasks], ScriptedActor(policy), phase="e", n=1
    )
    return [session for group in groups for session in group.sessions]


def mean(sessions: Sequence[Session]) -> float:
    scores = [s.score for s in sessions if s.status is not Status.INFRA_ERROR and s.score is not None]
    return sum(scores) / len(scores)


@pytest.mark.parametrize("retries", [LIMITS.retries, 1, 0])
@pytest.mark.parametrize("kind", ERRORS)
async def test_no_mean_rises_by_breaking_tools_in_lost_games(kind: str, retries: int) -> None:
    fair = await games(honest, ERRORS[kind], retries)
    broken = await games(breaks_when_it_loses, ERRORS[kind], retries)
    assert 0 < mean(fair) < 1
    assert mean(broken) <= mean(fair)
    lost = [session for session in broken if session.status is Status.AGENT_ERROR]
    assert [session.score for session in lost] == [0.0] * sum(session.score == 0.0 for session in fair)
    assert all(session.counters["tool_faults"] for session in lost), "it is not counted"


@pytest.mark.parametrize("retries", [LIMITS.retries, 0])
async def test_who_breaks_every_tool_of_a_batch_has_no_mean_at_all(retries: int) -> None:
    """Nothing tells that from an infrastructure that is down: the batch is tried again, and then the run ends."""
    sessions = await games(breaks_always, ERRORS["a connection"], retries)
    assert {session.status for session in sessions} == {Status.INFRA_ERROR}
    assert {session.attempt for session in sessions} == {retries}
