"""Agents that move at once: generated concurrently, and the same session whichever is ready first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.config import RolloutConfig
from agentrl.envs.base import Env, reward
from agentrl.envs.episode import play
from agentrl.envs.wrappers import TurnLimit
from agentrl.errors import EngineError, EnvError
from agentrl.rollout.episodes.groups import Rollouts
from agentrl.rollout.episodes.policies import ModelActor, Policy
from agentrl.rollout.rerun.replay_engine import ReplayEngine
from agentrl.sessions.tree import tree
from agentrl.types import Chunk, Engine, Message, Node, Sampling, Session, Status, StepResult, Task, Turn
from tests.sessions.fakes import DiceEngine, LetterRenderer

AGENTS = ("ann", "bob", "cid")
ROUNDS = 3
TASK = Task(id="t")


class Rounds(Env):
    """Three agents speak at once, in rounds; after each they hear what the others have said."""

    agents = AGENTS
    simultaneous = True

    def tasks(self, split: str = "train") -> Iterable[dict[str, Any]]:
        return [{}]

    def reset(self, task: Task, *, seed: int | None = None) -> dict[str, str]:
        self.said: list[dict[str, str]] = [{}]
        return {agent: f"you are {agent}" for agent in self.agents}

    def step(self, message: Message) -> StepResult:
        assert message.name is not None
        self.said[-1][message.name] = message.text[:9]
        if len(self.said[-1]) < len(self.agents):
            return StepResult(reward=0.5)
        heard = {agent: [Message(role="user", content=str(self.said[-1]))] for agent in self.agents}
        self.said.append({})
        own = heard.pop(message.name)
        return StepResult(own, others=heard, rewards={self.agents[0]: 0.25}, terminated=len(self.said) > ROUNDS)

    def expert(self, messages: Sequence[Message]) -> str:
        return f"{messages[0].text}, round {sum(message.role == 'assistant' for message in messages)}"

    @reward
    def length(self, session: Session) -> float:
        return len(session.nodes) / 99


class InTurn(Rounds):
    """The same, one after another."""

    simultaneous = False


class Slow(DiceEngine):
    """Answers after so many passes of the event loop, by the request's place; requests of `lost` never."""

    def __init__(self, delays: Sequence[int] = (), lost: Collection[int] = (), error: int | None = None) -> None:
        super().__init__(end_weight=30.0)
        self.delays, self.lost, self.error = delays, lost, error
        self.open, self.most, self.ended = 0, 0, asyncio.Event()

    async def generate(
        self, request_id: str, input_ids: Sequence[int], sampling: Sampling, deadline: float | None = None
    ) -> AsyncIterator[Chunk | Turn]:
        place = len(self.calls)
        self.open += 1
        self.most = max(self.most, self.open)
        try:
            async for item in super().generate(request_id, input_ids, sampling, deadline):
                for _ in range(self.delays[place % len(self.delays)] if self.delays else 0):
                    await asyncio.sleep(0)
                if place in self.lost:
                    self.ended.set()
                    await asyncio.Event().wait()
                if place == self.error:
                    raise EngineError("the engine is broken")
                yield item
        finally:
            self.open -= 1


async def played(env: type[Env], engine: Engine, **limits: Any) -> Session:
    rollouts = Rollouts(env, Policy(LetterRenderer(), engine), RolloutConfig(**{"retries": 0, **limits}), 5)
    actor = ModelActor(Sampling(temperature=1.0, max_new_tokens=200))
    (group,) = await rollouts.collect([TASK], actor, phase="test", n=1)
    tree.check(group.sessions[0])
    return group.sessions[0]


def seen(session: Session) -> Any:
    return session.nodes, session.status, session.error, session.agent_rewards, session.counters


async def in_turn(**limits: Any) -> Session:
    return await played(InTurn, DiceEngine(end_weight=30.0), **limits)


def turns(session: Session) -> list[Node]:
    return [node for node in session.nodes if node.message.role == "assistant"]


async def test_agents_that_move_at_once_are_generated_at_the_same_time() -> None:
    engine = Slow(delays=(9,))
    session = await played(Rounds, engine)
    assert (session.status, engine.most) == (Status.COMPLETED, len(AGENTS))
    assert len(turns(session)) == ROUNDS * len(AGENTS)


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 12), min_size=1, max_size=9))
async def test_whichever_is_ready_first_the_session_is_that_of_turns_one_after_another(delays: list[int]) -> None:
    assert seen(await played(Rounds, Slow(delays))) == seen(await in_turn())


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 12), min_size=1, max_size=9), st.integers(30, 600))
async def test_a_budget_of_tokens_is_shared_and_kept_whichever_is_ready_first(delays: list[int], budget: int) -> None:
    limits = {"session_tokens": budget, "turn_tokens": 30}
    sessions = [await played(Rounds, Slow(by), **limits) for by in ([0], delays)]
    assert seen(sessions[0]) == seen(sessions[1])
    last = max((node.id for node in turns(sessions[0])), default=-1)
    used = sum(tree.new_tokens(node) for node in sessions[0].nodes[: last + 1])
    assert used <= budget or last < 0


async def test_no_agent_sees_what_another_one_says_in_the_same_round() -> None:
    engine = Slow(delays=(5, 0, 2))
    session = await played(Rounds, engine)
    asked = {call.request_id: call.input_ids for call in engine.calls}
    for node in turns(session):
        assert node.sampling is not None
        opening = node.token_ids[: node.versions[0].start]
        assert asked[f"{session.id}/{node.id}"] == [*tree.path_ids(session, node.parent), *opening]
        assert {each.agent for each in tree.path(session, node.id)} == {node.agent}


@pytest.mark.parametrize("turn", [1, 2, 5, 9])
async def test_a_replay_from_a_turn_in_the_middle_of_a_round_plays_the_same_session(turn: int) -> None:
    session = await played(Rounds, Slow(delays=(5, 0, 2)))
    engine = ReplayEngine(Slow(delays=(0, 3)), session, turn, version=0)
    assert seen(await played(Rounds, engine)) == seen(session)
    assert engine.differences == {}


async def test_a_turn_that_is_asked_for_once_more_is_the_same_turn_and_takes_no_other_ones_place() -> None:
    """A program repeats a request that failed while another one of its requests is under way."""
    session = await played(Rounds, Slow())
    inner = Slow(lost={0, 1, 2, 3})
    engine = ReplayEngine(inner, session, 1, version=0)

    async def ask(request_id: str) -> list[Chunk | Turn]:
        return [item async for item in engine.generate(request_id, turns(session)[0].token_ids, Sampling())]

    async def asked(request_id: str) -> asyncio.Task[list[Chunk | Turn]]:
        task = asyncio.create_task(ask(request_id))
        await asyncio.sleep(0)  # until it is at the engine
        return task

    first, second = await asked("s/first"), await asked("s/second")
    first.cancel()
    await asyncio.wait([first])
    again, third = await asked("s/first"), await asked("s/third")
    seeds = [node.sampling.seed for node in turns(session)[:3] if node.sampling]
    assert len(set(seeds)) == 3
    assert [call.sampling.seed for call in inner.calls] == [seeds[0], seeds[1], seeds[0], seeds[2]]
    for task in (second, again, third):
        task.cancel()
    await asyncio.wait([second, again, third])


@pytest.mark.parametrize("place", range(3))
async def test_where_one_fails_the_others_are_ended_and_no_turn_of_the_round_is_kept(place: int) -> None:
    engine = Slow(delays=(3,), lost={0, 1, 2} - {place}, error=place)
    session = await played(Rounds, engine)
    assert (session.status, session.error) == (Status.INFRA_ERROR, "EngineError: the engine is broken")
    assert (turns(session), engine.open) == ([], 0)


@pytest.mark.slow
async def test_a_turn_that_misses_its_deadline_ends_the_others_of_its_round() -> None:
    engine = Slow(lost=(4,))
    session = await played(Rounds, engine, turn_timeout=1.0, tool_timeout=0.5)
    assert (session.status, engine.open) == (Status.INFRA_ERROR, 0)
    assert len(turns(session)) in (0, 3), "whole rounds, of which a busy machine may miss the first"


async def test_a_session_that_is_cancelled_ends_all_turns_under_way() -> None:
    engine = Slow(lost=(0, 1, 2))
    work = asyncio.create_task(played(Rounds, engine))
    await engine.ended.wait()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert (engine.open, engine.aborted) == (0, len(engine.calls))


async def test_a_round_that_would_go_beyond_the_last_turn_is_not_begun() -> None:
    session = await played(Rounds, Slow(), max_turns=5)
    assert (session.status, len(turns(session))) == (Status.TRUNCATED, 3)


class Chosen(Rounds):
    """Ann, then bob and cid at once, then ann."""

    simultaneous = False

    def step(self, message: Message) -> StepResult:
        told = Message(role="user", content=f"{message.name} spoke")
        if message.name == "ann":
            others: Any = {"bob": [told], "cid": [told]}
            return StepResult([told], others=others, next=("bob", "cid"), terminated=message.text.endswith("1"))
        return StepResult([told], next="ann" if message.name == "cid" else None)


@pytest.mark.parametrize("make", [Chosen, lambda: TurnLimit(Chosen(), turns=9)])
async def test_an_environment_may_say_who_moves_at_once(make: Any) -> None:
    session = await play(make(), TASK)
    assert [node.agent for node in turns(session)] == ["ann", "bob", "cid", "ann"]


async def test_wrappers_and_scripts_play_in_rounds_as_well() -> None:
    plain, wrapped = await play(Rounds(), TASK), await play(TurnLimit(Rounds(), turns=20), TASK)
    assert [node.message.text for node in plain.nodes] == [node.message.text for node in wrapped.nodes]
    assert plain.nodes[3].message.text == "you are ann, round 0"


class Early(Rounds):
    def step(self, message: Message) -> StepResult:
        return StepResult(next="ann")


class Twice(Rounds):
    def step(self, message: Message) -> StepResult:
        return StepResult(next=["ann", "ann"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "told"),
    [
        (Early, "Early.step: 'ann' moves at once with others; the answer to the last says who is next"),
        (Twice, r"Twice.step gave next=\['ann', 'ann'\]; expected an agent, or several different ones"),
    ],
)
async def test_an_environment_that_names_the_next_agents_wrongly_gets_an_error(env: type[Env], told: str) -> None:
    with pytest.raises(EnvError, match=told):
        await play(env(), TASK)
