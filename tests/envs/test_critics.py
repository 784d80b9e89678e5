"""The critics of `env=allocation` and `env=grid_transport`: who hears whom, and that their words break nothing."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import islice
from typing import Any

import pytest

from agentrl.envs import calls
from agentrl.envs.base import Env
from agentrl.envs.builtin.teams.critics import ASSESSOR, CRITICS, EXPLOITER, EXPLORER, MAX_PLAN
from agentrl.envs.check import check_env
from agentrl.envs.episode import DEMONSTRATOR, NOOP, expert_policy, play
from agentrl.envs.registry import make
from agentrl.types import Message, Session, Status, StepResult, Task

WORLDS = ("allocation", "grid_transport")
SIZES: list[tuple[str, dict[str, int]]] = [
    *((name, {}) for name in WORLDS),
    ("allocation", {"workers": 50}),
    ("grid_transport", {"rows": 2, "columns": 3, "parcels": 4}),
]
WORDS = (
    "",
    "No idea.",
    "worker_3 mine, arm_9_9 left",
    "worker_1",
    "worker_1 worker_1 mine",
    "arm_0_0: {'up'}",
    "\0\ud7ff ﬁ",
)


def said(session: Session, agent: str, role: str = "assistant") -> list[str]:
    return [node.message.text for node in session.nodes if node.agent == agent and node.message.role == role]


def task(number: int) -> Task:
    return Task(id="t", data={"number": number})


async def speak(env: Env, agent: str, text: str) -> StepResult:
    return await calls.step(env, Message(role="assistant", content=text, name=agent))


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.slow
def test_worlds_with_critics_keep_the_contract(name: str):
    """What trivial agents get takes long to play, and is in docs/worlds.md."""
    assert check_env(name, critics=True, tasks=1, scored=2) == []


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), SIZES, ids=str)
async def test_experts_with_critics_reach_the_optimum_and_silent_or_random_agents_do_not(name: str, options: Any):
    played: dict[Any, list[float]] = {expert_policy: [], NOOP: [], DEMONSTRATOR: []}
    for each in islice(make(name, **options).tasks("eval"), 1 if options else 6):
        for policy, scores in played.items():
            session = await play(make(name, critics=True, **options), each, policy)
            assert session.status is Status.COMPLETED
            assert list(session.agent_rewards) == [*CRITICS, *make(name, **options).agents]
            scores.append(session.score or 0.0)
    assert set(played[expert_policy]) == {1.0}
    assert set(played[NOOP]) == {0.0}
    assert sum(played[DEMONSTRATOR]) < len(played[DEMONSTRATOR])


async def test_proposers_do_not_hear_each_other_the_assessor_hears_both_and_each_worker_its_own_part():
    env = make("allocation", critics=True)
    openings = await calls.openings(env, task(4))
    assert env.unwrapped.situation == {"wanted": [1, 1, 0]}
    assert openings["explorer"][0].text.endswith("behind its name. Wanted: mine 1, mill 1. Tried: nothing.")
    asked = await speak(env, EXPLORER, "I'd say Worker_2: DOCK!")
    assert asked.next == (EXPLOITER,)
    assert asked.others[EXPLOITER][0].text.endswith("behind its name. Wanted: mine 1, mill 1. Best: nothing.")
    asked = await speak(env, EXPLOITER, '{"worker_1": "mine", "worker_2": "mill"}')
    assert asked.next == (ASSESSOR,)
    assert asked.others[ASSESSOR][0].text.endswith(
        "Wanted: mine 1, mill 1. Explorer: worker_2 dock. Exploiter: worker_1 mine, worker_2 mill."
    )
    told = await speak(env, ASSESSOR, "worker_1 mine")
    assert {agent: messages[0].text for agent, messages in told.others.items()} == {
        "worker_1": "You are worker_1. Wanted: mine 1, mill 1. Assessor: mine."
    }
    told = await speak(env, "worker_1", "mill")  # it may choose otherwise
    assert told.others["worker_2"][0].text == "You are worker_2. Wanted: mine 1. Assessor: nothing."


async def test_critics_speak_in_each_round_of_arms_that_move_at_once_and_are_told_what_was_tried_and_what_paid():
    env = make("grid_transport", critics=True, columns=2, parcels=2)
    await calls.openings(env, task(0))
    assert env.unwrapped.situation == {"starts": [(0, 0)] * 2, "ends": [(0, 1)] * 2}
    heard: list[list[str]] = []
    for moves in (("right", "up"), ("jump", "stay")):
        for critic in CRITICS:
            told = await speak(env, critic, "arm_0_0 right")
        assert told.next == ("arm_0_0", "arm_0_1")
        heard.append([told.others[arm][0].text for arm in told.next])
        answers = [await speak(env, arm, move) for arm, move in zip(told.next, moves, strict=True)]
        if answers[-1].terminated:
            break
        assert (answers[0], answers[1].next) == (StepResult(), (EXPLORER,))
        assert answers[1].others[EXPLORER][0].text == "Parcels: 0 0 to 0 1. Tried: arm_0_0 right, arm_0_1 up."
        told = await speak(await env.fork(), EXPLORER, "")
        assert told.others[EXPLOITER][0].text == "Parcels: 0 0 to 0 1. Best: arm_0_0 right, arm_0_1 up."
    told_again = ["Parcel to 0 1. Assessor: right.", "No parcel. Assessor: nothing."]
    assert heard == [[f"You are at 0 {arm}. {text}" for arm, text in enumerate(told_again)], told_again]
    assert env.unwrapped.payoffs() == {"crew": 0.5}


async def test_the_rules_of_explorer_and_exploiter_follow_what_was_played():
    """The explorer's plan has no choice that was tried; the exploiter's is the first of the rounds that paid most."""
    world = make("grid_transport", critics=True, columns=4).unwrapped
    world.begin(0)
    rng, plans = random.Random(0), []
    for turn in range(world.rounds):
        played = {actor: list(world.said[actor]) for actor in world.actors}
        plans.append(world.best_plan())
        proposals = {critic: world.expert([Message(role="user", content=world.opening(critic))]) for critic in CRITICS}
        for actor, choice in (pair.split(" ") for pair in proposals[EXPLORER].split(", ")):
            assert choice not in played[actor]
        assert proposals[ASSESSOR] == ", ".join(f"{actor} {choice}" for actor, choice in plans[-1].items())
        best = plans[0] if turn else plans[-1]
        assert proposals[EXPLOITER] == ", ".join(f"{actor} {choice}" for actor, choice in best.items())
        for agent in world.agents:
            own = plans[-1].get(agent) if not turn else rng.choice(["stay", "up"])
            world.said[agent].append(own or "")


@pytest.mark.slow
@pytest.mark.parametrize("name", WORLDS)
async def test_whatever_critics_write_experts_do_their_work_and_nobody_hears_more_than_names_and_choices(name: str):
    """Empty texts, others' names, bytes and texts that are far too long, by each critic in each turn."""
    env = make(name, critics=True)
    known = {*env.unwrapped.actors, *env.unwrapped.options(env.agents[-1]), "nothing"}
    rng = random.Random(0)
    hostile = [*WORDS, f"{'x ' * MAX_PLAN}arm_0_0 up worker_1 dock", "arm_0_0 " * 100_000, *map(chr, range(1, 300))]

    def says(env: Env, messages: Sequence[Message]) -> Any:
        if env.unwrapped.agent_of(messages) in CRITICS:  # type: ignore[attr-defined]
            return Message(role="assistant", content="".join(rng.sample(hostile, 2)))
        return expert_policy(env, messages)

    for number in range(8):
        session = await play(make(name, critics=True), task(number), says)
        assert session.score == 1.0
        for text in said(session, ASSESSOR, "user")[1:]:
            _, proposals = text.split("Explorer: ")
            words = proposals.replace("Exploiter: ", "").replace(",", "").replace(".", "").split()
            assert set(words) <= known
