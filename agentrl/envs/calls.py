"""Calling an environment's methods as a run does: sync or async, answers checked, failures named.

Whatever an environment's own code raises becomes an EnvError that says which method of which class it was,
with the original as its cause; our named errors pass as they are. So an episode runner has three outcomes
to tell apart (the model's fault, the environment's, ours) and never an anonymous exception.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import islice
from statistics import fmean
from types import TracebackType
from typing import Any

from pydantic import ValidationError

from agentrl import faults, tracing
from agentrl.attachments import critic_view as attached_view
from agentrl.envs.added_tools import add_tools
from agentrl.envs.base import Env, reward_methods
from agentrl.envs.fixtures import Fixture
from agentrl.envs.state import EnvState, plain, resolved
from agentrl.errors import AgentRLError, EnvError, InvalidInput, nearest
from agentrl.tools.registry import ToolFailure
from agentrl.tools.schema import shown
from agentrl.types import Message, Session, StepResult, Task, as_messages


@dataclass(frozen=True)
class Rewards:
    """A session's final rewards by name, and their weighted sum (None where nothing was rewarded).

    With several agents `by_agent` has the sum of each, `total` is the mean of those sums, and a reward that is one
    agent's own is called "name/agent".
    """

    values: dict[str, float] = field(default_factory=dict)
    total: float | None = None
    by_agent: dict[str, float | None] = field(default_factory=dict)


watch: ContextVar[Callable[[Env, str], AbstractContextManager[None]] | None] = ContextVar("watch", default=None)
"""Entered around every call of an environment's method, with the method's name, where it is set: `check_env` does."""


class _blamed(AbstractContextManager[None]):
    """The block is a call of an environment's method: what it raises is the environment's fault.

    Raises:
        EnvError: in place of everything that is no `AgentRLError`.
    """

    def __init__(self, env: Env, method: str) -> None:
        self._env, self._method = env, method

    def __enter__(self) -> None:
        watching = watch.get()
        self._watched = None if watching is None else watching(self._env, self._method)
        if self._watched is not None:
            self._watched.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._watched is not None:
            self._watched.__exit__(kind, error, trace)
        if not isinstance(error, Exception | SystemExit) or isinstance(error, AgentRLError):
            return
        where = f"{type(self._env.unwrapped).__name__}.{self._method}"
        if isinstance(error, ValidationError):
            words = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
            raise EnvError(f"{where} gave something that is not a message: {words}") from error
        if isinstance(error, NotImplementedError):
            raise EnvError(str(error) or f"{where} is not implemented") from error
        raise EnvError(f"{where} raised {type(error).__name__}: {error}") from error  # exit() would end the run


def tasks(env: Env, split: str = "train", start: int = 0) -> Iterator[Task]:
    """A split's tasks from index `start` on; those without an id get "<split>-<index>".

    Raises:
        EnvError: no such split, or something that is not a task.
    """
    _check_split(env, split)
    with _blamed(env, "tasks"):
        for index, task in enumerate(islice(env.tasks(split), start, None), start):
            yield _as_task(env, split, index, task)


def task(env: Env, split: str, index: int, value: Any) -> Task:
    """The task that `value`, the item at `index` of a split's tasks, stands for; see `tasks`."""
    _check_split(env, split)
    with _blamed(env, "tasks"):
        return _as_task(env, split, index, value)


def fixtures(env: Env) -> Iterator[tuple[Task, Fixture]]:
    """The environment's fixtures, each with its task; tasks without an id get "fixture-<index>".

    Raises:
        EnvError: its code failed, or gave something that is no fixture.
    """
    with _blamed(env, "fixtures"):
        for index, fixture in enumerate(env.fixtures()):
            if not isinstance(fixture, Fixture):
                raise EnvError(f"{type(env.unwrapped).__name__}.fixtures gave {shown(fixture)}, which is no Fixture")
            yield _as_task(env, "fixture", index, fixture.task), fixture


def _check_split(env: Env, split: str) -> None:
    if split not in env.splits:
        guess = nearest(split, env.splits)
        hint = f"; did you mean {guess!r}?" if guess else ""
        name = type(env.unwrapped).__name__
        raise EnvError(f"{name} has no split {split!r}{hint} (splits: {', '.join(env.splits)})")


def _as_task(env: Env, split: str, index: int, value: Any) -> Task:
    if isinstance(value, Task):
        return value
    if not isinstance(value, Mapping):
        raise EnvError(f"{type(env.unwrapped).__name__}.tasks gave {shown(value)}, neither a Task nor a mapping")
    return Task(id=str(value.get("id", f"{split}-{index}")), data=dict(value))


async def prepare(env: Env, tasks: Sequence[Task], sessions: int) -> None:
    """Let an environment get ready for a batch of episodes.

    Raises:
        EnvError: its code failed.
    """
    with _blamed(env, "prepare"):
        await resolved(env.prepare(tasks, sessions))


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
        EnvError: its code failed, gave no messages, or gave messages for an agent that it does not have.
    """
    where = f"{type(env.unwrapped).__name__}.reset"
    with _blamed(env, "reset"):
        value = await resolved(env.reset(task, seed=seed))
        await faults.async_point("env.reset")
        if value is None:
            raise EnvError(f"{where} returned None, not its opening messages")
        if len(env.agents) == 1:
            found = {env.agents[0]: _text_only(as_messages(value), where)}
        else:
            found = _by_agent(env, value, where)
    for agent, messages in found.items() or [("", [])]:
        if not messages:
            who = f"agent {agent!r}" if agent else "the agent"
            raise EnvError(f"{where} returned no messages: {who} has nothing to answer")
    env.unwrapped._episode = task, seed
    return found


def _by_agent(env: Env, value: Any, where: str) -> dict[str, list[Message]]:
    if not isinstance(value, Mapping):
        raise EnvError(f"{where} gave {shown(value)}; expected messages by agent (agents: {', '.join(env.agents)})")
    return {_known(env, agent, where): _text_only(as_messages(each), where) for agent, each in value.items()}


def _known(env: Env, agent: Any, where: str) -> str:
    if agent not in env.agents:
        raise EnvError(f"{where} names the agent {agent!r}; agents: {', '.join(env.agents)}")
    return str(agent)


def _members(env: Env, who: Any, where: str) -> tuple[str, ...]:
    """The agents that a reward is of: a team's, or one."""
    team = env.unwrapped.teams.get(who)
    if team is None:
        return (_known(env, who, where),)
    return tuple(_known(env, agent, f"{type(env.unwrapped).__name__}.teams[{who!r}]") for agent in team)


def _text_only(messages: list[Message], where: str) -> list[Message]:
    for message in messages:
        for part in message.content if isinstance(message.content, list) else ():
            if part.type != "text":
                words = f"a {message.role} message with {part.type!r} in it"
                raise EnvError(f"{where} gave {words}; models' conversation formats take text only")
    return messages


async def brief(env: Env, task: Task) -> Task:
    """What an agent program is given of the task.

    Raises:
        EnvError: its code failed, or gave something else than a task.
    """
    with _blamed(env, "brief"):
        given = await resolved(env.brief(task))
    if not isinstance(given, Task):
        raise EnvError(f"{type(env.unwrapped).__name__}.brief returned {shown(given)}, not a Task")
    return given


async def step(env: Env, message: Message) -> StepResult:
    """Answer the agent's message.

    Raises:
        EnvError: its code failed, or gave something else than a StepResult, or a reward that is not finite, or named an
            agent that the environment does not have.
    """
    name = type(env.unwrapped).__name__
    with _blamed(env, "step"):
        result = await resolved(env.step(message))
        await faults.async_point("env.step")
        if not isinstance(result, StepResult):
            raise EnvError(f"{name}.step returned {shown(result)}, not a StepResult")
        result.messages = _text_only(as_messages(result.messages), f"{name}.step")
        result.others = _by_agent(env, result.others, f"{name}.step")
        if isinstance(result.next, str):
            result.next = (result.next,)
        if result.next is not None and (not result.next or len({*result.next}) < len(result.next)):
            raise EnvError(f"{name}.step gave next={shown(result.next)}; expected an agent, or several different ones")
        for agent in (*result.rewards, *(result.next or ())):
            _known(env, agent, f"{name}.step")
    for reward in (result.reward, *result.rewards.values()):
        if reward is not None and not math.isfinite(reward):
            raise EnvError(f"{name}.step gave the reward {reward}, which is not finite")
    if result.continuation is not None and (result.messages or not env.stop_strings):
        why = "messages as well" if result.messages else "it has no stop_strings"
        raise EnvError(f"{name}.step gave a continuation, but {why}")
    if result.fresh and not result.messages:
        raise EnvError(f"{name}.step gave no messages for the agent to go on with alone (StepResult.fresh)")
    goes_on = result.messages or result.continuation is not None
    if len(env.agents) == 1 and not (goes_on or result.terminated or result.truncated):
        raise EnvError(f"{name}.step gave no messages and did not end: the agent has nothing to answer")
    return result


async def expert(env: Env, messages: Sequence[Message]) -> Message:
    """The next message of the environment's expert.

    Raises:
        EnvError: it has none, it failed, or it gave something else than an assistant message.
    """
    with _blamed(env, "expert"):
        return _assistant(env, "expert", await resolved(env.expert(list(messages))))


async def demonstrate(env: Env, messages: Sequence[Message]) -> Message:
    """The next message of the environment's demonstrator.

    Raises:
        EnvError: see `expert`.
    """
    with _blamed(env, "demonstrate"):
        return _assistant(env, "demonstrate", await resolved(env.demonstrate(list(messages))))


async def critic_view(env: Env, agent: str) -> bytes:
    """What a critic sees before a turn of `agent`, as an attachment of the turn.

    Raises:
        EnvError: its code failed, or gave something else than finite numbers.
    """
    with _blamed(env, "critic_view"):
        numbers = [float(number) for number in await resolved(env.critic_view(agent))]
        if not all(map(math.isfinite, numbers)):
            raise EnvError(f"{type(env.unwrapped).__name__}.critic_view gave numbers that are not finite: {numbers}")
        return attached_view.pack(numbers)


def _assistant(env: Env, method: str, value: Any) -> Message:
    message = Message.model_validate({"role": "assistant", "content": value} if isinstance(value, str) else value)
    if message.role != "assistant":
        raise EnvError(f"{type(env.unwrapped).__name__}.{method} gave a message of role {message.role!r}")
    return message


async def state(env: Env) -> EnvState:
    """The episode as it is between two steps; it does not change with the episode.

    Raises:
        StateUnsupported: the environment has no state, or none at this point of the episode.
        EnvError: its code failed or gave something that can't be stored, or no episode has begun.
    """
    task, seed = _episode(env)
    _refuse_added_state(env)
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
    if env.unwrapped._episode is not None:
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
    _refuse_added_state(env)
    with _blamed(env, "fork"):
        other = await resolved(env.fork())
        if not isinstance(other, Env) or other.unwrapped is env.unwrapped:
            raise EnvError(f"{type(env.unwrapped).__name__}.fork returned {shown(other)}, not another instance")
    _continue(other, task, seed, _counters(env))
    other.tools.timeout = env.tools.timeout
    other.unwrapped._added_rewards = env.unwrapped._added_rewards
    if (added := env.unwrapped._added_tools) is not None:
        add_tools(other, added.sources)
    return other


def _refuse_added_state(env: Env) -> None:
    if env.unwrapped._added_tools is not None:
        env.unwrapped._added_tools.refuse_state(env.unwrapped)


async def state_data(env: Env) -> Any:
    """What an environment's `state` returns, as plain data; wrappers call it of what they wrap."""
    with _blamed(env, "state"):
        return plain(await resolved(env.state()), f"{type(env.unwrapped).__name__}.state")


async def restore_data(env: Env, task: Task, data: Any) -> None:
    """Let an environment continue from what its `state` returned; wrappers call it of what they wrap."""
    with _blamed(env, "restore"):
        await resolved(env.restore(task, data))


def _episode(env: Env) -> tuple[Task, int | None]:
    if env.unwrapped._episode is None:
        raise EnvError(f"{type(env.unwrapped).__name__} has begun no episode: there is no state")
    return env.unwrapped._episode


def _counters(env: Env) -> dict[str, Any]:
    failures = {kind.value: number for kind, number in env.tools.failures.items()}
    called = env.unwrapped._called
    return {"calls": env.tools.calls, "failures": failures, "silent": env.tools.silent, "expert_calls": called}


def _continue(env: Env, task: Task, seed: int | None, counters: Mapping[str, Any]) -> None:
    env.unwrapped._episode, env.unwrapped._called = (task, seed), counters["expert_calls"]
    env.tools.calls, env.tools.silent = counters["calls"], counters.get("silent", 0)
    env.tools.failures.clear()
    env.tools.failures.update({ToolFailure(kind): number for kind, number in counters["failures"].items()})


async def close(env: Env) -> None:
    """Close an environment and the sandbox that its tools used; may be called again.

    Raises:
        EnvError: its code failed.
    """
    inner = env.unwrapped
    sandbox, inner._sandbox = inner._sandbox, None
    with _blamed(env, "close"):
        try:
            await resolved(env.close())
        finally:
            if sandbox is not None and hasattr(sandbox, "close"):
                await resolved(sandbox.close())
            if inner._added_tools is not None:
                await inner._added_tools.close()


async def compute_rewards(env: Env, session: Session) -> Rewards:
    """Compute every reward of the finished session: the `@reward` methods, and those that the run adds (`rewards.*`).

    Returns:
        The values by name, None left out, and their weighted sum; with several agents each one's sum, and the mean.

    Raises:
        EnvError: one failed, or gave a value that is no finite number within its declared range.
        InfraError, ConfigError: one of those that the run adds failed; see `NamedReward`.
    """
    values: dict[str, float] = {}
    sums: dict[str, float] = {}
    for mark, method in reward_methods(env):
        where = f"reward {mark.name!r} of {type(env.unwrapped).__name__}"
        with _blamed(env, mark.name), tracing.span("reward", reward=mark.name):
            given = await resolved(method(session))
            await faults.async_point("env.reward")
            each: dict[str, tuple[Any, tuple[str, ...]]]
            if isinstance(given, Mapping) and len(env.agents) > 1:
                each = {f"{mark.name}/{who}": (value, _members(env, who, where)) for who, value in given.items()}
            else:
                each = {mark.name: (given, env.agents)}
            numbers = {name: (_number(v, where), agents) for name, (v, agents) in each.items() if v is not None}
        low, high = mark.range
        for name, (number, agents) in numbers.items():
            if not low <= number <= high:
                raise EnvError(f"{where} gave {number!r}, outside its range {low:g} to {high:g}")
            if name in values:
                raise EnvError(f"{where}: two rewards have that name")
            values[name] = number
            for agent in agents:
                sums[agent] = sums.get(agent, 0.0) + mark.weight * number
    total = fmean(sums.values()) if sums else None
    return Rewards(values, total, {agent: sums.get(agent) for agent in env.agents} if len(env.agents) > 1 else {})


def _number(value: Any, where: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise EnvError(f"{where} gave {shown(value)}, which is not a number") from None
    if isinstance(value, str) or not math.isfinite(number):
        raise EnvError(f"{where} gave {shown(value)}, which is not a finite number")
    return number
