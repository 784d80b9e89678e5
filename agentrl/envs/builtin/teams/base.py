"""The common part of these worlds: every agent makes the same number of choices, and a rule pays for all of them.

Situations are few, so whatever agents do can be enumerated (`exact`). What an agent sees is its opening and what `news`
tells it, both a function of the situation and of what was chosen before. A text that is no choice counts as `ILLEGAL`.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from agentrl.envs.base import Env
from agentrl.types import Message, StepResult, Task

ILLEGAL = ""
"""Stands for a text that is no choice."""
EVAL_EVERY = 10
MAX_TEXT = 200
"""Characters of a text that are read."""


class ChoiceWorld(Env):
    """Agents choose words, at once or in turns; a subclass has the rules.

    Attributes:
        optimum: the most that the agents can get in the mean; of a zero-sum game, the first agent's at equilibrium.
        rounds: how often each agent chooses.
        situation: the one that is played.
        said: the choices of each agent.
        luck: a number from 0 to 1 by which an expert chooses where it must be unpredictable.
    """

    name = ""
    optimum = 1.0
    rounds = 1
    simultaneous = True

    def __init__(self) -> None:
        self.situation: Mapping[str, Any] = {}
        self.said: dict[str, list[str]] = {}
        self.luck = 0.0
        self.max_turns = self.rounds * len(self.agents)

    # ------------------------------------------------------------------ what a world writes

    @abstractmethod
    def situations(self) -> Sequence[Mapping[str, Any]]:
        """All that can be the case; each is as likely."""

    @abstractmethod
    def opening(self, agent: str) -> str:
        """Return what an agent is told at the beginning."""

    @abstractmethod
    def options(self, agent: str) -> Sequence[str]:
        """Return the texts that an agent may choose from."""

    @abstractmethod
    def payoffs(self) -> Mapping[str, float]:
        """Each agent's or team's result, 0 to 1, of `situation` and `said`."""

    def news(self, agent: str) -> str:
        """Return what an agent is told before a choice, besides its opening; "" is nothing."""
        return ""

    def read(self, agent: str, text: str) -> str:
        """Return the option that a text stands for, or `ILLEGAL`."""
        word = " ".join(text[:MAX_TEXT].split()).casefold().strip(".!\"'")
        return word if word in self.options(agent) else ILLEGAL

    # ------------------------------------------------------------------ the environment

    @classmethod
    def recipe(cls, model: str) -> dict[str, Any]:
        """Settings with which two tiny models learn it, on a CPU in minutes."""
        if model != "tiny":
            return {}
        return {
            "warm_start.steps": 80,
            "warm_start.demos": 512,
            "algo.kl_coef": 0.0,  # to a start that chooses anything
            "rollout.groups_per_step": 12,
            "rollout.turn_tokens": 24,
            "rollout.session_tokens": 512,
        }

    def tasks(self, split: str = "train") -> Iterator[Task]:
        """Situations in turn without end; one pass over them in ten is for `eval`."""
        each = len(self.situations())
        for number in count():
            if (number // each % EVAL_EVERY == 0) == (split == "eval"):
                yield Task(id=f"{self.name}-{number}", data={"number": number})

    def begin(self, number: int) -> None:
        """Set the situation of a task's number, before any choice."""
        every = self.situations()
        self.situation, self.said = every[number % len(every)], {agent: [] for agent in self.agents}
        self.luck = random.Random(f"{self.name}/{number}").random()

    def reset(self, task: Task, *, seed: int | None = None) -> Mapping[str, str]:
        """Tell each agent its opening; where they choose in turns, one after another, each together with its news.

        Given two messages, a tiny model that imitates nearly any choice may attend to the one that says who it is
        alone, and so firmly that no reward teaches it to read the other.
        """
        self.begin(task["number"])
        if self.simultaneous:
            return {agent: self.opening(agent) for agent in self.agents}
        return {self.agents[0]: self._open(self.agents[0])}

    def _open(self, agent: str) -> str:
        return " ".join(filter(None, (self.opening(agent), self.news(agent))))

    def step(self, message: Message) -> StepResult:
        """Note the choice, and tell those who choose next what they get to know."""
        agent = message.name or self.agents[0]
        self.said[agent].append(self.read(agent, message.text))
        done = {len(own) for own in self.said.values()}
        if done == {self.rounds}:
            return StepResult(terminated=True)
        if not self.simultaneous:
            after = self.agents[(self.agents.index(agent) + 1) % len(self.agents)]
            return StepResult(others=self.list_told(after), next=after)
        if len(done) > 1:  # the round is not over
            return StepResult()
        told = {other: news for each in self.agents for other, news in self.list_told(each).items()}
        return StepResult(told.pop(agent, []), others=told)

    def list_told(self, agent: str) -> dict[str, list[Message]]:
        """Return what an agent is told now as its messages; none where there is no news."""
        news = self.news(agent) if self.simultaneous or self.said[agent] else self._open(agent)
        return {agent: [Message(role="user", content=news)]} if news else {}

    def seen(self, agent: str) -> tuple[str, ...]:
        """Return what an agent has been told when it chooses for the first time."""
        return (self.opening(agent) if self.simultaneous else self._open(agent),)

    def demonstrate(self, messages: Sequence[Message], rng: random.Random) -> str:
        """Any option of the agent: imitation teaches what can be said, and not what pays."""
        return rng.choice(self.options(self.agent_of(messages)))

    def agent_of(self, messages: Sequence[Message]) -> str:
        """Return the agent that was sent these messages."""
        return next(agent for agent in self.agents if messages[0].text.startswith(self.opening(agent)))

    def state(self) -> dict[str, Any]:
        return {"said": self.said}

    def restore(self, task: Task, state: dict[str, Any]) -> None:
        self.begin(task["number"])
        self.said = state["said"]
