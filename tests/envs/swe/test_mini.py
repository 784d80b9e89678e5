"""mini-swe-agent from the package index, unchanged, repairs a built-in task through the gateway, and is trained on."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from agentrl.config import RolloutConfig
from agentrl.envs import calls
from agentrl.envs.builtin.swe import library
from agentrl.envs.builtin.swe.env import Swe
from agentrl.envs.builtin.swe.source import source_of
from agentrl.rollout.episodes.policies import Policy
from agentrl.rollout.episodes.programs import serving
from agentrl.sessions.store.store import Store
from agentrl.sessions.tree import tree
from agentrl.train.algorithms.advantages.grpo import Grpo
from agentrl.types import Group, Session, Status, Task
from tests.conftest import need
from tests.sessions.gateway.fakes import ScriptedEngine, assistant, in_turn, renderer

pytestmark = [pytest.mark.usefixtures("docker"), pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[3]
PYTHON = ROOT / ".venv-clients" / "bin" / "python"
PROGRAM = ROOT / "examples" / "mini_swe_agent" / "agent.py"


async def played(tmp_path: Path, steps: int | None) -> tuple[ScriptedEngine, Session]:
    need(PYTHON.exists(), "clients' environment .venv-clients (make clients)")
    env, task = Swe(tools="bash"), library.builtin()[0]
    session = Session(f"s{steps}", task.as_task(), group="g", seed=1)
    plan = source_of(task).expert(bash_only=True)
    chosen = plan if steps is None else [*plan[:steps], plan[-1]]
    engine = ScriptedEngine(in_turn(*(assistant("", None, [(name, json.dumps(given))]) for name, given in chosen)))
    limits = RolloutConfig(turn_tokens=50_000, session_tokens=200_000, timeout=170.0)
    with Store(tmp_path / "sessions.db") as store:
        async with serving(f"{PYTHON} {PROGRAM}", Policy(renderer(), engine), store, limits) as program:
            await program.play(env, session, limits)
    return engine, session


async def test_its_sessions_are_judged_in_a_sandbox_of_ours_and_pack_token_for_token(tmp_path: Path) -> None:
    need(importlib.util.find_spec("torch") is not None, "torch, of the extra train")
    from agentrl.train.forest.packing import pack

    sessions = []
    for steps, reward in ((None, 1.0), (1, 0.0)):
        engine, session = await played(tmp_path, steps)
        assert (session.status, session.reward) == (Status.COMPLETED, reward), session
        assert [node.parent for node in session.nodes] == [None, *range(len(session.nodes) - 1)]
        drawn = [[*call.input_ids, *call.turn.token_ids] for call in engine.calls if call.turn]
        assert drawn == [tree.path_ids(session, node.id) for node in session.nodes if node.sampled]
        sessions.append(session)
    group = Group("g", sessions[0].task, sessions)
    credit = Grpo().credit([group])
    forests = pack([group], credit, 100_000)
    distinct = set()  # a token is known by its path; what both sessions said at first is trained once
    for session in sessions:
        for node in session.nodes:
            path, own = tree.path_ids(session, node.id), len(node.token_ids)
            distinct |= {tuple(path[: len(path) - own + i + 1]) for i in range(own) if node.trainable[i]}
    assert sum(int((forest.weight > 0).sum()) for forest in forests) == len(distinct) > 0


async def test_it_is_given_neither_the_hidden_tests_nor_the_solution() -> None:
    task = library.builtin()[0].as_task()
    told = await told_of(task)
    assert set(told) == {"instruction", "container", "workdir", "steps", "seconds"}
    assert told["instruction"] == task["instruction"]


async def told_of(task: Task) -> dict[str, object]:
    env = Swe()
    try:
        await env.reset(task)
        return (await calls.brief(env, task)).data
    finally:
        await env.close()
