"""Sub-agents and compaction within an environment: paths of their own in the session, which are the agent's."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

import agentrl
from agentrl.config import AlgoConfig
from agentrl.envs.episode import play
from agentrl.errors import EnvError
from agentrl.sessions.store.store import Store
from agentrl.sessions.tree import tree
from agentrl.train.algorithms.credit import passed_to_helpers
from agentrl.train.algorithms.returns import group_relative
from agentrl.types import FinishReason, Group, Message, Sampling, Session, Status, StepResult, Task, Turn
from agentrl.types import VersionSpan as Span

TASK = Task(id="t", data={"where": "attic"})


class Search(agentrl.Env):
    """Find a thing; a helper may look where it is told to."""

    max_turns = 4

    def tasks(self, split: str = "train") -> Any:
        return [TASK]

    def reset(self, task: Task, *, seed: int | None = None) -> str:
        self.where, self.looked = task["where"], list[str]()
        return "Where is it?"

    @agentrl.tool(quick=True)
    def look(self, place: str) -> str:
        """Look somewhere."""
        self.looked.append(place)
        return "here" if place == self.where else "nothing"

    @agentrl.tool
    async def send(self, places: list[str]) -> str:
        """Send a helper to each place, all at once."""
        sent = (self.spawn(f"Look in the {place}.", tools=["look"], max_turns=2, name="helper") for place in places)
        return ", ".join(await asyncio.gather(*sent))

    @agentrl.reward
    def found(self, session: Session) -> float:
        return float(session.answer == self.where)


def acting(env: agentrl.Env, messages: Sequence[Message]) -> Message:
    """The helper looks and repeats what it saw; the agent sends helpers to two places, and answers."""
    words, last = messages[0].text, messages[-1]
    if words.startswith("Look"):
        place = words.removeprefix("Look in the ").removesuffix(".")
        return Message(role="assistant", content=last.text) if last.role == "tool" else env.call("look", place=place)
    if last.role == "tool":
        return Message(role="assistant", content="attic" if "here" in last.text else last.text)
    return env.call("send", places=["cellar", "attic"])


def of(session: Session, agent: str) -> list[str]:
    return [node.message.text for node in session.nodes if node.agent == agent]


async def test_sub_agents_have_paths_of_their_own_and_the_agent_sees_only_their_results() -> None:
    session = await play(Search(), TASK, acting)
    assert (session.status, session.reward, session.answer) == (Status.COMPLETED, 1.0, "attic")
    assert of(session, "agent") == ["Where is it?", "", "nothing, here", "attic"]
    assert of(session, "agent/helper") == [
        *("Look in the cellar.", "", "nothing", "nothing"),
        *("Look in the attic.", "", "here", "here"),
    ], "one after another, though both were sent at once"
    tree.check(session)
    assert len(list(session.paths())) == 3
    assert session.counters["tool_calls"] == 3
    offered = [[tool["function"]["name"] for tool in node.tools] for node in session.nodes if node.parent is None]
    assert offered == [["look", "send"], ["look"], ["look"]]
    with Store(":memory:") as store:
        store.save(session)
        assert store.load(session.id) == session


async def test_a_sub_agent_without_an_end_is_an_error_to_the_agent_and_no_answer_of_its_own() -> None:
    def lost(env: agentrl.Env, messages: Sequence[Message]) -> Message:
        if messages[0].text.startswith("Look"):
            return env.call("look", place="garden")
        return acting(env, messages)

    session = await play(Search(), TASK, lost)
    assert "Error: the sub-agent came to no end in 2 turns" in of(session, "agent")[2]
    assert session.reward == 0.0


async def test_a_sub_agent_has_only_the_tools_that_it_was_given() -> None:
    def eager(env: agentrl.Env, messages: Sequence[Message]) -> Message:
        if messages[0].text.startswith("Look") and messages[-1].role != "tool":
            return env.call("send", places=["attic"])
        return acting(env, messages)

    session = await play(Search(), TASK, eager)
    assert "Error: there is no tool 'send' (tools: look)" in of(session, "agent/helper")[2]


class Nested(Search):
    @agentrl.tool
    async def look(self, place: str) -> str:
        """Look by another helper."""
        return await self.spawn("Look in the attic.", name="helper")


class Unknown(Search):
    @agentrl.tool
    async def send(self, places: list[str]) -> str:
        """Give a helper what there is not."""
        return await self.spawn("Look in the attic.", tools=["lock"])


@pytest.mark.parametrize(
    ("env", "told"),
    [
        (Nested, "Nested.spawn: a sub-agent's tools can't begin another one"),
        (Unknown, "Unknown.spawn: there is no tool 'lock' (tools: look, send)"),
    ],
)
async def test_what_an_environment_asks_of_sub_agents_wrongly_stops_the_run(env: type[Search], told: str) -> None:
    with pytest.raises(EnvError) as caught:
        await play(env(), TASK, acting)
    assert str(caught.value) == told


async def test_sub_agents_begin_within_a_step_only() -> None:
    with pytest.raises(EnvError, match=r"Search\.spawn: sub-agents begin within a step"):
        await Search().spawn("Look.")


class Pair(Search):
    """Two agents, of which the second sends helpers."""

    agents = ("guide", "seeker")

    def reset(self, task: Task, *, seed: int | None = None) -> Any:
        return {"guide": str(super().reset(task)), "seeker": "Where is it?"}

    async def step(self, message: Message) -> StepResult:
        if message.name == "guide":
            return StepResult()
        result = await self.run_tools(message)
        result.next = "seeker"
        return result

    @agentrl.reward
    def found(self, session: Session) -> dict[str, float]:
        return {"seeker": float(session.answer == self.where), "guide": 0.0}


async def test_the_sub_agents_of_one_of_several_agents_are_its_own() -> None:
    session = await play(Pair(), TASK, acting)
    views = dict(zip(session.agent_rewards, session.by_agent(), strict=True))
    assert {node.agent for node in views["seeker"].nodes} == {"seeker", "seeker/helper"}
    assert {node.agent for node in views["guide"].nodes} == {"guide"}
    for view in views.values():
        tree.check(view)


def sampled(reward: float, number: int) -> Session:
    """A session of an agent and a sub-agent, a turn each."""
    session = Session(f"s{number}", Task(id="t"), group="g", status=Status.COMPLETED, reward=reward)
    for agent in ("agent", "agent/helper"):
        root = tree.add(session, None, Message(role="user", content="go"), [1, 2], agent=agent)
        turn = Turn((3, 4), (-0.5, -0.5), (Span(0, 0, 2),), FinishReason.STOP)
        said = Message(role="assistant", content="x")
        tree.add_turn(session, root.id, [5], turn, Sampling(), said, agent=agent, policy="main", trained=True)
    return session


@pytest.mark.parametrize("factor", [1.0, 0.25, 0.0])
def test_a_sub_agents_turns_get_the_agents_credit_or_the_part_that_is_set(factor: float) -> None:
    groups = [Group("g", Task(id="t"), [sampled(1.0, 0), sampled(0.0, 1)])]
    credit = passed_to_helpers(group_relative(groups, AlgoConfig()), groups, factor)
    advantages = {key: share.advantage for key, (share,) in credit.shares.items()}
    own = advantages[("s0", 1)]
    assert own > 0
    assert advantages.get(("s0", 3), 0.0) == factor * own


class Compacted(agentrl.Env):
    """Add numbers; after two of them the agent goes on with the sum alone."""

    max_turns = 6

    def tasks(self, split: str = "train") -> Any:
        return [TASK]

    def reset(self, task: Task, *, seed: int | None = None) -> str:
        self.count = 0
        return "Add 1."

    def step(self, message: Message) -> StepResult:
        self.count += 1
        if self.count == 4:
            return StepResult(terminated=True)
        if self.count == 2:
            return StepResult(f"So far {message.text}. Add 1.", fresh=True)  # type: ignore[arg-type]
        return StepResult("Add 1.")  # type: ignore[arg-type]

    @agentrl.reward
    def right(self, session: Session) -> float:
        return float(session.answer == "4")


def adding(env: agentrl.Env, messages: Sequence[Message]) -> Message:
    first = messages[0].text
    begun = int(first.split()[2].strip(".")) if first.startswith("So far") else 0
    return Message(role="assistant", content=str(begun + sum(message.role == "user" for message in messages)))


async def test_after_a_compaction_the_agent_goes_on_with_what_it_was_given_alone_and_both_paths_stay() -> None:
    session = await play(Compacted(), TASK, adding)
    assert session.reward == 1.0
    paths = [[node.message.text for node in path] for path in session.paths()]
    assert paths == [["Add 1.", "1", "Add 1.", "2"], ["So far 2. Add 1.", "3", "Add 1.", "4"]]
    assert {node.agent for node in session.nodes} == {"agent"}
    tree.check(session)


@pytest.mark.slow
async def test_a_compaction_without_messages_is_the_environments_fault() -> None:
    class Empty(Compacted):
        def step(self, message: Message) -> StepResult:
            return StepResult(fresh=True)

    with pytest.raises(EnvError, match=r"Empty\.step gave no messages for the agent to go on with alone"):
        await play(Empty(), TASK, adding)
