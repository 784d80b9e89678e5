"""An actor by a model behind an API in an episode."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from agentrl.config.api import URL, ApiConfig
from agentrl.config.secrets import without_secrets
from agentrl.envs.base import Env
from agentrl.errors import ConfigError, DeadlineExceeded, require_extra
from agentrl.rollout.remote.reply import Api
from agentrl.rollout.stream.usage import CACHED, COMPLETION, PROMPT
from agentrl.sessions.tree.conversation import Conversation
from agentrl.types import Node, Sampling

CONNECT = 10.0
"""Seconds that a first connection may take."""
KEYS = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}
"""The environment variable of each protocol's key."""


class RemoteActor:
    """A model behind an API: each turn is a request with the whole conversation.

    Args:
        api: the provider's client.
        sampling: temperature, top-p and the turn's tokens.
        counted: put before the names of the counters of its tokens; the evaluated policy's have no prefix.
    """

    def __init__(self, api: Api, sampling: Sampling, counted: str = "") -> None:
        self._api, self._sampling, self._counted = api, sampling, counted

    async def act(self, conversation: Conversation, env: Env, turn: int, deadline: float) -> Node:
        """Append the model's answer, and count its tokens in the session.

        Raises:
            DeadlineExceeded: it did not come in time.
            TokenBudgetExceeded, ConfigError, EngineError: see `Api.ask`.
        """
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                reply = await self._api.ask(conversation.messages, conversation.tools, self._sampling)
        except TimeoutError:
            raise DeadlineExceeded("the API did not answer within rollout.turn_timeout") from None
        node = conversation.demonstrate(reply.message)
        node.finish_reason = reply.finish
        used = {PROMPT: reply.usage.prompt, COMPLETION: reply.usage.completion, CACHED: reply.usage.cached}
        for name, tokens in used.items():
            conversation.session.count(self._counted + name, tokens)
        return node


def is_remote(policy: str) -> bool:
    """Return whether a policy is the address of an API."""
    return policy.startswith(URL)


def check_api(url: str, config: ApiConfig, env: Env, setting: str = "policy") -> None:
    """Refuse settings that no request can be made from, and environments that an API can't play.

    Raises:
        ConfigError: the model or the key is missing, or turns are to end at strings and be continued.
    """
    if not config.model:
        raise ConfigError(f"{setting}={url!r} needs {_section(setting)}.model=NAME, the model's name there")
    if env.stop_strings:
        raise ConfigError(
            f"{type(env.unwrapped).__name__} continues a turn's own text (Env.stop_strings), which no API does; "
            "give a model and an engine instead"
        )
    _key(url, config, setting)


@asynccontextmanager
async def remote_actor(
    url: str, config: ApiConfig, sampling: Sampling, *, setting: str = "policy", counted: str = ""
) -> AsyncIterator[RemoteActor]:
    """Open an actor by an API, and close its connections. For the arguments see `RemoteActor` and `check_api`.

    Raises:
        ConfigError: its key is missing, or nothing takes connections at the address.
        MissingExtra: the protocol's package is not installed.
    """
    api = _client(url, config, setting)
    try:
        await _check_address(url, setting)
        yield RemoteActor(api, sampling, counted)
    finally:
        await api.close()


async def _check_address(url: str, setting: str) -> None:
    """Connect to an API's address once, unless a proxy does: else each session would end in its retries."""
    parts, shown = urlsplit(url), without_secrets(url)
    host = parts.hostname or ""
    if parts.scheme in getproxies() and not proxy_bypass(host):
        return
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        async with asyncio.timeout(CONNECT):
            _, writer = await asyncio.open_connection(host, port)
    except TimeoutError:
        raise ConfigError(f"{setting}={shown!r}: {host}:{port} did not answer within {CONNECT:g} s") from None
    except OSError as error:
        why = error.strerror or str(error)
        raise ConfigError(f"{setting}={shown!r}: nothing takes connections at {host}:{port}: {why}") from None
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


def _client(url: str, config: ApiConfig, setting: str) -> Api:
    given = url, config.model, _key(url, config, setting), config.retries, config.extra
    with require_extra("gateway", config.protocol):
        if config.protocol == "anthropic":
            from agentrl.rollout.remote.anthropic_messages import AnthropicMessages

            return AnthropicMessages(*given)
        from agentrl.rollout.remote.chat import Chat

        return Chat(*given)


def _section(setting: str) -> str:
    return "api" if setting == "policy" else f"{setting}.api"


def _key(url: str, config: ApiConfig, setting: str) -> str:
    """The key; a server on this machine may go without."""
    name = config.key_env or KEYS[config.protocol]
    if key := os.environ.get(name):
        return key
    host = url.split("://", 1)[1].split("/", 1)[0].rsplit(":", 1)[0]
    if config.key_env is None and host in ("localhost", "127.0.0.1", "[::1]"):
        return "none"
    where = f"{_section(setting)}.key_env"
    raise ConfigError(f"{setting}={url!r} needs a key: set the environment variable {name}, or {where}")
