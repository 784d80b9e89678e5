"""What acts by a model behind an API in an episode."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from agentrl.config import RunConfig
from agentrl.config.api import URL
from agentrl.envs.base import Env
from agentrl.errors import ConfigError, DeadlineExceeded, missing_extra
from agentrl.rollout.remote.reply import Api
from agentrl.rollout.usage import CACHED, COMPLETION, PROMPT
from agentrl.sessions.conversation import Conversation
from agentrl.types import Node, Sampling

KEYS = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}
"""The environment variable of each protocol's key."""


class RemoteActor:
    """A model behind an API: each turn is a request with the whole conversation.

    Args:
        api: the provider's client.
        sampling: temperature, top-p and the turn's tokens.
    """

    def __init__(self, api: Api, sampling: Sampling) -> None:
        self._api, self._sampling = api, sampling

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
            conversation.session.count(name, tokens)
        return node


def is_remote(policy: str) -> bool:
    """Whether a policy is the address of an API."""
    return policy.startswith(URL)


def check_api(config: RunConfig, env: Env) -> None:
    """Refuse settings that no request can be made from, and environments that an API can't play.

    Raises:
        ConfigError: the model or the key is missing, or turns are to end at strings and be continued.
    """
    if not config.api.model:
        raise ConfigError(f"policy={config.policy!r} needs api.model=NAME, the model's name there")
    if env.stop_strings:
        raise ConfigError(
            f"env={config.env.name} continues a turn's own text (Env.stop_strings), which no API does; "
            "give a model and an engine instead"
        )
    _key(config)


@asynccontextmanager
async def remote_actor(config: RunConfig) -> AsyncIterator[RemoteActor]:
    """The actor of `policy=URL`, under the limits of `config.rollout`.

    Raises:
        ConfigError: its key is missing.
        MissingExtra: the protocol's package is not installed.
    """
    api, limits = _client(config), config.rollout
    sampling = Sampling(temperature=limits.temperature, top_p=limits.top_p, max_new_tokens=limits.turn_tokens)
    try:
        yield RemoteActor(api, sampling)
    finally:
        await api.close()


def _client(config: RunConfig) -> Api:
    own = config.api
    given = config.policy, own.model, _key(config), own.retries, own.extra
    try:
        if own.protocol == "anthropic":
            from agentrl.rollout.remote.anthropic_messages import AnthropicMessages

            return AnthropicMessages(*given)
        from agentrl.rollout.remote.chat import Chat

        return Chat(*given)
    except ImportError:
        raise missing_extra(own.protocol, "gateway") from None


def _key(config: RunConfig) -> str:
    """The key; a server on this machine may go without."""
    name = config.api.key_env or KEYS[config.api.protocol]
    if key := os.environ.get(name):
        return key
    host = config.policy.split("://", 1)[1].split("/", 1)[0].rsplit(":", 1)[0]
    if config.api.key_env is None and host in ("localhost", "127.0.0.1", "[::1]"):
        return "none"
    raise ConfigError(f"policy={config.policy!r} needs a key: set the environment variable {name}, or api.key_env")
