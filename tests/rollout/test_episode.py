"""Episodes and groups, played by scripts: who ends a session, and whose fault it was."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from agentrl.config import RolloutConfig
from agentrl.envs.base import Env, reward
from agentrl.envs.episode import EXPERT, NOOP, play
from agentrl.envs.turns import Actor
from agentrl.errors import AgentError, EngineError, EnvError, SandboxError
from agentrl.rollout.episodes.groups import Rollouts
from agentrl.rollout.episodes.policies import Policy
from agentrl.sessions.renderers.families.null import NullRenderer
from agentrl.tools.tool import tool
from agentrl.types import Group, Health, Message, Session, Status, StepResult, Task

LIMITS = RolloutConfig(tool_timeout=20, turn_timeout=30, timeout=60, retries=2)


class Counting(Env):
    """Counts to the task's number, one call a step; a place to plant failures."""

    max_turns = 10
    closed = 0

    def __init__(self, fault: Callable[[Counting], Any] | None = None) -> None:
        self.fault, self.at, self.goal = fault, 0, 0

    def tasks(self, split: str = "train") -> Iterable[dict[str, Any]]:
        return [{"to": 3}]

    def reset(self, task: Task, *, seed: int | None = None) -> str:
        self.goal, self.seed = task["to"], seed
        return f"count to {self.goal}"

    @tool
    async def up(self) -> int:
        """One more."""
        self.at += 1
        self.earn(0.1)
        if self.fault:
            result = self.fault(self)
            if asyncio.iscoroutine(result):
                await result
        return self.at

    @reward
    def counted(self, session: Session) -> float:
        return float(self.at == self.goal)

    def expert(self, messages: list[Message]) -> Message | str:
        return self.call("up") if self.at < self.goal else "done"

    def close(self) -> None:
        type(self).closed += 1


def raising(error: Exception) -> Callable[[Counting], None]:
    def fault(env: Counting) -> None:
        raise error

    return fault


async def collect(
    make: Callable[[], Env], actor: Actor | None = None, *, n: int = 1, limits: RolloutConfig = LIMITS, to: int = 3
) -> Group:
    rollouts = Rollouts(make, Policy(NullRenderer()), limits, seed=5)
    task = Task(id="t", data={"to": to})
    (group,) = await rollouts.collect([task], actor or EXPERT, phase="test", n=n)
    return group


async def test_an_episode_runs_to_its_own_end_and_is_rewarded_step_by_step_and_at_last() -> None:
    (session,) = (await collect(Counting)).sessions
    assert session.status is Status.COMPLETED
    assert session.rewards == {"counted": 1.0}
    assert session.score == pytest.approx(1.3)
    assert [node.reward for node in session.nodes if node.message.role == "assistant"] == [0.1, 0.1, 0.1, None]
    assert session.counters["tool_calls"] == 3


async def test_a_noop_ends_at_once_with_nothing() -> None:
    (session,) = (await collect(Counting, NOOP)).sessions
    assert (session.status, session.rewards) == (Status.COMPLETED, {"counted": 0.0})


async def test_a_turn_limit_truncates_and_what_was_reached_still_counts() -> None:
    (session,) = (await collect(Counting, limits=LIMITS.model_copy(update={"max_turns": 3}))).sessions
    assert session.status is Status.TRUNCATED
    assert session.rewards == {"counted": 1.0}


async def test_an_environment_that_is_cut_off_is_truncated_and_not_completed() -> None:
    class Cut(Counting):
        def step(self, message: Message) -> StepResult:
            return StepResult(truncated=True)

    (session,) = (await collect(Cut)).sessions
    assert session.status is Status.TRUNCATED


async def test_the_session_deadline_truncates_even_a_world_that_never_ends(pass_time: Callable[[float], None]) -> None:
    """The world's steps take time by the event loop's clock alone: a busy machine is no later than a quiet one."""
    steps = list[Message]()

    class Slow(Counting):
        async def step(self, message: Message) -> StepResult:
            steps.append(message)
            pass_time(300.0)
            await asyncio.sleep(0)
            return StepResult([Message(role="user", content="go on")])

    limits = LIMITS.model_copy(update={"tool_timeout": 600.0, "turn_timeout": 600.0, "timeout": 700.0})
    (session,) = (await collect(Slow, limits=limits)).sessions
    assert session.status is Status.TRUNCATED
    assert "700 s" in (session.error or "")
    assert len(steps) == 3


async def test_a_step_that_hangs_is_an_infrastructure_error_and_is_generated_again(
    pass_time: Callable[[float], None],
) -> None:
    calls: list[int] = []

    class Hanging(Counting):
        async def step(self, message: Message) -> StepResult:
            calls.append(1)
            asyncio.get_running_loop().call_soon(pass_time, LIMITS.turn_timeout)  # while it waits
            await asyncio.sleep(3600)
            raise AssertionError

    (session,) = (await collect(Hanging)).sessions
    assert session.status is Status.INFRA_ERROR
    assert session.score is None
    assert len(calls) == LIMITS.retries + 1


async def test_an_infrastructure_error_is_generated_again_from_the_same_seed_and_leaves_no_trace_in_the_reward() -> (
    None
):
    seeds: list[int | None] = []
    left = [2]

    def flaky(env: Counting) -> None:
        seeds.append(env.seed)
        if left[0]:
            left[0] -= 1
            raise SandboxError("the daemon went away")

    (session,) = (await collect(lambda: Counting(flaky))).sessions
    assert session.status is Status.COMPLETED
    assert session.score == pytest.approx(1.3)
    assert session.counters["infra_retries"] == 2
    assert len(set(seeds)) == 1


async def test_a_failure_for_good_is_in_its_group_without_reward_and_out_of_the_baseline() -> None:
    group = await collect(lambda: Counting(raising(SandboxError("gone"))), n=3)
    assert [s.status for s in group.sessions] == [Status.INFRA_ERROR] * 3
    assert group.scored == []


async def test_the_agents_own_failure_ends_as_its_error_and_is_rewarded_as_it_stands() -> None:
    class Refusing(Counting):
        def step(self, message: Message) -> StepResult:
            raise AgentError("the agent's program crashed")

    (session,) = (await collect(Refusing)).sessions
    assert session.status is Status.AGENT_ERROR
    assert session.rewards == {"counted": 0.0}


async def test_a_bug_in_the_environment_stops_the_run_and_names_the_method() -> None:
    class Buggy(Counting):
        def step(self, message: Message) -> StepResult:
            raise KeyError("shelf")

    with pytest.raises(EnvError, match=r"Buggy\.step raised KeyError"):
        await collect(Buggy, n=4)


async def test_a_tool_that_raises_is_the_models_problem_and_not_the_runs() -> None:
    (session,) = (await collect(lambda: Counting(raising(ValueError("no"))))).sessions
    assert session.counters["tool_errors/raised"] == 3


async def test_a_sandbox_that_cant_be_removed_takes_no_episode_back(caplog: pytest.LogCaptureFixture) -> None:
    """The error of `close` took the place of the session, and ended the run."""

    class Left(Counting):
        def close(self) -> None:
            raise SandboxError("the daemon is gone")

    (session,) = (await collect(Left)).sessions
    assert (session.status, session.reward) == (Status.COMPLETED, 1.0)
    assert "Left.close: the daemon is gone" in caplog.text


async def test_every_environment_is_closed_however_its_episode_ended() -> None:
    class Closing(Counting):
        closed = 0

    await collect(Closing, n=3)
    await collect(lambda: Closing(raising(SandboxError("gone"))))
    assert Closing.closed == 3 + LIMITS.retries + 1


async def test_sessions_of_a_group_share_task_and_seed_and_have_ids_of_their_own() -> None:
    group = await collect(Counting, n=4)
    assert len({s.id for s in group.sessions}) == 4
    assert len({s.seed for s in group.sessions}) == 1
    assert {s.group for s in group.sessions} == {group.id}
    assert [s.sample for s in group.sessions] == [0, 1, 2, 3]


async def test_info_from_step_reaches_the_rewards_of_a_rollout_as_of_a_scripted_episode() -> None:
    """The rollouts' driver dropped it: the same environment scored 1.0 under check and 0.0 under eval."""

    class Told(Counting):
        async def step(self, message: Message) -> StepResult:
            result = await super().step(message)
            result.info["solved"] = result.terminated
            return result

        @reward
        def solved(self, session: Session) -> float:
            return float(session.info.get("solved", False))

    (session,) = (await collect(Told)).sessions
    walked = await play(Told(), Task(id="t", data={"to": 3}))
    assert session.rewards["solved"] == walked.rewards["solved"] == 1.0
    assert session.turns == walked.turns == 4


async def test_no_more_sessions_are_under_way_than_allowed() -> None:
    under_way, most = [0], [0]

    class Watched(Counting):
        async def step(self, message: Message) -> StepResult:
            under_way[0] += 1
            most[0] = max(most[0], under_way[0])
            try:
                await asyncio.sleep(0.005)
                return await self.run_tools(message)
            finally:  # a busy machine can run a session past its deadline
                under_way[0] -= 1

    await collect(Watched, n=9, limits=LIMITS.model_copy(update={"concurrency": 2}))
    assert most[0] == 2


async def test_where_no_engine_is_left_a_run_ends_at_once_and_says_why() -> None:
    """It went on, with every session of every step an INFRA_ERROR."""

    class Gone:
        capabilities = SimpleNamespace(max_context=1000)

        async def health(self) -> Health:
            return Health(ok=False, detail="no engine is left: no driver", gone=True)

    drawn: list[int] = []

    def lost(env: Counting) -> None:
        drawn.append(1)
        raise SandboxError("not reached")

    engine: Any = Gone()
    limits = LIMITS.model_copy(update={"concurrency": 1})
    rollouts = Rollouts(lambda: Counting(lost), Policy(NullRenderer(), engine), limits, seed=5)
    with pytest.raises(EngineError, match="no driver"):
        await rollouts.collect([Task(id="t", data={"to": 3})], EXPERT, phase="test", n=8)
    assert len(drawn) < 4  # of 24: those that were under way


@pytest.mark.slow
async def test_each_session_is_reported_as_soon_as_it_has_ended_and_a_truncated_one_says_why() -> None:
    ended: list[Session] = []
    limits = LIMITS.model_copy(update={"max_turns": 2})
    rollouts = Rollouts(Counting, Policy(NullRenderer()), limits, seed=5)
    task = Task(id="t", data={"to": 3})

    async def keep(session: Session) -> None:
        ended.append(session)

    (group,) = await rollouts.collect([task], EXPERT, phase="test", n=3, ended=keep)
    assert sorted(map(id, ended)) == sorted(map(id, group.sessions))
    assert {session.error for session in ended} == {"all 2 turns were taken (max_turns)"}
