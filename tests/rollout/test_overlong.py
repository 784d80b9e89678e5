"""Prompts that leave no room for a turn: what becomes of their sessions, and which limit is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import agentrl
from agentrl.config import EvalConfig, RolloutConfig
from agentrl.envs import calls
from agentrl.envs.base import Env
from agentrl.errors import ConfigError
from agentrl.rollout.episodes.groups import Rollouts
from agentrl.rollout.episodes.policies import ModelActor, Policy
from agentrl.rollout.episodes.programs import serving
from agentrl.rollout.stream.batch_metrics import evaluate_groups
from agentrl.rollout.stream.health import HealthMonitor, overlong
from agentrl.sessions.store.store import Store
from agentrl.types import Group, Message, Sampling, Session, Status, StepResult, Task
from tests.sessions.fakes import DiceEngine, LetterRenderer
from tests.sessions.gateway.fakes import ScriptedEngine, renderer

LONG = 90


class Lengths(Env):
    """Task n has a prompt of so many letters; an empty answer is worth a half."""

    def __init__(self, answer: int = 0, keeps_on: bool = False) -> None:
        self.letters, self.keeps_on = answer, keeps_on

    def tasks(self, split: str = "train") -> list[dict[str, int]]:
        return [{"letters": 10}, {"letters": LONG}, {"letters": 12}]

    def reset(self, task: Task, *, seed: int | None = None) -> str:
        return "a" * int(task["letters"])

    def step(self, message: Message) -> StepResult:
        answers = [Message(role="user", content="b" * self.letters)] if self.keeps_on else []
        return StepResult(answers, terminated=not self.keeps_on)

    @agentrl.reward
    def half(self, session: Session) -> float:
        return 0.5


async def play(make: Any = Lengths, *, context: int = 64, end: float = 30.0, **limits: Any) -> list[Session]:
    policy = Policy(LetterRenderer(), DiceEngine(max_context=context, end_weight=end))
    rollouts = Rollouts(make, policy, RolloutConfig(**{"turn_tokens": 8, **limits}), seed=1)
    actor = ModelActor(Sampling(max_new_tokens=rollouts.limits.turn_tokens))
    groups = await rollouts.collect(list(calls.tasks(make())), actor, phase="eval", n=2)
    return [session for group in groups for session in group.sessions]


async def test_a_prompt_without_room_has_no_reward_is_counted_and_does_not_count() -> None:
    """It was a reward of 0 in evaluations and groups, for what no answer could change."""
    sessions = await play()
    long = [session for session in sessions if session.task["letters"] == LONG]
    assert [session.score for session in sessions if session not in long] == [0.5] * 4
    for session in long:
        assert (session.status, session.score, session.turns, session.overlong) == (Status.TRUNCATED, None, 0, True)
        assert session.error is not None
        assert "the context of 64 tokens is used up: 93 tokens leave no room for a turn" in session.error
    result = evaluate_groups([Group("g", each.task, [each]) for each in sessions], EvalConfig())
    assert (result.mean, result.sessions, result.generated) == (0.5, 4, 6)
    assert result.metrics["count/overlong_prompts"] == pytest.approx(2 / 6) or result.metrics["count/overlong_prompts"]
    assert "the prompts of 2 of 6 sessions leave no room for a turn; these don't count" in overlong(sessions)
    (warning,) = HealthMonitor().check([Group("g", sessions[0].task, sessions)], signal=True)
    assert warning == overlong(sessions)


async def test_such_sessions_are_rewarded_as_they_are_or_end_the_run_where_that_is_asked_for() -> None:
    sessions = await play(overlong="keep")
    assert [session.score for session in sessions] == [0.5] * 6
    assert "are rewarded as they are" in overlong(sessions)
    with pytest.raises(ConfigError, match=r"task 'train-1': the context of 64 tokens .*\(rollout\.overlong=refuse\)"):
        await play(overlong="refuse")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"context": 100, "context_tokens": 64}, "context_tokens=64 is used up"),
        ({"context": 100, "session_tokens": 64}, "session_tokens=64 is used up"),
        ({"context": 64, "context_tokens": 80, "session_tokens": 90}, "the context of 64 tokens is used up"),
    ],
)
async def test_the_limit_that_is_named_is_the_one_that_cut(settings: dict[str, Any], said: str) -> None:
    at_first = await play(**settings)
    assert [session.error is not None and said in session.error for session in at_first] == [0, 0, 1, 1, 0, 0]
    later = await play(lambda: Lengths(30, keeps_on=True), end=1e9, **{**settings, "max_turns": 9})
    for session in (session for session in later if session.turns):
        assert session.error is not None
        assert said in session.error
        assert session.score == 0.5, "what had a turn is rewarded"
    cut = [session for session in await play(**{**settings, "turn_tokens": 60}, end=0.0001) if session.turns]
    assert {session.error for session in cut} == {f"a turn was cut off: {said}"}
    own = [session for session in await play(context=300, end=0.0001) if session.turns]
    assert {session.error for session in own} == {"a turn was cut off by its token limit (rollout.turn_tokens=8)"}


PROGRAM = """
async def solve(task, client):
    for letters in (task["letters"], task.get("then", 0)):
        if letters:
            await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "a" * letters}])

async def shortens(task, client):
    try:
        await solve(task, client)
    except Exception:
        await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "a"}])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "then", "rule", "ends"),
    [
        ("solve", 0, "skip", (Status.TRUNCATED, None, True)),
        ("solve", 0, "keep", (Status.TRUNCATED, 0.5, True)),
        ("shortens", 0, "skip", (Status.COMPLETED, 0.5, False)),
        ("solve", LONG, "skip", (Status.AGENT_ERROR, 0.5, False)),
    ],
)
async def test_an_agent_programs_first_prompt_is_held_to_the_same_rule(
    tmp_path: Path, function: str, then: int, rule: Any, ends: tuple[Any, ...]
) -> None:
    (tmp_path / "agent.py").write_text(PROGRAM)
    limits = RolloutConfig(turn_tokens=8, overlong=rule)
    policy = Policy(renderer(), ScriptedEngine(lambda prompt: "hello", max_context=64))
    task = Task(id="t", data={"letters": 10 if then else 900, "then": 10 * then})
    with Store(":memory:") as store:
        async with serving(f"{tmp_path}/agent.py:{function}", policy, store, limits) as program:
            session = await program.play(Lengths(), Session("s", task), limits)
            assert (session.status, session.reward, session.overlong) == ends
            if session.overlong:
                refused = limits.model_copy(update={"overlong": "refuse"})
                with pytest.raises(ConfigError, match=r"task 't': its prompt leaves no room for a turn"):
                    await program.play(Lengths(), Session("again", task), refused)
