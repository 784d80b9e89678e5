"""PettingZoo's games against the same games played by hand, with the real library."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import pettingzoo
import pytest
from gymnasium import spaces
from pettingzoo import ParallelEnv
from pettingzoo.utils.conversions import parallel_to_aec

import agentrl
from agentrl.envs import calls
from agentrl.envs.episode import DEMONSTRATOR, NOOP, ScriptedPolicy, play
from agentrl.envs.registry import factory
from agentrl.envs.state import EnvState
from agentrl.errors import ConfigError, EnvError, UnknownName
from agentrl.types import FinishReason, Message, Node, Session, Status

ALLOWED = re.compile(r"[Aa]llowed now: ([^.\n]*)")
REFUSED = "That is not allowed: "
NONSENSE = ("", "rook", "[1, 2]", "1000", "-1", "{", "1e999", "null")
AEC = ("tictactoe-v3", "connect_four-v3", "leduc_holdem-v4")
VALUES: Mapping[str, Any] = {"observe": "values"}


def by_chance(seed: int, illegal: float = 0.2) -> ScriptedPolicy:
    """Allowed actions, and now and then a text that is none; never two of those in a row."""
    rng = random.Random(seed)

    def policy(env: agentrl.Env, messages: Sequence[Message]) -> Message:
        if not messages[-1].text.startswith(REFUSED) and rng.random() < illegal:
            return Message(role="assistant", content=rng.choice(NONSENSE))
        lists = [found[1].split(", ") for message in messages if (found := ALLOWED.search(message.text))]
        return Message(role="assistant", content=rng.choice(lists[-1] if lists else ["0", "1", "2"]))

    return policy


def told_before(session: Session, node: Node) -> str:
    """What an agent was told between its last turn and this one."""
    texts: list[str] = []
    while node.parent is not None and (node := session.nodes[node.parent]).message.role != "assistant":
        texts.insert(0, node.message.text)
    return "\n".join(texts)


def turns_of(session: Session) -> list[Node]:
    return [node for node in session.nodes if node.message.role == "assistant"]


def accepted(session: Session) -> list[tuple[str, str, int]]:
    """The agent, what it was told before it first tried, and its action, for each move that reached the game."""
    moves, told = [], {}
    for node in turns_of(session):
        text = told_before(session, node)
        if not text.startswith(REFUSED):
            told[node.agent] = text
        after = next((other for other in turns_of(session) if other.id > node.id and other.agent == node.agent), None)
        if after is None or not told_before(session, after).startswith(REFUSED):
            moves.append((node.agent, told[node.agent], int(node.message.text)))
    return moves


def returns(session: Session) -> dict[str, float]:
    """The sum of each agent's rewards, of its turns and beside them."""
    sums: dict[str, float] = defaultdict(float)
    for node in session.nodes:
        sums[node.agent] += node.reward or 0.0
    for name, value in session.rewards.items():
        sums[name.removeprefix("beside_turns/")] += value
    return sums


@pytest.mark.parametrize("name", AEC)
async def test_random_games_are_those_that_the_library_plays_by_hand(name: str) -> None:
    """In turns, observations, allowed actions, rewards and ends; texts that are no action never reach the game."""
    make = factory(f"pettingzoo:{name}", **VALUES)
    refused, by_turns = 0, 0
    for number, task in enumerate(itertools.islice(calls.tasks(make()), 12)):
        session = await play(make(), task, by_chance(number))
        moves, earned = accepted(session), dict.fromkeys(make().agents, 0.0)
        refused += len(turns_of(session)) - len(moves)
        game, ended = pettingzoo.make("aec", f"classic/{name}"), {}
        game.reset(seed=task["seed"])
        for agent in game.agent_iter():
            seen, reward, terminated, truncated, _ = game.last()
            earned[agent] += reward
            if terminated or truncated:
                ended[agent] = "terminated" if terminated else "truncated"
                game.step(None)
                continue
            who, told, action = moves.pop(0)
            mask = [str(place) for place, allowed in enumerate(seen["action_mask"]) if allowed]
            assert who == agent
            assert told.splitlines()[-2:] == [
                json.dumps(seen["observation"].tolist()),
                f"Allowed now: {', '.join(mask)}.",
            ]
            game.step(action)
        assert not moves
        assert returns(session) == earned
        assert session.info["ended"] == ended
        assert session.status is Status.COMPLETED
        by_turns += len(session.rewards) == 0
    assert refused > 5
    if name == "leduc_holdem-v4":
        assert by_turns < 12, "who folds at once pays one that has had no turn"


@pytest.mark.parametrize("api", ["parallel", "aec"])
async def test_rounds_are_those_of_the_library_whichever_way_they_are_played(api: str) -> None:
    """Who wrote no action is asked again alone, and the round waits; the library's limit truncates."""
    make = factory("pettingzoo:rps-v2", api=api, max_cycles=6)
    assert make().simultaneous == (api == "parallel")
    for number, task in enumerate(itertools.islice(calls.tasks(make()), 6)):
        session = await play(make(), task, by_chance(number))
        moves: dict[str, list[tuple[str, int]]] = defaultdict(list)
        for agent, told, action in accepted(session):
            moves[agent].append((told, action))
        game, earned = (
            pettingzoo.make("parallel", "classic/rps-v2", max_cycles=6),
            dict.fromkeys(("player_0", "player_1"), 0.0),
        )
        seen, _ = game.reset(seed=task["seed"])
        ends: Mapping[str, bool] = {}
        while game.agents:
            actions = {}
            for agent in game.agents:
                told, actions[agent] = moves[agent].pop(0)
                assert told.splitlines()[-1] == str(seen[agent])
            seen, rewards, _, ends, _ = game.step(actions)
            earned = {agent: earned[agent] + rewards[agent] for agent in earned}
        assert not any(moves.values())
        assert returns(session) == earned
        assert set(session.info["ended"].values()) == {"truncated"}
        assert all(ends.values())
        assert session.status is Status.TRUNCATED
        assert session.rewards == {}


class Leaving(ParallelEnv[str, Any, int]):
    """`a` leaves after the first round and `b` after the second; then `d` joins `c` for the third and last."""

    metadata = {"name": "leaving", "render_modes": ["ansi"]}  # noqa: RUF012  as the library's games have it

    def __init__(self, render_mode: str | None = None, fails: bool = False, joins: bool = True) -> None:
        self.possible_agents = ["a", "b", "c", "d"] if joins else ["a", "b", "c"]
        self.render_mode, self.fails, self.joins = render_mode, fails, joins

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(9)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.agents, self.round = ["a", "b", "c"], 0
        return dict.fromkeys(self.agents, 0), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, int]) -> tuple[Any, ...]:
        assert list(actions) == self.agents
        if self.fails:
            raise RuntimeError("dice are lost")
        self.round += 1
        moved, gone = self.agents, {"a": self.round == 1, "b": self.round == 2}
        last = self.round == 3
        over = {agent: gone.get(agent, False) or last for agent in moved}
        self.agents = [agent for agent in moved if not over[agent]]
        if self.round == 2 and self.joins:
            self.agents = [*self.agents, "d"]
        present = dict.fromkeys([*moved, *self.agents])
        rewards = {agent: self.round + actions.get(agent, 0) / 10 for agent in present}
        cut = {agent: agent == "b" and over.get(agent, False) for agent in present}
        ends = {agent: over.get(agent, False) and not cut[agent] for agent in present}
        return dict.fromkeys(present, self.round), rewards, ends, cut, {agent: {"luck": 7} for agent in present}

    def render(self) -> str:
        return f"\x1b[1mround {self.round}\x1b[0m\n"


def leaving(**options: Any) -> Leaving:
    return Leaving(**options)


def leaving_in_turns(**options: Any) -> Any:
    return parallel_to_aec(Leaving(joins=False, **options))


HERE = f"pettingzoo:{__file__}"


async def test_agents_leave_and_join_and_the_game_goes_on() -> None:
    """What one earns before it has had a turn is added to its first."""
    env = agentrl.make(f"{HERE}:leaving", info=("luck",))
    session = await play(env, next(calls.tasks(env)), by_chance(1, illegal=0.0))
    assert [node.agent for node in turns_of(session)] == ["a", "b", "c", "b", "c", "c", "d"]
    assert session.info["ended"] == {"a": "terminated", "b": "truncated", "c": "terminated", "d": "terminated"}
    assert session.status is Status.COMPLETED
    rewards = [round((node.reward or 0) - int(node.message.text) / 10, 6) for node in turns_of(session)]
    assert rewards == [1, 1, 1, 2, 2, 3, 2 + 3]
    joined = turns_of(session)[-1]
    assert told_before(session, joined).splitlines()[0].endswith(":leaving. You are d of a, b, c, d.")
    assert told_before(session, joined).splitlines()[-2:] == ["round 2", "luck: 7"], "the rendering, without colours"


async def test_whose_turn_it_is_has_not_left() -> None:
    """Agents that a game ends for have no more turns in it, also where agents move one after another."""
    env = agentrl.make(f"{HERE}:leaving_in_turns")
    assert not env.simultaneous
    session = await play(env, next(calls.tasks(env)), by_chance(1, illegal=0.0))
    assert [node.agent for node in turns_of(session)] == ["a", "b", "c", "b", "c", "c"]
    assert session.info["ended"] == {"a": "terminated", "b": "truncated", "c": "terminated"}
    rewards = [round((node.reward or 0) - int(node.message.text) / 10, 6) for node in turns_of(session)]
    assert rewards == [1, 1, 1, 2, 2, 3]


async def test_who_writes_no_action_three_times_in_a_row_forfeits() -> None:
    env = agentrl.make("pettingzoo:tictactoe-v3", **VALUES)
    session = await play(env, next(calls.tasks(env)), NOOP)
    assert returns(session)["player_1"] == -1.0
    assert returns(session)["player_2"] == 0.0
    assert session.status is Status.COMPLETED
    assert session.info["forfeited"] == ["player_1"]
    assert len(turns_of(session)) == 3
    both = agentrl.make("pettingzoo:rps-v2", forfeit=-5.0)
    session = await play(both, next(calls.tasks(both)), NOOP)
    assert returns(session) == {"player_0": -5.0, "player_1": -5.0}


async def test_a_taken_place_is_refused_with_what_is_allowed() -> None:
    env = agentrl.make("pettingzoo:tictactoe-v3", **VALUES)
    await calls.openings(env, next(calls.tasks(env)))
    for agent, text in (("player_1", "4"), ("player_2", "4")):
        result = await calls.step(env, Message(role="assistant", content=text, name=agent))
    assert result.messages[0].text == f"{REFUSED}action = 4: allowed now: 0, 1, 2, 3, 5, 6, 7, 8"
    assert result.next == ("player_2",)


async def test_at_whose_turn_a_limit_ends_the_game_has_forfeited() -> None:
    make = factory("pettingzoo:tictactoe-v3", **VALUES)
    session = await play(make(), next(calls.tasks(make())), by_chance(1, illegal=0.0), max_turns=2)
    assert session.status is Status.TRUNCATED
    assert returns(session) == {"player_1": -1.0, "player_2": 0.0}
    env = agentrl.make("pettingzoo:rps-v2")
    session = await play(env, next(calls.tasks(env)), by_chance(1, illegal=0.0), max_turns=4, close=False)
    assert session.rewards == {}, "all have moved as often"
    turns_of(session)[-1].finish_reason = FinishReason.LENGTH
    assert (await calls.compute_rewards(env, session)).values == {"beside_turns/player_1": -1.0}


@pytest.mark.parametrize("name", ["connect_four-v3", "rps-v2", "leduc_holdem-v4"])
async def test_a_saved_game_goes_on_elsewhere(name: str) -> None:
    make = factory(f"pettingzoo:{name}")
    task = next(calls.tasks(make()))
    session = await play(make(), task, by_chance(5))
    texts = [(node.agent, node.message.text) for node in turns_of(session)]
    env, seen = make(), []
    await calls.openings(env, task)
    for place, (agent, text) in enumerate(texts):
        if place % 2 == 0:
            other = make()
            await calls.restore(other, EnvState.from_bytes((await calls.state(env)).to_bytes()))
            env = other
        seen.append(await calls.step(env, Message(role="assistant", content=text, name=agent)))
    assert seen[-1].terminated or seen[-1].truncated
    again = make()
    await calls.openings(again, task)
    assert seen == [await calls.step(again, Message(role="assistant", content=text, name=who)) for who, text in texts]


@pytest.mark.parametrize("name", [*AEC, "rps-v2"])
async def test_demonstrations_are_allowed_and_differ(name: str) -> None:
    make = factory(f"pettingzoo:{name}")
    said = set()
    for task in itertools.islice(calls.tasks(make()), 3):
        session = await play(make(), task, DEMONSTRATOR)
        assert not any(node.message.text.startswith(REFUSED) for node in session.nodes)
        said |= {node.message.text for node in turns_of(session)}
    assert len(said) > 1


def shown(seen: Any, agent: str, game: Any) -> str:
    return f"{agent} last saw {seen}"


async def test_actions_and_observations_have_the_words_that_are_given() -> None:
    env = agentrl.make("pettingzoo:rps-v2", actions=("rock", "paper", "scissors"), renderer=f"{__file__}:shown")
    openings = await calls.openings(env, next(calls.tasks(env)))
    assert openings["player_1"][0].text.splitlines() == [
        "rps-v2. You are player_1 of player_0, player_1.",
        "Answer with one of rock, paper, scissors and nothing else.",
        "player_1 last saw 3",
    ]
    for agent, text in (("player_0", "Paper"), ("player_1", "rock")):
        result = await calls.step(env, Message(role="assistant", content=text, name=agent))
    assert {**result.rewards, "player_1": result.reward} == {"player_0": 1.0, "player_1": -1.0}
    assert result.others["player_0"][0].text == "player_0 last saw 0"


async def test_the_contract_holds_and_mistakes_are_named() -> None:
    with pytest.raises(UnknownName, match="did you mean 'classic/tictactoe-v3'"):
        agentrl.make("pettingzoo:classic/tictactow-v3")
    with pytest.raises(ConfigError, match="siz"):
        agentrl.make("pettingzoo:rps-v2", siz=3)
    with pytest.raises(ConfigError, match=r"tictactoe-v3 env\.api=parallel: there is none of that kind"):
        agentrl.make("pettingzoo:tictactoe-v3", api="parallel")
    with pytest.raises(ConfigError, match=r"json\.decoder: the module has no parallel_env or env"):
        agentrl.make("pettingzoo:json.decoder")
    with pytest.raises(ConfigError, match="of the kind 'parallel'"):
        agentrl.make(f"{HERE}:leaving", api="aec")
    with pytest.raises(ConfigError, match=r"env\.actions=\['a', 'b'\]: player_\d has the actions Discrete\(3\)"):
        agentrl.make("pettingzoo:rps-v2", actions=("a", "b"))
    with pytest.raises(ConfigError, match="rps-v2 has no rendering as text"):
        agentrl.make("pettingzoo:rps-v2", observe="render")
    env = agentrl.make(f"{HERE}:leaving", fails=True)
    with pytest.raises(EnvError, match=r":leaving: step raised RuntimeError: dice are lost"):
        await play(env, next(calls.tasks(env)), by_chance(1))


@pytest.mark.parametrize("name", ["tictactoe-v3", "rps-v2"])
def test_the_check_finds_nothing(name: str) -> None:
    assert agentrl.check_env(f"pettingzoo:{name}", tasks=1, scored=4) == []
