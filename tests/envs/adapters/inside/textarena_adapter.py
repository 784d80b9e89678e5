"""TextArena's games against the same games driven directly, with the real library."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest
import textarena

import agentrl
from agentrl.envs import EnvState, calls
from agentrl.envs.episode import play
from agentrl.envs.registry import factory
from agentrl.errors import ConfigError, UnknownName
from agentrl.types import Message, Session, Status

GAMES = {
    "TicTacToe-v0": [f"[{cell}]" for cell in range(9)],
    "KuhnPoker-v0": ["[check]", "[bet]", "[call]", "[fold]", "hm"],
    "GuessTheNumber-v0": [f"[{number}]" for number in range(1, 21)],
    "PigDice-v0": ["[roll]", "[roll]", "[hold]"],
    "LiarsDice-v0": ["[Bid: 1, 2]", "[Bid: 2, 3]", "[Bid: 4, 4]", "[Call]"],
}


def chooser(name: str, seed: int) -> Any:
    rng = random.Random(seed)

    def policy(env: agentrl.Env, messages: Sequence[Message]) -> Message:
        return Message(role="assistant", content=rng.choice(GAMES[name]))

    return policy


def said(session: Session) -> list[str]:
    return [node.message.text for node in session.nodes if node.message.role == "assistant"]


@pytest.mark.parametrize("name", GAMES)
async def test_fifty_random_episodes_have_the_rewards_of_the_game_driven_directly(name: str) -> None:
    make = factory(f"textarena:{name}")
    for number, task in enumerate(itertools.islice(calls.tasks(make()), 50)):
        before = random.getstate()
        session = await play(make(), task, chooser(name, number), max_turns=150)
        assert random.getstate() == before, "the global generator is as it was"
        direct = textarena.make(name)
        direct.reset(num_players=len(make().agents), seed=task["seed"])
        over = False
        for text in said(session):
            assert not over
            direct.get_observation()
            over, _ = direct.step(text)
        assert (session.status is Status.COMPLETED) == over
        if over:
            rewards = direct.close()[0]
            for player, agent in enumerate(make().agents):
                turns = [n for n in session.nodes if n.agent == agent and n.message.role == "assistant"]
                assert not turns or sum(node.reward or 0 for node in turns) == rewards[player]


async def test_players_see_what_the_game_shows_them_and_not_each_others_cards() -> None:
    make = factory("textarena:KuhnPoker-v0")
    session = await play(make(), next(calls.tasks(make())), chooser("KuhnPoker-v0", 1))
    shown = {
        agent: "\n".join(n.message.text for n in session.nodes if n.agent == agent and n.message.role == "user")
        for agent in make().agents
    }
    assert all("Your card is" in text or "card" in text for text in shown.values())
    assert "You are Player 0" in shown["player_0"]
    assert "You are Player 0" not in shown["player_1"]


async def test_games_side_by_side_don_t_change_each_other_and_are_saved() -> None:
    make = factory("textarena:PigDice-v0")
    one, two = itertools.islice(calls.tasks(make()), 2)

    async def alone(task: Any) -> list[Any]:
        env = make()
        opening = await calls.openings(env, task)
        return [opening, *[await calls.step(env, Message(role="assistant", content="[roll]")) for _ in range(6)]]

    expected = [await alone(one), await alone(two)]
    envs = [make(), make()]
    seen = [[await calls.openings(env, task)] for env, task in zip(envs, (one, two), strict=True)]
    for turn in range(6):
        for env, found in zip(envs, seen, strict=True):
            found.append(await calls.step(env, Message(role="assistant", content="[roll]")))
        if turn == 2:
            other = make()
            await calls.restore(other, EnvState.from_bytes((await calls.state(envs[0])).to_bytes()))
            envs[0] = other
    assert seen == expected


def test_the_contract_holds_and_mistakes_are_named() -> None:
    assert agentrl.check_env("textarena:GuessTheNumber-v0", tasks=2, scored=8) == []
    with pytest.raises(UnknownName, match="did you mean 'TicTacToe-v0'"):
        agentrl.make("textarena:TicTacTow-v0")
    with pytest.raises(ConfigError, match=r"env\.players=3: .*has to be 2, received 3"):
        agentrl.make("textarena:TicTacToe-v0", players=3)
    with pytest.raises(ConfigError, match="siz"):
        agentrl.make("textarena:FrozenLake-v0", siz=9)
