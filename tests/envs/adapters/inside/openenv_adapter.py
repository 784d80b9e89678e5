"""An OpenEnv server of the real library, in its own environment, against the rules of its game."""

from __future__ import annotations

import asyncio
import random
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import websockets
from websockets.asyncio.server import ServerConnection
from websockets.http11 import Request, Response

import agentrl
from agentrl.envs import calls
from agentrl.envs.episode import DEMONSTRATOR, play
from agentrl.envs.registry import factory
from agentrl.errors import AgentRLError, Blame, ConfigError, InfraError
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

    shown = await play(make(), next(calls.tasks(make())), DEMONSTRATOR, max_turns=8)
    assert len({*guesses(shown)}) > 1, "a warm start has calls to imitate, which fit the schema"
    assert not any("validation" in node.message.text for node in shown.nodes)

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
    held, told = make(), ""
    await calls.reset(held, tasks[0])
    for seconds in (1.0, 20.0):  # a busy machine is late to refuse
        with pytest.raises(InfraError) as refused:
            await calls.reset(agentrl.make(f"openenv:{url}", form="text", timeout=seconds), tasks[0])
        told = str(refused.value)
        if "as many as it takes" in told:
            break
    assert "as many as it takes: set rollout.concurrency" in told
    await calls.close(held)
    with pytest.raises(ConfigError, match="an action of one text"):
        agentrl.make(f"openenv:{serve('tools', 1)[0]}", form="text")


@asynccontextmanager
async def answering(*answers: str, properties: str = '{"word": {"type": "string"}}') -> AsyncIterator[str]:
    """The address of a server that answers each session's requests with these, whatever was asked."""

    async def serve_session(connection: ServerConnection) -> None:
        for answer in answers:
            await connection.recv()
            if answer == SLOW:
                await asyncio.sleep(0.3)
            await connection.send(ANSWERED if answer == SLOW else answer)
        await connection.wait_closed()

    def about(connection: ServerConnection, request: Request) -> Response | None:
        if request.path == "/ws":
            return None
        return connection.respond(200, f'{{"action": {{"properties": {properties}}}}}')

    async with websockets.serve(serve_session, "127.0.0.1", 0, process_request=about) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


SLOW = "slow"
BEGUN = '{"type": "observation", "data": {"observation": "begun", "done": false}}'
ANSWERED = '{"type": "observation", "data": {"observation": "answered", "reward": 1, "done": false}}'
ODD = {
    "nests": "[" * 5000,
    "a reward that is text": '{"type": "observation", "data": {"observation": "", "reward": "one"}}',
    "a reward without end": '{"type": "observation", "data": {"observation": "", "reward": 1e999}}',
    "a reward of 400 digits": f'{{"type": "observation", "data": {{"observation": "", "reward": {"9" * 400}}}}}',
}


@pytest.mark.parametrize("form", ["text", "tools"])
@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
async def test_what_a_server_should_not_answer_is_its_fault_and_ends_no_run(odd: str, form: str) -> None:
    """The error was taken for one of the environment's code, or told to the model as if it were the model's."""
    async with answering(BEGUN, odd) as url:
        env = await asyncio.to_thread(agentrl.make, f"openenv:{url}", form=form)
        await calls.reset(env, next(calls.tasks(env)))
        action = Message(role="assistant", content="x") if form == "text" else env.call("act", word="x")
        with pytest.raises(AgentRLError) as caught:
            await calls.step(env, action)
        assert caught.value.blame is Blame.INFRA
        await calls.close(env)


@pytest.mark.parametrize(
    "odd",
    [
        "[" * 5000,
        '{"type": "error", "data": {"code": "VALIDATION_ERROR", "errors": 3}}',
        '{"type": "error", "data": {"code": "VALIDATION_ERROR", "errors": [3, {"loc": 3}]}}',
    ],
    ids=["nests", "no list", "no errors"],
)
async def test_an_odd_answer_to_a_reset_is_the_servers_fault(odd: str) -> None:
    async with answering(odd) as url:
        env = await asyncio.to_thread(agentrl.make, f"openenv:{url}", form="text")
        with pytest.raises(InfraError):
            await calls.reset(env, next(calls.tasks(env)))
        await calls.close(env)


async def test_an_odd_observation_is_shown_as_it_is() -> None:
    odd = '{"type": "observation", "data": {"observation": {"result": {"content": 5}}}}'
    async with answering(odd) as url:
        env = await asyncio.to_thread(agentrl.make, f"openenv:{url}", form="text")
        (opening,) = await calls.reset(env, next(calls.tasks(env)))
        assert opening.text == '{"result": {"content": 5}}'
        await calls.close(env)


async def test_an_observation_that_nests_as_deeply_as_can_be_read_can_also_be_shown() -> None:
    for depth in range(880, 990, 10):
        deep = f'{{"type": "observation", "data": {{"observation": {"[" * depth + "]" * depth}}}}}'
        async with answering(deep) as url:
            env = await asyncio.to_thread(agentrl.make, f"openenv:{url}", form="text")
            with suppress(InfraError):  # where it can't be read
                (opening,) = await calls.reset(env, next(calls.tasks(env)))
                assert "nested deeper than" in opening.text
            await calls.close(env)


async def test_an_answer_that_came_after_its_calls_deadline_is_not_the_next_ones() -> None:
    """It was: from then on each action got the observation and the reward of the one before it."""
    async with answering(BEGUN, SLOW, ANSWERED) as url:
        env = await asyncio.to_thread(agentrl.make, f"openenv:{url}")
        await calls.reset(env, next(calls.tasks(env)))
        env.tools.timeout = 0.05
        late = await calls.step(env, env.call("act", word="first"))
        assert "took longer than" in late.messages[0].text
        await asyncio.sleep(0.5)
        with pytest.raises(InfraError, match="has not answered the request before"):
            await calls.step(env, env.call("act", word="second"))
        await calls.reset(env, next(calls.tasks(env)))
        await calls.close(env)


def test_an_address_without_a_server_is_named() -> None:
    with pytest.raises(ConfigError, match=r"no OpenEnv server answers http://127\.0\.0\.1:9/schema"):
        agentrl.make("openenv:http://127.0.0.1:9")
