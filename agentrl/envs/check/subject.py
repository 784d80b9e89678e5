"""The environment under check: its tasks, and episodes of several agents, each run once and cached."""

from __future__ import annotations

import asyncio
import inspect
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from agentrl.envs import calls
from agentrl.envs.base import Env, has_expert
from agentrl.envs.check.findings import Measured, Scores
from agentrl.envs.check.monitor import MethodCall, Monitor, ToolException, seed_generators
from agentrl.envs.check.resources import SETTLE, Holdings, find_leaks, measure_holdings
from agentrl.envs.check.trivial import RANDOM as RANDOM
from agentrl.envs.check.trivial import SILENT as SILENT
from agentrl.envs.check.trivial import TURNS, Known, Seated, partner, policy
from agentrl.envs.check.walk import Walk
from agentrl.envs.data.samples import hostile_policy, random_policy, sampled_policy
from agentrl.envs.episode import ScriptedPolicy, expert_policy, noop_policy, play
from agentrl.errors import EnvError
from agentrl.tools.tool import mark_of
from agentrl.types import Message, Session, Task

EXPERT, MADE_UP, HOSTILE = "expert", "agent of made-up calls", "agent of hostile calls"
PRYING, VARYING, DEMONSTRATING = "prying agent", "agent of varied calls", "demonstrator"
CAP = 100
"""Turns after which an episode counts as endless."""
ENDLESS_TURNS = 1000
"""A `max_turns` above this ends nothing."""
RANDOM_TURNS = 30
RANDOM_EPISODES = 6
"""Random episodes of each task."""
RANDOM_SECONDS = 5.0
"""No further ones are begun after so long."""
HOSTILE_EPISODES = 2
"""Episodes of hostile calls, unless more are asked for."""


@dataclass
class Episode:
    """An episode that was run, and its results.

    Attributes:
        agent: which agent generated the messages.
        session: None where the environment failed.
        error: why it failed.
        opening: what reset returned.
        said: copies of the agents' messages, as they were written.
        calls: the calls of its methods, in order.
        failures: what its tools raised.
        left: resources that remained after `close`, of a repeated episode.
        seconds: how long it took.
    """

    task: Task
    agent: str
    session: Session | None = None
    error: BaseException | None = None
    opening: list[Message] = field(default_factory=list)
    said: list[Message] = field(default_factory=list)
    calls: list[MethodCall] = field(default_factory=list)
    failures: list[ToolException] = field(default_factory=list)
    left: Holdings = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def name(self) -> str:
        return f"task {self.task.id!r}, the {self.agent}'s episode"

    def require_session(self) -> Session:
        """Return the session; where the environment failed, raise why."""
        if self.session is None:
            raise self.error or EnvError(f"{self.name} was not run")
        return self.session


async def demonstrate(env: Env, messages: Sequence[Message]) -> Message:
    """Return the message of the environment's own demonstrator."""
    said = sum(message.role == "assistant" for message in messages)
    return await calls.demonstrate(env, messages, random.Random(f"{messages[0].text}/{said}"))


def _copy(message: Message) -> Message:
    """A copy that shares nothing that can be changed; `copy.deepcopy` calls `id` for all of it, which a check hears."""
    if isinstance(message.content, list):
        return message.model_copy(deep=True)
    calls = [one.model_copy(update={"function": one.function.model_copy()}) for one in message.tool_calls or ()]
    return message.model_copy(update={"tool_calls": calls} if message.tool_calls else {})


class Subject:
    """An environment under check.

    Attributes:
        make: makes a new instance.
        env: an instance that runs no episode.
        splits: the tasks by split, of two instances.
        tasks: those that are run.
        seed: the episodes' seed.
        hostile: how many episodes of hostile calls to run.
        patient: whether to run all of them, however long they take.
        expert: whether there is one.
        notes: results of a rule that a later one reads.
        copies: numbers for further copies of an episode.
        name: the environment's, where it was given by its name; `options` are its constructor's.
        wanted: how many tasks the trivial agents play, within about so many `seconds`; `scores` is what they got.
        known: what the expert says last, for trivial agents.
        scored: the tasks that all trivial agents and the expert have played (`scores`), in `played_seconds`.
        prying, varying: the policies of agents that two rules set.
        empty_defaults: the parameters with an empty list or mapping as their default, before anything ran.
        walk: what an episode changed that it may not change (`inputs`).
        measured: what it costs.
        instance: the instance of the last episode.
    """

    def __init__(
        self,
        make: Callable[[], Env],
        monitor: Monitor,
        seed: int,
        hostile: int | None = None,
        name: str | None = None,
        options: Mapping[str, Any] | None = None,
        wanted: int = 100,
        seconds: float = 10.0,
    ) -> None:
        self.make, self.monitor, self.seed = make, monitor, seed
        self.hostile, self.patient = HOSTILE_EPISODES if hostile is None else hostile, hostile is not None
        self.name, self.options = name, dict(options or {})
        self.prying = self.varying = noop_policy
        self.walk: Walk | None = None
        self.measured: Measured | None = None
        self.env = make()
        self.expert = has_expert(self.env)
        self.empty_defaults = empty_defaults(self.env)
        self.splits: dict[str, tuple[list[Task], list[Task]]] = {}
        self.tasks: list[Task] = []
        self.notes: set[str] = set()
        self.wanted, self.seconds = wanted, seconds
        self.scores: Scores | None = None
        self.known = Known()
        self.scored: list[Task] = []
        self.played_seconds = 0.0
        self._kept: dict[tuple[str, str, int], Episode] = {}
        self._folder, self._variables = os.getcwd(), dict(os.environ)
        self._played = 0
        self.instance = self.env
        self.copies = count(100)

    @property
    def default(self) -> str:
        """The agent of rules that need any agent: the expert, or else the one that calls the tools in turn."""
        return EXPERT if self.expert else MADE_UP

    @property
    def limit(self) -> int | None:
        """Turns of an episode, where the environment's own limit ends nothing."""
        return CAP if self.env.max_turns is None or self.env.max_turns > ENDLESS_TURNS else None

    async def episode(self, task: Task, agent: str, copy: int = 0) -> Episode:
        """An episode, run at the first request; copies differ in the instance alone."""
        key = (task.id, agent, copy)
        if key not in self._kept:
            self._kept[key] = await self.play(task, agent, copy)
        return self._kept[key]

    def has_played(self, task: Task, agent: str) -> bool:
        """Return whether an agent has played a task."""
        return (task.id, agent, 0) in self._kept

    async def episodes(self, *agents: str, copies: Sequence[int] = (0,)) -> list[Episode]:
        """The episodes of every task that had no error."""
        played = [await self.episode(task, agent, copy) for task in self.tasks for agent in agents for copy in copies]
        return [episode for episode in played if episode.session is not None]

    async def random_episodes(self) -> list[Episode]:
        """Random agents' episodes, as many as there is time for: at least one of each task."""
        began, played = time.monotonic(), list[Episode]()
        for number in range(RANDOM_EPISODES):
            for task in self.tasks:
                if number and time.monotonic() - began > RANDOM_SECONDS:
                    break
                played.append(await self.episode(task, RANDOM, number))
        return played

    def played(self) -> Iterator[tuple[Episode, Session]]:
        """All episodes so far that had no error."""
        for episode in list(self._kept.values()):
            if episode.session is not None:
                yield episode, episode.session

    def played_by(self, agent: str) -> list[tuple[Episode, Session]]:
        """An agent's last episode of each task that had no error."""
        found = {episode.task.id: (episode, session) for episode, session in self.played() if episode.agent == agent}
        return list(found.values())

    def all_played(self) -> list[Episode]:
        """All episodes so far."""
        return list(self._kept.values())

    def untouched(self, task: Task) -> Task:
        """A copy of a task as a second instance listed it: no episode has had that one."""
        pairs = (pair for listed, again in self.splits.values() for pair in zip(listed, again, strict=False))
        return next((other for one, other in pairs if one is task), task).model_copy(deep=True)

    def label(self, task: Task, agent: str) -> None:
        """Set which episode runs, for the monitor's labels."""
        self.monitor.context = f" (task {task.id!r}, played by the {agent})"

    def policy(self, agent: str, copy: int = 0) -> ScriptedPolicy:
        """The policy of an agent."""
        policies: dict[str, ScriptedPolicy] = {
            EXPERT: expert_policy,
            SILENT: noop_policy,
            MADE_UP: sampled_policy,
            RANDOM: random_policy(self.seed + copy),
            HOSTILE: hostile_policy(self.seed + copy),
            PRYING: self.prying,
            VARYING: self.varying,
            DEMONSTRATING: demonstrate,
        }
        return policies[agent]

    async def trivial_episode(self, task: Task, name: str, seat: int) -> Episode:
        """A trivial agent's episode as one of the environment's agents, the others played by the expert."""
        key = (task.id, name, -1 - seat)
        if key not in self._kept:
            agent = self.env.agents[seat]
            own = policy(name, task, agent, self.known, self.seed)
            label = f"{name} as {agent}" if len(self.env.agents) > 1 else name
            limit = TURNS * len(self.env.agents)
            self._kept[key] = await self._run(Episode(task, label), limit, agent, own, partner(self.env))
        return self._kept[key]

    async def play(self, task: Task, agent: str, copy: int) -> Episode:
        """Run an episode without keeping it."""
        limit = RANDOM_TURNS if agent in (RANDOM, HOSTILE) else self.limit
        own = self.policy(agent, copy)
        counted = bool(copy) and agent == self.default
        return await self._run(Episode(task, agent), limit, self.env.agents[0], own, own, counted=counted)

    async def _run(
        self,
        episode: Episode,
        limit: int | None,
        seat: str,
        own: ScriptedPolicy,
        others: ScriptedPolicy,
        *,
        counted: bool = False,
    ) -> Episode:
        self._restore()
        self.label(episode.task, episode.agent)
        self.monitor.take()
        before = measure_holdings() if counted else None
        self.monitor.drawn = episode.agent == self.default  # whose episodes `globals_kept` compares

        def recorded(policy: ScriptedPolicy) -> ScriptedPolicy:
            async def act(env: Env, messages: Sequence[Message]) -> Message:
                episode.opening = episode.opening or list(messages)
                said = policy(env, messages)
                message = await said if inspect.isawaitable(said) else said
                episode.said.append(_copy(message))
                self.monitor.tools = tuple(call.function.name for call in message.tool_calls or ())
                return message

            return act

        env, began = self.make(), time.monotonic()
        actor = Seated(recorded(others), seat, recorded(own))
        try:
            task = episode.task.model_copy(deep=True)  # what an episode does to its task: `inputs.task_kept` alone
            playing = play(env, task, actor, seed=self.seed, max_turns=limit)
            episode.session = await asyncio.create_task(playing)  # of its own: its stack begins with this episode
        except (Exception, asyncio.CancelledError) as error:
            episode.error = error
        self.monitor.tools = ()
        episode.seconds = time.monotonic() - began
        episode.calls, episode.failures = self.monitor.take()
        if before is not None:
            episode.left = await find_leaks(before, SETTLE / 10)
        self.instance = env  # else garbage collection would close files that `close` leaves open
        return episode

    def _restore(self) -> None:
        """Restore what the last episode may have changed; each begins with different global random states."""
        os.chdir(self._folder)
        if dict(os.environ) != self._variables:
            os.environ.clear()
            os.environ.update(self._variables)
        self._played += 1
        self.monitor.traces.episode = self._played
        seed_generators(self._played)


def empty_defaults(env: Env) -> set[tuple[str, str]]:
    """The parameters whose default is an empty list or mapping, by function."""
    return {
        (name, parameter.name)
        for name, function in functions(type(env.unwrapped))
        for parameter in inspect.signature(function).parameters.values()
        if isinstance(parameter.default, (list, dict, set)) and not parameter.default
    }


def functions(cls: type) -> Iterator[tuple[str, Any]]:
    """The functions of a class and its bases below `Env`, tools included, by `Class.name`."""
    for base in cls.__mro__:
        if base is Env or not issubclass(base, Env):
            continue
        for name, member in vars(base).items():
            mark = mark_of(member)
            function = mark.function if mark is not None else getattr(member, "__func__", member)
            if inspect.isfunction(function):
                yield f"{base.__name__}.{name}", function
