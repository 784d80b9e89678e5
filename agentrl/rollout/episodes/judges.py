"""Policies of a run that judge (`rewards.NAME.policy`): their engines, served by the run's process to rewards that ask.

A reward asks over HTTP, as it asks any judge, from the run's process or from a worker of it, on whichever node. A
policy that several rewards name has one engine. The address has a word that nobody can guess, since whoever knows it
may generate.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from agentrl import cluster
from agentrl.config import START, PolicyConfig, RewardConfig, WeightsConfig
from agentrl.errors import AgentRLError, ConfigError, EngineError, InfraError
from agentrl.models.registry import model_folder
from agentrl.rollout.fleet import make_engines, wait_until_started
from agentrl.sessions.renderers import get_renderer
from agentrl.sessions.tree.conversation import Conversation
from agentrl.sessions.tree.turn_generator import TurnGenerator
from agentrl.types import Message, Sampling, Session, Task

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

EDGE = 1 << 20
"""Bytes at either end of a file of weights by which models are told apart."""


@asynccontextmanager
async def serve_judges(
    rewards: Mapping[str, RewardConfig], policies: Mapping[str, PolicyConfig], start: Path | None
) -> AsyncIterator[dict[str, RewardConfig]]:
    """Serve the policies that judge; yields the rewards, with addresses in those that ask them.

    Args:
        rewards: the run's.
        policies: the run's.
        start: the folder of the model that the run begins with; None where there is none.

    Raises:
        ConfigError: a policy has no model, or its folder holds none.
        InfraError: an engine did not start.
    """
    async with AsyncExitStack() as stack:
        addresses: dict[str, tuple[str, str]] = {}
        judging, served = judging_engines(rewards, policies), dict(rewards)
        for reward, policy in judging.items():
            if policy not in addresses:
                own = policies[policy]
                folder = start_folder(policy, own, start)
                longest = max(
                    getattr(rewards[name], "request_timeout", 0.0) for name, other in judging.items() if other == policy
                )
                url = await stack.enter_async_context(_serve(own, folder, longest))
                addresses[policy] = url, await asyncio.to_thread(_identity, folder)
            url, identity = addresses[policy]
            asking: Any = rewards[reward]
            served[reward] = asking.asking(url, identity)
        yield served


def judging_engines(rewards: Mapping[str, RewardConfig], policies: Mapping[str, PolicyConfig]) -> dict[str, str]:
    """Return the policies with an engine of the run that judge, by the reward that asks (`rewards.NAME.policy`)."""
    named = {name: str(getattr(each, "policy", "")) for name, each in rewards.items()}
    return {name: policy for name, policy in named.items() if policy and not policies[policy].remote}


def start_folder(
    name: str, own: PolicyConfig, start: Path | None, lacking: str = "nothing is loaded that it could be"
) -> Path:
    """Return the folder of a policy's model; `start` is the one that the run begins with.

    Where there is none, `start` is None, and `lacking` says why in the error.

    Raises:
        ConfigError: the policy begins with that one.
    """
    found = start if own.model.name == START else model_folder(own.model)
    if found is None:
        raise ConfigError(f"policies.{name}.model={START}: {lacking}; set a folder or a name")
    return found


def _identity(folder: Path) -> str:
    """Tell models apart: a digest of their files' names and sizes, and of the beginning and end of each."""
    found = hashlib.blake2b(digest_size=16)
    for file in sorted(folder.glob("*")):
        if file.suffix in (".json", ".jinja", ".safetensors") and file.is_file():
            found.update(f"{file.name} {file.stat().st_size}".encode())
            with file.open("rb") as stream:
                found.update(stream.read(EDGE))
                stream.seek(max(file.stat().st_size - EDGE, 0))
                found.update(stream.read(EDGE))
    return found.hexdigest()


@asynccontextmanager
async def _serve(own: PolicyConfig, folder: Path, longest: float) -> AsyncIterator[str]:
    """Serve a policy's model; yields the base URL of its Chat Completions."""
    from starlette.applications import Starlette
    from starlette.routing import Route

    from agentrl.sessions.gateway import Limits
    from agentrl.sessions.gateway.http.listener import address, listening, serve_app

    host = cluster.current().host
    with closing(listening(host, 0)) as listener:
        engine = make_engines(own.engine, own.fleet, WeightsConfig(), folder)
        try:
            await wait_until_started(engine)
            renderer = get_renderer(folder, own.model.renderer, own.model.stop)
            judge = _Judge(TurnGenerator(renderer, engine, trained=False), longest)
            word = secrets.token_urlsafe(16)
            app = Starlette(routes=[Route(f"/{word}/v1/chat/completions", judge.complete, methods=["POST"])])
            async with serve_app(app, listener, Limits()):
                yield f"{address(listener, host)}/{word}/v1"
        finally:
            await engine.close()


class _Judge:
    """Answers questions, each of which is a conversation of its own."""

    def __init__(self, generator: TurnGenerator, longest: float) -> None:
        self._generator, self._longest = generator, longest

    async def complete(self, request: Request) -> Response:
        """Generate the reply to a request of `JudgeClient`, whose fields are those that are read."""
        from starlette.responses import Response

        body = orjson.loads(await request.body())
        try:
            found, status = await self._reply(body), 200
        except (InfraError, EngineError) as error:
            found, status = {"error": {"message": str(error)}}, 503
        except AgentRLError as error:  # a question that is longer than the context
            found, status = {"error": {"message": str(error)}}, 400
        return Response(orjson.dumps(found), status, media_type="application/json")

    async def _reply(self, body: dict[str, Any]) -> dict[str, Any]:
        sampling = Sampling(
            temperature=body.get("temperature", 1.0), max_new_tokens=body["max_completion_tokens"], seed=body["seed"]
        )
        name = f"judge-{hashlib.blake2b(orjson.dumps(body), digest_size=8).hexdigest()}-{secrets.token_hex(4)}"
        conversation = Conversation(Session(id=name, task=Task(id="judged")), self._generator)
        conversation.add([Message.model_validate(message) for message in body["messages"]])
        node = await conversation.generate(sampling, time.monotonic() + self._longest)
        choice = {"index": 0, "message": {"role": "assistant", "content": node.message.text}}
        return {"object": "chat.completion", "choices": [choice | {"finish_reason": node.finish_reason}]}
