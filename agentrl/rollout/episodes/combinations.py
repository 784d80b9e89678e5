"""A group as a tree of joint turns, as MAGRPO has it (Liu et al., arXiv:2508.04652).

A joint turn is what all agents say at once; a *joint action* is which of each agent's completions it consists of. From
every state that is reached each agent has as many completions as the group has sessions. `aligned` plays the k-th of
all agents together, `cross` every combination of them, and each joint action goes on with children of its own.

A session is a path through the tree. It repeats, token for token, the turns that are known, in an environment of its
own that begins from the same seed, and then goes on with completions of its own: the first ones of each state that it
comes to. So nothing is generated twice, a completion is stored in each session whose joint actions have it, and it is
trained once: a group's equal tokens are merged. `Session.sample` is the path, in base "joint actions a node".
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

from agentrl.common.concurrency import concurrently
from agentrl.config import RolloutConfig
from agentrl.envs.base import Env
from agentrl.envs.data.mixture import list_mixed
from agentrl.envs.turns import Actor
from agentrl.errors import ConfigError, EnvError
from agentrl.sessions.tree.conversation import Conversation
from agentrl.types import GREEDY, FinishReason, Node, Session, Status
from agentrl.types.session import JOINT_PATH, JointPath, joint_path

MOST_PATHS = 2**62
"""A path is a number that the store keeps."""
KnownTurn = tuple[Node, str]
"""A turn, and the text of the message that it answers."""


def check_tree(env: Env, limits: RolloutConfig, pairing: str, most: int) -> None:
    """Refuse an environment, or a group, whose joint turns can't be a tree.

    Raises:
        ConfigError: its agents take turns, its episodes have no last turn, a state has more joint actions than `most`,
            or there are more paths than can be numbered.
    """
    for part in list_mixed(env).values():
        name, agents = type(part.unwrapped).__name__, len(part.agents)
        if agents < 2 or not part.simultaneous:
            raise ConfigError(
                f"algo.pairing=cross and algo.tree need agents that move at once (simultaneous = True); {name} is "
                "none: use algo.pairing=aligned algo.tree=false, which compares the sessions of a group"
            )
        turns = min((limit for limit in (part.max_turns, limits.max_turns) if limit is not None), default=None)
        if turns is None:
            raise ConfigError(
                f"algo.pairing=cross and algo.tree play a group of {name} to its last joint turn; set its max_turns, "
                "or rollout.max_turns"
            )
        count = limits.group_size ** (agents if pairing == "cross" else 1)
        if count > most:
            power = f"{limits.group_size}^{agents} = " if pairing == "cross" else ""
            raise ConfigError(
                f"algo.pairing={pairing} plays {power}{count} joint actions from each state of {name}, more than "
                f"algo.max_joint_actions={most}: raise it, or use a smaller rollout.group_size"
            )
        if count ** (turns // agents) > MOST_PATHS:
            raise ConfigError(
                f"algo.pairing={pairing}: a group of {name} could have {count}^{turns // agents} sessions (joint "
                "actions ^ joint turns), which nobody can play; use a smaller rollout.group_size or rollout.max_turns"
            )


@dataclass(frozen=True, slots=True)
class NewPath:
    """A path that no session has played yet.

    Attributes:
        path: its joint actions up to the first that is new.
        known: the turns of them that were generated, by agent, in order.
        sample: the path as a number.
    """

    path: JointPath
    known: Mapping[str, Sequence[KnownTurn]]
    sample: int

    @property
    def info(self) -> dict[str, Any]:
        """The session's `info` that names it; see `JOINT_PATH`."""
        return {JOINT_PATH: {"agents": [*self.known], "path": [*map(list, self.path)]}}


@dataclass(frozen=True, slots=True)
class KnownTurns:
    """An actor that repeats an agent's turns that are known, and then goes on as another one.

    Attributes:
        known: by agent.
        then: acts in all later turns.
    """

    known: Mapping[str, Sequence[KnownTurn]]
    then: Actor

    async def act(self, conversation: Conversation, env: Env, turn: int, deadline: float) -> Node:
        """Add the next turn; see `Actor.act`.

        Raises:
            EnvError: the environment told the agent otherwise after the same turns.
        """
        session, agent = conversation.session, conversation.agent
        known, place = self.known.get(agent, ()), sum(node.agent == agent for node in session.nodes if is_spoken(node))
        if place >= len(known):
            return await self.then.act(conversation, env, turn, deadline)
        (node, told), head = known[place], conversation.require_head()
        if head.message.text != told:
            raise EnvError(
                f"{type(env.unwrapped).__name__} told {agent!r} {head.message.text!r} where from the same seed, after "
                f"the same turns, it was {told!r}: a tree of joint turns needs episodes that follow from both"
            )
        return conversation.adopt(replace(node, parent=head.id, reward=None, timings={}))


def repeat_known(like: Actor, actor: Actor) -> Actor:
    """Return an actor that first repeats the known turns that another one repeats, if it does."""
    return replace(like, then=actor) if isinstance(like, KnownTurns) and actor is not like else actor


def skip_known(actor: Actor) -> Actor:
    """Return what acts when all known turns are repeated."""
    return actor.then if isinstance(actor, KnownTurns) else actor


def list_new(sessions: Sequence[Session], size: int, pairing: str) -> list[NewPath]:
    """List the paths that a group's sessions call for, and that none of them has played, in a fixed order.

    A state's combinations are listed when all of its own completions are there. Those that a limit cut off are
    combined with none.

    Args:
        sessions: the group's.
        size: completions of each agent at a state.
        pairing: of them, `aligned` or `cross`.
    """
    own = sorted((each for each in sessions if each.phase != GREEDY), key=lambda session: session.sample)
    agents = next((list(found) for each in own if (found := _turns(each))), [])
    actions = _list_actions(size, len(agents), pairing)
    played: dict[JointPath, Session] = {}
    for session in own if agents else ():
        path = joint_path(session, len(agents))
        path = (*path, *[actions[0]] * (_count_joint(session) - len(path)))
        for depth in range(1, len(path) + 1):
            played.setdefault(path[:depth], session)
    new: list[NewPath] = []
    for state in dict.fromkeys(path[:-1] for path in played):
        together = [(*state, action) for action in actions[:size]]
        wanted = {path: [path] * len(agents) for path in together}
        if all(path in played for path in together):
            whole = [k for k, path in enumerate(together) if _is_whole(played[path], len(path))]
            for action in actions[size:]:
                if {*action} <= {*whole}:
                    wanted[*state, action] = [together[k] for k in action]
        for path, sources in wanted.items():
            if path not in played:
                known = _collect_known(played, path, sources, agents, given=path not in together)
                sample = sum(actions.index(action) * len(actions) ** depth for depth, action in enumerate(path))
                new.append(NewPath(path, known, sample))
    return new


async def grow_tree(
    sessions: Sequence[Session],
    size: int,
    pairing: str,
    actor: Actor,
    new: Callable[..., Session],
    play: Callable[[Callable[[int], Session], Actor], Coroutine[Any, Any, Session]],
) -> list[Session]:
    """Return a group's sessions and those of all further paths through its tree of joint turns, in a fixed order.

    Args:
        sessions: the group's own.
        size: see `list_new`; so is `pairing`.
        pairing: which completions are played together.
        actor: writes the turns that are not known.
        new: makes a session, given its sample, the attempt, and what its `info` has.
        play: plays a session, given what makes it by the attempt, and what acts in it.
    """
    grown = [*sessions]
    while paths := list_new(grown, size, pairing):
        grown += await concurrently(
            play(partial(new, path.sample, **path.info), KnownTurns(path.known, actor)) for path in paths
        )
    return sorted(grown, key=lambda session: session.sample)


def has_whole_tree(sessions: Sequence[Session], own: int, size: int, pairing: str) -> bool:
    """Return whether a group has its `own` sessions and, with a pairing, all further paths that these call for."""
    begun = sum(JOINT_PATH not in session.info for session in sessions)
    return begun == own and not (pairing and list_new(sessions, size, pairing))


def _list_actions(size: int, agents: int, pairing: str) -> list[tuple[int, ...]]:
    """List a state's joint actions: the aligned ones, then the other combinations."""
    aligned = [(k,) * agents for k in range(size)]
    if pairing != "cross":
        return aligned
    return [*aligned, *(action for action in product(range(size), repeat=agents) if len({*action}) > 1)]


def _collect_known(
    played: Mapping[JointPath, Session],
    path: JointPath,
    sources: Sequence[JointPath],
    agents: Sequence[str],
    *,
    given: bool,
) -> dict[str, list[KnownTurn]]:
    """The turns of a path before its last joint action, and those of that one where they are given."""
    known: dict[str, list[KnownTurn]] = {agent: [] for agent in agents}
    for agent, source in zip(agents, sources, strict=True):
        steps = [*(path[:depth] for depth in range(1, len(path))), *([source] if given else [])]
        for number, step in enumerate(steps):
            session = played[step]
            node = _turns(session)[agent][number]
            known[agent].append((node, session.nodes[node.above].message.text))
    return known


def _is_whole(session: Session, number: int) -> bool:
    """Return whether a session's joint turn of a number, from 1, can be combined with others."""
    if _count_joint(session) < number:
        return False
    return all(own[number - 1].finish_reason is not FinishReason.LENGTH for own in _turns(session).values())


def _count_joint(session: Session) -> int:
    """The number of a session's joint turns."""
    counts = {agent: len(own) for agent, own in _turns(session).items()}
    if len({*counts.values()}) > 1:
        raise EnvError(f"a tree of joint turns needs turns of all agents at once; in session {session.id}: {counts}")
    return next(iter(counts.values()), 0)


def _turns(session: Session) -> dict[str, list[Node]]:
    """Each agent's turns, those of sub-agents left out; of a session that failed there are none."""
    found: dict[str, list[Node]] = {}
    for node in session.nodes if session.status not in (Status.INFRA_ERROR, Status.ABORTED) else ():
        if is_spoken(node) and not node.spawned:
            found.setdefault(node.agent, []).append(node)
    return found


def is_spoken(node: Node) -> bool:
    """Return whether a node is a turn that an agent took itself."""
    return node.message.role == "assistant" and node.copy_of is None
