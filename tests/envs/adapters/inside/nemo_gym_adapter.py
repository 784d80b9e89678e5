"""Resources servers of NeMo Gym's own classes, in their own environment, against the rules of their tasks."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.envs import calls
from agentrl.envs.episode import play
from agentrl.envs.registry import factory
from agentrl.errors import ConfigError, EnvError, InfraError
from agentrl.types import Message, Session, Status

HERE = Path(__file__).parent
PYTHON = HERE.parents[3] / ".venv-adapters-nemo_gym" / "bin" / "python"
SECONDS = 150
EPISODES = 50
ADD = {
    "type": "function",
    "name": "add",
    "description": "Add to the count.",
    "parameters": {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]},
    "strict": True,
}
STOP = {**ADD, "name": "stop", "description": "Stop.", "parameters": {"type": "object", "properties": {}}}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with subprocess.Popen([PYTHON, HERE / "nemo_gym_server.py", str(port)]) as process:
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
        process.terminate()


def rows(path: Path, *, tools: bool, number: int = EPISODES) -> str:
    """Tasks in NeMo Gym's format: a request to the Responses API, and what the verifier reads."""
    made = []
    for n in range(number):
        asked = [
            {"role": "developer", "content": "Count."},
            {"role": "user", "content": [{"type": "input_text", "text": f"From {n} to {2 * n + 3}."}]},
        ]
        params = {"input": asked, "tools": [ADD, STOP] if tools else [], "parallel_tool_calls": False}
        made.append({"responses_create_params": params, "start": n, "wanted": str(2 * n + 3), "id": f"row {n}"})
    path.write_text("".join(f"{json.dumps(row)}\n" for row in made))
    return str(path)


async def test_fifty_episodes_at_once_have_the_rewards_of_their_own_sessions(url: str, tmp_path: Path) -> None:
    file = rows(tmp_path / "rows.jsonl", tools=True)
    make = factory(f"nemo_gym:{url}/counter", path=file, eval_path=rows(tmp_path / "eval.jsonl", tools=True))
    tasks = list(calls.tasks(make(), "train"))
    assert len(tasks) == EPISODES

    async def one(number: int, task: Any) -> float | None:
        right = random.Random(number).random() < 0.5
        missing = int(task["wanted"]) - task["start"]

        def policy(env: Any, messages: list[Message]) -> Message:
            said = sum(message.role == "assistant" for message in messages)
            steps = [missing - 1, 1 if right else 2]
            return env.call("add", number=steps[said]) if said < 2 else Message(role="assistant", content="Done.")

        session = await play(make(), task, policy)
        assert session.status is Status.COMPLETED
        assert session.info["nemo_gym"]["count"] == int(task["wanted"]) + (not right)
        assert session.score == right
        return session.score

    scores = await asyncio.gather(*(one(number, task) for number, task in enumerate(tasks)))
    assert {*scores} == {0.0, 1.0}


async def test_what_is_said_is_verified_and_roles_and_texts_are_those_of_the_row(url: str, tmp_path: Path) -> None:
    make = factory(f"nemo_gym:{url}/quiz", path=rows(tmp_path / "rows.jsonl", tools=False))
    task = next(iter(calls.tasks(make(), "train")))

    async def said(text: str) -> Session:
        return await play(make(), task, lambda env, messages: Message(role="assistant", content=text))

    session = await said(task["wanted"])
    assert (session.score, (await said("no")).score, (await said("")).score) == (1.0, 0.0, 0.0)
    assert [(node.message.role, node.message.text) for node in session.nodes][:2] == [
        ("developer", "Count."),
        ("user", f"From {task['start']} to {task['wanted']}."),
    ]


async def test_a_tools_complaint_is_the_models_to_read_and_done_ends_an_episode_where_that_is_set(
    url: str, tmp_path: Path
) -> None:
    file = rows(tmp_path / "rows.jsonl", tools=True)

    async def played(done: bool) -> Session:
        make = factory(f"nemo_gym:{url}/counter", path=file, done=done)
        task = next(iter(calls.tasks(make(), "train")))
        plan = [("add", {"number": "many"}), ("stop", {})]

        def policy(env: Any, messages: list[Message]) -> Message:
            at = sum(message.role == "assistant" for message in messages)
            return env.call(plan[at][0], **plan[at][1]) if at < len(plan) else Message(role="assistant", content=".")

        return await play(make(), task, policy)

    first, other = await played(True), await played(False)
    assert "int_parsing" in first.nodes[3].message.text
    assert (first.turns, other.turns) == (2, 3)


async def test_a_reward_that_is_no_measurement_is_the_infrastructures_fault(url: str, tmp_path: Path) -> None:
    make = factory(f"nemo_gym:{url}/broken", path=rows(tmp_path / "rows.jsonl", tools=False))
    task = next(iter(calls.tasks(make(), "train")))
    with pytest.raises(InfraError, match="the judge is gone"):
        await play(make(), task, lambda env, messages: Message(role="assistant", content="x"))


async def test_a_row_that_its_server_refuses_is_nobodys_session(url: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"responses_create_params": {"input": "Add."}, "start": 0}) + "\n")
    make = factory(f"nemo_gym:{url}/quiz", path=str(file), eval_path=rows(tmp_path / "eval.jsonl", tools=False))
    task = next(iter(calls.tasks(make(), "train")))
    with pytest.raises(EnvError, match=r"refuses the row of verify: .*wanted"):
        await play(make(), task, lambda env, messages: Message(role="assistant", content="x"))


def test_what_is_no_resources_server_and_what_is_no_row_are_named(url: str, tmp_path: Path) -> None:
    file = rows(tmp_path / "rows.jsonl", tools=False)
    with pytest.raises(ConfigError, match="no server answers"):
        factory("nemo_gym:http://127.0.0.1:9", path=file)()
    with pytest.raises(ConfigError, match="it lacks /seed_session, /verify"):
        factory(f"nemo_gym:{url}", path=file)()
    odd = tmp_path / "odd.jsonl"
    odd.write_text(json.dumps({"responses_create_params": {"input": [{"type": "image_generation_call"}]}}) + "\n")
    with pytest.raises(ConfigError, match=r"odd.jsonl.*image_generation_call"):
        list(calls.tasks(factory(f"nemo_gym:{url}/quiz", path=str(odd))()))
