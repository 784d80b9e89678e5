"""Worlds of several learners: their optima, what stays hidden, and values by enumeration."""

from __future__ import annotations

import random
from collections.abc import Mapping
from itertools import islice, product
from statistics import fmean
from typing import Any

import pytest

from agentrl.envs import calls
from agentrl.envs.builtin.teams.base import ILLEGAL, ChoiceWorld
from agentrl.envs.builtin.teams.exact import best_response, exploitability, uniform, value
from agentrl.envs.builtin.teams.hide_and_seek import EQUILIBRIUM
from agentrl.envs.builtin.teams.speaker_listener import COLOURS, WORDS
from agentrl.envs.check import check_env
from agentrl.envs.episode import play
from agentrl.envs.registry import make
from agentrl.errors import ConfigError
from agentrl.types import Message, Status, Task

ONE_CHOICE = ("joint_length", "speaker_listener", "hide_and_seek", "allocation")
TEAMS = ("joint_length", "speaker_listener", "allocation", "grid_transport", "debate", "planner_worker")


@pytest.mark.slow
@pytest.mark.parametrize("name", TEAMS)
async def test_experts_reach_a_teams_optimum_in_every_situation(name: str):
    for task in islice(make(name).tasks("eval"), 25):
        session = await play(make(name), task)
        assert session.status is Status.COMPLETED
        assert set(session.agent_rewards.values()) == {make(name).optimum}


@pytest.mark.parametrize("name", [*TEAMS, "hide_and_seek"])
@pytest.mark.slow
def test_the_worlds_keep_the_contract(name: str):
    assert check_env(name, tasks=2, scored=8) == []


@pytest.mark.parametrize("name", ONE_CHOICE)
async def test_values_by_enumeration_are_the_means_of_what_the_environment_pays(name: str):
    """Pure strategies that are drawn, one of them with a text that is no choice, played in every situation."""
    for seed in range(4):
        world = make(name)
        chosen: dict[Any, str] = {}

        def strategy(
            agent: str, seen: tuple[str, ...], world: ChoiceWorld = world, seed: int = seed, chosen: Any = chosen
        ) -> Mapping[str, float]:
            options = [*world.options(agent), *([ILLEGAL] if seed == 3 else [])]
            option = random.Random(f"{seed}/{agent}/{seen}").choice(options)
            chosen[agent, seen] = option
            return {option: 1.0} if option else {}

        expected = value(world, strategy)
        rewards: dict[str, list[float]] = {agent: [] for agent in world.agents}
        for number in range(len(world.situations())):

            async def says(env: Any, messages: Any, chosen: Any = chosen) -> Message:
                seen = tuple(message.text for message in messages if message.role == "user")
                return Message(role="assistant", content=chosen[env.agent_of(messages), seen] or "?!" * 200)

            if name == "joint_length" and seed == 3:
                continue  # there every text of some words is a choice

            session = await play(make(name), Task(id="t", data={"number": number}), says)
            for agent, reward in session.agent_rewards.items():
                rewards[agent].append(reward)
        for agent, paid in rewards.items():
            assert not paid or expected[agent] == pytest.approx(fmean(paid))


def test_the_best_response_is_the_best_of_all_pure_strategies():
    world = make("speaker_listener")
    rng = random.Random(1)

    def drawn(options: Any) -> dict[str, float]:
        weights = [rng.random() for _ in options]
        return {option: each / sum(weights) for option, each in zip(options, weights, strict=True)}

    speaks = {colour: drawn(WORDS) for colour in COLOURS}
    hears = {word: drawn(COLOURS) for word in WORDS}

    def frozen(agent: str, seen: tuple[str, ...]) -> Mapping[str, float]:
        if agent == "speaker":
            return speaks[seen[0].removeprefix("See ").split(".")[0]]
        return hears.get(seen[0].removeprefix("Which colour? You hear ").strip("."), {})

    def team(code: Mapping[str, Mapping[str, float]], key: Mapping[str, Mapping[str, float]]) -> float:
        return fmean(sum(p * key[word].get(colour, 0.0) for word, p in code[colour].items()) for colour in COLOURS)

    codes = [{c: {w: 1.0} for c, w in zip(COLOURS, words, strict=True)} for words in product(WORDS, repeat=3)]
    keys = [{w: {c: 1.0} for w, c in zip(WORDS, colours, strict=True)} for colours in product(COLOURS, repeat=3)]
    assert value(world, frozen)["listener"] == pytest.approx(team(speaks, hears))
    assert best_response(world, "speaker", frozen) == pytest.approx(max(team(code, hears) for code in codes))
    assert best_response(world, "listener", frozen) == pytest.approx(max(team(speaks, key) for key in keys))
    assert best_response(world, "listener", uniform(world)) == pytest.approx(1 / len(COLOURS))


def test_nobody_gains_at_the_known_equilibrium_of_hide_and_seek_and_everywhere_else_somebody_does():
    world = make("hide_and_seek")
    assert exploitability(world, lambda agent, seen: EQUILIBRIUM) == pytest.approx(0)
    assert value(world, lambda agent, seen: EQUILIBRIUM) == pytest.approx(
        {"hider": world.optimum, "seeker": 1 - world.optimum}
    )
    assert exploitability(world, uniform(world)) == pytest.approx(1 / 3 - 1 / 6)


async def test_what_a_speaker_sees_is_told_to_the_listener_by_its_word_alone():
    """In one message: beside another that said who it is, a listener of one seed never came to read the word."""
    for number, word in product(range(len(COLOURS)), [*WORDS, "red"]):
        env = make("speaker_listener")
        assert [*await calls.openings(env, Task(id="t", data={"number": number}))] == ["speaker"]
        heard = await calls.step(env, Message(role="assistant", content=word, name="speaker"))
        (told,) = heard.others["listener"]
        assert told.text == f"Which colour? You hear {word if word in WORDS else 'nothing'}."


def test_a_critic_of_the_signalling_game_is_told_colour_and_word_together():
    world, seen = make("speaker_listener").unwrapped, set()
    for number, word in product(range(len(COLOURS)), (None, *WORDS, ILLEGAL)):
        world.begin(number)
        world.said["speaker"] = [] if word is None else [word]
        view = world.critic_view("listener")
        assert view == world.critic_view("speaker")
        assert (len(view), sum(view)) == (15, 1.0)
        seen.add(tuple(view))
    assert len(seen) == 15


async def test_a_crew_of_fifty_fills_every_place_and_the_number_is_checked():
    env = make("allocation", workers=50)
    session = await play(env, next(iter(env.tasks())))
    assert session.agent_rewards == dict.fromkeys(env.agents, 1.0)
    with pytest.raises(ConfigError, match=r"env\.workers = 51: allowed are 2 to 50"):
        make("allocation", workers=51)


@pytest.mark.slow
def test_arms_that_see_their_own_cells_alone_bring_every_parcel_to_its_end_in_time():
    """Grids of 2 to 50 cells with up to eight parcels; each arm says what its expert does, of what it was told."""
    for seed in range(20):
        rng = random.Random(seed)
        rows, columns = rng.choice([(1, 2), (2, 1), (2, 2), (1, 9), (3, 4), (5, 10), (7, 7)])
        world = make("grid_transport", rows=rows, columns=columns, parcels=rng.randint(1, 8)).unwrapped
        for number in rng.sample(range(len(world.situations())), 2):
            world.begin(number)
            told = {agent: Message(role="user", content=world.opening(agent)) for agent in world.agents}
            for _ in range(world.rounds):
                for agent, word in {agent: world.expert([told[agent]]) for agent in world.agents}.items():
                    world.said[agent].append(word)
            assert world.payoffs() == {"crew": 1.0}, (seed, number)


def test_an_arm_hands_on_the_parcel_with_the_longest_way_and_walls_stop_it():
    world = make("grid_transport").unwrapped
    world.begin(
        next(
            n
            for n, each in enumerate(world.situations())
            if each["starts"] == [(0, 0)] * 2 and each["ends"] == [(0, 1), (0, 2)]
        )
    )
    assert [world.opening(agent).partition(". ")[2] for agent in world.agents] == [
        "Parcel to 0 2.",
        "No parcel.",
        "No parcel.",
    ]
    moves = {"arm_0_0": ("right", "left", "right"), "arm_0_1": ("stay", "right", ""), "arm_0_2": ("up", "up", "right")}
    seen = []
    for turn in range(3):
        for agent, words in moves.items():
            world.said[agent].append(words[turn])
        seen.append(world.places())
    assert seen == [[(0, 0), (0, 1)], [(0, 0), (0, 2)], [(0, 1), (0, 2)]]
    assert world.payoffs() == {"crew": 1.0}
    with pytest.raises(ConfigError, match=r"env\.rows = 6, env\.columns = 9: allowed are 2 to 50 cells together"):
        make("grid_transport", rows=6, columns=9)


async def test_debaters_hear_the_others_first_answers_and_two_of_three_decide():
    env = make("debate")
    await calls.openings(env, Task(id="t", data={"number": 7}))  # 1 + 2
    said = {"ann": ("3", "4"), "bob": ("5", "3"), "cid": ("no idea", "3")}
    for agent in env.agents:
        told = await calls.step(env, Message(role="assistant", content=said[agent][0], name=agent))
    assert told.messages[0].text == "ann says 3, bob says 5"
    assert told.others["ann"][0].text == "bob says 5, cid says nothing"
    ends = [await calls.step(env, Message(role="assistant", content=said[a][1], name=a)) for a in env.agents]
    assert [end.terminated for end in ends] == [False, False, True]
    assert env.payoffs() == {"ann": 0.5, "bob": 1.0, "cid": 1.0}


def test_amounts_of_one_digit_meet_every_operation_in_demonstrations_and_in_no_longer_problems_of_training() -> None:
    """A planner that has seen them only made smaller repeats the digit before a plus, whatever it is rewarded for."""
    env = make("planner_worker")
    met = set[str]()
    for task in islice(env.tasks("demo"), 500):
        amount = task["start"]
        for number, (sign, by) in enumerate(task["steps"]):
            if number and amount < 10:
                met.add(sign)
            amount = {"+": amount + by, "-": amount - by, "*": amount * by, "/": amount // by}[sign]
    assert met == set("+-*/")
    assert max(len(task["steps"]) for task in islice(env.tasks("train"), 100)) == 2


async def test_a_worker_sees_nothing_of_the_story_and_computes_what_it_is_told():
    env = make("planner_worker", min_steps=2, max_steps=2)
    session = await play(env, next(iter(env.tasks("eval"))))
    worker = next(view for view in session.by_agent() if view.id.endswith("/worker"))
    texts = [node.message.text for node in worker.nodes if node.message.role != "assistant"]
    assert not any(character.isalpha() for text in texts[1:] for character in text)
    assert len([text for text in texts if text]) == 5  # what it is told to do, and two computations with results
