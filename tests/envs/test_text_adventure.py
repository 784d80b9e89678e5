"""The text adventure: towers that can be climbed, words that have to be remembered, and nothing gained without them."""

from __future__ import annotations

from itertools import islice
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.envs import calls
from agentrl.envs.builtin.text_adventure import LEVELS, TextAdventure, tower
from agentrl.envs.check import check_env
from agentrl.envs.episode import play
from agentrl.envs.registry import make
from agentrl.errors import ConfigError
from agentrl.types import Status, Task


@pytest.mark.slow
@pytest.mark.parametrize(("level", "least", "most"), [(1, 12, 35), (2, 50, 130), (3, 200, 400)])
async def test_the_expert_climbs_every_tower_of_a_level_in_the_turns_that_it_promises(
    level: int, least: int, most: int
):
    lengths = []
    for task in islice(TextAdventure(level).tasks("eval"), 3 if level == 3 else 8):
        session = await play(make("text_adventure", level=level), task)
        rewards = [node.reward for node in session.nodes if node.reward]
        assert (session.status, session.counters["tool_errors"]) == (Status.COMPLETED, 0)
        assert sum(rewards) == pytest.approx(1)
        assert len(rewards) == LEVELS[level][0]
        lengths.append(session.turns)
    assert least <= fmean(lengths) <= most


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(list(LEVELS)), st.integers(0, 10**6))
def test_every_room_of_a_floor_can_be_reached_in_one_way_and_the_three_goals_are_apart(level: int, number: int):
    for floor in tower(level, number):
        assert sum(map(len, floor.doors)) == 2 * (len(floor.rooms) - 1)
        found, frontier = {0}, [0]
        while frontier:
            fresh = set(floor.doors[frontier.pop()]) - found
            found |= fresh
            frontier += fresh
        assert found == set(range(len(floor.rooms)))
        assert len({0, floor.key, floor.scroll, floor.gate}) == 4
        assert len(set(floor.rooms)) == len(floor.rooms)


def put(env: TextAdventure, task: Task, **place: Any) -> None:
    """Go on with the episode elsewhere."""
    env.restore(task, {**env.state(), **place})


async def test_a_guardian_wants_a_word_of_four_floors_below_and_the_key_of_his_own():
    env, task, floors = TextAdventure(3), Task(id="t", data={"number": 7}), tower(3, 7)
    await calls.openings(env, task)
    here, wanted = floors[6], floors[2].word
    put(env, task, floor=6, room=here.gate)
    assert "locked" in (await calls.step(env, env.call("answer", word=wanted))).messages[0].text
    put(env, task, has_key=True)
    wrong = await calls.step(env, env.call("answer", word=here.word))
    assert wrong.messages[0].text.startswith("Wrong.")
    assert (wrong.reward, env.state()["room"], env.state()["floor"]) == (0, 0, 6)
    put(env, task, room=here.gate)
    right = await calls.step(env, env.call("answer", word=f" {wanted.upper()} "))
    assert right.reward == pytest.approx(1 / 20)
    assert env.state() == {"floor": 7, "room": 0, "has_key": False, "has_read": False}


async def test_a_scroll_shows_its_word_once_and_no_room_shows_it():
    env, task, floor = TextAdventure(1), Task(id="t", data={"number": 3}), tower(1, 3)[0]
    opening = await calls.openings(env, task)
    seen = [opening["agent"][0].text]
    for room, doors in enumerate(floor.doors):
        put(env, task, room=doors[0])
        seen.append((await calls.step(env, env.call("go", room=floor.rooms[room]))).messages[0].text)
    assert not any(floor.word in text for text in seen)
    put(env, task, room=floor.scroll)
    assert floor.word in (await calls.step(env, env.call("read"))).messages[0].text
    assert "nothing to read" in (await calls.step(env, env.call("read"))).messages[0].text


@pytest.mark.slow
def test_an_unknown_level_is_refused():
    with pytest.raises(ConfigError, match=r"env\.level = 4: allowed are 1, 2, 3"):
        make("text_adventure", level=4)


@pytest.mark.slow
def test_it_keeps_the_contract():
    assert check_env("text_adventure", tasks=1, scored=4) == []
    assert check_env("text_adventure", level=3, tasks=1, scored=2) == []
