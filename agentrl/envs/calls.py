"""Calling an environment's methods as a run does: sync or async, answers checked, failures attributed.

Whose fault a failure is, is in `attribution`; how episodes are saved and forked in `saving`.
"""

from __future__ import annotations

import functools
import inspect
import logging
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from statistics import fmean
from typing import Any

from agentrl import faults, tracing
from agentrl.attachments import critic_view as attached_view
from agentrl.common.pictures import url_of
from agentrl.common.plain import missing, plain
from agentrl.envs.attribution import blamed
from agentrl.envs.base import Env, RewardMark, reward_methods, reward_value
from agentrl.envs.closing import close_in_time
from agentrl.envs.context import context_of
from agentrl.envs.fixtures import Fixture
from agentrl.envs.methods import call_method, compute_reward
from agentrl.envs.reward_marks import close_gates, gates_first
from agentrl.envs.saving import fork as fork
from agentrl.envs.saving import restore as restore
from agentrl.envs.saving import restore_data as restore_data
from agentrl.envs.saving import state as state
from agentrl.envs.saving import state_data as state_data
from agentrl.envs.state import resolve
from agentrl.errors import EnvError, InfraError, InvalidInput, InvalidNumber, suggest
from agentrl.sessions.tree.codec import odd_place
from agentrl.tools.schema import show_value
from agentrl.types import Message, Session, StepResult, Task, as_messages

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Rewards:
    """A session's final rewards by name, and their weighted sum (None where nothing was rewarded).

    With several agents `by_agent` has the sum of each, `total` is the mean of those sums, and a reward that is one
    agent's own is called "name/agent".
    """

    values: dict[str, float] = field(default_factory=dict)
    total: float | None = None
    by_agent: dict[str, float | None] = field(default_factory=dict)


def tasks(env: Env, split: str = "train", start: int = 0) -> Iterator[Task]:
    """A split's tasks from index `start` on; those without an id get "<split>-<index>".

    Raises:
        EnvError: no such split, or something that is not a task.
    """
    _check_split(env, split)
    with blamed(env, "tasks"):
        for index, task in enumerate(islice(list_tasks(env, split), start, None), start):
            yield _as_task(env, split, index, task)


def list_tasks(env: Env, split: str) -> Iterable[Any]:
    """A split's tasks as the environment has them; EnvError where it gave no such thing."""
    found: Any = env.tasks(split)
    where = f"{type(env.unwrapped).__name__}.tasks"
    if inspect.iscoroutine(found) or inspect.isasyncgen(found):
        if inspect.iscoroutine(found):
            found.close()
        raise EnvError(f"{where} is async; a plain method is wanted, which returns or yields the tasks")
    if hasattr(found, "iterrows") or hasattr(found, "iter_rows"):  # of pandas, of polars
        rows = "to_dict('records')" if hasattr(found, "iterrows") else "to_dicts()"
        raise EnvError(f"{where}({split!r}) returned a {type(found).__name__}: return its rows, as .{rows} gives them")
    if isinstance(found, str | Mapping) or not (hasattr(found, "__iter__") or hasattr(found, "__getitem__")):
        raise EnvError(f"{where}({split!r}) returned {show_value(found)}, not a list or an iterator of tasks")
    tasks: Iterable[Any] = found
    return tasks


def task(env: Env, split: str, index: int, value: Any) -> Task:
    """The task that `value`, the item at `index` of a split's tasks, stands for; see `tasks`."""
    _check_split(env, split)
    with blamed(env, "tasks"):
        return _as_task(env, split, index, value)


def fixtures(env: Env) -> Iterator[tuple[Task, Fixture]]:
    """The environment's fixtures, each with its task; tasks without an id get "fixture-<index>".

    Raises:
        EnvError: its code failed, or gave something that is no fixture.
    """
    with blamed(env, "fixtures"):
        for index, fixture in enumerate(env.fixtures()):
            if not isinstance(fixture, Fixture):
                raise EnvError(
                    f"{type(env.unwrapped).__name__}.fixtures gave {show_value(fixture)}, which is no Fixture"
                )
            yield _as_task(env, "fixture", index, fixture.task), fixture


def _check_split(env: Env, split: str) -> None:
    if split not in env.splits:
        name = type(env.unwrapped).__name__
        raise EnvError(f"{name} has no split {split!r}{suggest(split, env.splits)} (splits: {', '.join(env.splits)})")


def _as_task(env: Env, split: str, index: int, value: Any) -> Task:
    if isinstance(value, Task):
        return value
    if not isinstance(value, Mapping):
        raise EnvError(f"{type(env.unwrapped).__name__}.tasks gave {show_value(value)}, neither a Task nor a mapping")
    name = value.get("id")
    return Task(id=f"{split}-{index}" if missing(name) else str(plain(name)), data=dict(value))


async def prepare(env: Env, tasks: Sequence[Task], sessions: int) -> None:
    """Let an environment get ready for a batch of episodes; EnvError where its code failed."""
    with blamed(env, "prepare"):
        await resolve(env.prepare(tasks, sessions))


async def reset(env: Env, task: Task, *, seed: int | None = None) -> list[Message]:
    """Begin an episode of an environment with one agent; its opening messages, at least one.

    Raises:
        EnvError: its code failed, or gave no messages.
    """
    (messages,) = (await openings(env, task, seed=seed)).values()
    return messages


async def openings(env: Env, task: Task, *, seed: int | None = None) -> dict[str, list[Message]]:
    """Begin an episode; each agent's opening messages, at least one, in the order in which they take turns.

    Raises:
        EnvError: its code failed, gave no messages, or gave messages for an agent that it does not have; or the name of
            one of its agents is a sub-agent's.
    """
    where = f"{type(env.unwrapped).__name__}.reset"
    if odd := [agent for agent in env.agents if "/" in agent]:
        why = "that is what sub-agents have (Env.spawn)"
        raise EnvError(f"{type(env.unwrapped).__name__}.agents has {odd[0]!r}: a name without a slash is wanted; {why}")
    with blamed(env, "reset"):
        value = await call_method(env, env.reset, task, seed=seed)
        await faults.async_point("env.reset")
        if value is None:
            raise EnvError(f"{where} returned None, not its opening messages")
        if len(env.agents) == 1:
            value = {env.agents[0]: value}
        found = _by_agent(env, value, where)
    for agent, messages in found.items() or [("", [])]:
        if not messages:
            who = f"agent {agent!r}" if agent else "the agent"
            raise EnvError(f"{where} returned no messages: {who} has nothing to answer")
    context_of(env.unwrapped).episode = task, seed
    return found


def _by_agent(env: Env, value: Any, where: str) -> dict[str, list[Message]]:
    if not isinstance(value, Mapping):
        raise EnvError(
            f"{where} gave {show_value(value)}; expected messages by agent (agents: {', '.join(env.agents)})"
        )
    return {_check_agent(env, agent, where): _messages(each, where) for agent, each in value.items()}


def _check_agent(env: Env, agent: Any, where: str) -> str:
    if agent not in env.agents:
        raise EnvError(f"{where} names the agent {agent!r}; agents: {', '.join(env.agents)}")
    return str(agent)


def _members(env: Env, who: Any, where: str) -> tuple[str, ...]:
    """The agents that a reward is of: a team's, or one."""
    team = env.unwrapped.teams.get(who)
    if team is None:
        return (_check_agent(env, who, where),)
    return tuple(_check_agent(env, agent, f"{type(env.unwrapped).__name__}.teams[{who!r}]") for agent in team)


def _messages(value: Any, where: str) -> list[Message]:
    """Return what an environment gave as messages, whose images can be read."""
    try:
        messages = as_messages(value)
    except TypeError as error:
        raise EnvError(f"{where} gave {show_value(value)}, which is not a message: {error}") from error
    for message in messages:
        for url in message.images:
            try:
                url_of(url)
            except InvalidInput as error:
                raise EnvError(
                    f"{where} gave a {message.role} message with an image that can't be read: {error}"
                ) from None
    return messages


async def brief(env: Env, task: Task) -> Task:
    """Ask for the part of the task that an agent program is given.

    Raises:
        EnvError: its code failed, or gave something else than a task.
    """
    with blamed(env, "brief"):
        given = await call_method(env, env.brief, task)
    if not isinstance(given, Task):
        raise EnvError(f"{type(env.unwrapped).__name__}.brief returned {show_value(given)}, not a Task")
    return given


async def step(env: Env, message: Message) -> StepResult:
    """Answer the agent's message.

    Raises:
        EnvError: its code failed, or gave something else than a StepResult, or named an agent that the environment does
            not have.
        InvalidReward: it gave a reward that is no finite number.
    """
    name = type(env.unwrapped).__name__
    context_of(env).collect()  # a step gives what is earned in it
    with blamed(env, "step"):
        with env.tools.effects.call(f"{name}.step"):
            result = await call_method(env, env.step, message)
        await faults.async_point("env.step")
        if not isinstance(result, StepResult):
            raise EnvError(f"{name}.step returned {show_value(result)}, not a StepResult")
        result.messages = _messages(result.messages, f"{name}.step")
        result.others = _by_agent(env, result.others, f"{name}.step")
        ends: tuple[Any, Any] = result.terminated, result.truncated
        if odd := next((end for end in ends if isinstance(end, str)), None):
            raise EnvError(f"{name}.step gave terminated or truncated = {odd!r}, a text; expected True or False")
        if isinstance(result.next, str):
            result.next = (result.next,)
        if result.next is not None and (not result.next or len({*result.next}) < len(result.next)):
            raise EnvError(
                f"{name}.step gave next={show_value(result.next)}; expected an agent, or several different ones"
            )
        if not isinstance(result.info, Mapping):
            raise EnvError(f"{name}.step gave info={show_value(result.info)}; expected a mapping")
        _check_info(result.info, f"{name}.step gave")
        for agent in (*result.rewards, *(result.next or ())):
            _check_agent(env, agent, f"{name}.step")
    given = f"{name}.step, as the reward,"
    result.reward = None if missing(result.reward) else reward_value(result.reward, given)
    earned, over = context_of(env).collect()
    if earned is not None:
        result.reward = earned + (result.reward or 0.0)
    result.terminated = result.terminated or over
    result.rewards = {
        who: reward_value(value, f"{name}.step, as {who}'s reward,") for who, value in result.rewards.items()
    }
    if result.continuation is not None and (result.messages or not env.stop_strings):
        why = "messages as well" if result.messages else "it has no stop_strings"
        raise EnvError(f"{name}.step gave a continuation, but {why}")
    if result.fresh and not result.messages:
        raise EnvError(f"{name}.step gave no messages for the agent to go on with alone (StepResult.fresh)")
    goes_on = result.messages or result.continuation is not None
    if len(env.agents) == 1 and not (goes_on or result.terminated or result.truncated):
        raise EnvError(f"{name}.step gave no messages and did not end: the agent has nothing to answer")
    return result


def _check_info(info: Mapping[str, Any], where: str) -> None:
    if info and (odd := odd_place({"info": dict(info)})):
        raise EnvError(f"{where} {odd}, which can't be stored: JSON's values, and what stands for one, are allowed")


async def expert(env: Env, messages: Sequence[Message]) -> Message:
    """The next message of the environment's expert.

    Raises:
        EnvError: it has none, it failed, or it gave something else than an assistant message.
    """
    with blamed(env, "expert"):
        return _assistant(env, "expert", await call_method(env, env.expert, list(messages)))


async def demonstrate(env: Env, messages: Sequence[Message], rng: random.Random) -> Message:
    """The next message of the environment's demonstrator, who draws what is random in it from `rng`.

    Raises:
        EnvError: see `expert`.
    """
    with blamed(env, "demonstrate"):
        drawn = {"rng": rng} if _takes_rng(getattr(env.demonstrate, "__func__", env.demonstrate)) else {}
        return _assistant(env, "demonstrate", await call_method(env, env.demonstrate, list(messages), **drawn))


async def critic_view(env: Env, agent: str) -> bytes:
    """Ask for the critic's view before a turn of `agent`, as an attachment of the turn.

    Raises:
        EnvError: its code failed.
        InvalidNumber: it gave numbers that are not finite, or beyond float32.
    """
    with blamed(env, "critic_view"):
        numbers = [float(number) for number in await call_method(env, env.critic_view, agent)]
        if not all(abs(number) <= attached_view.LARGEST for number in numbers):
            given = ", ".join(f"{number:g}" for number in numbers)
            name = f"{type(env.unwrapped).__name__}.critic_view"
            raise InvalidNumber(f"{name} gave numbers that are not finite, or too large: {given}")
        return attached_view.pack(numbers)


@functools.lru_cache(64)
def _takes_rng(method: Callable[..., Any]) -> bool:
    return "rng" in inspect.signature(method).parameters


def _assistant(env: Env, method: str, value: Any) -> Message:
    message = Message.model_validate({"role": "assistant", "content": value} if isinstance(value, str) else value)
    if message.role != "assistant":
        raise EnvError(f"{type(env.unwrapped).__name__}.{method} gave a message of role {message.role!r}")
    return message


async def close(env: Env) -> None:
    """Close an environment and the sandbox that its tools used; may be called again.

    Where the infrastructure fails at that, or a part of it has not ended in time, there is a warning: the episode is
    what it was.

    Raises:
        EnvError: its code failed.
    """
    inner, context = env.unwrapped, context_of(env.unwrapped)
    sandbox, context.sandbox = context.sandbox, None
    try:
        with blamed(env, "close"):
            try:
                if getattr(env.close, "__func__", None) is not Env.close:  # which does nothing, and would take a thread
                    await close_in_time(env)
            finally:
                if sandbox is not None and hasattr(sandbox, "close"):
                    await close_in_time(sandbox)
                if context.added_tools is not None:
                    await close_in_time(context.added_tools)
    except InfraError as error:
        logger.warning("%s.close: %s", type(inner).__name__, error)


async def compute_rewards(env: Env, session: Session) -> Rewards:
    """Compute every reward of the finished session: the `@reward` methods, and those that the run adds (`rewards.*`).

    Returns:
        The values by name, None left out, and their weighted sum; with several agents each one's sum, and the mean.

    Raises:
        EnvError: one failed.
        InvalidReward: one gave a value that is no finite number within its declared range.
        InfraError, ConfigError: one of those that the run adds failed; see `NamedReward`.
    """
    values: dict[str, float] = {}
    sums: dict[str, float] = {}
    shut: set[str] = set()
    of_groups = [mark.name for mark, _ in context_of(env.unwrapped).group_rewards]
    for mark, method in gates_first(reward_methods(env), of_groups, len(env.agents)):
        if mark.name in shut:
            rewards: Mapping[str, tuple[float, tuple[str, ...]]] = {mark.name: (mark.zero, env.agents)}
        else:
            rewards = await _compute_reward(env, mark, method, session)
        for name, (number, agents) in rewards.items():
            if name in values:
                raise EnvError(f"{_reward_name(env, mark)}: two rewards have that name")
            values[name] = number
            for agent in agents:
                sums[agent] = sums.get(agent, 0.0) + mark.weight * number
        shut |= close_gates([mark], values)
    total = reward_value(fmean(sums.values()), f"{type(env.unwrapped).__name__}, as the sum,") if sums else None
    return Rewards(values, total, {agent: sums.get(agent) for agent in env.agents} if len(env.agents) > 1 else {})


def _reward_name(env: Env, mark: RewardMark) -> str:
    return f"reward {mark.name!r} of {type(env.unwrapped).__name__}"


async def _compute_reward(
    env: Env, mark: RewardMark, method: Callable[..., Any], session: Session
) -> dict[str, tuple[float, tuple[str, ...]]]:
    """One reward's values by name, each with the agents that it is of."""
    where = _reward_name(env, mark)
    with blamed(env, mark.name), tracing.span("reward", reward=mark.name):
        given = await compute_reward(env, method, session)
        await faults.async_point("env.reward")
        _check_info(session.info, f"{where} left")
        each: dict[str, tuple[Any, tuple[str, ...]]]
        if isinstance(given, Mapping) and len(env.agents) > 1:
            each = {f"{mark.name}/{who}": (value, _members(env, who, where)) for who, value in given.items()}
        else:
            each = {mark.name: (given, env.agents)}
        return {
            name: (reward_value(v, where, mark.range), agents) for name, (v, agents) in each.items() if not missing(v)
        }
