"""Counterfactual continuations: what a team would have got, had one agent alone spoken otherwise.

The baseline of COMA (Foerster et al., arXiv:1705.08926) for agent a at a joint turn is Σ π(u) Q(u, u₋a): the return
where a's turn alone is drawn again. The paper reads it off a critic of all actions, and texts are too many for that. So
it is estimated by play: the environment is saved before the joint turn (`Env.state`), and continued again as often as
`algo.counterfactuals` says. In each continuation the other agents' turns of that joint turn are those that were played,
a's is drawn anew, by its policy and version, and so is everything later. The turn that was played is not among them, so
the baseline does not depend on it.

Continuations are not trained on, and not stored. Their returns are in `Session.info`, by agent and by its turns.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentrl.config import RolloutConfig
from agentrl.envs import calls
from agentrl.envs.base import Env, has_state
from agentrl.envs.data.mixture import list_mixed
from agentrl.envs.episode import BeforeTurn, ResumePoint, run_episode
from agentrl.envs.state import EnvState
from agentrl.envs.turns import Actor, Player
from agentrl.errors import ConfigError, StateUnsupported
from agentrl.rollout.episodes.combinations import is_spoken
from agentrl.rollout.stream.seeds import derive
from agentrl.sessions.tree.conversation import Conversation
from agentrl.types import Node, Session, Status
from agentrl.types.session import COUNTERFACTUALS

MakePlayer = Callable[[Env, Session, str, int | None], Player]
"""Makes an agent's player in a continuation, given its environment, session, and the node to continue from."""


def check_counterfactuals(algorithm: str, env: Env) -> None:
    """Refuse an environment whose joint turns can't be continued again.

    Raises:
        ConfigError: its agents take turns, there is one agent, or its episodes can't be saved.
    """
    for part in list_mixed(env).values():
        name = type(part.unwrapped).__name__
        if len(part.agents) < 2 or not part.simultaneous:
            what = "needs agents that move at once (simultaneous = True)"
        elif not has_state(part):
            what = "needs an environment whose episodes can be saved, with state() and restore()"
        else:
            continue
        raise ConfigError(
            f"algo={algorithm} {what}; {name} is none: algo=vine compares continuations of single turns, "
            "and algo=magrpo joint turns of a group"
        )


@dataclass(frozen=True, slots=True)
class JointTurnStart:
    """An episode before a joint turn.

    Attributes:
        turn: how many turns were taken before.
        agents: those whose turns come.
        order: all agents in the order in which they take turns.
        heads: the node that each agent's conversation ends in.
        nodes: how many nodes the session had.
        state: the environment's.
        info: the session's, a copy.
    """

    turn: int
    agents: Sequence[str]
    order: Sequence[str]
    heads: Mapping[str, int | None]
    nodes: int
    state: EnvState
    info: dict[str, Any]


@dataclass(frozen=True, slots=True)
class PlayedTurn:
    """An actor that repeats a turn that was played, and then goes on as another one."""

    turn: int
    count: int
    node: Node
    then: Actor

    async def act(self, conversation: Conversation, env: Env, turn: int, deadline: float) -> Node:
        if turn < self.turn + self.count:
            parent = None if conversation.head is None else conversation.head.id
            return conversation.adopt(replace(self.node, parent=parent, reward=None, timings={}))
        return await self.then.act(conversation, env, turn, deadline)


async def play_counterfactual(
    session: Session,
    env: Env,
    players: Mapping[str, Player],
    count: int,
    *,
    make_env: Callable[[], Env],
    player: MakePlayer,
    limits: Callable[[], RolloutConfig],
    before_turn: BeforeTurn,
) -> Session:
    """Play a session of agents that move at once, then each of its joint turns again, `count` times for each agent.

    Args:
        session: without nodes.
        env: a new instance.
        players: the session's, by agent.
        count: continuations for each turn of an agent that is trained.
        make_env: makes another instance.
        player: makes the players of continuations, of which nothing is recorded.
        limits: of an episode that begins now; with a timeout of 0 no further continuation is begun.
        before_turn: called before each turn of the session.

    Returns:
        The session; INFRA_ERROR where one of its continuations was.

    Raises:
        AgentRLError: a failure that the user must fix.
    """
    starts: list[JointTurnStart] = []

    async def visit(turn: int, agents: Sequence[str], order: Sequence[str]) -> None:
        await before_turn(turn, agents, order)
        start = await _save_start(session, env, players, turn, agents, order)
        if start is not None:
            starts.append(start)

    await run_episode(env, session, players, limits(), before_turn=visit)
    if session.status is Status.INFRA_ERROR:
        return session
    trained = {name for name, own in players.items() if own.rewarded}
    found: dict[str, dict[str, list[float]]] = {agent: {} for agent in env.agents if agent in trained}

    def again(start: JointTurnStart, agent: str, number: int, now: RolloutConfig) -> Awaitable[Session]:
        return _continue(session, start, agent, number, make_env(), player, now)

    for start in starts:
        played = session.nodes[start.nodes : start.nodes + len(start.agents)]
        if [node.agent for node in played] != list(start.agents):
            break  # the joint turn was not taken
        for agent in (each for each in start.agents if each in trained):
            values = await _draw_again(session, start, agent, count, again, limits)
            if values is None:
                return session
            if values:
                place = sum(node.agent == agent for node in session.nodes[: start.nodes] if is_spoken(node))
                found[agent].setdefault(str(place), []).extend(values)
    session.info[COUNTERFACTUALS] = found
    return session


async def _save_start(
    session: Session, env: Env, players: Mapping[str, Player], turn: int, agents: Sequence[str], order: Sequence[str]
) -> JointTurnStart | None:
    """Save where a joint turn begins; None, counted, where the environment can't be saved there."""
    heads = {name: own.conversation.head for name, own in players.items()}
    known = {name: None if head is None else head.id for name, head in heads.items()}
    try:
        state = await calls.state(env)
    except StateUnsupported:
        session.count("counterfactual/unsupported")
        return None
    info = copy.deepcopy(session.info)
    return JointTurnStart(turn, tuple(agents), tuple(order), known, len(session.nodes), state, info)


async def _draw_again(
    session: Session,
    start: JointTurnStart,
    agent: str,
    count: int,
    again: Callable[[JointTurnStart, str, int, RolloutConfig], Awaitable[Session]],
    limits: Callable[[], RolloutConfig],
) -> list[float] | None:
    """An agent's returns where its turn alone is drawn again; None, and INFRA_ERROR, where a continuation was that."""
    values = []
    for number in range(count):
        now = limits()
        if not now.timeout:
            session.count("counterfactual/late")
            continue
        part = await again(start, agent, number, now)
        session.count("counterfactual/continuations")
        if part.status is Status.INFRA_ERROR:
            session.status, session.error, session.rewards, session.reward = part.status, part.error, {}, None
            session.agent_rewards, session.partner_rewards = {}, {}
            return None
        value = return_of(part, agent, start.nodes)
        if value is not None:
            values.append(value)
    return values


async def _continue(
    session: Session,
    start: JointTurnStart,
    agent: str,
    number: int,
    env: Env,
    player: MakePlayer,
    limits: RolloutConfig,
) -> Session:
    """Play on from a joint turn in which an agent's turn alone is drawn again; the session as it would have been."""
    part = replace(
        session,
        id=f"{session.id}+{start.turn}-{agent}-{number}",
        nodes=session.nodes[: start.nodes],
        seed=derive(session.seed, "counterfactual", session.sample, start.turn, agent, number),
        status=Status.OPEN,
        info=copy.deepcopy(start.info),
        error=None,
        rewards={},
        reward=None,
        agent_rewards={},
        partner_rewards={},
        counters={},
        timings={},
    )
    players = {name: player(env, part, name, start.heads[name]) for name in env.agents}
    for node in session.nodes[start.nodes : start.nodes + len(start.agents)]:
        if node.agent != agent:
            own = players[node.agent]
            repeated = PlayedTurn(start.turn, len(start.agents), node, own.actor)
            players[node.agent] = replace(own, actor=repeated, viewed=False)
    players[agent] = replace(players[agent], viewed=False)
    middle = ResumePoint(start.state, start.turn, start.agents, start.order)
    return await run_episode(env, part, players, limits, middle=middle)


def return_of(session: Session, agent: str, start: int) -> float | None:
    """Return an agent's return from the node `start` on: its final reward and its step rewards; None without one."""
    final = session.agent_rewards.get(agent)
    if final is None:
        return None
    own = (node.reward for node in session.nodes[start:] if node.agent == agent)
    return final + math.fsum(reward for reward in own if reward is not None)
