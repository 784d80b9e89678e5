"""MCP servers over both transports, and LangChain's tools, with the real packages."""

from __future__ import annotations

import asyncio
import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

import agentrl
from agentrl.envs import calls
from agentrl.envs.added_tools import with_tools
from agentrl.envs.episode import play
from agentrl.errors import ConfigError, InfraError, StateUnsupported
from agentrl.types import Message, Session, Status

HERE = Path(__file__).parent
SERVER = f"{shlex.quote(sys.executable)} {shlex.quote(str(HERE / 'server.py'))}"
STDIO = {"name": "mcp", "command": f"{SERVER} stdio", "start_timeout": 150}


class Counting(agentrl.Env):
    """Count to six with the tools that a run adds."""

    max_turns = 6

    def __init__(self) -> None:
        self.tools.timeout = 300.0  # a server starts within a call, which takes long on a busy machine

    def tasks(self, split: str = "train") -> list[dict[str, Any]]:
        return [{"id": split}]

    def reset(self, task: Any, *, seed: int | None = None) -> str:
        return "Count to six."

    @agentrl.reward
    def right(self, session: Any) -> float:
        return float(session.answer == "the count is 6")


def counts(env: agentrl.Env, messages: Sequence[Message]) -> Message:
    """Add 1, 2 and 3, and say the last answer."""
    if len(messages) < 7:
        return env.call("c__add", number=len(messages) // 2 + 1)
    return Message(role="assistant", content=messages[-1].text)


def children() -> int:
    return len(psutil.Process().children(recursive=True))


async def remaining(before: int) -> int:
    """The children, once those that were killed have ended too: on a busy machine the client does not wait for them."""
    for _ in range(600):
        if children() <= before:
            break
        await asyncio.sleep(0.1)
    return children()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, HERE / "server.py", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 150
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.1)
    yield f"http://127.0.0.1:{port}/mcp"
    process.terminate()
    process.wait(30)


async def fifty(make: Any, policy: Any, at_once: int = 10) -> list[Session]:
    """Fifty episodes, a few at a time."""
    task, slots = next(calls.tasks(make())), asyncio.Semaphore(at_once)

    async def one(seed: int) -> Session:
        async with slots:
            return await play(make(), task, policy, seed=seed)

    return await asyncio.gather(*map(one, range(50)))


async def answer(env: agentrl.Env, name: str, **arguments: Any) -> str:
    return (await calls.step(env, env.call(name, **arguments))).messages[0].text


async def test_each_episode_has_a_server_of_its_own_and_leaves_no_process() -> None:
    before = children()
    async with with_tools(Counting, {"c": STDIO}) as make:
        assert await remaining(before) <= before, "the server that listed the tools has ended"
        task = next(calls.tasks(make()))
        sessions = await asyncio.gather(*(play(make(), task, counts, seed=n) for n in range(2)))
        assert [session.score for session in sessions] == [1.0] * 2
        assert await remaining(before) <= before
        silent = make()
        await calls.reset(silent, task)
        await calls.close(silent)
        assert await remaining(before) <= before, "without a call no server is started"


async def test_fifty_episodes_share_one_server_that_has_no_state_to_keep_apart() -> None:
    before = children()
    async with with_tools(Counting, {"c": {**STDIO, "shared": True}}) as make:
        sessions = await fifty(make, counts)
        last = await answer(make(), "c__add", number=0)
    assert {session.status for session in sessions} == {Status.COMPLETED}
    assert last == "the count is 300"
    assert await remaining(before) <= before


async def test_fifty_episodes_over_http_beside_another_server_of_the_same_tools(url: str) -> None:
    http = {"name": "mcp", "url": url, "start_timeout": 150}
    configs = {"c": http, "d": {**http, "shared": True, "only": ["add"]}}
    async with with_tools(Counting, configs) as make:
        assert make().tools.names == ["c__add", "c__write", "c__fail_hard", "c__long", "c__end", "d__add"]
        sessions = await fifty(make, counts)
        assert {session.counters["tool_errors"] for session in sessions} == {0}
        assert {session.counters["tool_calls"] for session in sessions} == {3}


async def test_errors_of_a_tool_are_the_models_and_a_server_that_dies_is_the_infrastructures() -> None:
    async with with_tools(Counting, {"c": {**STDIO, "max_chars": 1000}}) as make:
        env = make()
        task = next(calls.tasks(env))
        await calls.reset(env, task)
        assert "it never works" in await answer(env, "c__fail_hard")
        assert (await answer(env, "c__add", number="many")).startswith("Error: ")
        assert (await answer(env, "c__add")).startswith("Error: ")
        assert "[… 4000 characters left out …]" in await answer(env, "c__long", characters=5000)
        with pytest.raises(StateUnsupported, match=r"tools\.c was called"):
            await calls.state(env)
        with pytest.raises(InfraError, match="has ended"):
            await answer(env, "c__end")
        with pytest.raises(InfraError, match="has ended"):
            await answer(env, "c__add", number=1)
        await calls.close(env)


async def test_a_server_that_does_not_start_says_why() -> None:
    for config, words in (
        ({"command": f"{SERVER} broken"}, "no configuration file"),
        ({"command": "no-such-program-anywhere"}, "no-such-program-anywhere"),
        ({"url": "http://127.0.0.1:9/mcp"}, "127.0.0.1:9"),
    ):
        with pytest.raises(ConfigError, match=words):
            async with with_tools(Counting, {"c": {"name": "mcp", "start_timeout": 150, **config}}):
                pass


LANGCHAIN = '''
from langchain_core.tools import StructuredTool, ToolException, tool


@tool
def multiply(a: int, b: int) -> int:
    """Multiply."""
    if b == 0:
        raise ToolException("by zero?")
    return a * b


async def _shout(text: str) -> str:
    return text.upper()


shout = StructuredTool.from_function(coroutine=_shout, name="shout", description="Say it loudly.")
both = [multiply, shout]
'''


async def test_langchains_tools_are_tools_by_their_import_path(tmp_path: Path) -> None:
    (tmp_path / "chain.py").write_text(LANGCHAIN)
    async with with_tools(
        Counting, {"times": f"{tmp_path}/chain.py:multiply", "l": f"{tmp_path}/chain.py:both"}
    ) as make:
        env = make()
        assert env.tools.names == ["times", "l__multiply", "l__shout"]
        described = next(iter(env.tools))
        assert described.description == "Multiply."
        assert set(described.parameters["properties"]) == {"a", "b"}
        assert await answer(env, "times", a=6, b=7) == "42"
        assert await answer(env, "l__shout", text="hey") == "HEY"
        assert await answer(env, "times", a=6, b=0) == "Error: by zero?"
        assert (await answer(env, "times", a="six", b=7)).startswith("Error: a: ")

        def policy(env: agentrl.Env, messages: Sequence[Message]) -> Message:
            last = len(messages) > 4
            return Message(role="assistant", content=messages[-1].text) if last else env.call("times", a=2, b=3)

        sessions = await fifty(make, policy)
    assert {session.answer for session in sessions} == {"6"}


async def test_each_episode_has_a_folder_and_a_name_of_its_own_where_the_settings_say_so() -> None:
    """What a server wrote to its folder was there in the next episode, though the docs promised it was not."""
    placed = {**STDIO, "command": f"{SERVER} stdio {{folder}}", "cwd": "{folder}", "env": {"NAME": "of {session}"}}
    seen = []
    async with with_tools(Counting, {"c": placed}) as make:
        for _ in range(2):
            env = make()
            files, of, session, folder = (await answer(env, "c__write", file="a", text="x")).split(" ")
            assert (files, of) == ("a", "of")
            assert "File exists" in await answer(env, "c__write", file="a", text="x")
            await calls.close(env)
            assert not os.path.exists(folder)  # noqa: ASYNC240
            seen.append((session, folder))
    assert len({*seen[0], *seen[1]}) == 4


async def test_a_call_after_the_episodes_end_starts_no_server() -> None:
    before = children()
    async with with_tools(Counting, {"c": STDIO}) as make:
        env = make()
        await calls.close(env)
        with pytest.raises(InfraError, match="was called after its episode's end"):
            await answer(env, "c__add", number=1)
        assert await remaining(before) <= before
