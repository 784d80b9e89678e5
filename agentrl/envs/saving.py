"""An environment's episode between two steps: saved, continued in another instance, forked.

An environment writes `state` and `restore` (or `fork`); what every environment has besides, its task, its seed and the
counters of its tools, is added here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentrl.envs.added_tools import add_tools
from agentrl.envs.attribution import blamed
from agentrl.envs.base import Env
from agentrl.envs.context import context_of
from agentrl.envs.methods import call_method
from agentrl.envs.state import EnvState, plain, resolve
from agentrl.errors import EnvError, InvalidInput, StateUnsupported
from agentrl.tools.registry import ToolFailure
from agentrl.tools.schema import show_value
from agentrl.types import Task


async def state(env: Env) -> EnvState:
    """The episode as it is between two steps; it does not change with the episode.

    Raises:
        StateUnsupported: the environment has no state, or none at this point of the episode.
        EnvError: its code failed or gave something that can't be stored, or no episode has begun.
    """
    task, seed = _episode(env)
    _refuse_unsaved_work(env)
    data = await state_data(env)
    return EnvState(env._identity(), env.version, task, seed, data, _counters(env))


async def restore(env: Env, state: EnvState) -> None:
    """Continue an episode in a new instance, which then answers the same messages as the original would.

    Raises:
        InvalidInput: the state is one of another environment or version, or this instance has begun an episode.
        EnvError: the environment's code failed.
    """
    for what, has, wanted in (("environment", env._identity(), state.env), ("version", env.version, state.version)):
        if has != wanted:
            raise InvalidInput(f"a state of {what} {wanted!r} can't be restored in {what} {has!r}")
    if context_of(env.unwrapped).episode is not None:
        raise InvalidInput(f"a state is restored in a new instance; this {state.env} has begun an episode")
    await restore_data(env, state.task, plain(state.data, "the state"))
    _continue(env, state.task, state.seed, state.counters)


async def fork(env: Env) -> Env:
    """Another instance with the same episode; what happens in one does not change the other.

    Raises:
        StateUnsupported: the environment can't, or not at this point of the episode.
        EnvError: its code failed, or gave no other instance.
    """
    task, seed = _episode(env)
    _refuse_unsaved_work(env)
    with blamed(env, "fork"):
        other = await resolve(env.fork())
        if not isinstance(other, Env) or other.unwrapped is env.unwrapped:
            raise EnvError(f"{type(env.unwrapped).__name__}.fork returned {show_value(other)}, not another instance")
    _continue(other, task, seed, _counters(env))
    other.tools.timeout = env.tools.timeout
    context = context_of(env.unwrapped)
    context_of(other.unwrapped).added_rewards = context.added_rewards
    context_of(other.unwrapped).group_rewards = context.group_rewards
    if context.added_tools is not None:
        add_tools(other, context.added_tools.sources)
    return other


def _refuse_unsaved_work(env: Env) -> None:
    """Raise StateUnsupported where something goes on that no state of the environment has."""
    if env.tools.effects.under_way:
        raise StateUnsupported(f"{type(env.unwrapped).__name__}: a tool that was cut off still runs in its thread")
    if (added := context_of(env.unwrapped).added_tools) is not None:
        added.refuse_state(type(env.unwrapped).__name__)


async def state_data(env: Env) -> Any:
    """Return an environment's `state` as plain data; wrappers call it of the environment that they wrap."""
    with blamed(env, "state"):
        return plain(await call_method(env, env.state), f"{type(env.unwrapped).__name__}.state")


async def restore_data(env: Env, task: Task, data: Any) -> None:
    """Let an environment continue from what its `state` returned; wrappers call it of what they wrap."""
    with blamed(env, "restore"):
        await call_method(env, env.restore, task, data)


def _episode(env: Env) -> tuple[Task, int | None]:
    episode = context_of(env.unwrapped).episode
    if episode is None:
        raise EnvError(f"{type(env.unwrapped).__name__} has begun no episode: there is no state")
    return episode


def _counters(env: Env) -> dict[str, Any]:
    failures = {kind.value: number for kind, number in env.tools.failures.items()}
    written = context_of(env.unwrapped).expert_calls
    return {"calls": env.tools.calls, "failures": failures, "silent": env.tools.silent, "expert_calls": written}


def _continue(env: Env, task: Task, seed: int | None, counters: Mapping[str, Any]) -> None:
    context = context_of(env.unwrapped)
    context.episode, context.expert_calls = (task, seed), counters["expert_calls"]
    env.tools.calls, env.tools.silent = counters["calls"], counters.get("silent", 0)
    env.tools.failures.clear()
    env.tools.failures.update({ToolFailure(kind): number for kind, number in counters["failures"].items()})
