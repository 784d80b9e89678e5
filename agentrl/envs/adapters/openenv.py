"""`env=openenv:http://HOST:PORT`: an environment that an OpenEnv server runs.

The protocol is OpenEnv's: `GET /schema` describes actions, and each WebSocket connection to `/ws` is a session with an
environment of its own, that is sent `reset` and `step` and answers with observation, reward and whether it is done. It
is spoken here directly, so that the server's packages and ours never meet. An action is a call of the tool `act`, whose
arguments have the action's JSON schema, or the turn's text (`env.form=text`). An environment of MCP tools shows its
tools.

The server is not trusted with more than the episode: what it answers is bounded, read as data, and waited for with a
deadline. An action that it refuses or fails at is the model's to read; a server that is gone is an infrastructure
error.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from itertools import repeat
from typing import Any, Literal

import httpx

from agentrl.common.imports import load
from agentrl.common.retries import before, retry
from agentrl.common.untrusted import read_json, safe_json
from agentrl.envs.adapters import library
from agentrl.envs.adapters.seeded import ActionEnv, say
from agentrl.envs.base import reward_value
from agentrl.envs.context import context_of
from agentrl.envs.data.samples import random_call, words_of
from agentrl.errors import ConfigError, DeadlineExceeded, InfraError, ToolArguments, ToolError
from agentrl.tools.registry import MAX_RESULT_CHARS, cut
from agentrl.tools.schema import show_value
from agentrl.tools.tool import Tool
from agentrl.types import Message, StepResult, Task

EXTRA = "openenv"
ACT = "act"
MCP = {"tool_name", "arguments"}
"""Fields by which the action of an environment of MCP tools is known."""
LIST_TOOLS = {"type": "list_tools"}
MAX_BYTES = 2**26
"""Of one message of the server."""
POLL_SECONDS = 0.25
CLOSE_SECONDS = 5.0
Json = dict[str, Any]


class OpenEnv(ActionEnv):
    """An environment that an OpenEnv server runs, as in env=openenv:http://127.0.0.1:8000; see docs/adapters.md."""

    needs = "a running OpenEnv server"

    def __init__(
        self,
        source: str,
        form: Literal["tools", "text"] = "tools",
        renderer: str | None = None,
        prompt: str = "",
        episodes: int = 1000,
        idle_reward: float = 0.0,
        returns: tuple[float, float] = (float("-inf"), float("inf")),
        timeout: float = 60.0,
        **options: Any,
    ) -> None:
        """Ask the server what its actions are.

        Args:
            source: the server's address.
            form: `tools`, an action is a call of the tool `act`; `text`, it is the turn's text.
            renderer: path/to/file.py:function of the observation, a mapping, which returns text.
            prompt: what stands before the first observation.
            episodes: tasks of the split `train`, each a seed.
            idle_reward: of a turn without a valid action.
            returns: the least and greatest sum of an episode's rewards.
            timeout: seconds for each answer of the server, and for a free session.
            options: of the environment's reset.
        """
        library("websockets", EXTRA)
        self.url, self.episodes, self.return_range, self.idle_reward = (
            source.rstrip("/"),
            episodes,
            returns,
            idle_reward,
        )
        self.prompt, self.form, self._options = prompt, form, dict(options)
        self._renderer = load(renderer, f"env.renderer={renderer!r}") if renderer else None
        schema = _action(self.url, timeout)
        self._field = _text_field(self.url, schema) if form == "text" else ""
        for name, description, parameters in () if form == "text" else _list_tools(self.url, schema, timeout):
            self.tools.add(Tool(name, description, parameters, partial(self._act, name), partial(_read, parameters)))
        self._mcp = MCP.issubset(schema["properties"])
        self._session = _Session(self.url, timeout)
        self._done = False

    async def reset(self, task: Task, *, seed: int | None = None) -> str:
        await self.close()
        data = await self._session.reset({**self._options, "seed": task["seed"]})
        return "\n".join(filter(None, (self.prompt, self._text(data)))) or "Begin."

    def demonstrate(self, messages: Sequence[Message], rng: random.Random) -> Message:
        """A random action that fits its schema, of words and numbers of the conversation."""
        if self.form == "text":
            return Message(role="assistant", content=rng.choice(words_of(messages)))
        return random_call(rng, rng.choice(list(self.tools)), messages, context_of(self).new_call_id())

    async def close(self) -> None:
        self._done = False
        await self._session.close()

    async def _act(self, name: str, checked: Json, _: Any) -> str:
        action = {"type": "call_tool", "tool_name": name, "arguments": checked} if self._mcp else checked
        data, reward = await self._take(action)
        if reward is not None:
            self.earn(reward)
        if self._done:
            self.end()
        return self._text(data)

    async def _take_text(self, text: str) -> StepResult:
        try:
            data, reward = await self._take({self._field: text})
        except ToolError as error:
            return StepResult([say(f"Error: {error}")])
        return StepResult([say(self._text(data))], reward, terminated=self._done)

    async def _take(self, action: Json) -> tuple[Json, float | None]:
        data = await self._session.request("step", action)
        self._done = bool(data.get("done"))
        given = data.get("reward")
        where = f"the OpenEnv server {self.url}, as the reward,"
        return data, None if given is None else reward_value(given, where)

    def _text(self, data: Json) -> str:
        seen = data.get("observation")
        if self._renderer is not None:
            return self._render(seen)
        return cut(_plain(seen), MAX_RESULT_CHARS)


class _Session:
    """One connection to a server: an environment of its own there."""

    def __init__(self, url: str, timeout: float) -> None:
        self.url, self.timeout = url, timeout
        self._socket: Any = None
        self._unanswered = False

    async def reset(self, data: Json) -> Json:
        """Open the connection and begin an episode; where the server has no room, wait for it."""

        async def attempt() -> Json:
            await self._open()
            try:
                return await self.request("reset", data)
            except _NoRoom:
                await self.close()
                raise

        try:
            return await retry(attempt, _NoRoom, before(time.monotonic() + self.timeout, repeat(POLL_SECONDS)))
        except _NoRoom as error:
            raise InfraError(f"{error}: set rollout.concurrency to what it takes") from None
        except ToolError as error:
            raise InfraError(f"the OpenEnv server {self.url} can't reset its environment: {error}") from None

    async def request(self, kind: str, data: Json) -> Json:
        """Send a message; what the answer holds.

        Raises:
            ToolError: the environment refuses the action, or failed at it.
            InfraError: the server is gone or answers with something else than the protocol's messages, or what it has
                not answered yet was given up (by the deadline of a tool call).
            DeadlineExceeded: it did not answer in time.
        """
        from websockets.exceptions import ConnectionClosed, WebSocketException

        where = f"the OpenEnv server {self.url}"
        if self._socket is None:
            raise InfraError(f"{where}: no session is open")
        if self._unanswered:  # the next answer would be taken for this request's
            raise InfraError(f"{where} has not answered the request before this one")
        self._unanswered = True
        try:
            async with asyncio.timeout(self.timeout):
                with suppress(ConnectionClosed):  # a server without room says so and closes before it is asked
                    await self._socket.send(json.dumps({"type": kind, "data": data}))
                answer = read_json(await self._socket.recv())
        except TimeoutError:
            raise DeadlineExceeded(f"{where} did not answer {kind} within env.timeout={self.timeout:g} s") from None
        except (WebSocketException, OSError, ValueError) as error:
            raise InfraError(f"{where} has ended the session: {error}") from error
        self._unanswered = False
        return _read_answer(where, kind, answer)

    async def close(self) -> None:
        """Close the connection; a server that does not answer is left."""
        socket, self._socket = self._socket, None
        if socket is not None:
            await socket.close()

    async def _open(self) -> None:
        from websockets.asyncio.client import connect
        from websockets.exceptions import WebSocketException

        address = "ws" + self.url.removeprefix("http") + "/ws"
        self._unanswered = False
        try:
            self._socket = await connect(
                address, open_timeout=self.timeout, close_timeout=CLOSE_SECONDS, max_size=MAX_BYTES, proxy=None
            )
        except (WebSocketException, OSError) as error:  # TimeoutError is an OSError
            raise InfraError(f"the OpenEnv server {self.url} can't be reached: {error}") from error


class _NoRoom(InfraError):
    """The server has as many sessions as it takes."""


def _read_answer(where: str, kind: str, answer: Any) -> Json:
    """The data of an answer, or the error that it is."""
    data = answer.get("data") if isinstance(answer, Mapping) else None
    if not isinstance(data, dict):
        raise InfraError(f"{where} answered {kind} with {show_value(answer)}")
    if answer.get("type") != "error":
        return data
    code, said = data.get("code"), cut(str(data.get("message")), MAX_RESULT_CHARS)
    if code == "VALIDATION_ERROR":
        raise ToolArguments(cut(_complaints(data.get("errors")), MAX_RESULT_CHARS) or said)
    if code == "EXECUTION_ERROR":
        raise ToolError(said)
    if code == "CAPACITY_REACHED":
        raise _NoRoom(f"{where} has {data.get('active_sessions')} sessions, as many as it takes")
    raise InfraError(f"{where} answered {kind} with {code}: {said}")


def _complaints(errors: Any) -> str:
    listed = [error for error in errors if isinstance(error, Mapping)] if isinstance(errors, list) else []
    places = [place if isinstance(place := error.get("loc"), list) else [] for error in listed]
    return "; ".join(f"{'.'.join(map(str, at))}: {error.get('msg')}" for at, error in zip(places, listed, strict=True))


def _read(parameters: Mapping[str, Any], arguments: Json) -> Json:
    """The arguments, where the schema has their names; the server checks the values."""
    known = parameters.get("properties", {})
    if unknown := [name for name in arguments if name not in known]:
        raise ToolArguments(f"{unknown[0]!r} is no argument: allowed: {', '.join(known) or 'none'}")
    return arguments


@lru_cache(maxsize=64)
def _action(url: str, timeout: float) -> Json:
    """The JSON schema of an action, without the field for data about it."""
    try:
        answer = httpx.get(f"{url}/schema", timeout=timeout)
        answer.raise_for_status()
        schema = answer.json()["action"]
        properties = {name: value for name, value in schema["properties"].items() if name != "metadata"}
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(f"env=openenv:{url}: no OpenEnv server answers {url}/schema: {error!r}") from error
    return {**schema, "properties": properties}


def _list_tools(url: str, schema: Json, timeout: float) -> list[tuple[str, str, Json]]:
    if MCP.issubset(schema["properties"]):
        return list(_mcp_tools(url, timeout))
    kept: Json = {key: schema[key] for key in ("properties", "required", "$defs") if key in schema}
    return [(ACT, str(schema.get("description") or "Take an action.").strip(), {"type": "object", **kept})]


@lru_cache(maxsize=64)
def _mcp_tools(url: str, timeout: float) -> tuple[tuple[str, str, Json], ...]:
    from websockets.sync.client import connect

    try:
        with connect(
            "ws" + url.removeprefix("http") + "/ws", open_timeout=timeout, max_size=MAX_BYTES, proxy=None
        ) as ws:
            ws.send(json.dumps({"type": "step", "data": LIST_TOOLS}))
            data = _read_answer(f"the OpenEnv server {url}", "list_tools", read_json(ws.recv(timeout)))
        return tuple((tool["name"], tool["description"], tool["input_schema"]) for tool in data["observation"]["tools"])
    except (InfraError, ToolError, OSError, LookupError, TypeError, ValueError) as error:
        raise ConfigError(f"env=openenv:{url}: its tools can't be listed: {error!r}") from error


def _text_field(url: str, schema: Json) -> str:
    texts = [name for name, value in schema["properties"].items() if value.get("type") == "string"]
    needed = set(schema.get("required", ()))
    if len(texts) != 1 or not needed <= set(texts):
        raise ConfigError(
            f"env.form=text: an action of {url} has the fields {', '.join(schema['properties'])}: allowed: an action "
            "of one text, or env.form=tools"
        )
    return str(texts[0])


def _plain(seen: Any) -> str:
    """An observation as text: its only filled field where that is text, else JSON without empty fields."""
    if isinstance(seen, Mapping):
        result = seen.get("result")
        if isinstance(result, Mapping) and isinstance(blocks := result.get("content"), list):  # an MCP tool's answer
            return "\n".join(str(block.get("text", "")) for block in blocks if isinstance(block, Mapping))
        filled = {name: value for name, value in seen.items() if value not in (None, "", [], {})}
        if len(filled) == 1 and isinstance(only := next(iter(filled.values())), str):
            return only
        seen = filled
    return seen if isinstance(seen, str) else json.dumps(safe_json(seen), ensure_ascii=False)
