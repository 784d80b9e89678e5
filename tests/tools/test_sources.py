"""Tools by configuration: names, limits and faults of any source; functions; a real HTTP service by its document."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
import uvicorn
from fastapi import FastAPI, Header, HTTPException, Query
from pydantic import BaseModel

import agentrl
from agentrl.envs import calls
from agentrl.envs.added_tools import with_tools
from agentrl.envs.episode import play
from agentrl.errors import ConfigError, DeadlineExceeded, InfraError, StateUnsupported, UnknownName
from agentrl.overrides import validate
from agentrl.tools import Tool
from agentrl.tools.sources import NamedSource, OpenTools, ToolSource, started
from agentrl.types import Message, ToolCall


class Shop(agentrl.Env):
    """An environment with a tool of its own."""

    def tasks(self, split: str = "train") -> list[dict[str, Any]]:
        return [{"id": f"{split}-{n}"} for n in range(3)]

    def reset(self, task: Any, *, seed: int | None = None) -> str:
        return "Buy."

    @agentrl.tool(quick=True)
    def price(self, item: str) -> int:
        """The price of an item."""
        return len(item)

    @agentrl.reward
    def bought(self, session: Any) -> float:
        return 1.0


def written(folder: Path, code: str, name: str = "tools.py") -> str:
    (folder / name).write_text(code)
    return str(folder / name)


async def answer(env: agentrl.Env, name: str, /, **arguments: Any) -> str:
    return (await calls.step(env, env.call(name, **arguments))).messages[0].text


FUNCTIONS = '''
from agentrl.tools import tool

def add(a: int, b: int = 1) -> int:
    """Add.

    Args:
        a: the first.
    """
    return a + b

@tool(name="twice")
async def double(text: str) -> str:
    """Say it twice."""
    return text * 2

def long(n: int) -> str:
    """Long."""
    return "x" * n

both = [add, double]
'''


async def test_a_function_with_type_hints_and_a_list_of_them_are_tools_of_any_environment(tmp_path: Path) -> None:
    file = written(tmp_path, FUNCTIONS)
    configs = {"plus": f"{file}:add", "more": f"{file}:both", "much": {"name": f"{file}:long", "max_chars": 100}}
    async with with_tools(Shop, configs) as make:
        env = make()
        assert env.tools.names == ["price", "plus", "more__add", "more__twice", "much"]
        described = next(tool for tool in env.tools if tool.name == "plus").parameters
        assert described["properties"]["a"] == {"description": "the first.", "type": "integer"}
        assert described["required"] == ["a"]
        assert await answer(env, "plus", a=2, b=3) == "5"
        assert await answer(env, "more__twice", text="ab") == "abab"
        assert await answer(env, "price", item="tea") == "3"
        assert await answer(env, "plus", a="x") == (
            "Error: a = 'x': input should be a valid integer, unable to parse string as an integer"
        )
        assert "[… 900 characters left out …]" in await answer(env, "much", n=1000)
        await calls.close(env)


async def test_every_way_of_taking_another_instance_has_the_tools(tmp_path: Path) -> None:
    """Forks are made by the class, and a mixture's parts by the mixture: neither calls the function that adds tools."""
    agentrl.register("shop-with-tools", Shop)
    configs = {"plus": f"{written(tmp_path, FUNCTIONS)}:add"}
    async with with_tools(lambda: agentrl.make("mixture", **{"shop-with-tools": 1, "calculator": 1}), configs) as make:
        mixture = make()
        names = [mixture.for_task(task).tools.names for task, _ in zip(calls.tasks(mixture), range(2), strict=False)]
        assert all("plus" in each for each in names)
        assert names[0] != names[1]
    async with with_tools(lambda: agentrl.make("calculator"), configs) as make:
        env = make()
        await calls.reset(env, next(calls.tasks(env)))
        other = await calls.fork(env)
        assert other.tools.names == env.tools.names
        assert await answer(other, "plus", a=2) == "3"


@pytest.mark.parametrize(
    ("configs", "error", "words"),
    [
        ({"price": "{file}:add"}, ConfigError, "tools.price: two tools are called 'price'"),
        ({"x": "{file}:missing"}, UnknownName, "there is no 'missing'"),
        ({"x": {"name": "{file}:both", "only": ["ad"]}}, ConfigError, "there is no tool 'ad'; did you mean 'add'?"),
        ({"x": {"name": "{file}:add", "timeot": 3}}, ConfigError, r"tools\.x\.timeot"),
        ({"a__b": "{file}:add"}, ConfigError, "a__b"),
        ({"x": "mcp"}, ConfigError, "either a `command` or a `url`"),
        ({"x": {"name": "mcp", "url": "http://h/{folder}"}}, ConfigError, "a folder of this machine, for a `command`"),
        ({"x": {"name": "openapi", "document": "nowhere.yaml"}}, ConfigError, "'nowhere.yaml' can't be read"),
        ({"x": {"name": "openapi", "document": "{file}"}}, ConfigError, "tools.py"),
        ({"x": {"name": "no-source"}}, UnknownName, "unknown source of tools 'no-source'"),
        ({"x" * 70: "{file}:add"}, ConfigError, "longer than 64 characters"),
    ],
)
async def test_what_is_wrong_is_named(tmp_path: Path, configs: Any, error: type[Exception], words: str) -> None:
    file = written(tmp_path, FUNCTIONS)
    filled = json.loads(json.dumps(configs).replace("{file}", file))
    with pytest.raises(error, match=words):
        async with with_tools(Shop, filled):
            pass


async def noted(arguments: dict[str, Any], _: Any) -> str:
    return "done"


class Odd(ToolSource):
    """A source that says what a test wants."""

    listed: tuple[str, ...] = ("do it", "do-it")
    seconds = 0.0
    closed = 0

    async def start(self) -> list[Tool]:
        await asyncio.sleep(self.seconds)
        return [Tool(name, "x", {"type": "object", "properties": {}}, noted) for name in self.listed]

    def open(self, tools: Any) -> OpenTools:
        return OpenTools(tools, self._note, lambda: True)

    async def _note(self) -> None:
        type(self).closed += 1


async def test_sources_with_the_same_tools_do_not_clash_and_names_fit_what_engines_take() -> None:
    from agentrl.tools.sources import SOURCES

    SOURCES.register("odd", Odd)
    async with started({"a": "odd", "b": "odd"}) as sources:
        names = [name for source in sources for name in source.names.values()]
        assert names == ["a__do_it", "a__do-it", "b__do_it", "b__do-it"]
    SOURCES.register("twins", type("Twins", (Odd,), {"listed": ("a b", "a.b")}))
    with pytest.raises(ConfigError, match="two of its tools would be called 'x__a_b'"):
        async with started({"x": "twins"}):
            pass
    SOURCES.register("slow", type("Slow", (Odd,), {"seconds": 30.0}))
    with pytest.raises(DeadlineExceeded, match=r"did not start within 0\.05 s \(tools\.x\.start_timeout\)"):
        async with started({"x": {"name": "slow", "start_timeout": 0.05}}):
            pass


async def test_tools_with_a_state_are_closed_with_each_episode_and_refuse_to_be_saved() -> None:
    from agentrl.tools.sources import SOURCES

    SOURCES.register("odd", Odd)
    Odd.closed = 0
    async with with_tools(lambda: agentrl.make("calculator"), {"a": "odd"}) as make:
        env = make()
        await calls.reset(env, next(calls.tasks(env)))
        for refused in (calls.state, calls.fork):
            with pytest.raises(StateUnsupported, match=r"tools\.a was called, and its server's state can't be saved"):
                await refused(env)
        await calls.close(env)
        assert Odd.closed == 1


def test_settings_of_a_run_name_them_and_keep_secrets_out_of_errors() -> None:
    from agentrl.config import RunConfig

    tree = {"env": "calculator", "tools": {"files": {"name": "mcp", "command": "server --root .", "shared": True}}}
    config = validate(tree, RunConfig)
    assert config.tools["files"].shared is True  # type: ignore[attr-defined]
    assert config.model_dump()["tools"]["files"]["command"] == "server --root ."


def test_an_mcp_servers_placeholders_are_filled_and_other_braces_stay() -> None:
    from agentrl.tools.sources.mcp import McpConfig

    settings = {
        "command": "serve --root '{folder}/a b' --as {session}",
        "cwd": "{folder}",
        "env": {"A": '{"x": 1}{session}'},
    }
    config = validate({"name": "mcp", **settings}, McpConfig)
    assert config.arguments("/tmp/a b", "s") == ["serve", "--root", "/tmp/a b/a b", "--as", "s"]
    filled = config.filled("/tmp/a b", "s")
    assert (filled.cwd, filled.env) == ("/tmp/a b", {"A": '{"x": 1}s'})
    remote = validate({"name": "mcp", "url": "http://h/{session}", "headers": {"x": "{session}"}}, McpConfig)
    assert (remote.filled("", "s").url, remote.filled("", "s").headers) == ("http://h/s", {"x": "s"})


# ---------------------------------------------------------------------- OpenAPI

service = FastAPI()


class Item(BaseModel):
    name: str
    price: float = 1.0
    parts: list[Item] = []


@service.get("/items/{item}", operation_id="look_up")
def look_up(item: str, tags: Annotated[list[str] | None, Query()] = None, x_shop: Annotated[str, Header()] = "") -> Any:
    """Look an item up."""
    if item == "nothing":
        raise HTTPException(404, "there is no such item")
    if item == "busy":
        raise HTTPException(503, "later")
    return {"item": item, "tags": tags, "shop": x_shop}


@service.post("/items")
def create(item: Item, dry: bool = False) -> Any:
    """Create one."""
    return {"made": item.name, "price": item.price, "dry": dry}


@service.get("/long")
def long() -> str:
    return "y" * 50_000


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server = uvicorn.Server(uvicorn.Config(service, port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 30
    while not server.started and time.monotonic() < deadline:
        time.sleep(0.02)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join(10)


async def test_the_operations_of_a_service_are_tools_by_its_own_document(address: str) -> None:
    config = {"name": "openapi", "document": f"{address}/openapi.json", "url": address, "headers": {"x-shop": "north"}}
    async with with_tools(Shop, {"shop": config}) as make:
        env = make()
        assert env.tools.names == ["price", "shop__look_up", "shop__create_items_post", "shop__long_long_get"]
        found = json.loads(await answer(env, "shop__look_up", item="a b?#%2e", tags=["x", "y"]))
        assert found == {"item": "a b?#%2e", "tags": ["x", "y"], "shop": "north"}
        made = json.loads(await answer(env, "shop__create_items_post", name="tea", price=2, dry=True))
        assert made == {"made": "tea", "price": 2.0, "dry": True}
        assert await answer(env, "shop__look_up", item="nothing") == (
            'Error: the service answered 404: {"detail":"there is no such item"}'
        )
        assert "422" in await answer(env, "shop__create_items_post", name="tea", price="much")
        assert "name: missing" in await answer(env, "shop__create_items_post", price=2)
        assert "colour: not known" in await answer(env, "shop__look_up", item="a", colour=2)
        assert "characters left out" in await answer(env, "shop__long_long_get")
        for escape in ("..", ".", ""):
            assert "allowed: text that is not empty" in await answer(env, "shop__look_up", item=escape)
        with pytest.raises(InfraError, match="503"):
            await answer(env, "shop__look_up", item="busy")


@pytest.mark.slow
async def test_fifty_episodes_call_the_service(address: str) -> None:
    config = {"name": "openapi", "document": f"{address}/openapi.json", "url": address}

    def policy(env: agentrl.Env, messages: Any) -> Message:
        if len(messages) > 4:
            return Message(role="assistant", content="done")
        return env.call("shop__look_up", item=f"item {len(messages)}")

    async with with_tools(Shop, {"shop": config}) as make:
        tasks = list(calls.tasks(make()))
        sessions = await asyncio.gather(*(play(make(), tasks[0], policy, seed=n) for n in range(50)))
    assert {session.counters["tool_calls"] for session in sessions} == {2}
    assert {session.counters["tool_errors"] for session in sessions} == {0}


async def test_a_service_that_is_gone_is_no_mistake_of_the_models(tmp_path: Path) -> None:
    document = {
        "openapi": "3.1.0",
        "servers": [{"url": "http://127.0.0.1:9"}],
        "paths": {"/x": {"get": {"operationId": "x", "parameters": [{"$ref": "#/components/parameters/q"}]}}},
        "components": {"parameters": {"q": {"name": "q", "in": "query", "schema": {"type": "string"}}}},
    }
    file = written(tmp_path, json.dumps(document), "service.json")
    async with started({"x": {"name": "openapi", "document": file}}) as (source,):
        assert isinstance(source, NamedSource)
        (tool,) = source.open().tools
        assert tool.parameters["properties"] == {"q": {"type": "string"}}
        with pytest.raises(InfraError, match="GET /x"):
            await tool.invoke({"q": "1"}, None)
    broken = written(tmp_path, json.dumps({**document, "components": {}}), "broken.json")
    with pytest.raises(ConfigError, match="refers to '#/components/parameters/q', which it does not hold"):
        async with started({"x": {"name": "openapi", "document": broken}}):
            pass


def test_a_malformed_call_is_answered_as_with_any_tool() -> None:
    env = Shop()
    call = ToolCall(id="1", function=agentrl.types.FunctionCall(name="price"), error="no JSON")
    message = asyncio.run(env.tools.run(call))
    assert message.text == "Error: no JSON"
