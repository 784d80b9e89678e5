"""An OpenEnv server of the real library, in its own environment, against the rules of its game."""

from __future__ import annotations

import asyncio
import random
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

import agentrl
from agentrl.envs import calls
from agentrl.envs.episode import play
from agentrl.envs.registry import factory
from agentrl.errors import ConfigError, InfraError
from agentrl.types import Message, Session, Status

HERE = Path(__file__).parent
PYTHON = HERE.parents[3] / ".venv-adapters-openenv" / "bin" / "python"
SECONDS = 150

Serve = Callable[[str, int], tuple[str, subprocess.Popen[bytes]]]


@pytest.fixture(scope="module")
def serve() -> Iterator[Serve]:
    started: list[subprocess.Popen[bytes]] = []

    def start(kind: str, sessions: int) -> tuple[str, subprocess.Popen[bytes]]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        process = subprocess.Popen([PYTHON, HERE / "openenv_server.py", kind, str(port), str(sessions)])
        started.append(process)
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return f"http://127.0.0.1:{port}", process
            time.sleep(0.1)
        raise TimeoutError("the server did not start")

    yield start
    for process in started:
        process.terminate()
        process.wait(30)


def guesses(session: Session) -> list[int]:
    turns = [node.message for node in session.nodes if node.message.role == "assistant"]
    return [
        int("".join(filter(str.isdigit, turn.tool_calls[0].function.arguments))) for turn in turns if turn.tool_calls
    ]


async def test_fifty_episodes_of_ten_sessions_at_once_have_the_games_rewards(serve: Serve) -> None:
    url, process = serve("tools", 10)
    make = factory(f"openenv:{url}", timeout=SECONDS)
    (schema,) = make().tools.schemas()
    assert set(schema["function"]["parameters"]["properties"]) == {"number"}

    async def one(number: int, task: object) -> None:
        rng = random.Random(number)
        policy = lambda env, messages: env.call("act", number=rng.randrange(10))  # noqa: E731
        session = await play(make(), task, policy, max_turns=12)  # type: ignore[arg-type]
        secret, said = random.Random(task["seed"]).randrange(10), guesses(session)  # type: ignore[index]
        assert (session.status is Status.COMPLETED) == (secret in said)
        rewards = [node.reward for node in session.nodes if node.message.role == "assistant"]
        assert rewards == [1.0 if guess == secret else -0.1 for guess in said]
        shown = [node.message.text for node in session.nodes if node.message.role == "tool"]
        assert shown == ["Yes." if g == secret else "Higher." if g < secret else "Lower." for g in said]

    tasks = [task for task, _ in zip(calls.tasks(make()), range(50), strict=False)]
    await asyncio.gather(*(one(number, task) for number, task in enumerate(tasks)))

    env = make()
    await calls.reset(env, tasks[0])
    for arguments, words in (
        ({"number": 12}, "Error: no number from 0 to 9"),
        ({"number": "many"}, "Error: number: "),
        ({"nomber": 1}, "'nomber' is no argument: allowed: number"),
    ):
        result = await calls.step(env, env.call("act", **arguments))
        assert words in result.messages[0].text
        assert result.reward == 0.0
    silent = await calls.step(env, Message(role="assistant", content="seven"))
    assert "each turn is a call of the tool 'act'" in silent.messages[0].text
    process.terminate()
    process.wait(30)
    with pytest.raises(InfraError, match="has ended the session"):
        await calls.step(env, env.call("act", number=1))
    await calls.close(env)


async def test_an_action_of_one_text_is_the_turn_and_a_full_server_is_waited_for(serve: Serve) -> None:
    url, _ = serve("text", 1)
    make = factory(f"openenv:{url}", form="text", timeout=SECONDS, low=9)

    def policy(env: agentrl.Env, messages: Sequence[Message]) -> Message:
        return Message(role="assistant", content="9" if len(messages) > 1 else "nine")

    tasks = [task for task, _ in zip(calls.tasks(make()), range(3), strict=False)]
    sessions = await asyncio.gather(*(play(make(), task, policy) for task in tasks))
    assert [session.score for session in sessions] == [1.0] * 3
    assert all("Error: invalid literal for int" in session.nodes[2].message.text for session in sessions)
    held, waiting = make(), agentrl.make(f"openenv:{url}", form="text", timeout=1.0)
    await calls.reset(held, tasks[0])
    with pytest.raises(InfraError, match=r"as many as it takes: set rollout\.concurrency"):
        await calls.reset(waiting, tasks[0])
    await calls.close(held)
    with pytest.raises(ConfigError, match="an action of one text"):
        agentrl.make(f"openenv:{serve('tools', 1)[0]}", form="text")


def test_an_address_without_a_server_is_named() -> None:
    with pytest.raises(ConfigError, match=r"no OpenEnv server answers http://127\.0\.0\.1:9/schema"):
        agentrl.make("openenv:http://127.0.0.1:9")
