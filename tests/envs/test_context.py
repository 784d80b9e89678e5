"""What agentrl keeps of an instance is apart from the author's own attributes, and of that instance alone."""

from __future__ import annotations

import copy

import pytest

import agentrl
from agentrl.envs.base import Env
from agentrl.envs.context import alone, context_of
from agentrl.envs.episode import play
from agentrl.errors import EnvError
from agentrl.types import Message, Task


class Named(Env):
    """Its attributes have names that were agentrl's own."""

    def __init__(self, step: float = 1.0) -> None:
        self._earned = self._over = self._called = "mine"
        self._sandbox = self._episode = self._stepping = self._constructed = "mine"
        self.context = step

    def reset(self, task: Task, *, seed: int | None = None) -> str:
        return "go"

    def step(self, message: Message):
        self.earn(self.context)
        self.end()
        return super().step(message)

    def expert(self, messages) -> str:
        return "done"

    def state(self) -> float:
        return self.context

    def restore(self, task: Task, state: float) -> None:
        assert state == self.context


async def test_an_author_may_name_attributes_as_he_likes():
    env = Named(0.5)
    session = await play(env, Task(id="one"))
    assert session.score == 0.5
    assert (await env.fork()).context == 0.5
    assert {value for name, value in vars(env).items() if name.startswith("_") and "agentrl" not in name} == {"mine"}


async def test_what_a_copy_earns_is_not_the_originals():
    """Authors fork by `copy.copy`, and by updating a new instance's `__dict__`."""
    env = Named()
    await play(env, Task(id="one"), close=False)
    other, third = copy.copy(env), Named.__new__(Named)
    vars(third).update(vars(env))
    for one in (other, third):
        assert context_of(one).episode == context_of(env).episode
        one.earn(1.0)
        one.end()
    assert context_of(env).collect() == (None, False)
    assert context_of(other).collect() == context_of(third).collect() == (1.0, True)


async def test_a_shared_instance_plays_one_session_at_a_time_and_a_copy_its_own():
    """A factory that returned the same instance again mixed the episodes of a run in silence."""
    env = agentrl.make("calculator")
    with alone(env):
        with pytest.raises(EnvError, match="one instance of Calculator was given to two episodes at once"), alone(env):
            pass
        with alone(copy.copy(env)):
            pass
    with alone(env):
        pass
