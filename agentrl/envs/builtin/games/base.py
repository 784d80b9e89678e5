"""The games' common part: turns, messages about what happened, and moves that are not allowed.

An agent sees its own opening, what its opponents did, and nothing else. Moves are free text, read by each game. A text
that is no legal move is answered with what is allowed; an agent that writes too many of them in a row forfeits: it gets
0, and the others what a draw is worth, since they have not won anything. So nobody gains by an opponent that is
not able to play, and an agent that says nothing gets less than one that plays.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

from agentrl.envs.base import Env, reward
from agentrl.errors import ToolError
from agentrl.types import Message, Session, StepResult, Task

ATTEMPTS = 3
"""Texts in a row that are no legal move, after which an agent forfeits."""
EVAL_EVERY = 10
MAX_MOVE = 500
"""Characters of a text that are read."""


class Game(Env):
    """A game of several agents; a subclass has the rules.

    A subclass sets `name`, and `turn` in `deal` and `move`.

    Attributes:
        name: what its tasks are called.
        draw: what a draw is worth.
        turn: whose turn it is.
        forfeited: the agent that forfeited; "" where none did.
    """

    name = ""
    draw = 0.5
    agents: tuple[str, ...] = ("first", "second")

    def __init__(self) -> None:
        self.turn = self.agents[0]
        self.forfeited = ""
        self._attempts = 0
        self._news: dict[str, list[str]] = {agent: [] for agent in self.agents}

    # ------------------------------------------------------------------ what a game writes

    @abstractmethod
    def deal(self, rng: random.Random) -> Mapping[str, str]:
        """Begin: set what is hidden and whose turn it is; each agent's opening."""

    @abstractmethod
    def move(self, agent: str, text: str) -> str:
        """Carry out a move, set `turn`, and return what the other agents get to know.

        Raises:
            ToolError: it is no legal move; the text says what is.
        """

    @abstractmethod
    def payoffs(self) -> Mapping[str, float] | None:
        """Each agent's result, 0 to 1, where the game is over; None before."""

    @abstractmethod
    def best_move(self) -> str:
        """The expert's move of the agent whose turn it is."""

    @abstractmethod
    def position(self) -> dict[str, Any]:
        """The attributes that `deal` and `move` have set, as plain data, for `resume`."""

    @abstractmethod
    def resume(self, position: dict[str, Any]) -> None:
        """Set what `position` returned."""

    # ------------------------------------------------------------------ the environment

    def tasks(self, split: str = "train") -> Iterator[Task]:
        for number in count():
            if (number % EVAL_EVERY == 0) == (split == "eval"):
                yield Task(id=f"{self.name}-{number}", data={"number": number})

    def reset(self, task: Task, *, seed: int | None = None) -> Mapping[str, str]:
        self.forfeited, self._attempts = "", 0
        self._news = {agent: [] for agent in self.agents}
        openings = self.deal(random.Random(f"{self.name}/{task['number']}"))
        order = [self.turn, *(agent for agent in self.agents if agent != self.turn)]
        return {agent: openings[agent] for agent in order}

    def step(self, message: Message) -> StepResult:
        """Carry out the agent's move, and tell the next one what has happened since its last turn."""
        agent = message.name or self.turn
        try:
            told = self.move(agent, " ".join(message.text[:MAX_MOVE].split()).casefold())
        except ToolError as error:
            return self._refuse(agent, str(error))
        self._attempts = 0
        for other in self.agents:
            if other != agent:
                self._news[other].append(told)
        if self.payoffs() is not None:
            return StepResult(terminated=True)
        news, self._news[self.turn] = self._news[self.turn], []
        return StepResult(others={self.turn: [Message(role="user", content="\n".join(news))]}, next=self.turn)

    def _refuse(self, agent: str, why: str) -> StepResult:
        self._attempts += 1
        if self._attempts == ATTEMPTS:
            self.forfeited = agent
            return StepResult(terminated=True)
        return StepResult([Message(role="user", content=f"That is not allowed: {why}")], next=agent)

    @reward
    def result(self, session: Session) -> Mapping[str, float]:
        """Each agent's result; a game that was cut off is a draw for all but the agent whose turn it was."""
        payoffs = None if self.forfeited else self.payoffs()
        late = self.forfeited or self.turn
        return payoffs or {agent: 0.0 if agent == late else self.draw for agent in self.agents}

    def expert(self, messages: Any) -> str:
        return self.best_move()

    def state(self) -> dict[str, Any]:
        own = {"turn": self.turn, "forfeited": self.forfeited, "attempts": self._attempts, "news": self._news}
        return {**own, "position": self.position()}

    def restore(self, task: Task, state: dict[str, Any]) -> None:
        self.turn, self.forfeited, self._attempts = state["turn"], state["forfeited"], state["attempts"]
        self._news = state["news"]
        self.resume(state["position"])
