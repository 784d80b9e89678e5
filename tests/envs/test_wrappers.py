"""Wrappers change one thing and hand the rest through."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from agentrl.envs import calls
from agentrl.envs.base import Env, has_expert
from agentrl.envs.check import check_env
from agentrl.envs.episode import noop_policy, play, record
from agentrl.envs.registry import make
from agentrl.envs.wrappers import TimeLimit, TokenBudget, Transcript, TurnLimit, Wrapper
from agentrl.errors import InfraError, InvalidInput
from agentrl.types import Message, Status, StepResult, Task


def task_of(env: Env) -> Task:
    return next(task for task in calls.tasks(env) if len(task["steps"]) == 3)


@pytest.mark.slow
async def test_a_plain_wrapper_changes_nothing():
    env = make("calculator")
    task = task_of(env)
    wrapped = Wrapper(Wrapper(make("calculator")))
    assert record(await play(wrapped, task)) == record(await play(env, task))
    assert wrapped.unwrapped is wrapped.env.env
    assert wrapped.tools is wrapped.unwrapped.tools
    assert (wrapped.splits, wrapped.max_turns, wrapped.min_steps) == (env.splits, env.max_turns, 2)
    assert has_expert(wrapped)
    assert check_env(lambda: Wrapper(make("calculator")), tasks=1, scored=8) == []


async def test_a_turn_limit_truncates_and_starts_afresh_with_each_episode():
    env = TurnLimit(make("calculator"), 2)
    task = task_of(env)
    for _ in range(2):
        session = await play(env, task, close=False)
        assert session.status is Status.TRUNCATED
        assert session.info == {"limit": "turns"}
        assert session.turns == 2
        assert session.rewards == {"correct": 0.0}


async def test_an_episode_that_ends_in_the_step_of_the_limit_is_terminated():
    env = TurnLimit(make("calculator"), 4)
    session = await play(env, task_of(env))
    assert (session.status, session.info, session.reward) == (Status.COMPLETED, {}, 1.0)


async def test_a_time_limit_counts_from_the_reset():
    now = [0.0]
    env = TimeLimit(make("calculator"), 10, clock=lambda: now[0])
    task = task_of(env)
    opening = await calls.reset(env, task)
    said = await calls.expert(env, opening)
    assert not (await calls.step(env, said)).truncated
    now[0] = 10.5
    late = await calls.step(env, said)
    assert (late.truncated, late.terminated, late.info) == (True, False, {"limit": "time"})
    await calls.reset(env, task)
    assert not (await calls.step(env, said)).truncated


async def test_a_time_limit_cuts_a_step_short():
    class Slow(Env):
        def reset(self, task: Task, *, seed: int | None = None) -> str:
            return "wait"

        async def step(self, message: Message) -> StepResult:
            await asyncio.sleep(60)
            return StepResult(terminated=True)

    session = await asyncio.wait_for(play(TimeLimit(Slow(), 0.05), Task(id="t"), noop_policy), 20)
    assert (session.status, session.info) == (Status.TRUNCATED, {"limit": "time"})


async def test_a_timeout_of_the_environments_own_is_not_the_limit():
    class Flaky(Env):
        def reset(self, task: Task, *, seed: int | None = None) -> str:
            return "go"

        async def step(self, message: Message) -> StepResult:
            raise TimeoutError("socket")

    with pytest.raises(InfraError, match="TimeoutError: socket"):
        await play(TimeLimit(Flaky(), 60), Task(id="t"), noop_policy)


async def test_a_token_budget_counts_opening_turns_calls_and_answers():
    env = TokenBudget(make("calculator"), 10_000, count=len)
    task = task_of(env)
    session = await play(env, task)
    texts = (
        m.text + "".join(c.function.name + c.function.arguments for c in m.tool_calls or ()) for m in session.messages
    )
    used = sum(map(len, texts))
    assert (env.used, session.status) == (used, Status.COMPLETED)
    tight = await play(TokenBudget(make("calculator"), len(task["story"]) + 20, count=len), task)
    assert (tight.status, tight.info) == (Status.TRUNCATED, {"limit": "tokens"})
    assert tight.turns == 1
    estimated = TokenBudget(make("calculator"), 10_000)
    await play(estimated, task)
    assert used / 4 <= estimated.used <= used / 4 + len(session.messages)


async def test_a_transcript_holds_each_episode_once(tmp_path: Path):
    file = tmp_path / "episodes.jsonl"
    env = Transcript(make("castle"), file)
    tasks = [task for task, _ in zip(calls.tasks(env), range(3), strict=False)]
    sessions = [await play(env, task, seed=7, close=False) for task in tasks]
    opening = await calls.reset(env, tasks[0])
    await calls.step(env, await calls.expert(env, opening))
    await calls.close(env)
    await calls.close(env)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["task"]["id"] for line in lines] == [task.id for task in (*tasks, tasks[0])]
    for line, session in zip(lines, sessions, strict=False):
        assert [Message.model_validate(m) for m in line["messages"]] == session.messages
        assert sum(line["rewards"]) == pytest.approx(1)
        assert line["seed"] == 7
    assert len(lines[3]["messages"]) == len(opening) + 2


@pytest.mark.slow
@pytest.mark.parametrize("build", [TurnLimit, TimeLimit, TokenBudget])
@pytest.mark.parametrize("limit", [0, -1, float("nan")])
def test_a_limit_must_be_positive(build: type, limit: float):
    with pytest.raises(InvalidInput, match="must be positive"):
        build(make("calculator"), limit)
