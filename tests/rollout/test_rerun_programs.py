"""Agent programs that are run again: parallel requests in their recorded order, or a departure that names the turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agentrl.config import EngineConfig, RolloutConfig
from agentrl.envs.base import Env
from agentrl.errors import Diverged
from agentrl.rollout.engines.local.engine import LocalEngine
from agentrl.rollout.episodes.groups import TRAIN, Rollouts, new_group
from agentrl.rollout.episodes.policies import Policy
from agentrl.rollout.episodes.programs import serving
from agentrl.rollout.rerun.engine import Recording, RerunEngine
from agentrl.rollout.rerun.rollouts import RerunRollouts
from agentrl.sessions.renderers import get_renderer
from agentrl.sessions.store.recorder import Recorder
from agentrl.sessions.store.store import Store
from agentrl.types import Engine, Group, PauseMode, Session, Status, Task
from tests.rollout.engines.conftest import engine, folder, model, pause_amid_turns

__all__ = ["engine", "folder", "model"]
AGENT = """
import asyncio
import random

WORDS = "more"


async def agent(task, client):
    async def ask(*messages, n=1):
        await asyncio.sleep(random.random() / 50)  # so requests arrive in another order each time
        reply = await client.chat.completions.create(model="m", messages=list(messages), n=n)
        return reply.choices[-1].message.content or "nothing"

    first = {"role": "user", "content": "say something"}
    asked = [ask(first), ask(first), ask(first), ask({"role": "user", "content": "say two things"}, n=2)]
    said = [await each for each in asyncio.as_completed(asked)]  # which reply was first decides what follows
    then = [{"role": "assistant", "content": said[0]}, {"role": "user", "content": f"{WORDS} than {said[-1][:9]!r}?"}]
    await asyncio.gather(ask(first, *then), ask({"role": "user", "content": said[1]}))
"""
LIMITS = RolloutConfig(turn_tokens=40, session_tokens=1000, context_tokens=400, concurrency=3, timeout=300)


class World(Env):
    """Gives a task, and no rewards."""

    def tasks(self, split: str = "train") -> list[Task]:
        return [Task(id="t")]

    async def reset(self, task: Task, *, seed: int | None = None) -> str:
        return ""


@dataclass
class Played:
    """Plays a group of three sessions by an agent's file."""

    agent: Path
    folder: Path
    model: Any

    @asynccontextmanager
    async def rollouts(self, engine: Engine, name: str) -> AsyncIterator[tuple[Rollouts, Any]]:
        renderer = get_renderer(self.folder, "chatml")
        with Store(self.agent.with_name(f"{name}.db")) as store, Recorder(store) as recorder:
            made = Rollouts(World, Policy(renderer, engine), LIMITS, seed=3, recorder=recorder)
            async with serving(f"{self.agent}:agent", made.policy, store, LIMITS) as program:
                yield made, program

    def weights(self) -> list[tuple[str, Any]]:
        return [(name, tensor * 1.02) for name, tensor in self.model.state_dict().items()]

    async def record(self, engine: LocalEngine) -> Recording:
        """A group amid whose turns a new version is published."""
        group = new_group(TRAIN, 0, Task(id="t"))
        async with self.rollouts(engine, "recorded") as (rollouts, program):
            playing = asyncio.create_task(rollouts.generate(group, program, 3, phase=TRAIN))
            async with asyncio.timeout(200):
                await pause_amid_turns(engine, PauseMode.RETRACT, 3)
            await engine.publish(self.weights(), 1)
            await engine.resume()
            await playing
        assert {session.status for session in group.sessions} <= {Status.COMPLETED, Status.TRUNCATED}
        return Recording(sessions={(session.group, session.sample): session for session in group.sessions})

    async def again(self, engine: LocalEngine, recording: Recording, name: str) -> Group:
        """The group again, by an engine of the version that it began with."""
        group, held = new_group(TRAIN, 0, Task(id="t")), RerunEngine(engine, recording)
        async with self.rollouts(held, name) as (rollouts, program), asyncio.timeout(200):
            publishing = asyncio.create_task(held.publish(self.weights(), 1))
            try:
                await RerunRollouts.of(rollouts, recording).generate(group, program, 3, phase=TRAIN)
            finally:
                publishing.cancel()
        return group


def followed(session: Session) -> Any:
    return [(node.parent, node.token_ids, node.logprobs, node.versions, node.arrival) for node in session.nodes]


@pytest.mark.slow
@pytest.mark.parametrize("substituted", [False, True])
async def test_a_program_whose_requests_come_together_is_run_again_to_the_same_tokens_across_a_publication(
    tmp_path: Path, folder: Path, model: Any, engine: LocalEngine, substituted: bool
) -> None:
    agent = tmp_path / "agent.py"
    agent.write_text(AGENT)
    played = Played(agent, folder, model)
    recording = await played.record(engine)
    turns = [node for session in recording.sessions.values() for node in session.nodes if node.arrival is not None]
    assert {node.arrival.attempt for node in turns} >= {0, 1, 2}
    assert {span.version for node in turns for span in node.versions} == {0, 1}
    if substituted:
        recording = Recording(sessions=recording.sessions, play=False)
    other = LocalEngine(folder, EngineConfig(max_batch=8, device="cpu"))
    try:
        group = await played.again(other, recording, "again")
        recorded = recording.sessions.values()
        assert [followed(session) for session in group.sessions] == [followed(session) for session in recorded]
    finally:
        await other.close()


@pytest.mark.slow
async def test_a_program_that_asks_otherwise_than_the_recorded_one_is_named_by_session_turn_and_message(
    tmp_path: Path, folder: Path, model: Any, engine: LocalEngine
) -> None:
    agent = tmp_path / "agent.py"
    agent.write_text(AGENT)
    played = Played(agent, folder, model)
    recording = await played.record(engine)
    agent.write_text(AGENT.replace('WORDS = "more"', 'WORDS = "less"'))
    other = LocalEngine(folder, EngineConfig(max_batch=8, device="cpu"))
    try:
        with pytest.raises(Diverged, match=r"session train-0\.0-\d, turn \d+, its prompt's message \d+ \(user, hash"):
            await played.again(other, recording, "departed")
    finally:
        await other.close()
