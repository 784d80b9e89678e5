"""`env=retail`: an agent serves a customer of an online store, with tools on its database and a policy to follow.

The agent talks to a simulated customer and works on the database; the episode ends when the customer has nothing more
to say. It is rewarded where the database is then as the task's reference actions leave it, and everything was said
that had to be. Where a wish is forbidden, the agent must have looked the customer up, and then have refused: else
saying that all is done would be right wherever nothing may be changed. With `env.path` the tasks, database and policy
are those of a folder in the layout of tau2-bench's retail domain; otherwise they are made from a seed, in three levels.

A customer who leaves because nothing happened truncates the episode, which is then worth nothing, as a limit of turns
does: else an agent that says nothing would succeed in the tasks in which nothing may be changed.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from agentrl.envs.base import Env, reward
from agentrl.envs.builtin.retail.customer import MAX_READ, REFUSAL, Customer
from agentrl.envs.builtin.retail.data import World, read_world
from agentrl.envs.builtin.retail.expert import DONE, WRITES, must_refuse, script
from agentrl.envs.builtin.retail.generate import LEVELS, made_tasks, made_world
from agentrl.envs.builtin.retail.store import TOOLS, RetailStore
from agentrl.envs.data.splits import TaskList
from agentrl.errors import ConfigError
from agentrl.types import AGENT, Message, Session, Status, StepResult, Task

CUSTOMER = "customer"
"""The second agent's name, where a policy plays the customer."""
STOP = "###STOP###"
"""The text with which a policy that plays the customer ends the conversation."""
MAX_TURNS = 100
"""tau2-bench allows 200 messages."""
INSTRUCTIONS = (
    "You are a customer service agent of an online store and follow the policy below. In each turn, either write to "
    "the customer or make one tool call, not both.\n\n{policy}"
)
CUSTOMER_INSTRUCTIONS = (
    "You are a customer of an online store and write to its service agent, one short message at a time. Don't give "
    "everything away at once, and invent nothing beyond what you know. When all that you want is settled, or can't be, "
    f"write {STOP} and nothing else.\n\nWhat you want: {{reason}}\nWhat you know: {{known}} {{unknown}}\n"
    "How you are: {instructions}"
)
WELCOME = "Hi! How can I help you today?"
HURRY = 2
"""One demonstration in this many does nothing, so that a policy which imitates them has something left to learn."""
SEARCHED = 200
"""Tasks of a split in which the tools are looked up that `env.tools` must have."""
MOST_NUMBERS = 50
"""Different numbers in a message; one with more recites them, and tells none."""
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


class Retail(Env):
    """Serve a customer of an online store: look things up, follow the policy, change orders.

    Args:
        path: a folder with db.json, policy.md, tasks.json and split_tasks.json in tau2-bench's layout; without it the
            store and its tasks are made from a seed.
        level: of the made tasks, 1 to 3; without it they are mixed.
        customer: `rules`, a simulated customer without a model; or `policy`: the customer is an agent of its own,
            played by the policy that `agents.customer` names.
        seed: which made tasks there are.
        tools: the names of the tools that the agent has; without it all of them. Their descriptions are most of the
            opening.
    """

    max_turns = MAX_TURNS

    @classmethod
    def recipe(cls, model: str) -> dict[str, Any]:
        """Settings with which the tiny model learns level 1; larger steps destroy what it copies."""
        if model != "tiny":
            return {}
        return {
            "steps": 30,
            "warm_start.steps": 800,
            "warm_start.batch": 16,
            "warm_start.lr": 4e-3,
            "algo.lr": 2e-4,
            "algo.minibatches": 1,
            "rollout.turn_tokens": 192,
            "rollout.session_tokens": 2048,
        }

    def __init__(
        self,
        path: str | Path | None = None,
        level: int | None = None,
        customer: Literal["rules", "policy"] = "rules",
        seed: int = 0,
        tools: Sequence[str] | None = None,
    ) -> None:
        if level is not None and level not in LEVELS:
            raise ConfigError(f"env.level = {level}: allowed are {', '.join(map(str, LEVELS))}")
        if level is not None and path is not None:
            raise ConfigError(f"env.level = {level} is for made tasks; env.path = {str(path)!r} has tasks of its own")
        self.path, self.level, self.seed = None if path is None else Path(path).expanduser(), level, seed
        if self.path is not None:
            read_world(self.path)
        if customer == "policy":
            self.agents = (AGENT, CUSTOMER)
        self._task, self._store, self._said, self._refused = Task(id=""), RetailStore(), set[str](), False
        self._customer = Customer(dict.fromkeys(("reason", "known", "unknown", "instructions"), ""))
        for name in TOOLS if tools is None else self._choose(tools):
            self.tools.add(getattr(self._store, name))

    def _choose(self, names: Sequence[str]) -> list[str]:
        """The tools of these names.

        Raises:
            ConfigError: there is no such tool, or tasks need one that is not among them.
        """
        if unknown := sorted(set(names) - set(TOOLS)):
            raise ConfigError(f"env.tools = {unknown[0]!r}: allowed are {', '.join(TOOLS)}")
        if missing := sorted(needed_tools(self.path, self.level, self.seed) - set(names)):
            raise ConfigError(
                f"env.tools lacks {', '.join(missing)}, which tasks need: allowed are lists that have them"
            )
        return [name for name in TOOLS if name in names]

    def tasks(self, split: str = "train") -> Any:
        if self.path is not None:
            return TaskList(self._world.tasks[split], self._world.notes)
        return made_tasks(split, self.level, self.seed)

    def reset(self, task: Task, *, seed: int | None = None) -> Any:
        self._begin(task)
        instructions = Message(role="system", content=INSTRUCTIONS.format(policy=self._world.policy))
        if CUSTOMER in self.agents:
            words = CUSTOMER_INSTRUCTIONS.format(**task["scenario"])
            opening = [Message(role="system", content=words), Message(role="user", content=WELCOME)]
            return {CUSTOMER: opening, AGENT: [instructions]}
        return [instructions, Message(role="user", content=self._customer.opening())]

    async def step(self, message: Message) -> StepResult:
        """Run the tool calls; without any, the message goes to the customer, who answers or ends the conversation."""
        if message.name == CUSTOMER:
            heard = Message(role="user", content=message.text.replace(STOP, "").strip())
            return StepResult(others={AGENT: [heard]}, next=AGENT, terminated=STOP in message.text)
        self._note(message.text)
        if message.tool_calls:
            result = await self.run_tools(message)
            result.next = AGENT
            return result
        if self._store.transferred:
            return StepResult(terminated=True)
        if CUSTOMER in self.agents:
            return StepResult(others={CUSTOMER: [Message(role="user", content=message.text)]}, next=CUSTOMER)
        answer = self._customer.answer(message.text)
        if answer is None:
            return StepResult(terminated=not self._customer.left, truncated=self._customer.left)
        return StepResult([Message(role="user", content=answer)])

    def state(self) -> dict[str, Any]:
        """Changes of the database, the words said, and the customer's place in the conversation."""
        store = {
            "changed": self._store.changed,
            "transferred": self._store.transferred,
            "found": sorted(self._store.found),
        }
        said = {"said": sorted(self._said), "refused": self._refused}
        return {"store": store, **said, "customer": self._customer.state()}

    def restore(self, task: Task, state: dict[str, Any]) -> None:
        self._begin(task)
        self._store.begin(self._world.database, **state["store"])
        self._said, self._refused = set(state["said"]), state["refused"]
        self._customer = Customer(task["scenario"], **state["customer"])

    def brief(self, task: Task) -> Task:
        opening = Customer(task["scenario"]).opening()
        return Task(id=task.id, data={"policy": self._world.policy, "request": opening})

    # ------------------------------------------------------------------------------ rewards

    @reward
    def solved(self, session: Session) -> Any:
        """1 where the database is as it should be, and all was said and refused that had to be, to the end."""
        ended = session.status is not Status.TRUNCATED
        return self._of_agent(float(ended and self._database_matches() and self._all_said() and self._has_refused()))

    @reward(weight=0.0)
    def database(self, session: Session) -> Any:
        """Return whether the database is as the reference actions leave it, logged."""
        return self._of_agent(float(self._database_matches()))

    @reward(weight=0.0)
    def said(self, session: Session) -> Any:
        """Return whether everything was said that had to be, logged."""
        return self._of_agent(float(self._all_said()))

    def _database_matches(self) -> bool:
        return self._store.same_as(self._reference())

    def _has_refused(self) -> bool:
        """Return whether a forbidden wish was refused once the customer had been looked up; True where none is."""
        found = self._reference().found
        return not must_refuse(self._task) or (self._refused and found <= self._store.found)

    def _reference(self) -> RetailStore:
        reference = RetailStore(self._world.database)
        reference.apply(self._task["actions"])
        return reference

    def _all_said(self) -> bool:
        return len(self._said) == len(set(self._task["communicate"]))

    def _of_agent(self, value: float) -> float | Mapping[str, float]:
        """A policy that plays the customer is not rewarded."""
        return {AGENT: value} if CUSTOMER in self.agents else value

    # ------------------------------------------------------------------------------ the expert

    def expert(self, messages: Sequence[Message]) -> str | Message:
        """The next step of the task's script; as the customer, what the rules say."""
        if CUSTOMER in self.agents and messages[-1].role == "user" and messages[1:2] and messages[1].text == WELCOME:
            return self._as_customer(messages)
        steps = script(self._task, self._world.database)
        step = steps[min(sum(message.role == "assistant" for message in messages), len(steps) - 1)]
        return step if isinstance(step, str) else self.call(step["name"], **step["arguments"])

    def demonstrate(self, messages: Sequence[Message], rng: random.Random) -> str | Message:
        """The expert, which in one task of `HURRY` says that all is done before it is; always in the same ones."""
        said = self.expert(messages)
        hurried = random.Random(f"hurry/{self._task.id}").randrange(HURRY) == 0
        return DONE if hurried and isinstance(said, Message) and is_write(said) else said

    def _as_customer(self, messages: Sequence[Message]) -> str:
        customer = Customer(self._task["scenario"])
        said: str | None = customer.opening()
        for message in messages[2:]:
            if message.role == "user":
                said = customer.answer(message.text)
        return said or STOP

    # ------------------------------------------------------------------------------ the episode

    @property
    def _world(self) -> World:
        return made_world(self.seed) if self.path is None else read_world(self.path)

    def _begin(self, task: Task) -> None:
        self._task, self._said, self._customer = task, set(), Customer(task["scenario"])
        self._refused = False
        self._store.begin(self._world.database)

    def _note(self, text: str) -> None:
        """Note what of that which has to be said is in a message, and a refusal once a customer was looked up."""
        refused = REFUSAL.search(text[:MAX_READ].casefold()) is not None
        self._refused |= refused and bool(self._store.found or not self._reference().found)  # nobody can be looked up
        self._said |= find_told(self._task["communicate"], text)


@lru_cache(maxsize=16)
def needed_tools(path: Path | None, level: int | None, seed: int) -> frozenset[str]:
    """The tools that the reference actions of tasks call, those of all or of the first `SEARCHED` of each split."""
    if path is not None:
        tasks = [task for split in read_world(path).tasks.values() for task in split]
    else:
        tasks = [task for split in Env.splits for task in islice(made_tasks(split, level, seed), SEARCHED)]
    return frozenset(action["name"] for task in tasks for action in task["actions"]) & set(TOOLS)


def is_write(message: Message) -> bool:
    """Return whether a message calls a tool that changes the database."""
    return any(call.function.name.startswith(WRITES) for call in message.tool_calls or ())


def find_told(wanted: Iterable[str], text: str) -> set[str]:
    """The words that a message tells.

    A number counts where it is written by itself, not as a part of another, and not among more than `MOST_NUMBERS`.
    Thousands may be separated by commas.
    """
    heard = _plain(text[:MAX_READ])
    numbers = {float(each) for each in _NUMBER.findall(heard)}
    if len(numbers) > MOST_NUMBERS:
        numbers = set()
    found = ((words, _NUMBER.fullmatch(_plain(words).removeprefix("$"))) for words in wanted)
    return {words for words, number in found if (float(number[0]) in numbers if number else _plain(words) in heard)}


def _plain(text: str) -> str:
    return text.casefold().replace(",", "")
