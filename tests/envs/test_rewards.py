"""Rewards as plug-ins: added to any environment, or in the place of its own; whose fault their failures are."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from agentrl.config import RunConfig
from agentrl.envs import calls
from agentrl.envs.base import Env, reward
from agentrl.envs.episode import expert_policy, play
from agentrl.envs.registry import factory
from agentrl.envs.results import give_rewards
from agentrl.envs.rewards import REWARDS, adding, make_rewards, open_rewards
from agentrl.errors import (
    AgentRLError,
    Blame,
    ConfigError,
    DeadlineExceeded,
    EnvError,
    InfraError,
    InvalidReward,
    UnknownName,
)
from agentrl.overrides import applicable, fields, merge, merge_settings, validate
from agentrl.rollout.workers.serve_process import _score
from agentrl.types import Session, Status, Task

PLUGIN = '''
import asyncio, threading, time
from agentrl.config import RewardConfig
from agentrl.envs.rewards import Reward

closed = []

class Settings(RewardConfig):
    value: float = 0.5
    """What it gives."""

class Constant(Reward):
    settings = Settings
    async def compute(self, session):
        return self.config.value if session.task.id else None
    def close(self):
        closed.append(self.config.value)

class Plain(Reward):
    """Not async: in a thread, where it may block."""
    range = (0.0, 9.0)
    def compute(self, session):
        time.sleep(0.01)
        return session.turns

class Odd(Reward):
    class settings(RewardConfig):
        kind: str
    async def compute(self, session):
        match self.config.kind:
            case "nan": return float("nan")
            case "inf": return float("-inf")
            case "range": return 1.5
            case "text": return "half"
            case "list": return [0.5]
            case "agent": return {"nobody": 1.0}
            case "down": raise ConnectionError("refused")
            case "answer": return {}["score"]
            case "name": return undefined_name
            case "slow": await asyncio.Event().wait()

may_go_on, gone_on = threading.Event(), threading.Event()

class Late(Reward):
    def compute(self, session):
        session.info["early"] = session.counters["early"] = 1
        if self.config.timeout < 1:
            may_go_on.wait(60)
        session.info["late"] = session.counters["late"] = 1
        gone_on.set()
        return 1.0

class Own(Settings):
    more: int = 0

class Other(Reward):
    settings = Own
    def compute(self, session): return 0

class Unbuilt(Reward):
    def __init__(self, config): raise OSError("no model")

class ByAgent(Reward):
    def compute(self, session): return {"a": 1.0, "b": 0.5}

NOTHING = 3
'''


class Game(Env):
    """Its own reward is 1."""

    def tasks(self, split: str = "train") -> list[dict[str, Any]]:
        return [{}]

    def reset(self, task: Task, *, seed: int | None = None) -> str:
        return "?"

    def expert(self, messages: Any) -> str:
        return "!"

    @reward
    def won(self, session: Session) -> float:
        return 1.0


class Two(Game):
    agents = ("a", "b")

    def reset(self, task: Task, *, seed: int | None = None) -> Any:
        return {"a": "?", "b": "?"}


@pytest.fixture
def plugin(tmp_path: Path) -> Callable[[str], str]:
    (tmp_path / "mine.py").write_text(PLUGIN)
    return lambda name: f"{tmp_path}/mine.py:{name}"


async def scored(make_env: Callable[[], Env], **rewards: Any) -> Session:
    return await play(adding(make_env, make_rewards(rewards))(), Task(id="t"), expert_policy)


def build(*words: str) -> RunConfig:
    return validate(merge_settings(["env=calculator", *words]), RunConfig)


async def test_rewards_add_to_the_weighted_sum_of_any_environment_async_or_not(plugin: Callable[[str], str]) -> None:
    session = await scored(
        Game, late={"name": plugin("Constant"), "weight": 2}, count={"name": plugin("Plain"), "weight": -0.25}
    )
    assert list(session.rewards.items()) == [("won", 1.0), ("count", 1.0), ("late", 0.5)]
    assert session.reward == 1.0 - 0.25 + 2 * 0.5
    assert (await scored(Game)).rewards == {"won": 1.0}


async def test_one_of_the_same_name_replaces_the_environments_own(plugin: Callable[[str], str]) -> None:
    session = await scored(Game, won={"name": plugin("Constant"), "value": 0.25})
    assert (session.rewards, session.reward) == ({"won": 0.25}, 0.25)


async def test_a_reward_may_be_each_agents_own(plugin: Callable[[str], str]) -> None:
    session = await scored(Two, shares={"name": plugin("ByAgent")})
    assert session.rewards == {"won": 1.0, "shares/a": 1.0, "shares/b": 0.5}
    assert (session.agent_rewards, session.reward) == ({"a": 2.0, "b": 1.5}, 1.75)
    with pytest.raises(EnvError, match="names the agent 'nobody'"):
        await scored(Two, odd={"name": plugin("Odd"), "kind": "agent"})


@pytest.mark.parametrize(
    ("kind", "error", "words"),
    [
        ("nan", InvalidReward, "nan, which is not a finite number"),
        ("inf", InvalidReward, "-inf, which is not a finite number"),
        ("range", InvalidReward, "1.5, outside its range 0 to 1"),
        ("down", InfraError, "ConnectionError: refused"),
        ("answer", InfraError, "KeyError: 'score'"),
        ("slow", DeadlineExceeded, r"longer than 0.05 s \(rewards.odd.timeout\)"),
        ("text", InvalidReward, "which is text and not a number"),
        ("list", InvalidReward, "which is not a number"),
        ("name", ConfigError, "NameError: name 'undefined_name'"),
    ],
)
async def test_a_services_failures_are_the_infrastructures_and_a_plug_ins_mistakes_the_users(
    plugin: Callable[[str], str], kind: str, error: type[AgentRLError], words: str
) -> None:
    odd = {"name": plugin("Odd"), "kind": kind, "timeout": 0.05 if kind == "slow" else 300}
    with pytest.raises(error, match=rf"rewards\.odd=.*{words}") as raised:
        await scored(Game, odd=odd)
    assert type(raised.value) is error
    session, env = Session("s", Task(id="t")), adding(Game, make_rewards({"odd": odd}))()
    if error.blame is Blame.USER:
        with pytest.raises(error):
            await give_rewards(env, session)
    else:
        await give_rewards(env, session)
        assert (session.status, session.reward, session.rewards) == (Status.INFRA_ERROR, None, {})


@pytest.mark.parametrize("seconds", [0.05, 300])
async def test_what_a_plain_reward_notes_in_a_session_counts_where_it_ends_in_time(
    plugin: Callable[[str], str], seconds: float
) -> None:
    (late,) = make_rewards({"late": {"name": plugin("Late"), "timeout": seconds}})
    module = sys.modules[type(late.reward).__module__]
    session, notes = Session("s", Task(id="t")), {"early": 1, "late": 1}
    if seconds < 1:
        with pytest.raises(DeadlineExceeded):
            await late(session)
        module.may_go_on.set()
        assert await asyncio.to_thread(module.gone_on.wait, 60)
        notes = {}
    else:
        assert await late(session) == 1.0
    assert (session.info, session.counters) == (notes, notes)


async def test_a_fork_has_the_same_rewards_and_they_are_closed_with_the_run(plugin: Callable[[str], str]) -> None:
    config = build(f"rewards.late={plugin('Constant')}", "rewards.late.value=0.125")
    async with open_rewards(factory("calculator"), config.rewards) as make_env:
        env = make_env()
        task = next(calls.tasks(env))
        await calls.reset(env, task, seed=0)
        forked = await calls.fork(env)
        session = Session("s", task)
        assert (await calls.compute_rewards(forked, session)).values["late"] == 0.125
        closed = REWARDS.find(plugin("Constant")).compute.__globals__["closed"]
        assert closed == []
    assert closed == [0.125]
    plain = factory("calculator")
    async with open_rewards(plain, {}) as same:
        assert same is plain


async def test_a_servers_sessions_are_rewarded_without_an_environment_and_a_mistake_is_the_sessions_error(
    plugin: Callable[[str], str],
) -> None:
    good, bad = {"name": plugin("Constant"), "weight": 0.5}, {"name": plugin("Odd"), "kind": "name"}
    session, failed = Session("s", Task(id="t"), status=Status.COMPLETED), Session("f", Task(id="t"))
    await _score(adding(Env, make_rewards({"late": good})), session)
    await _score(adding(Env, make_rewards({"late": good, "odd": bad})), failed)
    assert (session.rewards, session.reward, session.status) == ({"late": 0.5}, 0.25, Status.COMPLETED)
    assert (failed.status, failed.reward) == (Status.INFRA_ERROR, None)
    assert "undefined_name" in (failed.error or "")


def test_settings_of_a_reward_are_checked_listed_and_saved(plugin: Callable[[str], str]) -> None:
    name = plugin("Constant")
    config = build(f"rewards.late={name}", "rewards.late.value=0.25", "rewards.late.weight=2")
    assert validate(yaml.safe_load(yaml.safe_dump(config.model_dump(mode="json"))), RunConfig) == config
    listed = {key: doc for key, _, doc in fields(tree={"rewards": {"late": name}})}
    assert listed["rewards.late.value"] == "What it gives."
    assert {"rewards.NAME", "rewards.NAME.weight", "rewards.NAME.timeout"} <= {key for key, _, _ in fields()}
    with pytest.raises(ConfigError, match=r"'rewards\.late\.valu'.*did you mean 'rewards\.late\.value'"):
        build(f"rewards.late={name}", "rewards.late.valu=1")
    with pytest.raises(ConfigError, match=r"rewards\.late\.timeout='0'|rewards\.late\.timeout=0"):
        build(f"rewards.late={name}", "rewards.late.timeout=0")
    with pytest.raises(ConfigError, match=r"'rewards\.odd\.kind' is required"):
        build(f"rewards.odd={plugin('Odd')}")


@pytest.mark.parametrize(
    ("function", "framework"),
    [
        ("def f(prompts, completions, **columns): return [1.0]", "trl"),
        ("def f(data_source, solution_str, ground_truth, extra_info=None): return 1.0", "verl"),
        ("async def f(args, sample, **kwargs): return 1.0", "slime"),
    ],
)
def test_a_function_of_another_framework_is_told_how_it_is_given(tmp_path: Path, function: str, framework: str) -> None:
    """It was "no reward", and the setting that takes it had to be found."""
    (tmp_path / "f.py").write_text(function)
    with pytest.raises(ConfigError, match=rf"is given as rewards\.NAME={framework} rewards\.NAME\.function=.*f\.py:f$"):
        build(f"rewards.a={tmp_path}/f.py:f")


def test_a_reward_that_can_not_be_found_or_built_is_named(plugin: Callable[[str], str]) -> None:
    with pytest.raises(UnknownName, match="did you mean 'Constant'"):
        build(f"rewards.late={plugin('Constan')}")
    with pytest.raises(ConfigError, match="is no reward"):
        build(f"rewards.late={plugin('NOTHING')}")
    with pytest.raises(ConfigError, match=r"rewards\.late: no reward is named"):
        build("rewards.late.weight=1")
    with pytest.raises(ConfigError, match=r"rewards=3: this is a section"):
        build("rewards=3")
    with pytest.raises(ConfigError, match=r"rewards\.late=.*OSError: no model"):
        make_rewards({"late": {"name": plugin("Unbuilt")}})


def test_settings_of_a_saved_run_stay_with_the_reward_that_has_them(plugin: Callable[[str], str]) -> None:
    saved = {"rewards": {"late": {"name": plugin("Constant"), "value": 0.25}, "more": {"name": plugin("Plain")}}}
    for asked, kept in (("Other", {"value": 0.25}), ("Plain", {})):
        words = merge_settings([f"rewards.late={plugin(asked)}"])
        tree = merge(applicable(saved, words), words)
        assert tree["rewards"]["late"] == {"name": plugin(asked), **kept}
        assert tree["rewards"]["more"] == {"name": plugin("Plain")}


@pytest.mark.slow
async def test_a_plain_reward_does_not_block_the_event_loop(plugin: Callable[[str], str]) -> None:
    (named,) = make_rewards({"count": {"name": plugin("Plain")}})
    session = Session("s", Task(id="t"))
    steps: list[int] = []

    async def others() -> None:
        while True:
            steps.append(1)
            await asyncio.sleep(0)

    other = asyncio.create_task(others())
    await named(session)
    other.cancel()
    assert len(steps) > 1
