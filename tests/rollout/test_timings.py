"""A session's nodes say how long the engine and the environment took, and the store keeps it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import agentrl
from agentrl.config import RolloutConfig
from agentrl.envs.base import Env
from agentrl.rollout.episodes.groups import Rollouts
from agentrl.rollout.episodes.policies import ModelActor, Policy
from agentrl.sessions.store.export import to_jsonl
from agentrl.sessions.store.recorder import Recorder
from agentrl.sessions.store.store import Store
from agentrl.sessions.tree.codec import node_row
from agentrl.types import Chunk, Message, Sampling, Session, StepResult, Task, Turn
from tests.sessions.exported import from_jsonl
from tests.sessions.fakes import DiceEngine, LetterRenderer


class Looking(Env):
    """Looks into its sandbox after each message, with two calls."""

    max_turns = 3

    def tasks(self, split: str = "train") -> list[dict[str, Any]]:
        return [{}]

    async def reset(self, task: Task, *, seed: int | None = None) -> str:
        await asyncio.sleep(0.01)
        return "go"

    async def open_sandbox(self) -> object:
        await asyncio.sleep(0.01)
        return object()

    @agentrl.tool(sandbox=True)
    async def look(self, sandbox: object) -> str:
        """Look around."""
        await asyncio.sleep(0.01)
        return "nothing"

    async def step(self, message: Message) -> StepResult:
        for _ in range(2):
            await self.tools.run((self.call("look").tool_calls or [])[0])
        return StepResult([Message(role="user", content="and")], reward=0.5)


class Slow(DiceEngine):
    """Says that the first half of its time was the queue's."""

    async def generate(
        self, request_id: str, input_ids: Sequence[int], sampling: Sampling, deadline: float | None = None
    ) -> AsyncIterator[Chunk | Turn]:
        await asyncio.sleep(0.01)
        async for item in super().generate(request_id, input_ids, sampling, deadline):
            yield replace(item, timings={"queue": 0.005}) if isinstance(item, Turn) else item


LIMITS = RolloutConfig(tool_timeout=20, turn_timeout=30, timeout=60)


async def played(store: Store, engine: DiceEngine) -> Session:
    with Recorder(store) as recorder:
        rollouts = Rollouts(Looking, Policy(LetterRenderer(), engine), LIMITS, 1, recorder=recorder)
        actor = ModelActor(Sampling(max_new_tokens=64))
        (group,) = await rollouts.collect([Task(id="t", data={})], actor, phase="train", n=1)
    return group.sessions[0]


async def test_turns_say_what_the_engine_took_and_answers_what_the_environment_took(tmp_path: Path) -> None:
    with Store(tmp_path / "s.db") as store:
        session = await played(store, Slow(end_weight=40.0, latency=0.005))
        turns = [node.timings for node in session.nodes if node.sampled]
        opening, *answers = [node.timings for node in session.nodes if not node.sampled]
        assert len(turns) == len(answers) == 3
        for turn in turns:
            assert turn["queue"] == 0.005
            assert turn["queue"] < turn["first_token"] <= turn["generation"]
        assert set(opening) == {"env", "began"}
        assert set(answers[0]) == {"env", "tool", "sandbox", "began"}, "the sandbox is waited for once"
        assert all(set(answer) == {"env", "tool", "began"} for answer in answers[1:])
        assert all(answer["env"] >= answer["tool"] > answer.get("sandbox", 0.0) for answer in answers)
        assert sum(answer["env"] for answer in (opening, *answers)) <= session.timings["env"] + 1e-3
        began = [session.started, *(node.timings["began"] for node in session.nodes), session.ended]
        assert began == sorted(began), "one after the other"
        stored = store.load(session.id)
        assert [node.timings for node in stored.nodes] == [node.timings for node in session.nodes]


@pytest.mark.slow
async def test_a_turn_in_several_attempts_has_the_time_of_all_of_them(tmp_path: Path) -> None:
    with Store(tmp_path / "s.db") as store:
        session = await played(store, Slow(end_weight=1.0, latency=0.005, chunk=2, abort=0.7, seed=3))
    cut = [node for node in session.nodes if len(node.versions) > 1]
    assert cut, "no turn was cut"
    for node in cut:
        attempts = len(node.versions)
        assert node.timings["generation"] > attempts * 0.01, "each attempt sleeps"
        assert node.timings["queue"] == 0.005, "that of the first attempt"


async def test_timings_survive_an_export_and_are_absent_from_rows_of_nodes_without_them(tmp_path: Path) -> None:
    with Store(tmp_path / "s.db") as store:
        session = await played(store, DiceEngine(end_weight=40.0))
    to_jsonl([session], tmp_path / "s.jsonl")
    (again,) = from_jsonl(tmp_path / "s.jsonl")
    assert [node.timings for node in again.nodes] == [node.timings for node in session.nodes]
    for node in session.nodes:
        row = node_row(replace(node, timings={}))
        assert "timings" not in str(row), "as stores had it before"
        assert (row[9] is None) == (not node.sampled)
