"""Correct environments in which faults are planted: a shop, a game of cards, a game of moves at once."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import agentrl
from agentrl.envs.base import Env
from agentrl.errors import ToolError
from agentrl.types import Message, Session, StepResult, Task

WORDS = (
    *("tea", "rice", "salt", "milk", "eggs", "soap", "jam", "oil", "corn", "figs", "plum", "beet", "kale", "leek"),
    *("lime", "mint", "nuts", "oats", "peas", "sage", "ham", "yam", "tofu", "basil", "curry", "dates", "fennel"),
    *("ginger", "honey", "icing", "kiwi", "lemon", "mango", "nutmeg", "onion", "papaya", "quince", "radish"),
)
"""Those of `train`, then those of `eval`."""
HALF = len(WORDS) // 2


def price_of(item: str) -> int:
    return 100 + zlib.crc32(item.encode()) % 900


class Shop(Env):
    """What does an item cost? A tool tells it."""

    max_turns = 6
    prices: Mapping[str, int] = {item: price_of(item) for item in WORDS}

    def tasks(self, split: str = "train") -> Any:
        return [{"item": item} for item in (WORDS[:HALF] if split == "train" else WORDS[HALF:])]

    def reset(self, task: Task, *, seed: int | None = None) -> Any:
        self.item = task["item"]
        return f"What does {self.item} cost? Answer with the number."

    @agentrl.tool
    def price(self, item: str) -> int:
        """Look up a price."""
        if item not in self.prices:
            raise ToolError(f"there is no {item}")
        return self.prices[item]

    @agentrl.reward
    def right(self, session: Session) -> float | None:
        return float(session.answer == str(self.prices[self.item]))

    def expert(self, messages: Sequence[Message]) -> Any:
        return messages[-1].text if messages[-1].role == "tool" else self.call("price", item=self.item)


class Quiz(Env):
    """What is the sum of two numbers? One answer, no tools."""

    max_turns = 1

    def tasks(self, split: str = "train") -> Any:
        rng = random.Random(split)
        low, high = (100, 499) if split == "train" else (500, 999)
        return [{"a": rng.randint(low, high), "b": rng.randint(low, high)} for _ in range(20)]

    def reset(self, task: Task, *, seed: int | None = None) -> Any:
        self.sum = str(task["a"] + task["b"])
        return f"What is {task['a']} + {task['b']}?"

    @agentrl.reward
    def right(self, session: Session) -> float | None:
        return float(session.answer.strip() == self.sum)

    def expert(self, messages: Sequence[Message]) -> Any:
        return self.sum


class Parity(Quiz):
    """Is a number even? Half of all guesses are right."""

    chance = 0.5

    def reset(self, task: Task, *, seed: int | None = None) -> Any:
        self.sum = "yes" if (task["a"] + task["b"]) % 2 == 0 else "no"
        return f"Is {task['a']} + {task['b']} even? Answer yes or no."


class Walk(Shop):
    """Steps of random length, which can be saved."""

    def reset(self, task: Task, *, seed: int | None = None) -> Any:
        self.rng, self.at = random.Random(f"{task.id}/{seed}"), 0
        return super().reset(task)

    @agentrl.tool
    def step_on(self) -> str:
        """Take a step."""
        self.at += self.rng.randint(1, 1000)
        return f"at {self.at}"

    def expert(self, messages: Sequence[Message]) -> Any:
        told = sum(message.role == "tool" for message in messages)
        return super().expert(messages) if told > 2 else self.call("step_on" if told < 2 else "price", **self._of(told))

    def _of(self, told: int) -> dict[str, Any]:
        return {} if told < 2 else {"item": self.item}

    def state(self) -> Any:
        version, numbers, gauss = self.rng.getstate()
        return {"at": self.at, "rng": [version, list(numbers), gauss]}

    def restore(self, task: Task, state: Any) -> None:
        self.item, self.at, self.rng = task["item"], state["at"], random.Random()
        version, numbers, gauss = state["rng"]
        self.rng.setstate((version, tuple(numbers), gauss))


class Duel(Env):
    """The higher card wins, unless its owner folds; zero-sum, one move each."""

    agents = ("left", "right")
    max_turns = 2

    def tasks(self, split: str = "train") -> Iterator[dict[str, Any]]:
        for number in range(split == "eval", 60, 2):
            rng = random.Random(number)
            yield {"number": number, "cards": rng.sample(range(10, 60), 2)}

    def reset(self, task: Task, *, seed: int | None = None) -> Any:
        self.cards, self.said = dict(zip(self.agents, task["cards"], strict=True)), dict[str, str]()
        return {agent: self.opening(agent) for agent in self.agents}

    def opening(self, agent: str) -> str:
        return f"The higher card wins, and who folds loses less. Your card: {self.cards[agent]}. Say play or fold."

    def step(self, message: Message) -> Any:
        self.said[str(message.name)] = message.text
        return StepResult(terminated=len(self.said) == 2, others={} if len(self.said) == 2 else self.news())

    def news(self) -> Any:
        return {"right": "Your opponent has moved."}

    def value(self, agent: str) -> float:
        other = next(each for each in self.agents if each != agent)
        if self.said.get(agent) not in ("play", "fold"):
            return 0.0
        if self.said.get(other) not in ("play", "fold"):
            return 1.0
        if "fold" in (self.said[agent], self.said[other]):
            return 0.5 if self.said[agent] == self.said[other] else 0.4 if self.said[agent] == "fold" else 0.6
        return float(self.cards[agent] > self.cards[other])

    @agentrl.reward
    def result(self, session: Session) -> Any:
        return {agent: self.value(agent) for agent in self.agents}

    def expert(self, messages: Sequence[Message]) -> Any:
        return "play" if int(messages[0].text.partition("card: ")[2][:2]) > 34 else "fold"


class Auction(Env):
    """Two bid at once for a thing; the higher bid gets its worth less the bid."""

    agents = ("ann", "bob")
    simultaneous = True
    max_turns = 2

    def tasks(self, split: str = "train") -> Iterator[dict[str, Any]]:
        for number in range(split == "eval", 60, 2):
            rng = random.Random(number)
            yield {"number": number, "worth": rng.randint(20, 90)}

    def reset(self, task: Task, *, seed: int | None = None) -> Any:
        self.worth, self.bids = task["worth"], dict[str, int]()
        return dict.fromkeys(self.agents, f"It is worth {self.worth} to both of you. Bid a number.")

    def step(self, message: Message) -> Any:
        self.bids[str(message.name)] = int(message.text) if message.text.isdecimal() and len(message.text) < 4 else 0
        return StepResult(terminated=len(self.bids) == 2)

    @agentrl.reward
    def result(self, session: Session) -> Any:
        top = max(self.bids.values(), default=0)
        winners = [agent for agent, bid in self.bids.items() if bid == top and 0 < bid <= self.worth]
        return {agent: (0.5 + 0.5 / len(winners) if agent in winners else 0.0) for agent in self.agents}

    def expert(self, messages: Sequence[Message]) -> Any:
        return str(self.worth)


__all__ = [
    "Any",
    "Auction",
    "Duel",
    "Env",
    "HALF",
    "Message",
    "Parity",
    "Quiz",
    "Session",
    "Shop",
    "StepResult",
    "Task",
    "ToolError",
    "WORDS",
    "Walk",
    "agentrl",
    "price_of",
]
