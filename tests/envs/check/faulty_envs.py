"""More environments with one fault each: in what an agent is told, what an episode changes, circumstances, costs."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import agentrl
from agentrl.envs.base import Env
from agentrl.envs.fixtures import Fixture, FixtureCredit
from agentrl.errors import ToolError
from agentrl.types import Message, Session, StepResult, Task
from tests.envs.check.broken_envs import FAULTS, Till, fault

__all__ = ["FAULTS"]  # those of both modules

# ------------------------------------------------------------------------------------------------ tasks


@fault("copies", "split 'train': 3 of 4 tasks are copies")
class Repeating(Till):
    """Has one task under several ids."""

    def tasks(self, split: str = "train") -> Any:
        items = ["tea", "tea", "tea", "rice"] if split == "train" else ["milk"]
        return [{"id": f"{split}/{number}", "item": item} for number, item in enumerate(items)]


@fault("same_tasks", "split 'train': the second call of tasks on one instance gives 0 tasks, the first gave 3")
class OnceOnly(Till):
    """Uses its list up."""

    def __init__(self) -> None:
        self.items = {split: iter(list(Till.tasks(self, split))) for split in self.splits}

    def tasks(self, split: str = "train") -> Any:
        return self.items[split]


# ------------------------------------------------------------------------------------------------ the answer


@fault("answer_in_tools", "the tools' schemas tell the answer of task 'train-0' (6 of 6 tasks)")
class Telling(Till):
    """Has its table of answers in a tool's description."""

    @agentrl.tool
    def price(self, item: str) -> int:
        """Look up a price: tea 4, rice 7, salt 2, milk 5, eggs 3, soap 6."""
        return self.prices.get(item, 0)


@fault("answer_in_tools", "the tools' schemas tell the answer of task 'train-0'")
class TellingByTask(Till):
    """Adds a tool for each task, with an example that is the answer."""

    def reset(self, task: Task, *, seed: int | None = None) -> Any:
        def say(price: int) -> str:
            return "thanks"

        say.__doc__ = f"Say a price, such as {self.prices[task['item']]}."
        self.tools.add(say)
        return super().reset(task)


@fault("answer_in_replies", "tells the right one (6 of 6 tasks), as in")
class Correcting(Till):
    """Corrects a wrong answer, and lets the agent try again."""

    max_turns = 5

    async def step(self, message: Message) -> StepResult:
        right = str(self.prices[self.item])
        if message.tool_calls or message.text in (right, ""):
            return await self.run_tools(message)
        return StepResult([Message(role="user", content=f"No, it costs {right}. Try again.")])


@fault("answer_in_replies", "tells the right one (6 of 6 tasks), as in")
class Refusing(Till):
    """Has the answer in an error."""

    @agentrl.tool
    def price(self, item: str) -> int:
        """Look up a price."""
        if item not in self.prices:
            raise ToolError(f"no {item}; did you mean {self.item} for {self.prices[self.item]}?")
        return self.prices[item]


@fault("scores", "one message fits all tasks")
class AnyNumber(Till):
    """Rewards any number, whatever was asked."""

    @agentrl.reward
    def right(self, session: Session) -> float | None:
        return float(session.answer.isdigit())


@fault("scores", "one message fits all tasks")
class Trusting(Till):
    """Rewards an agent for saying that it is done."""

    said = False

    @agentrl.tool
    def done(self) -> str:
        """Say that the price is known."""
        self.said = True
        self.end()
        return "good"

    @agentrl.reward
    def right(self, session: Session) -> float | None:
        return float(self.said)

    def expert(self, messages: Sequence[Message]) -> Any:
        return self.call("done") if messages[1:] else self.call("price", item=self.item)


# ------------------------------------------------------------------------------------------------ what is said


@fault("reprs", "task 'train-0', the expert's episode: entry 2 has an object's address, '<object object at 0x")
class Addressing(Till):
    """Returns an object that is no data."""

    @agentrl.tool
    def price(self, item: str) -> str:  # type: ignore[override]
        """Look up a price."""
        return f"{self.prices.get(item, 0)} {object()}"

    def expert(self, messages: Sequence[Message]) -> Any:
        return messages[-1].text.split()[0] if messages[1:] else self.call("price", item=self.item)


@fault("empty_results", "tool 'note' told the agent nothing at any of")
class Mute(Till):
    """Has a tool that forgets to return its result."""

    @agentrl.tool
    def note(self, text: str) -> None:
        """Note something down."""
        self.noted = text


@fault("growth", "the result of tool 'price' grows: ")
class Chronicling(Till):
    """Returns its whole history with each result."""

    def reset(self, task: Task, *, seed: int | None = None) -> Any:
        self.log: list[str] = []
        return super().reset(task)

    @agentrl.tool
    def price(self, item: str) -> str:  # type: ignore[override]
        """Look up a price."""
        self.log.append(f"You asked what one piece of {item} costs: {self.prices.get(item, 0)}")
        return "\n".join(self.log)

    def expert(self, messages: Sequence[Message]) -> Any:
        return messages[-1].text.split()[-1] if messages[1:] else self.call("price", item=self.item)


# ------------------------------------------------------------------------------------------------ what is changed


@fault("task_kept", "the task was changed in turn 1: {'item': 'tea'} became {'item': 'tea', 'asked': True}")
class Scribbling(Till):
    """Keeps its state in the task."""

    async def step(self, message: Message) -> StepResult:
        self.task.data["asked"] = True
        return await self.run_tools(message)

    def reset(self, task: Task, *, seed: int | None = None) -> Any:
        self.task = task
        return super().reset(task)


@fault("messages_kept", "step changed the agent's message of turn 1: its content was")
class Rewriting(Till):
    """Takes the agent's message apart."""

    async def step(self, message: Message) -> StepResult:
        result = await self.run_tools(message)
        message.content = (message.content or "") if isinstance(message.content, str) else ""
        message.content += " (seen)"
        return result


@fault("messages_kept", "step changed a message that was sent before, in turn 1: its content was")
class Updating(Till):
    """Keeps one message up to date."""

    def reset(self, task: Task, *, seed: int | None = None) -> Any:
        self.opening = Message(role="user", content=super().reset(task))
        return [self.opening]

    async def step(self, message: Message) -> StepResult:
        self.opening.content = "What does it cost? You have asked already."
        return await self.run_tools(message)


@fault("tools_kept", "the tools changed in turn 1: another")
class Growing(Till):
    """Offers a tool when the first one was used."""

    async def step(self, message: Message) -> StepResult:
        def another() -> str:
            """Do something else."""
            return "done"

        result = await self.run_tools(message)
        if "another" not in self.tools:
            self.tools.add(another)
        return result


# ------------------------------------------------------------------------------------------------ circumstances


@fault("unseeded", "task 'train-0': without a seed, Counting.reset raised TypeError")
class Counting(Till):
    """Computes with the seed."""

    def reset(self, task: Task, *, seed: int | None = None) -> Any:
        self.first = seed + 1  # type: ignore[operator]
        return super().reset(task)


@fault("cut_off", "cut off in its first turn: Assuming.right raised AttributeError")
class Assuming(Till):
    """Takes for granted that there was a step."""

    async def step(self, message: Message) -> StepResult:
        self.said = message.text
        return await self.run_tools(message)

    @agentrl.reward
    def right(self, session: Session) -> float | None:
        return float(self.said == str(self.prices[self.item]))


# ------------------------------------------------------------------------------------------------ costs


@fault("instances", "an instance takes 2")
class Heavy(Till):
    """Loads its data for each instance."""

    def __init__(self) -> None:
        self.table = bytearray(24 * 2**20)


@fault("freed", "closed instances are still referred to, in tests.envs.check.faulty_envs.OPEN, a list")
class Kept(Till):
    """Keeps a list of its instances."""

    def reset(self, task: Task, *, seed: int | None = None) -> Any:
        OPEN.append(self)
        return super().reset(task)


OPEN: list[Env] = []


@fault("freed", "by the cache of Cached.look_up")
class Cached(Till):
    """Caches a method, and with it every instance."""

    @functools.cache  # noqa: B019
    def look_up(self, item: str) -> int:
        return self.prices.get(item, 0)

    @agentrl.tool
    def price(self, item: str) -> int:
        """Look up a price."""
        return self.look_up(item)


@fault("memory", "each episode leaves ")
class Hoarding(Till):
    """Writes a log that nobody reads."""

    log: ClassVar[list[str]] = []

    def reset(self, task: Task, *, seed: int | None = None) -> Any:
        for number in range(100):
            self.log.append(f"{task.id} {number} has begun")
        return super().reset(task)


@fault("leaks", "each episode leaves 1 asyncio task behind after close, such as sleep")
class Watching(Till):
    """Starts a task that nobody ends."""

    async def reset(self, task: Task, *, seed: int | None = None) -> Any:
        self.watch = asyncio.create_task(asyncio.sleep(1000))
        return super().reset(task)


@fault("globals", "Configuring.reset changes the level of the root logger")
class Configuring(Till):
    """Sets up logging for the whole process."""

    levels: ClassVar[Iterator[int]] = iter(range(10_000, 20_000))

    def reset(self, task: Task, *, seed: int | None = None) -> Any:
        import logging

        logging.getLogger().setLevel(next(self.levels))
        return super().reset(task)


@fault("globals", "Masking.reset changes the mask of new files (os.umask)")
class Masking(Till):
    """Keeps its files to itself, and with them the run's."""

    before: int | None = None

    def reset(self, task: Task, *, seed: int | None = None) -> Any:
        import os

        self.before = os.umask(0o127)
        return super().reset(task)

    def close(self) -> None:
        import os

        if self.before is not None:
            os.umask(self.before)
            self.before = None


# ------------------------------------------------------------------------------------------------ fixtures


@fault("fixtures", "fixture 1 (a wrong price), task 'fixture-1': '5' must get full credit and got 0")
class WronglyGraded(Till):
    """Says that a wrong answer is right."""

    def fixtures(self) -> Any:
        yield Fixture({"item": "tea"}, "4", FixtureCredit.FULL)
        yield Fixture({"item": "tea"}, "5", FixtureCredit.FULL, "a wrong price")
