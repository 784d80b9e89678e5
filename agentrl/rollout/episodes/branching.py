"""Forking sessions on purpose: an episode is saved before chosen turns, and continued again from there.

While a session is played, its fork rule is evaluated before each turn. Where it holds, the environment's state is saved
(`Env.state`; a sandbox's part of it is its files). When the session's first path has ended, each saved episode is
restored in an environment of its own and continued, as often as `rollout.branch.continuations` says. All of it is one
session: a continuation's turns are nodes below the turn's prefix, which is stored, and trained, once.

Continuations of a session are generated one after another, in the order of their forks. So nodes have the same ids
whatever the timing, and a session never uses more than one environment and one place among `rollout.concurrency`; what
is given up is the time that a session takes. Seeds follow from session, turn and the branch's number.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import fmean
from typing import Any

from agentrl.config import BranchConfig, RolloutConfig
from agentrl.envs import calls
from agentrl.envs.base import Env, has_state
from agentrl.envs.data.mixture import list_mixed
from agentrl.envs.episode import ResumePoint, run_episode
from agentrl.envs.results import TOOL_FAULTS
from agentrl.envs.state import EnvState
from agentrl.envs.turns import Player
from agentrl.errors import AgentRLError, ConfigError, StateUnsupported
from agentrl.rollout.episodes.fork_rules import ForkPoint, ForkRule, make_rule
from agentrl.sessions.tree import tree
from agentrl.sessions.tree.conversation import Conversation
from agentrl.types import Branch, Session, Status
from agentrl.types.branches import alone, branch_nodes, mean_rewards


def check_branching(config: BranchConfig, env: Env, agent: str | None) -> None:
    """Refuse forks that can't be made.

    Raises:
        UnknownName: there is no such fork rule.
        ConfigError: the environment can't save its episodes, has several agents, or an agent program plays.
    """
    if not make_rule(config).active:
        return
    setting = f"rollout.branch={config.name}"
    if agent is not None:
        raise ConfigError(f"{setting} forks episodes that agentrl plays; agent={agent!r} runs a loop of its own")
    for part in list_mixed(env).values():
        name = type(part.unwrapped).__name__
        if not has_state(part):
            raise ConfigError(f"{setting} needs an environment whose episodes can be saved; {name} has no state()")
        if len(part.agents) > 1:
            raise ConfigError(f"{setting} is for one agent; {name} has {', '.join(part.agents)}")


@dataclass(frozen=True, slots=True)
class SavedEpisode:
    """An episode before a turn.

    Attributes:
        turn: how many turns were taken before.
        head: the node that the turn continues.
        state: the environment's.
        info: the session's, a copy.
    """

    turn: int
    head: int
    state: EnvState
    info: dict[str, Any] = field(default_factory=dict)


async def save(env: Env, conversation: Conversation, turn: int) -> SavedEpisode:
    """The episode that an environment and a conversation are in, before a turn.

    Raises:
        StateUnsupported: the environment can't be saved, or not at this point.
        EnvError: its code failed.
    """
    head, state = conversation.require_head(), await calls.state(env)
    return SavedEpisode(turn, head.id, state, copy.deepcopy(conversation.session.info))


class Forks:
    """The forks of one session while it is played.

    Attributes:
        saved: the episodes to continue, in order.
    """

    def __init__(self, rule: ForkRule, session: Session) -> None:
        self.rule, self.session = rule, session
        self.saved: list[SavedEpisode] = []
        self._planned = 0

    async def visit(self, env: Env, conversation: Conversation, turn: int) -> None:
        """Save the episode before a turn, where the rule says so and there is no limit against it."""
        config, branch = self.rule.config, len(self.session.branches)
        if branch and not config.nested:
            return
        if self._planned + config.continuations > config.max_continuations or not self._forks(conversation, turn):
            return
        try:
            self.saved.append(await save(env, conversation, turn))
        except StateUnsupported:
            self.session.count("branch/unsupported")
            return
        self._planned += config.continuations
        self.session.count("branch/forks")

    def _forks(self, conversation: Conversation, turn: int) -> bool:
        session, config = self.session, self.rule.config
        messages = tuple(conversation.messages)
        point = ForkPoint(turn, len(session.branches), messages, _surprisal(conversation), session.seed, session.sample)
        try:
            return bool(self.rule.forks(point))
        except AgentRLError:
            raise
        except Exception as error:
            where = f"rollout.branch={config.name!r}"
            raise ConfigError(f"{where} raised {type(error).__name__} at turn {turn}: {error}") from error


def _surprisal(conversation: Conversation) -> float | None:
    """The mean -log p of the tokens of the conversation's newest sampled turn."""
    at = conversation.head
    while at is not None and not at.sampled:
        at = None if at.parent is None else tree.get(conversation.session, at.parent)
    return None if at is None else -fmean(at.logprobs[at.versions[0].start :])


async def continue_from(
    session: Session,
    saved: SavedEpisode,
    env: Env,
    player: Callable[[Session, int], Player],
    limits: RolloutConfig,
    *,
    trained: bool = True,
    forks: Forks | None = None,
) -> Branch | None:
    """Continue a session once more from a saved episode: nodes below its head, and a branch with an outcome.

    Args:
        session: its first path has ended; `begin_branches` was called.
        saved: where to go on.
        env: a new instance; it is closed.
        player: makes the agent's player, given the session to extend and the node to continue from.
        limits: of turns, tokens and seconds.
        trained: whether the branch's turns may be trained on.
        forks: are evaluated before each turn; None: no further forks.

    Returns:
        The branch, which the session lists then; None where no turn was taken.

    Raises:
        AgentRLError: a failure that the user must fix.
    """
    counters = {name: number for name, number in session.counters.items() if name == TOOL_FAULTS}
    part = replace(session, status=Status.OPEN, rewards={}, reward=None, error=None, counters=counters, timings={})
    part.info = copy.deepcopy(saved.info)
    branch = Branch(saved.head, len(session.nodes), len(session.nodes), Status.OPEN, trained=trained)
    own = player(part, saved.head)

    async def before_turn(turn: int, agents: Sequence[str], order: Sequence[str]) -> None:
        if forks is not None:
            await forks.visit(env, own.conversation, turn)

    def rewarded(_: Session) -> Session:
        branch.end = len(session.nodes)
        return alone(replace(part, branches=[*session.branches, branch]), branch_nodes(session, branch))

    middle = ResumePoint(saved.state, saved.turn)
    agent = own.conversation.agent
    await run_episode(env, part, {agent: own}, limits, middle=middle, before_turn=before_turn, rewarded=rewarded)
    branch.end = len(session.nodes)
    _add(session, part, saved.state.counters)
    if branch.end == branch.start and part.status is not Status.INFRA_ERROR:
        session.count("branch/empty")
        return None
    branch.status, branch.error = part.status, part.error
    branch.rewards, branch.reward = part.rewards, part.reward
    session.branches.append(branch)
    return branch


async def play_forked(
    rule: ForkRule,
    session: Session,
    env: Env,
    *,
    make_env: Callable[[], Env],
    player: Callable[[Env, Session, int | None], Player],
    limits: Callable[[], RolloutConfig],
) -> Session:
    """Play a session, and continue it again from where its rule forks it.

    Args:
        rule: says where, and how often.
        session: without nodes.
        env: a new instance of an environment with one agent.
        make_env: makes another one.
        player: makes the agent's player, given its environment, the session to extend, and the node to continue from.
        limits: of an episode that begins now; with a timeout of 0 no further continuation is begun.

    Returns:
        The session; INFRA_ERROR where one of its continuations was.

    Raises:
        AgentRLError: a failure that the user must fix.
    """
    forks, first = Forks(rule, session), player(env, session, None)

    async def before_turn(turn: int, agents: Sequence[str], order: Sequence[str]) -> None:
        await forks.visit(env, first.conversation, turn)

    await run_episode(env, session, {first.conversation.agent: first}, limits(), before_turn=before_turn)
    if session.status is Status.INFRA_ERROR:
        return session
    begin_branches(session)
    trained = rule.config.trained
    for saved in forks.saved:  # grows meanwhile, where continuations are forked as well
        for _ in range(rule.config.continuations):
            now = limits()
            if not now.timeout:
                session.count("branch/late")
                continue
            other = make_env()
            own = partial(player, other)
            branch = await continue_from(session, saved, other, own, now, trained=trained, forks=forks)
            if branch is not None and branch.status is Status.INFRA_ERROR:
                session.status, session.error, session.rewards, session.reward = branch.status, branch.error, {}, None
                return session
    end_branches(session)
    return session


def begin_branches(session: Session) -> None:
    """Let a session whose first path has ended list it as its first branch."""
    session.branches = [
        Branch(None, 0, len(session.nodes), session.status, session.rewards, session.reward, session.error)
    ]


def end_branches(session: Session) -> None:
    """Give a session the rewards of all its branches; one without further branches is left as if it had no forks."""
    if len(session.branches) == 1:
        session.branches = []
        return
    session.rewards, session.reward = mean_rewards(session)
    session.count("branch/continuations", len(session.branches) - 1)


def _add(session: Session, part: Session, before: dict[str, Any]) -> None:
    """Add a branch's counters and timings to its session's, without what the restored state had counted before."""
    known = Counter({"tool_calls": before["calls"], "tool_errors": sum(before["failures"].values())})
    known.update({f"tool_errors/{kind}": number for kind, number in before["failures"].items()})
    known["tool_silent"] = before.get("silent", 0)
    known[TOOL_FAULTS] = session.counters.get(TOOL_FAULTS, 0)
    for name, number in part.counters.items():
        session.count(name, number - known[name])
    for name, seconds in part.timings.items():
        session.timings[name] = session.timings.get(name, 0.0) + seconds
