"""Environments of verifiers against the library's own rollouts of the same turns."""

from __future__ import annotations

import asyncio
import itertools
import random
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from verifiers.clients import Client
from verifiers.types import Response, ResponseMessage
from verifiers.types import ToolCall as TheirCall

import agentrl
from agentrl.config import RolloutConfig
from agentrl.envs import calls
from agentrl.envs.episode import NO_DEADLINES, ScriptedActor, play, run_episode
from agentrl.envs.registry import factory
from agentrl.envs.turns import Player
from agentrl.errors import ConfigError, InfraError
from agentrl.sessions.renderers.families.null import NullRenderer
from agentrl.sessions.tree.conversation import Conversation
from agentrl.sessions.tree.turn_generator import TurnGenerator
from agentrl.types import FunctionCall, Message, Session, Status, ToolCall
from tests.envs.adapters.inside import verifiers_envs

FILE = Path(__file__).with_name("verifiers_envs.py")


def called(name: str, arguments: str) -> Message:
    return Message(
        role="assistant", tool_calls=[ToolCall(id="c", function=FunctionCall(name=name, arguments=arguments))]
    )


def said(seed: int, kind: str) -> list[Message]:
    """A random agent's turns: numbers, right calls, and calls that are wrong in each way."""
    rng = random.Random(seed)
    texts = [Message(role="assistant", content=str(rng.randrange(12))) for _ in range(9)]
    if kind != "tools":
        return texts
    right = '{"a": %d, "b": %d}'
    made = [
        called("add", right % (rng.randrange(7), rng.randrange(5))),
        called("add", '{"a": 1'),
        called("add", '{"c": 2}'),
        called("subtract", "{}"),
    ]
    return [*rng.choices(made, k=rng.randrange(4)), *texts]


class Scripted(Client):  # type: ignore[misc]
    """The library's client that says the turns of a list."""

    async def get_response(self, prompt: Any, model: str, sampling_args: Any, tools: Any = None, **_: Any) -> Any:
        message = self._client.pop(0)
        calls_ = [
            TheirCall(id=c.id, name=c.function.name, arguments=c.function.arguments) for c in message.tool_calls or ()
        ]
        answer = ResponseMessage(
            content=message.text, tool_calls=calls_ or None, finish_reason="stop", is_truncated=False
        )
        return Response(id="x", created=0, model="m", message=answer)


Scripted.__abstractmethods__ = frozenset()


def texts(messages: Sequence[Any]) -> list[tuple[str, str]]:
    return [(message["role"], (message["content"] or "").strip()) for message in messages]


@pytest.mark.parametrize("kind", ["single", "tools", "guess"])
async def test_fifty_episodes_have_the_messages_and_rewards_of_the_librarys_own_rollouts(kind: str) -> None:
    make = factory(f"verifiers:{FILE}:{kind}")
    direct = getattr(verifiers_envs, kind)()

    async def one(number: int, task: Any) -> None:
        turns = iter(said(number, kind))
        session = await play(make(), task, lambda env, messages: next(turns))
        state = await direct.rollout(task.data, Scripted(said(number, kind)), "m", {})
        await direct.rubric.score_rollout(state)
        assert session.status is Status.COMPLETED, session.error
        assert session.score == session.rewards["rubric"] == pytest.approx(state["reward"])
        assert session.info["metrics"] == state["metrics"]
        nodes = [{"role": node.message.role, "content": node.message.text} for node in session.nodes]
        assert texts(nodes) == texts([*state["prompt"], *state["completion"]])

    tasks = list(itertools.islice(calls.tasks(make()), 50))
    await asyncio.gather(*(one(number, task) for number, task in enumerate(tasks)))


async def test_the_model_is_shown_the_tools_and_their_calls_are_run_by_the_library() -> None:
    env = agentrl.make(f"verifiers:{FILE}:tools")
    (schema,) = env.tools.schemas()
    assert set(schema["function"]["parameters"]["properties"]) == {"a", "b"}
    await calls.reset(env, next(calls.tasks(env)))
    result = await calls.step(env, called("add", '{"a": 3, "b": 4}'))
    assert [(message.role, message.text) for message in result.messages] == [("tool", "7")]
    await calls.close(env)


async def test_an_episode_that_a_limit_cuts_off_is_scored_as_it_is() -> None:
    env = agentrl.make(f"verifiers:{FILE}:guess")
    policy = ScriptedActor(lambda env, messages: Message(role="assistant", content="no number"))
    session = Session(id="cut", task=next(calls.tasks(env)), seed=0)
    player = Player(Conversation(session, TurnGenerator(NullRenderer(), None)), policy)
    limits = RolloutConfig(**{**NO_DEADLINES.model_dump(), "max_turns": 2})
    await run_episode(env, session, {"agent": player}, limits)
    assert session.status is Status.TRUNCATED
    assert session.score == 0.0
    assert session.info["metrics"]["num_turns"] == 2


async def test_what_fails_is_blamed_on_who_failed() -> None:
    def policy(env: agentrl.Env, messages: Sequence[Message]) -> Message:
        return Message(role="assistant", content="x")

    env = agentrl.make(f"verifiers:{FILE}:broken")
    with pytest.raises(InfraError, match="the sandbox is gone"):
        await play(env, next(calls.tasks(env)), policy)


async def test_a_rollout_that_changes_earlier_messages_begins_a_new_path() -> None:
    """It was refused: environments that compact or cut their history could not be played."""
    env = agentrl.make(f"verifiers:{FILE}:forgetful")
    said = iter("12345678")
    session = await play(
        env, next(calls.tasks(env)), lambda env, messages: Message(role="assistant", content=next(said))
    )
    assert session.status is Status.COMPLETED
    assert sum(node.parent is None for node in session.nodes) == session.turns > 1


def test_splits_are_the_librarys_or_held_out_and_options_reach_its_function() -> None:
    own, held = agentrl.make(f"verifiers:{FILE}:single", weight=0.0), agentrl.make(f"verifiers:{FILE}:guess")
    assert [len(list(calls.tasks(own, split))) for split in ("train", "eval")] == [60, 10]
    train, evaluation = ({task["example_id"] for task in calls.tasks(held, split)} for split in ("train", "eval"))
    assert train.isdisjoint(evaluation)
    assert len(train | evaluation) == 60
    with pytest.raises(ConfigError, match="unexpected keyword argument 'wait'"):
        agentrl.make(f"verifiers:{FILE}:single", wait=0.0)


def test_the_contract_holds_and_mistakes_are_named() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    assert agentrl.check_env(f"verifiers:{FILE}:tools", tasks=2, scored=8) == []
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    with pytest.raises(ConfigError, match="scores rollouts of a group together"):
        agentrl.make(f"verifiers:{FILE}:grouped")
    with pytest.raises(ConfigError, match="Could not import 'no-such-environment'"):
        agentrl.make("verifiers:no-such-environment")
    with pytest.raises(ConfigError, match="gives dict: allowed: a verifiers"):
        agentrl.make("verifiers:builtins:dict", k=2)
