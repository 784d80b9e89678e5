"""Values of strategies in worlds of one choice each, by enumeration of every situation and every choice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping

from agentrl.envs.builtin.teams.base import ILLEGAL, ChoiceWorld

Strategy = Callable[[str, tuple[str, ...]], Mapping[str, float]]
"""The chance of each option of an agent that has been told these texts; what is left to 1 is no option."""


def value(world: ChoiceWorld, strategy: Strategy) -> dict[str, float]:
    """Return each agent's expected payoff where all play a strategy."""
    found: dict[str, float] = defaultdict(float)
    for _, chance in _plays(world, strategy):
        for agent in world.agents:
            found[agent] += chance * _paid(world, agent)
    return dict(found)


def best_response(world: ChoiceWorld, agent: str, strategy: Strategy) -> float:
    """Return the most that an agent can expect where the others play a strategy.

    It chooses once, so its best answer to what it was told is the option with the highest mean over all that may be
    the case then.
    """
    gains: dict[tuple[str, ...], dict[str, float]] = defaultdict(lambda: defaultdict(float))

    def every(who: str, seen: tuple[str, ...]) -> Mapping[str, float]:
        return dict.fromkeys([*world.options(agent), ILLEGAL], 1.0) if who == agent else strategy(who, seen)

    for seen, chance in _plays(world, every):
        gains[seen[agent]][world.said[agent][0]] += chance * _paid(world, agent)
    return sum(max(options.values()) for options in gains.values())


def exploitability(world: ChoiceWorld, strategy: Strategy) -> float:
    """Return what all agents together gain by each answering the others' play best; 0 is an equilibrium."""
    now = value(world, strategy)
    return sum(best_response(world, agent, strategy) - now[agent] for agent in world.agents)


def uniform(world: ChoiceWorld) -> Strategy:
    """Return the strategy of whoever chooses any option."""

    def chances(agent: str, seen: tuple[str, ...]) -> Mapping[str, float]:
        options = world.options(agent)
        return dict.fromkeys(options, 1 / len(options))

    return chances


def _paid(world: ChoiceWorld, agent: str) -> float:
    payoffs = world.payoffs()
    return payoffs[agent] if agent in payoffs else sum(payoffs[team] for team in world.teams if team in payoffs)


def _plays(world: ChoiceWorld, strategy: Strategy) -> Iterator[tuple[dict[str, tuple[str, ...]], float]]:
    """Every play with its chance, while `world.said` holds its choices: what each agent was told."""
    count = len(world.situations())
    for number in range(count):
        world.begin(number)
        yield from _extend(world, strategy, {}, 1 / count)


def _extend(
    world: ChoiceWorld, strategy: Strategy, seen: dict[str, tuple[str, ...]], chance: float
) -> Iterator[tuple[dict[str, tuple[str, ...]], float]]:
    if len(seen) == len(world.agents):
        yield seen, chance
        return
    agent = world.agents[len(seen)]
    told = world.seen(agent)
    chances = dict(strategy(agent, told))
    chances.setdefault(ILLEGAL, max(0.0, 1 - sum(chances.values())))
    for option, each in chances.items():
        if each > 0:
            world.said[agent] = [option]
            yield from _extend(world, strategy, {**seen, agent: told}, chance * each)
    world.said[agent] = []
