"""The environment under check: its tasks, and episodes of several agents, each run once and cached."""

from __future__ import annotations

import asyncio
import inspect
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

from agentrl.envs.base import Env, has_expert
from agentrl.envs.check.monitor import Call, Failure, Monitor, seed_generators
from agentrl.envs.check.resources import SETTLE, Holdings, held, left_since
from agentrl.envs.episode import ScriptedPolicy, expert_policy, noop_policy, play
from agentrl.envs.samples import hostile_policy, random_policy, sampled_policy
from agentrl.types import Message, Session, Task

if TYPE_CHECKING:
    from agentrl.envs.check.inputs import Walk
    from agentrl.envs.check.rules import Measured

EXPERT, SILENT, MADE_UP, RANDOM = "expert", "silent agent", "agent of made-up calls", "random agent"
HOSTILE = "agent of hostile calls"
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
    calls: list[Call] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    left: Holdings = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def name(self) -> str:
        """For messages."""
        return f"task {self.task.id!r}, the {self.agent}'s episode"


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
    ) -> None:
        self.make, self.monitor, self.seed = make, monitor, seed
        self.hostile, self.patient = HOSTILE_EPISODES if hostile is None else hostile, hostile is not None
        self.name, self.options = name, dict(options or {})
        self.walk: Walk | None = None
        self.measured: Measured | None = None
        self.env = make()
        self.expert = has_expert(self.env)
        self.splits: dict[str, tuple[list[Task], list[Task]]] = {}
        self.tasks: list[Task] = []
        self.notes: set[str] = set()
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
        }
        return policies[agent]

    async def play(self, task: Task, agent: str, copy: int) -> Episode:
        """Run an episode without keeping it."""
        self._restore()
        self.label(task, agent)
        self.monitor.take()
        before = held() if copy and agent == self.default else None
        policy, episode = self.policy(agent, copy), Episode(task, agent)

        async def recorded(env: Env, messages: Sequence[Message]) -> Message:
            episode.opening = episode.opening or list(messages)
            said = policy(env, messages)
            message = await said if inspect.isawaitable(said) else said
            self.monitor.tools = tuple(call.function.name for call in message.tool_calls or ())
            return message

        env, began = self.make(), time.monotonic()
        limit = RANDOM_TURNS if agent in (RANDOM, HOSTILE) else self.limit
        try:
            own = task.model_copy(deep=True)  # what an episode does to its task shows in `inputs.task_kept` alone
            playing = play(env, own, recorded, seed=self.seed, max_turns=limit)
            episode.session = await asyncio.create_task(
                playing
            )  # a task of its own: its stack begins with this episode
        except (Exception, asyncio.CancelledError) as error:
            episode.error = error
        self.monitor.tools = ()
        episode.seconds = time.monotonic() - began
        episode.calls, episode.failures = self.monitor.take()
        if before is not None:
            episode.left = await left_since(before, SETTLE / 10)
        self.instance = env  # else garbage collection would close files that `close` leaves open
        return episode

    def _restore(self) -> None:
        """Restore what the last episode may have changed; each begins with different global random states."""
        os.chdir(self._folder)
        if dict(os.environ) != self._variables:
            os.environ.clear()
            os.environ.update(self._variables)
        self._played += 1
        seed_generators(self._played)
