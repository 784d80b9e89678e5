"""Every combination of the agents' completions in a group: MAGRPO's `cross` pairing (Liu et al., arXiv:2508.04652).

A group's sessions begin alike, so at their joint turn each agent has as many completions as there are sessions. They
were played together as they were drawn (`aligned`). Here the other combinations are played as well: an environment of
its own for each, begun from the same seed, with turns that are known. Nothing is generated, trained on or stored but
their returns (`Session.info`).

Only environments of one joint turn have them. In longer ones every joint action would go on with children of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from agentrl.config import RolloutConfig
from agentrl.envs.base import Env
from agentrl.envs.data.mixture import Mixture
from agentrl.envs.episode import run_episode
from agentrl.errors import ConfigError
from agentrl.rollout.episodes.counterfactuals import MakePlayer, PlayedTurn, return_of
from agentrl.types import GREEDY, Node, Session, Status
from agentrl.types.session import COMBINATIONS


def check_combinations(env: Env, group_size: int, most: int) -> None:
    """Refuse an environment, or a group, whose completions can't be combined.

    Raises:
        ConfigError: its agents take turns, it goes on after a joint turn, or there are more combinations than `most`.
    """
    for part in [each.env for each in env.parts.values()] if isinstance(env, Mixture) else [env]:
        name, agents = type(part.unwrapped).__name__, len(part.agents)
        if agents < 2 or not part.simultaneous or part.max_turns != agents:
            raise ConfigError(
                f"algo.pairing=cross needs several agents with one joint turn (simultaneous = True, max_turns = "
                f"{max(agents, 2)}); {name} has {agents} agents, max_turns={part.max_turns}: use algo.pairing=aligned"
            )
        if (count := group_size**agents) > most:
            raise ConfigError(
                f"algo.pairing=cross plays {group_size}^{agents} = {count} joint actions a group of {name}, more than "
                f"algo.max_joint_actions={most}: raise it, or use a smaller rollout.group_size"
            )


async def play_combinations(
    sessions: Sequence[Session], make_env: Callable[[], Env], player: MakePlayer, limits: RolloutConfig
) -> bool:
    """Note in a group's sessions what each combination of their completions comes to; False where nothing changed.

    Those with a complete joint turn are combined; the last agent's completion changes fastest.

    Raises:
        AgentRLError: a failure that the user must fix.
    """
    agents = make_env().agents
    said = {session.id: _turns(session) for session in sessions if session.phase != GREEDY}
    whole = [each for each in sessions if each.status is Status.COMPLETED and said.get(each.id, {}).keys() == {*agents}]
    if len(whole) < 2:
        return False
    returns: dict[str, list[float]] = {agent: [] for agent in whole[0].agent_rewards}
    for chosen in product(range(len(whole)), repeat=len(agents)):
        played = whole[chosen[0]]
        if len({*chosen}) > 1:
            turns = {agent: said[whole[k].id][agent] for agent, k in zip(agents, chosen, strict=True)}
            played = await _play(whole[0], turns, make_env().for_task(whole[0].task), player, limits)
        for agent, each in returns.items():
            if (value := return_of(played, agent, 0)) is None:  # they stay paired as they were played
                whole[0].count("combinations/failed")
                return True
            each.append(value)
    for place, session in enumerate(whole):
        session.info[COMBINATIONS] = {"agents": list(agents), "place": place, "of": len(whole), "returns": returns}
    return True


async def _play(
    like: Session, turns: Mapping[str, Node], env: Env, player: MakePlayer, limits: RolloutConfig
) -> Session:
    """A session like another one, of which all turns are known."""
    empty: dict[str, Any] = {"rewards": {}, "agent_rewards": {}, "partner_rewards": {}, "counters": {}, "timings": {}}
    part = replace(like, id=f"{like.id}+", nodes=[], status=Status.OPEN, reward=None, error=None, info={}, **empty)
    players = {name: player(env, part, name, None) for name in env.agents}
    known = {
        name: replace(own, actor=PlayedTurn(0, len(turns), turns[name], own.actor), viewed=False)
        for name, own in players.items()
    }
    return await run_episode(env, part, known, limits)


def _turns(session: Session) -> dict[str, Node]:
    """Each agent's turn."""
    return {node.agent: node for node in session.nodes if node.message.role == "assistant" and node.copy_of is None}
