"""TextArena's games against the same games driven directly, with the real library."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import nltk
import pytest
import textarena

import agentrl
from agentrl.envs import calls
from agentrl.envs.episode import DEMONSTRATOR, NOOP, play, record
from agentrl.envs.registry import factory
from agentrl.envs.state import EnvState
from agentrl.errors import ConfigError, UnknownName
from agentrl.types import Message, Node, Session, Status

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


def direct(name: str, seed: int, players: int) -> tuple[Any, Any]:
    """A game driven by the library alone, and its state below the wrappers."""
    game = textarena.make(name)
    game.reset(num_players=players, seed=seed)
    inner = game
    while hasattr(inner, "env"):
        inner = inner.env
    return game, inner.state


def told_before(session: Session, node: Node) -> str:
    """What an agent was told between its last turn and this one."""
    texts: list[str] = []
    while node.parent is not None and (node := session.nodes[node.parent]).message.role != "assistant":
        texts.insert(0, node.message.text)
    return "\n".join(texts)


@pytest.mark.parametrize("name", GAMES)
async def test_random_episodes_are_those_of_the_game_driven_directly(name: str) -> None:
    """In reward, end, and what each player is shown before each of its turns."""
    make = factory(f"textarena:{name}")
    agents, admin = make().agents, textarena.core.ObservationType.PLAYER_ACTION
    for number, task in enumerate(itertools.islice(calls.tasks(make()), 25)):
        before = random.getstate()
        session = await play(make(), task, chooser(name, number), max_turns=150)
        assert random.getstate() == before, "the global generator is as it was"
        game, inner = direct(name, task["seed"], len(agents))
        over = False
        for node in (node for node in session.nodes if node.message.role == "assistant"):
            assert not over
            player = agents.index(node.agent)
            assert inner.current_player_id == player
            shown, inner.observations[player] = inner.observations[player], []
            told = told_before(session, node)
            for sender, text, kind in shown:
                if kind is not admin or sender != player:
                    place = told.find(text.strip())
                    assert place >= 0, (text, told)
                    told = told[place:]
            over, _ = game.step(node.message.text)
        assert (session.status is Status.COMPLETED) == over
        if over:
            rewards = game.close()[0]
            given = session.agent_rewards if len(agents) > 1 else {agents[0]: session.reward}
            assert given == {agent: float(rewards[player]) for player, agent in enumerate(agents)}


async def test_who_has_not_spoken_has_its_reward_too() -> None:
    """In KuhnPoker the first player may write no valid move: the second, which has had no turn, has won."""
    make = factory("textarena:KuhnPoker-v0")
    session = await play(make(), next(calls.tasks(make())), NOOP)
    (who,) = {node.agent for node in session.nodes if node.message.role == "assistant"}
    (other,) = set(make().agents) - {who}
    assert session.agent_rewards == {who: -1.0, other: 1.0}


async def test_who_is_cut_off_has_lost_and_nobody_has_won() -> None:
    make = factory("textarena:TicTacToe-v0")
    session = await play(make(), next(calls.tasks(make())), chooser("TicTacToe-v0", 1), max_turns=1)
    assert session.status is Status.TRUNCATED
    assert session.agent_rewards == {"player_0": 0.0, "player_1": -1.0}
    assert session.score == -0.5
    alone = factory("textarena:GuessTheNumber-v0")
    session = await play(alone(), next(calls.tasks(alone())), chooser("GuessTheNumber-v0", 1), max_turns=1)
    assert session.reward == -1.0


@pytest.mark.parametrize("name", [*GAMES, "ConnectFour-v0", "Othello-v0", "Nim-v0", "Stratego-v0"])
async def test_demonstrations_are_legal_moves_that_differ(name: str) -> None:
    make = factory(f"textarena:{name}")
    moves = set()
    for task in itertools.islice(calls.tasks(make()), 2):
        session = await play(make(), task, DEMONSTRATOR, max_turns=24)
        moves |= set(said(session))
        refused = [node for node in session.nodes if "attempted an invalid move" in node.message.text]
        assert not refused
        again = await play(make(), task, DEMONSTRATOR, max_turns=24)
        assert record(again) == record(session), "what is tried on copies does not reach the game"
    assert len(moves) > 1


@pytest.mark.parametrize("name", ["Hangman-v0", "Wordle-v0", "WordLadder-v0", "DontSayIt-v0"])
def test_word_lists_that_are_missing_are_named_and_not_downloaded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(*_: Any, **__: Any) -> None:
        raise AssertionError("nothing is fetched")

    monkeypatch.setattr(nltk, "download", download)
    monkeypatch.setattr(nltk.data, "path", [])
    with pytest.raises(ConfigError, match=rf"textarena:{name} needs word lists of NLTK .*nltk.downloader \w+$"):
        agentrl.make(f"textarena:{name}")
    assert nltk.download is download


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
