"""Every castle can be won, in the number of steps that it promises, and only by its rules."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.envs import calls
from agentrl.envs.builtin.castle import CROWN, SOLUTION, Castle, CastleWorld, Room, build, solution_length
from agentrl.envs.episode import play
from agentrl.envs.registry import make
from agentrl.errors import ConfigError
from agentrl.types import Status


def reachable(world: CastleWorld, keys: frozenset[str]) -> set[Room]:
    """Rooms that can be entered with these keys, by flooding."""
    found, frontier = {world.here}, [world.here]
    while frontier:
        room = frontier.pop()
        for _, other in world.neighbours(room):
            colour = world.locked.get(frozenset((room, other)))
            if other not in found and (colour is None or f"{colour} key" in keys):
                found.add(other)
                frontier.append(other)
    return found


def winnable(world: CastleWorld) -> bool:
    """Whether picking up all that can be reached, again and again, reaches the crown."""
    keys: frozenset[str] = frozenset()
    while True:
        got = frozenset(item for room, item in world.items.items() if room in reachable(world, keys))
        if CROWN in got:
            return True
        if got <= keys:
            return False
        keys |= got


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([(4, 4, 3), (3, 3, 1), (2, 5, 2), (5, 4, 5), (4, 4, 0)]))
def test_a_castle_is_a_tree_that_can_be_won_and_not_without_its_keys(number: int, size: tuple[int, int, int]):
    width, height, locks = size
    world = build(width, height, locks, number)
    assert len(world.doors) == width * height - 1
    everywhere = reachable(world, frozenset(f"{colour} key" for colour in world.locked.values()))
    assert len(everywhere) == width * height
    assert len(world.locked) == locks
    assert len(world.items) == locks + 1
    assert winnable(world)
    crown = next(room for room, item in world.items.items() if item == CROWN)
    for missing in world.locked.values():
        others = frozenset(f"{colour} key" for colour in world.locked.values() if colour != missing)
        assert crown not in reachable(world, others)
    assert build(width, height, locks, number) == world


@pytest.mark.slow
@pytest.mark.parametrize("split", ["train", "eval"])
async def test_the_expert_wins_in_20_to_40_calls_and_earns_exactly_one(split: str):
    for task in islice(Castle().tasks(split), 20):
        session = await play(make("castle"), task)
        rewards = [node.reward for node in session.nodes if node.message.role == "assistant"]
        assert session.status is Status.COMPLETED
        assert sum(rewards) == pytest.approx(1)
        assert SOLUTION[0] <= len(rewards) == solution_length(build(4, 4, 3, task["number"])) <= SOLUTION[1]
        assert len([r for r in rewards if r]) == 7
        assert session.counters["tool_errors"] == 0


def test_the_splits_share_no_castle():
    numbers = {s: {t["number"] for t in islice(Castle().tasks(s), 200)} for s in ("train", "eval")}
    assert not numbers["train"] & numbers["eval"]


async def test_the_rules_hold():
    env = Castle(2, 2, 1)
    task = next(env.tasks())
    await calls.reset(env, task)
    world = env._world
    locked, colour = next(iter(world.locked.items()))
    steps = 0
    while frozenset((world.here, world.path(world.here, world._goal())[-1])) != locked and steps < 10:
        name, arguments = world.next_call()
        if name == "unlock":
            break
        await calls.step(env, env.call(name, **arguments))
        steps += 1
    name, arguments = world.next_call()
    assert name == "unlock"
    direction = arguments["direction"]

    async def attempt(tool: str, **given: str) -> str:
        result = await calls.step(env, env.call(tool, **given))
        assert result.reward == 0 or "open" in result.messages[0].text
        return result.messages[0].text

    assert await attempt("go", direction=direction) == f"Error: the {colour} door is locked"
    world.bag.clear()
    assert await attempt("unlock", direction=direction) == f"Error: you have no {colour} key"
    world.bag.append(f"{colour} key")
    assert await attempt("unlock", direction=direction) == f"The {colour} door is open."
    assert await attempt("unlock", direction=direction) == f"Error: there is no locked door to the {direction}"
    assert await attempt("take", item="moon") == "Error: there is no moon here"
    assert "direction = 'up'" in await attempt("go", direction="up")
    walls = {"north", "east", "south", "west"} - {name for name, _ in world.neighbours(world.here)}
    assert await attempt("go", direction=min(walls)) == f"Error: there is a wall to the {min(walls)}"
    assert (await attempt("go", direction=direction)).startswith("Room ")


async def test_giving_up_is_worth_nothing_but_is_still_rewarded():
    session = await play(
        Castle(), next(Castle().tasks()), lambda env, said: env.call("go", direction="up"), max_turns=3
    )
    assert (session.score, session.status) == (0, Status.TRUNCATED)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"width": 1}, "allowed are 2 to 12"),
        ({"height": 13}, "2 to 12"),
        ({"locks": 6}, "0 to 5 in a castle of 4 by 4"),
    ],
)
def test_impossible_castles_are_refused_by_name(options: dict[str, int], words: str):
    with pytest.raises(ConfigError, match=words):
        make("castle", **options)
