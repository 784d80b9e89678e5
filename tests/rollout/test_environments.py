"""A process that plays sessions for a run: what it keeps, how long it has, and what it leaves."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from agentrl.cluster import Address
from agentrl.common.deadline import Deadline
from agentrl.config import RolloutConfig, RunConfig
from agentrl.envs.base import Env
from agentrl.envs.episode import NOOP
from agentrl.overrides import parse_words
from agentrl.rollout.episodes.groups import Rollouts
from agentrl.rollout.episodes.policies import Policy
from agentrl.rollout.workers import environment_workers as environments
from agentrl.rollout.workers.environment_workers import OVERTIME, EnginePolicy, EnvironmentRole, InWorkers
from agentrl.rollout.workers.reward_workers import longest
from agentrl.sessions.renderers.families.null import NullRenderer
from agentrl.train.driver.api import configure
from agentrl.types import Capabilities, Session, Status, Task

GAME = f"{Path(__file__).parents[2] / 'examples' / 'plugins' / 'frozen_opponent.py'}:HigherDigit"
SCORES = Path(__file__).parents[1] / "cluster" / "scores.py"
CAPABILITIES = Capabilities("local", max_context=64, vocab_size=8)


def role_of(folder: Path) -> EnvironmentRole:
    """The role of a run against its own past versions; nothing listens where its engines are called."""
    config = configure(GAME, parse_words(["model=tiny", "agents.second=old", "policies.old=past"]))
    return EnvironmentRole(config, folder, Address("run", "127.0.0.1", 9, b""), CAPABILITIES)


async def test_versions_that_a_worker_meets_share_the_tokenizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker kept one for each version of the run."""
    loaded: list[Path] = []
    monkeypatch.setattr(environments, "get_renderer", lambda folder, *_: loaded.append(folder) or NullRenderer())
    role = role_of(tmp_path)
    for version in range(3):
        part = EnginePolicy(f"old/{version}", tmp_path / str(version), CAPABILITIES, NOOP)
        policy, _ = (await role._partner("second", part)).plays(Session("s", Task(id="t"), step=version)) or (
            None,
            None,
        )
        assert policy is not None
        assert (policy.name, policy.model) == (part.policy, part.model)
    await role.close()
    assert loaded == [tmp_path]


class Patient:
    """Workers that tell after how many seconds they would be given up."""

    async def call(self, method: str, session: Session, *how: Any, timeout: float | None) -> Session:
        session.status, session.info["timeout"] = Status.COMPLETED, timeout
        return session


async def test_a_worker_has_as_long_for_a_sessions_rewards_as_for_its_episode() -> None:
    """It was killed, with all of its sessions, where a session that its deadline had cut off took a minute to judge."""
    rollouts = Rollouts(Env, Policy(NullRenderer()), RolloutConfig(), seed=5)
    workers: Any = Patient()
    session = Session("s", Task(id="t"))
    played = await InWorkers(workers, "main", {}).play(rollouts, session, NOOP, Deadline(900.0, time.monotonic() + 1))
    assert played.info["timeout"] > 2 * OVERTIME


async def test_a_worker_has_as_long_as_the_runs_rewards_and_the_start_of_another_reward_worker_take() -> None:
    added = {name: {"name": f"{SCORES}:Sine", "timeout": 500.0} for name in ("one", "two")}
    run = {"env": GAME, "agents": {"second": "main"}, "rewards": added, "cluster": {"rewards": 1}}
    config = RunConfig.model_validate(run)
    seconds = longest(config.cluster, config.rewards)
    assert seconds > 1000.0 + 900.0
    rollouts, workers = Rollouts(Env, Policy(NullRenderer()), RolloutConfig(), seed=5), Patient()
    inside = InWorkers(workers, "main", {}, seconds)  # type: ignore[arg-type]
    played = await inside.play(rollouts, Session("s", Task(id="t")), NOOP, None)
    assert played.info["timeout"] > seconds


@pytest.mark.slow
async def test_sandboxes_are_removed_also_where_something_else_can_not_be_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []

    async def close_all() -> None:
        closed.append("sandboxes")

    async def fail() -> None:
        raise OSError("a server of tools is gone")

    monkeypatch.setattr(environments, "get_renderer", lambda folder, *_: NullRenderer())
    monkeypatch.setattr(environments.sandboxes, "close_all", close_all)
    role = role_of(tmp_path)
    role._open.push_async_callback(fail)
    with pytest.raises(OSError, match="a server of tools is gone"):
        await role.close()
    assert closed == ["sandboxes"]
