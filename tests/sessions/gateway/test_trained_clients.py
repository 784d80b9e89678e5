"""Clients are trained for a step, unchanged: one run, in whose group each session is another client's.

Those that CI has are in one run. Coding agents and SDKs whose prompts are tens of thousands of characters long are in
another, where `make clients-all` has made their environments.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import agentrl
from agentrl.models import tiny
from agentrl.sessions.store.store import Store
from agentrl.train.driver.lost_tokens import Cause
from agentrl.train.record.verify import verify
from agentrl.types import Session
from tests.sessions.gateway.programs import QUIET, ROOT, opencode, qwen, script

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
Command = Callable[[Path], Sequence[str | Path]]
CLIENTS = [
    ("ai_sdk", "ai_sdk_client.mjs", "responses"),
    ("strands", "strands_client.py", "chat"),
    ("own", "tool_runner_client.py", "messages"),
    ("google_genai", "google_genai_client.py", "stream"),
    ("", "agents_sdk.py", "chat"),
    ("", "langchain_client.py", "responses"),
    ("", "litellm_client.py", "messages"),
    ("", "mini_swe_agent.py", "chat"),
    ("pydantic_ai", "pydantic_ai_client.py", "messages"),
    ("instructor", "instructor_client.py", "chat"),
    ("haystack", "haystack_client.py", "responses"),
    ("mirascope", "mirascope_client.py", "chat"),
]
"""Environment, program, and what it speaks, one of each protocol first; several send temperature 0, top-p and the same
seed in every session."""
DRAWN = {"temperature", "top_p", "seed"}
SHORT = 200
"""Tokens of a turn behind a long prompt, at most."""
HEAVY: dict[str, tuple[Command, str, set[str]]] = {
    "opencode": (lambda home: [*opencode(home, SHORT), "Work."], "chat", {"temperature", "top_p"}),
    "Qwen Code": (lambda home: [*qwen(home, SHORT), "-p", "Work."], "chat", DRAWN),
    "aider": (partial(script, "aider", "aider_client.py"), "chat", DRAWN),
    "claude-agent-sdk": (partial(script, "claude_agent_sdk", "claude_agent_sdk_client.py"), "messages", set()),
    "openhands-sdk": (partial(script, "openhands", "openhands_client.py"), "chat", {"seed"}),
}
"""The command in a home, what it speaks, and what it sends of sampling: all that it lets be set."""
CONTEXT = 32_768
"""Qwen Code's prompt has 27,000 tokens of the model below, opencode's 10,500, openhands-sdk's 6,500, others less."""
AGENT = """
import asyncio
import contextlib
import itertools
import json
import os
import signal
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
    files = {"stdin": quiet, "stdout": quiet, "stderr": quiet, "start_new_session": True}
    process = await asyncio.create_subprocess_exec(*command, env=env, cwd=home, **files)
    with contextlib.suppress(TimeoutError, ProcessLookupError):
        try:
            async with asyncio.timeout(300):
                await process.wait()  # what it makes of random words is its own business
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    await client.post(f"{root}/reward", body={"name": "number", "value": number}, cast_to=object)
    await client.post(f"{root}/reward", body={"value": number % 2}, cast_to=object)
"""


def prepare(tmp_path: Path, clients: Sequence[tuple[Command, str]], **more: str) -> None:
    """Write the run's agent, whose n-th session is played by the n-th client, with `more` in its environment."""
    commands = []
    for number, (command, speak) in enumerate(clients):
        home = tmp_path / f"home{number}"
        home.mkdir()
        commands.append(([*map(str, command(home))], speak, str(home)))
    (tmp_path / "commands.json").write_text(json.dumps(commands))
    (tmp_path / "quiet.json").write_text(json.dumps(QUIET | more))
    (tmp_path / "agent.py").write_text(AGENT)


def trained(tmp_path: Path, count: int, **settings: Any) -> list[Session]:
    """The sessions of a step, by their client; every one was trained, on the turns that the engine drew."""
    run = tmp_path / "run"
    fixed: dict[str, Any] = {
        **{"steps": 1, "eval.tasks": 1},
        **{"warm_start.steps": 8, "warm_start.batch": 4, "warm_start.demos": 32},  # enough for turns that end
        **{"rollout.groups_per_step": 1, "rollout.group_size": count, "rollout.concurrency": 2},
    }
    result = agentrl.train(
        "calculator",
        agent=f"{tmp_path / 'agent.py'}:agent",
        run_dir=str(run),
        **fixed,
        **settings,
    )
    (row,) = result.metrics
    with Store(run / "sessions.db", read_only=True) as store:
        sessions = sorted(store.sessions(phase="train"), key=lambda session: session.rewards["number"])
    assert [session.rewards["number"] for session in sessions] == [*range(count)]
    for number, session in enumerate(sessions):
        turns = [node for node in session.nodes if node.sampled]
        assert any(any(node.trainable) for node in turns), number
        assert {node.sampling.temperature for node in turns if node.sampling} == {1.0}, number
    assert row[Cause.FLAT.metric] == 0
    assert row["mismatch/abs_max"] < 1e-3  # the trainer's own log-probability of each token on the stored path
    assert [check for check in verify(run).checks if check.faults] == []
    return sessions


def ignored(session: Session) -> set[str]:
    """What was ignored of a session's requests."""
    return {name.removeprefix("gateway/ignored/") for name in session.counters}


@pytest.mark.parametrize("chosen", [CLIENTS[:4], CLIENTS], ids=["a client of each protocol", "all clients"])
def test_a_run_trains_each_client_for_a_step(tmp_path: Path, chosen: Sequence[tuple[str, str, str]]) -> None:
    clients: list[tuple[Command, str]] = [
        (partial(script, environment, program), speak) for environment, program, speak in chosen
    ]
    prepare(tmp_path, clients)
    room = {"rollout.session_tokens": 3000, "rollout.context_tokens": 1500}
    sessions = trained(tmp_path, len(clients), model="tiny", **room)
    assert set().union(*map(ignored, sessions)) >= DRAWN
    assert sum(session.counters.get("gateway/clean", 0) for session in sessions) > 0


def test_a_run_trains_each_client_with_a_long_prompt_for_a_step(tmp_path: Path) -> None:
    short = dict.fromkeys(("MAX_TOKENS", "CLAUDE_CODE_MAX_OUTPUT_TOKENS"), str(SHORT))
    prepare(tmp_path, [(command, speak) for command, speak, _ in HEAVY.values()], **short)
    shape = tiny.TinyShape(vocab=4096, layers=1, width=64, mlp=128, context=CONTEXT)
    texts = [page.read_text() for page in sorted((ROOT / "docs").glob("*.md"))]  # English, Markdown and code
    model = tiny.build(tmp_path / "model", texts, shape=shape)
    room = {"rollout.session_tokens": 3 * CONTEXT, "rollout.turn_timeout": 280}
    sessions = trained(tmp_path, len(HEAVY), model=str(model), **room)
    for session, (name, (_, _, sent)) in zip(sessions, HEAVY.items(), strict=True):
        assert ignored(session) >= sent, name
