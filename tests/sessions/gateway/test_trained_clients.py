"""Every installed client is trained for a step, unchanged: one run, in whose group each session is another client's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import agentrl
from agentrl.sessions.store import Store
from agentrl.train.lost_tokens import Cause
from agentrl.train.verify import verify
from tests.sessions.gateway.programs import QUIET, script

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
CLIENTS = [
    ("", "agents_sdk.py", "chat"),
    ("", "langchain_client.py", "responses"),
    ("", "litellm_client.py", "messages"),
    ("", "mini_swe_agent.py", "chat"),
    ("ai_sdk", "ai_sdk_client.mjs", "responses"),
    ("instructor", "instructor_client.py", "chat"),
    ("pydantic_ai", "pydantic_ai_client.py", "messages"),
    ("google_genai", "google_genai_client.py", "stream"),
    ("strands", "strands_client.py", "chat"),
    ("haystack", "haystack_client.py", "responses"),
    ("mirascope", "mirascope_client.py", "chat"),
    ("own", "tool_runner_client.py", "messages"),
]
"""Environment, program, and what it speaks; several send temperature 0, top-p and the same seed in every session."""
AGENT = """
import asyncio
import itertools
import json
import os
from pathlib import Path

here = Path(__file__).parent
commands = json.loads((here / "commands.json").read_text())
numbers = itertools.count(-1)  # of the session before training, which is evaluated


async def agent(task, client):
    number = next(numbers)
    if number not in range(len(commands)):
        await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
        return
    command, speak, home = commands[number]
    base, key = str(client.base_url).rstrip("/"), client.api_key
    root = base.removesuffix("/v1")
    env = {
        **json.loads((here / "quiet.json").read_text()),
        **{"PATH": os.environ["PATH"], "HOME": home, "SPEAK": speak},
        **{"OPENAI_BASE_URL": base, "OPENAI_API_KEY": key, "ANTHROPIC_BASE_URL": root, "ANTHROPIC_API_KEY": key},
        **{"GOOGLE_GEMINI_BASE_URL": root, "GEMINI_API_KEY": key},
    }
    quiet = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(*command, env=env, cwd=home, stdin=quiet, stdout=quiet, stderr=quiet)
    await process.wait()  # what it makes of random words is its own business
    await client.post(f"{root}/reward", body={"name": "number", "value": number}, cast_to=object)
    await client.post(f"{root}/reward", body={"value": number % 2}, cast_to=object)
"""


def test_a_run_trains_each_client_for_a_step(tmp_path: Path) -> None:
    commands = []
    for number, (environment, program, speak) in enumerate(CLIENTS):
        home = tmp_path / f"home{number}"
        home.mkdir()
        commands.append(([*map(str, script(environment, program, home))], speak, str(home)))
    (tmp_path / "commands.json").write_text(json.dumps(commands))
    (tmp_path / "quiet.json").write_text(json.dumps(QUIET))
    (tmp_path / "agent.py").write_text(AGENT)
    run = tmp_path / "run"
    result = agentrl.train(
        "calculator",
        agent=f"{tmp_path / 'agent.py'}:agent",
        run_dir=str(run),
        **{"model": "tiny", "steps": 1, "eval.tasks": 1},
        **{"warm_start.steps": 8, "warm_start.batch": 4, "warm_start.demos": 32},  # enough for turns that end
        **{"rollout.groups_per_step": 1, "rollout.group_size": len(CLIENTS), "rollout.concurrency": 2},
        **{"rollout.session_tokens": 3000, "rollout.context_tokens": 1500},
    )
    (row,) = result.metrics
    with Store(run / "sessions.db", read_only=True) as store:
        sessions = list(store.sessions(phase="train"))
    assert sorted(session.rewards["number"] for session in sessions) == [*range(len(CLIENTS))]
    for session in sessions:
        turns = [node for node in session.nodes if node.sampled]
        client = CLIENTS[int(session.rewards["number"])]
        assert any(any(node.trainable) for node in turns), client
        assert {node.sampling.temperature for node in turns if node.sampling} == {1.0}, client
    ignored = {name.removeprefix("gateway/ignored/") for session in sessions for name in session.counters}
    assert {"temperature", "top_p", "seed"} <= ignored
    assert sum(session.counters.get("gateway/clean", 0) for session in sessions) > 0
    assert row[Cause.FLAT.metric] == 0
    assert [check for check in verify(run).checks if check.faults] == []
