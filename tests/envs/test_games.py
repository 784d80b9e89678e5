"""Games of several agents: their rules, what stays hidden, and experts that play them as theory says."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice, permutations, product
from typing import Any

import pytest

from agentrl.envs import calls, make
from agentrl.envs.builtin.games.kuhn_poker import CARDS, MOVES, OVER, KuhnPoker, probability
from agentrl.envs.builtin.games.liars_dice import LiarsDice, spoken
from agentrl.envs.builtin.games.negotiation import THINGS, WORTH, Negotiation, described, worth
from agentrl.envs.check import check_env
from agentrl.envs.episode import play
from agentrl.errors import ConfigError
from agentrl.types import Message, Status, StepResult, Task

GAMES = ("kuhn_poker", "liars_dice", "negotiation")


async def begun(env: Any, number: int = 1) -> Any:
    await calls.openings(env, Task(id="t", data={"number": number}), seed=0)
    return env


async def say(env: Any, text: str) -> StepResult:
    return await calls.step(env, Message(role="assistant", content=text, name=env.turn))


@pytest.mark.parametrize("name", GAMES)
async def test_experts_finish_every_game_by_its_rules(name: str):
    for task in islice(make(name).tasks("eval"), 20):
        session = await play(make(name), task)
        assert session.status is Status.COMPLETED
        refused = [message for message in session.messages if "not allowed" in message.text]
        assert not refused, task


@pytest.mark.parametrize("name", GAMES)
async def test_who_makes_no_legal_move_forfeits_and_the_others_have_won_nothing_by_it(name: str):
    env = await begun(make(name))
    loser = env.turn
    assert [(await say(env, "")).terminated for _ in range(3)] == [False, False, True]
    assert env.result(None) == {agent: 0.0 if agent == loser else env.draw for agent in env.agents}


# ------------------------------------------------------------------------------ Kuhn poker


def value(cards: Sequence[str], history: str, bets: Any) -> float:
    """The first agent's expected chips, where `bets(player, card, history)` is the chance of betting or calling."""
    if history in OVER:
        game = KuhnPoker()
        game.cards, game.history = dict(zip(game.agents, cards, strict=True)), history.split()
        payoffs = game.payoffs()
        assert payoffs is not None
        assert sum(payoffs.values()) == pytest.approx(1)
        return 4 * (payoffs["first"] - 0.5)
    player = len(history.split()) % 2
    chance = bets(player, cards[player], history)
    passive, active = ("fold", "call") if "bet" in history else ("check", "bet")
    assert {passive, active} == set(MOVES[history])
    then = {word: value(cards, f"{history} {word}".strip(), bets) for word in (passive, active)}
    return chance * then[active] + (1 - chance) * then[passive]


def expected(bets: Any) -> float:
    deals = list(permutations(CARDS, 2))
    return sum(value(cards, "", bets) for cards in deals) / len(deals)


def test_nobody_can_gain_against_kuhn_pokers_expert():
    """Every pure strategy of either agent is tried against it; the game's value is -1/18 (Kuhn, 1950)."""
    equilibrium = expected(lambda player, card, history: probability(card, history))
    assert equilibrium == pytest.approx(-1 / 18)
    situations = {0: ("", "check bet"), 1: ("check", "bet")}
    for player, histories in situations.items():
        keys = list(product(CARDS, histories))
        for choice in product((0.0, 1.0), repeat=len(keys)):
            pure = dict(zip(keys, choice, strict=True))

            def bets(at: int, card: str, history: str, pure: Any = pure, player: int = player) -> float:
                return pure[card, history] if at == player else probability(card, history)

            assert (expected(bets) - equilibrium) * (1, -1)[player] <= 1e-9


async def test_in_kuhn_poker_an_opponents_card_is_in_nothing_that_an_agent_is_sent():
    for number in range(12):
        env = await begun(make("kuhn_poker"), number)
        openings = await calls.openings(env, Task(id="t", data={"number": number}))
        own, other = env.cards["first"], env.cards["second"]
        assert f"Your card: {own}." in openings["first"][0].text
        assert f"Your card: {other}." not in openings["first"][0].text
        checked = await say(env, "Check!")
        assert [message.text for message in checked.others["second"]] == ["Your opponent says: check. check or bet?"]


# ------------------------------------------------------------------------------ liar's dice


def test_the_likelihood_of_a_bid_is_what_counting_all_throws_gives():
    game = LiarsDice(players=3, dice=2)
    own = [2, 5]
    for bid in product(range(1, 7), (1, 2, 5)):
        throws = list(product(range(1, 7), repeat=4))
        holds = sum(throw.count(bid[1]) + own.count(bid[1]) >= bid[0] for throw in throws)
        assert game.likelihood(bid, own) == pytest.approx(holds / len(throws))


async def test_bids_rise_and_a_challenge_shows_the_dice():
    env = await begun(LiarsDice(players=3, dice=2))
    first = env.turn
    env.dice = {"first": [1, 1], "second": [2, 6], "third": [6, 6]}
    assert "there is no bid yet" in (await say(env, "liar")).messages[0].text
    told = await say(env, "I bid 2 sixes.")
    assert told.others[env.turn][0].text == f"The {first} player bids 2 sixes."
    for wrong in ("2 sixes", "1 sixes", "2 fives", "7 ones", "0 ones", "two sixes"):
        assert "not allowed" in (await say(env, wrong)).messages[0].text
        env._attempts = 0
    bidder = env.turn
    await say(env, "3 sixes")
    challenger = env.turn
    assert (await say(env, "Liar!")).terminated
    third = next(agent for agent in env.agents if agent not in (bidder, challenger))
    assert env.payoffs() == {bidder: 1.0, challenger: 0.0, third: 0.5}


def test_every_bid_can_be_said_and_is_understood():
    game = LiarsDice(players=6, dice=6)
    for bid in product(range(1, 37), range(1, 7)):
        game.turn, game.bid, game.bidder = "first", (0, 0), ""
        game.move("first", spoken(bid))
        assert game.bid == bid
    with pytest.raises(ConfigError, match=r"env\.players = 7: allowed are 2 to 6"):
        make("liars_dice", players=7)


# ------------------------------------------------------------------------------ negotiation


async def test_both_value_all_things_together_alike_and_each_sees_only_its_own_values():
    for number in range(20):
        env = await begun(Negotiation(), number)
        openings = await calls.openings(env, Task(id="t", data={"number": number}))
        assert env.values["first"] != env.values["second"]
        for agent, other in permutations(env.agents):
            assert worth(env.counts, env.values[agent]) == WORTH
            assert described(env.values[agent]) in openings[agent][0].text
            assert described(env.values[other]) not in openings[agent][0].text


async def test_the_experts_agree_on_the_division_with_the_greatest_sum():
    for task in islice(Negotiation().tasks(), 15):
        env = Negotiation()
        session = await play(env, task, close=False)
        kept = [dict(zip(THINGS, each, strict=True)) for each in product(*(range(env.counts[t] + 1) for t in THINGS))]
        sums = [sum(env.shares(each, "first").values()) for each in kept]
        assert sum(session.agent_rewards.values()) == pytest.approx(max(sums))


async def test_an_offer_is_what_the_speaker_keeps_and_only_the_partner_can_take_it():
    env = await begun(Negotiation(rounds=2))
    env.counts = {"books": 2, "hats": 1, "balls": 1}
    env.values = {
        "first": {"books": 5, "hats": 0, "balls": 0},
        "second": {"books": 1, "hats": 4, "balls": 4},
    }
    assert "no offer" in (await say(env, "ACCEPT")).messages[0].text
    assert "there are 2 books, not 3" in (await say(env, "offer books=3")).messages[0].text
    await say(env, "I like books. OFFER books=2")
    assert (await say(env, "accept.")).terminated
    assert env.payoffs() == {"first": 1.0, "second": 0.8}


@pytest.mark.slow
async def test_without_an_agreement_nobody_gets_anything():
    env = await begun(Negotiation(rounds=1))
    assert not (await say(env, "OFFER books=1")).terminated
    assert (await say(env, "no")).terminated
    assert set(env.payoffs().values()) == {0.0}


@pytest.mark.parametrize("name", GAMES)
@pytest.mark.slow
def test_games_keep_the_contract(name: str):
    assert check_env(name, tasks=2, scored=8) == []
