"""A correct environment, and one for each fault that `check_env` finds: the name of the rule, and the message."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import sqlite3
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import agentrl
from agentrl.envs.base import Env
from agentrl.envs.check.rules.runtime import HOLD
from agentrl.errors import ToolError
from agentrl.types import Message, Session, StepResult, Task

counter = itertools.count()


class Till(Env):
    """A correct environment; every one below breaks one thing in it."""

    prices: ClassVar = {"tea": 4, "rice": 7, "salt": 2, "milk": 5, "eggs": 3, "soap": 6}

    def tasks(self, split: str = "train") -> Any:
        return [{"item": item} for item in self.prices if (item in ("tea", "rice", "salt")) == (split == "train")]

    def reset(self, task: Task, *, seed: int | None = None) -> Any:
        self.item = task["item"]
        return f"What does {self.item} cost?"

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


FAULTS: list[tuple[type[Env], str, str]] = []


def fault(rule: str, words: str) -> Any:
    """This class breaks that rule, and the finding's message contains those words."""

    def keep(cls: type[Env]) -> type[Env]:
        FAULTS.append((cls, rule, words))
        return cls

    return keep


def made(rule: str, words: str, **members: Any) -> None:
    """A class that differs from the correct one in a few members."""
    FAULTS.append((type("Broken", (Till,), members), rule, words))


def fails(self: Env, *args: Any, **kwargs: Any) -> Any:
    raise KeyError("colour")


def cannot_begin(self: Env) -> None:
    raise KeyError("colour")


class Thing:
    """Stands for nothing in JSON."""

    def __repr__(self) -> str:
        return "a thing"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Thing)

    __hash__ = None  # type: ignore[assignment]


def exits_at_once(self: Env) -> None:
    raise SystemExit(3)


def exits(self: Env, *args: Any, **kwargs: Any) -> Any:
    raise SystemExit(3)


# ------------------------------------------------------------------------------------------------ tasks and tools

made("tasks", "split 'train' is empty", tasks=lambda self, split="train": [])
made("tasks", "split 'train': Broken.tasks raised KeyError: 'colour'", tasks=fails)
made("tasks", "Broken.tasks raised SystemExit: 3", tasks=exits)
made("tasks", "Broken.tasks gave 3, neither a Task nor a mapping", tasks=lambda self, split="train": [3])
made("task_ids", "two tasks have the same id, '1'", tasks=lambda self, split="train": [{"id": 1, "item": "tea"}] * 2)
made("task_data", "can't be stored as JSON", tasks=lambda self, split="train": [{"item": "tea", "x": Thing()}])
made("task_data", "has x[1] = nan, which", tasks=lambda self, split="train": [{"item": "tea", "x": [1, float("nan")]}])
made("tools", "'a price' is not a valid name of a tool", price=agentrl.tool(name="a price")(lambda self, item: 4))
made("tools", "'more' has no docstring", more=agentrl.tool(name="more")(lambda self: 4))
made("make", "can't be built: KeyError: 'colour'", __init__=cannot_begin)
made("make", "can't be built: SystemExit: 3", __init__=exits_at_once)
made(
    "splits",
    "splits 'train' and 'eval' share 6 of the compared tasks, such as 'train-0' {'item': 'tea'}",
    tasks=lambda self, split="train": [{"item": item} for item in self.prices],
)


@fault("marks", "LostTool.price has no @agentrl.tool and takes the place of Till.price, which has one")
class LostTool(Till):
    def price(self, item: str) -> int:
        return 1 + super().price(item)


@fault("marks", "HiddenReward.cheap: @agentrl.reward is hidden by what stands above it")
class HiddenReward(Till):
    @property
    @agentrl.reward
    def cheap(self) -> float:
        return 1.0


@fault("same_tasks", "split 'train': two instances give different tasks, at index 0")
class Endless(Till):
    """Has endless tasks, which is allowed, and never the same ones."""

    def tasks(self, split: str = "train") -> Iterator[dict[str, Any]]:
        while True:
            yield {"item": random.choice(["tea", "rice", "salt"]), "n": next(counter)}


@fault("parameters", "parameter 'item' of tool 'cost' has no type")
class Untyped(Till):
    """Describes a parameter, and has no type for it."""

    @agentrl.tool
    def cost(self, item) -> int:  # type: ignore[no-untyped-def]
        """Look up a price.

        Args:
            item: what to look for.
        """
        return 4


@fault("failing_tools", "tool 'weigh' raised at every one of")
class Useless(Till):
    """Has a tool that never works."""

    @agentrl.tool
    def weigh(self, item: str) -> int:
        """Weigh something."""
        return len(self.scales)  # type: ignore[attr-defined, no-any-return]


# ------------------------------------------------------------------------------------------------ what is said

made("failures", "Broken.reset raised KeyError: 'colour'", reset=fails)
made("failures", "Broken.reset raised SystemExit: 3", reset=exits)
made("failures", "Broken.step raised SystemExit: 3", step=exits)
made("failures", "outside its range 0 to 1", right=agentrl.reward(lambda self, session: 2))
made("failures", "not a finite number", right=agentrl.reward(lambda self, session: float("nan")))


@fault("failures", "Crash.step raised")
class Crash(Till):
    """Runs tools itself, without checking the model's arguments."""

    def step(self, message: Message) -> Any:
        if not message.tool_calls:
            return StepResult(terminated=True)
        call = message.tool_calls[0]
        price = self.prices[json.loads(call.function.arguments)["item"]]
        return StepResult([Message(role="tool", content=str(price), tool_call_id=call.id)])


@fault("opening", "task 'train-0': reset's last message is the assistant's own")
class Eager(Till):
    """Answers for the agent."""

    def reset(self, task: Task, *, seed: int | None = None) -> Any:
        return [{"role": "user", "content": super().reset(task)}, {"role": "assistant", "content": "Let me see."}]


@fault("roles", "is a system message in the middle of the conversation")
class Nagging(Till):
    """Has new instructions after every step."""

    async def step(self, message: Message) -> StepResult:
        result = await self.run_tools(message)
        if not result.terminated:
            result.messages.append(Message(role="system", content="Hurry."))
        return result

    def expert(self, messages: Sequence[Message]) -> Any:
        return messages[-2].text if messages[2:] else self.call("price", item=self.item)


@fault("lengths", "the result of tool 'manual', has 500,000 characters")
class Verbose(Till):
    """Has a tool with a very long result."""

    @agentrl.tool
    def manual(self) -> str:
        """Read the manual."""
        return "word " * 100_000


@fault("lengths", "a user message, has 500,0")
class VerboseAtOnce(Till):
    """Opens with half a megabyte."""

    def reset(self, task: Task, *, seed: int | None = None) -> Any:
        return "word " * 100_000 + super().reset(task)


@fault("endings", "it had not ended after 100 turns, and the environment has no max_turns")
class Forever(Till):
    """Asks again and again."""

    async def step(self, message: Message) -> StepResult:
        result = await self.run_tools(message)
        if message.tool_calls or message.text == str(self.prices[self.item]):
            return result
        return StepResult([Message(role="user", content="No. Again!")])


@fault("answer", "the prompt contains the answer, behind ' the answer '")
class GivingAway(Till):
    """Shows the answer in the prompt."""

    def reset(self, task: Task, *, seed: int | None = None) -> Any:
        return f"{super().reset(task)} Say e.g. the answer {self.prices[self.item]}."


@fault("answer", "the prompt contains the answer")
class GivingDataAway(Till):
    """Shows all of its data."""

    def tasks(self, split: str = "train") -> Any:
        return [{**task, "answer": self.prices[task["item"]]} for task in super().tasks(split)]

    def reset(self, task: Task, *, seed: int | None = None) -> Any:
        return f"{super().reset(task)}\n{task.data}"


# ------------------------------------------------------------------------------------------------ rewards

made("expert", "task 'train-1': the expert got right = 0.0 instead of 1", expert=lambda self, said: "4")
made("scores", "saying nothing is rewarded: silent agent 1.00", right=agentrl.reward(lambda self, session: 1))
made("rewarded", "no episode was rewarded", right=None)


@fault("ranges", "outside return_range 0 to 1")
class Generous(Till):
    """Step rewards without bound."""

    max_turns = 5

    def step(self, message: Message) -> Any:
        return StepResult([Message(role="user", content="more")], reward=0.6)


@fault("ranges", "the random agent's episode: step rewards of")
class RewardingDetours(Till):
    """Rewards calls that the task does not ask for."""

    @agentrl.tool
    def stroke(self, times: int) -> str:
        """Stroke the cat."""
        if times > 1:
            self.earn(0.4)
        return "purr"


@fault("expert", "where a random agent got 2")
class Outdone(Till):
    """Has an expert that does not get the greatest reward."""

    return_range = (0.0, 1.0)
    guessed = False

    @agentrl.tool
    def guess(self, price: int) -> str:
        """Guess the price."""
        if price > 3:
            self.earn(1.0)
        self.guessed = True
        self.end()
        return "thanks"

    @agentrl.reward
    def right(self, session: Session) -> float:
        return 1.0 if self.guessed else 0.5 * float(session.answer == str(self.prices[self.item]))


@fault("scores", "saying nothing is rewarded: silent agent 0.00")
class Deterring(Till):
    """Every step costs, and nothing is rewarded."""

    return_range = (-100.0, 0.0)
    right = None  # type: ignore[assignment]

    async def step(self, message: Message) -> StepResult:
        result = await self.run_tools(message)
        result.reward = -1.0 if message.tool_calls else 0.0
        return result


# ------------------------------------------------------------------------------------------------ conduct


@fault("determinism", "task 'train-0', entry 0: the same seed gave first")
class Fickle(Till):
    """Opens differently each time."""

    def reset(self, task: Task, *, seed: int | None = None) -> Any:
        return f"{super().reset(task)} {random.random()}"


@fault("bad_calls", "invalid calls bad_0 … bad_3 were answered under ['bad_0']")
class Forgetful(Till):
    """Answers one call and not the others."""

    async def step(self, message: Message) -> StepResult:
        result = await self.run_tools(message)
        result.messages = result.messages[:1]
        return result


@fault("hostile", "Unprepared.step raised")
class Unprepared(Till):
    """Has no room for long arguments."""

    async def step(self, message: Message) -> StepResult:
        for call in message.tool_calls or ():
            if len(call.function.arguments) > 1000:
                raise MemoryError(len(call.function.arguments))
        return await self.run_tools(message)


@fault("isolation", "task 'train-0' differs while other instances run")
class Global(Till):
    """Keeps its state where all instances share it."""

    shared = "tea"

    def reset(self, task: Task, *, seed: int | None = None) -> Any:
        Global.shared = task["item"]
        return f"What does {task['item']} cost?"

    def expert(self, messages: Sequence[Message]) -> Any:
        return messages[-1].text if messages[1:] else self.call("price", item=Global.shared)

    @agentrl.reward
    def right(self, session: Session) -> float:
        return float(session.answer == str(self.prices[Global.shared]))


@fault("close", "CloseOnce.close raised AttributeError")
class CloseOnce(Till):
    """Must be closed once only."""

    def close(self) -> None:
        del self.item


@fault("leaks", "each episode leaves 1 open file behind after close, such as ")
class LeakingFiles(Till):
    """Opens a log that nobody closes."""

    def reset(self, task: Task, *, seed: int | None = None) -> Any:
        self.log = open(os.devnull)  # noqa: SIM115
        return super().reset(task)


@fault("leaks", "each episode leaves 2 open files behind after close, such as ")
class LeakingInATool(Till):
    """Opens something in a tool."""

    @agentrl.tool
    def price(self, item: str) -> int:
        """Look up a price."""
        self.pipe = os.pipe()
        return self.prices.get(item, 0)


@fault(
    "late_tools", "'price' goes on in its thread after its deadline, and 1 calls of earn, end or spawn that came too"
)
class Late(Till):
    """Earns in a thread after its call was cut off."""

    return_range = (0.0, 2.0)
    over: threading.Event

    def reset(self, task: Task, *, seed: int | None = None) -> Any:
        self.over, self.earned = threading.Event(), threading.Event()
        return super().reset(task)

    @agentrl.tool(timeout=0.05)
    def price(self, item: str) -> int:
        """Look up a price."""
        self.over.wait(10)
        self.earn(1.0)
        self.earned.set()
        return self.prices.get(item, 0)

    async def step(self, message: Message) -> StepResult:
        """Answer; the late call earns before the step ends."""
        result = await self.run_tools(message)
        self.over.set()
        if message.tool_calls:
            await asyncio.to_thread(self.earned.wait, 10)
        return result


@fault("leaks", "each episode leaves 1 thread behind after close, such as counting")
class LeakingThreads(Till):
    """Starts a thread that nobody stops."""

    def reset(self, task: Task, *, seed: int | None = None) -> Any:
        threading.Thread(target=threading.Event().wait, name="counting", daemon=True).start()
        return super().reset(task)


@fault("leaks", "each episode leaves 1 process behind after close, such as sleep 1000")
class LeakingProcesses(Till):
    """Starts a server that nobody ends."""

    def reset(self, task: Task, *, seed: int | None = None) -> Any:
        self.server = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        return super().reset(task)


@fault("leaks", "each episode leaves 1 temporary file behind after close, such as ")
class LeakingFolders(Till):
    """Makes a folder that nobody removes."""

    def reset(self, task: Task, *, seed: int | None = None) -> Any:
        tempfile.mkdtemp()
        return super().reset(task)


@fault("globals", "Reseeding.reset seeds the global generator of random")
class Reseeding(Till):
    """Makes all episodes of the process draw the same numbers."""

    def reset(self, task: Task, *, seed: int | None = None) -> Any:
        random.seed(seed)
        return super().reset(task)


@fault("globals", "ReseedingNumpy.step (tool 'price') seeds the global generator of numpy.random")
class ReseedingNumpy(Till):
    """Does so with numpy, in a tool."""

    @agentrl.tool
    def price(self, item: str) -> int:
        """Look up a price."""
        import numpy as np

        np.random.seed(0)
        return self.prices.get(item, 0)


@fault("globals", "Moving.reset changes the working directory (os.chdir)")
class Moving(Till):
    """Changes the working directory of the process."""

    def reset(self, task: Task, *, seed: int | None = None) -> Any:
        os.chdir("/")
        return super().reset(task)


@fault("globals", "Exporting.step changes the environment variable TILL_ITEM")
class Exporting(Till):
    """Configures its tools by an environment variable."""

    async def step(self, message: Message) -> StepResult:
        os.environ["TILL_ITEM"] = self.item
        return await self.run_tools(message)


@fault("blocking", "Sleepy.reset blocks the event loop for")
class Sleepy(Till):
    """Waits without awaiting."""

    def reset(self, task: Task, *, seed: int | None = None) -> Any:
        time.sleep(1.2 * HOLD)
        return super().reset(task)


@fault("blocking", "Busy.step (tool 'price') blocks the event loop for")
class Busy(Till):
    """Computes in a tool that is marked as quick."""

    asked = 0

    @agentrl.tool(quick=True)
    def price(self, item: str) -> int:
        """Look up a price; every third time it takes long."""
        end = time.thread_time() + 1.2 * HOLD
        while self.asked % 3 == 0 and time.thread_time() < end:
            pass
        Busy.asked += 1
        return self.prices.get(item, 0)


@fault("blocking", "BusyAfterwards.right blocks the event loop for")
class BusyAfterwards(Till):
    """Computes a reward for long."""

    @agentrl.reward
    async def right(self, session: Session) -> float:
        sqlite3.connect(":memory:").execute(
            "with recursive n(x) as (select 1 union all select x + 1 from n where x < 200000) select sum(x) from n"
        ).fetchall()
        return float(session.answer == str(self.prices[self.item]))


# ------------------------------------------------------------------------------------------------ states and forks


class Basket(Till):
    """Correct: answers with the number of calls, and can be saved, restored and forked."""

    def reset(self, task: Task, *, seed: int | None = None) -> Any:
        self.asked: list[str] = []
        return super().reset(task, seed=seed)

    @agentrl.tool(name="price")
    def price(self, item: str) -> str:  # type: ignore[override]
        """Look up a price, which is told at the third time."""
        self.asked.append(item)
        return str(self.prices[self.item]) if len(self.asked) == 3 else f"asked {len(self.asked)} times"

    @agentrl.reward
    def right(self, session: Session) -> float | None:
        return float(session.answer == str(self.prices[self.item]) and len(self.asked) == 3)

    def expert(self, messages: Sequence[Message]) -> Any:
        calls = sum(message.role == "tool" for message in messages)
        return messages[-1].text if calls == 3 else self.call("price", item=self.item)

    def state(self) -> Any:
        return {"asked": self.asked}

    def restore(self, task: Task, state: Any) -> None:
        self.item, self.asked = task["item"], state["asked"]


def baskets(rule: str, words: str, **members: Any) -> None:
    """A class that differs from the basket in a few members."""
    FAULTS.append((type("Broken", (Basket,), members), rule, words))


def forgets(self: Any, task: Task, state: Any) -> None:
    self.item, self.asked = task["item"], []


def clears(self: Any) -> Any:
    asked, self.asked = self.asked, []
    return {"asked": asked}


KEPT: list[Any] = []


def keeps_itself(self: Any) -> Any:
    KEPT.append(self)
    return {"number": len(KEPT) - 1}


def takes_from_the_module(self: Any, task: Task, state: Any) -> None:
    self.item, self.asked = task["item"], KEPT[state["number"]].asked


async def forks_with_the_same_list(self: Any) -> Any:
    other = type(self)()
    other.item, other.asked = self.item, self.asked
    return other


async def forks_itself(self: Any) -> Any:
    return self


baskets("state", "restored from its state after turn", restore=forgets)
baskets("state", "the original continued differently once it was restored from its state", state=clears)
baskets("state", "continued differently", state=keeps_itself, restore=takes_from_the_module)
baskets("state", "Broken.state gave {'tea'}", state=lambda self: set(self.asked))
baskets("state", "Broken.state raised KeyError: 'colour'", state=fails)
baskets("state", "Broken.restore raised KeyError: 'colour'", restore=fails)
baskets("fork", "continued differently", fork=forks_with_the_same_list)
baskets("fork", "Broken.fork returned", fork=forks_itself)
