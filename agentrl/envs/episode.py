"""Runs an episode from its start to each possible end: the only driver of episodes.

The same loop runs for every actor (a model, a script, an expert) and purpose (training, evaluation, a demonstration,
`check`): in `converse` an agent's actor writes a message and the environment answers, until one of them is done or a
limit is reached (`turns`). Several agents take turns, or move at once, each in a conversation of its own: what the
environment does not send to an agent, that agent does not see. `run_episode` is that loop with deadlines and error
handling, for rollouts; `play` needs neither model nor tokens. An error's `blame` decides the status: the agent's is
AGENT_ERROR and may still be rewarded; the infrastructure's is INFRA_ERROR, which gets no reward at all; the user's (a
bug in the environment) stops the run, since a retry would fail in the same way. A user's agent program runs its own
loop; see `rollout.episodes.programs`.
"""

from __future__ import annotations

import asyncio
import inspect
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl import tracing
from agentrl.config import RolloutConfig
from agentrl.envs import calls
from agentrl.envs.base import Env
from agentrl.envs.context import context_of
from agentrl.envs.results import add_timing, count_tools, environment_call, give_rewards, record_failure, set_rewards
from agentrl.envs.state import EnvState, EpisodeState
from agentrl.envs.turns import Player, answers, following, moves, note, send
from agentrl.errors import AgentRLError, Blame, ConfigError, DeadlineExceeded, EnvError, TokenBudgetExceeded
from agentrl.sessions.renderers.families.null import NullRenderer
from agentrl.sessions.tree.conversation import Conversation
from agentrl.sessions.tree.turn_generator import TurnGenerator
from agentrl.types import OVERLONG, FinishReason, Message, Node, Session, Status, Task

NO_DEADLINES = RolloutConfig(turn_timeout=1e8, timeout=1e9)
"""Limits without deadlines."""


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """A place at which an episode goes on, instead of its beginning.

    Attributes:
        state: the environment's; None where it is restored in the instance already.
        turn: how many turns were taken before.
        agents: whose turns come next; None is the beginning's.
        order: the agents in the order in which they take turns; None where there is one.
        known: their turns, where the session has them already: they are answered, and not generated.
    """

    state: EnvState | None
    turn: int
    agents: Sequence[str] | None = None
    order: Sequence[str] | None = None
    known: Sequence[Node] = ()


BeforeTurn = Callable[[int, Sequence[str], Sequence[str]], Awaitable[None]]
"""Called before each turn with its number, whose it is, and the order of the agents; once for turns at once."""

ScriptedPolicy = Callable[[Env, Sequence[Message]], Message | Awaitable[Message]]
"""Given the environment and the conversation so far, the next assistant message."""
MAX_TURNS = 1000
"""The limit where neither the caller nor the environment has one."""
_OUT_OF_TURNS, _CUT_OFF = "turns were taken (max_turns)", "the environment cut it off"


async def expert_policy(env: Env, messages: Sequence[Message]) -> Message:
    """Act as the environment's own expert."""
    return await calls.expert(env, messages)


def noop_policy(env: Env, messages: Sequence[Message]) -> Message:
    """Empty messages: the baseline that no environment may reward."""
    return Message(role="assistant", content="")


@dataclass(frozen=True)
class ScriptedActor:
    """Acts by a scripted policy; its turns are demonstrations."""

    policy: ScriptedPolicy

    async def act(self, conversation: Conversation, env: Env, turn: int, deadline: float) -> Node:
        message = self.policy(env, conversation.messages)
        return conversation.demonstrate(await message if inspect.isawaitable(message) else message)


@dataclass(frozen=True)
class Demonstrator(ScriptedActor):
    """Acts by the environment's demonstrator: what a warm start imitates."""

    policy: ScriptedPolicy = expert_policy

    async def act(self, conversation: Conversation, env: Env, turn: int, deadline: float) -> Node:
        """Append the demonstrator's message, its chance seeded by the task, the session, the turn and the agent."""
        session = conversation.session
        what = (session.task.id, session.seed, session.sample, turn, conversation.agent)
        rng = random.Random(f"demonstrate/{'/'.join(map(str, what))}")
        return conversation.demonstrate(await calls.demonstrate(env, conversation.messages, rng))


EXPERT = ScriptedActor(expert_policy)
DEMONSTRATOR = Demonstrator()
NOOP = ScriptedActor(noop_policy)


async def run_episode(
    env: Env,
    session: Session,
    players: Mapping[str, Player],
    limits: RolloutConfig,
    *,
    middle: ResumePoint | None = None,
    before_turn: BeforeTurn | None = None,
    rewarded: Callable[[Session], Session] | None = None,
) -> Session:
    """Play one session to its end and reward it; the environment is closed whatever happens.

    Args:
        env: a fresh instance; where it goes on in the middle, one with the episode restored, or `middle` has the state.
        session: the session that the players' conversations extend.
        players: by agent, one for each that the environment has.
        limits: of turns (of all agents together), besides the environment's own, and of seconds.
        middle: where the episode goes on; None begins it.
        before_turn: called before each turn that is to be generated.
        rewarded: what of the session the environment's rewards see; None is all of it.

    Returns:
        The session, with status, rewards, counters and timings filled in.

    Raises:
        AgentRLError: a failure that the user must fix (an environment's bug, a wrong setting).
    """
    env.tools.timeout = limits.tool_timeout
    try:
        with add_timing(session, "total"):
            try:
                async with asyncio.timeout(limits.timeout):
                    session.status = await converse(
                        env, session, players, limits, middle=middle, before_turn=before_turn
                    )
            except AgentRLError as error:
                record_failure(session, error)
            except TimeoutError:
                _out_of_time(env, session, limits.timeout)
        count_tools(env, session)
        left_out = session.overlong and limits.overlong == "skip"
        if session.status is not Status.INFRA_ERROR and not left_out:
            agents = [agent for agent, player in players.items() if player.rewarded]
            await give_rewards(env, session, agents, None if rewarded is None else rewarded(session), limits.timeout)
    finally:
        await calls.close(env)
    return session


def _out_of_time(env: Env, session: Session, seconds: float) -> None:
    """End a session whose time is up; one that never began is not the agent's."""
    if session.nodes:
        session.status, session.error = Status.TRUNCATED, f"the session took longer than {seconds:g} s"
    else:
        where = f"{type(env.unwrapped).__name__}.reset"
        record_failure(session, DeadlineExceeded(f"{where} took longer than rollout.timeout={seconds:g} s"))


async def play(
    env: Env,
    task: Task,
    policy: ScriptedPolicy | ScriptedActor = expert_policy,
    *,
    seed: int = 0,
    max_turns: int | None = None,
    close: bool = True,
) -> Session:
    """Play one episode by a scripted policy (no model, no tokens, no deadlines) and reward it.

    Args:
        env: a fresh instance.
        task: what to play.
        policy: writes every agent's messages.
        seed: the episode's randomness.
        max_turns: assistant turns; the environment's own limit holds as well.
        close: whether to close the environment afterwards.

    Returns:
        The session; its nodes hold messages and step rewards, and no tokens, so nothing can be trained on them.

    Raises:
        EnvError: the environment's code failed.
        InfraError: the infrastructure failed.
    """
    session = Session(id=f"play-{task.id}-{seed}", task=task, seed=seed)
    actor = policy if isinstance(policy, ScriptedActor) else ScriptedActor(policy)
    generator, tools = TurnGenerator(NullRenderer(), None), env.tools.schemas()
    players = {
        agent: Player(Conversation(session, generator, tools=tools, agent=agent, stop=env.stop_strings), actor)
        for agent in env.agents
    }
    limits = NO_DEADLINES.model_copy(update={"max_turns": max_turns})
    try:
        try:
            session.status = await converse(env, session, players, limits)
        except AgentRLError as error:
            if error.blame is not Blame.AGENT:
                raise
            session.status, session.error = Status.AGENT_ERROR, str(error)
        set_rewards(session, await calls.compute_rewards(env, session), env.agents)
        count_tools(env, session)
    finally:
        if close:
            await calls.close(env)
    return session


def record(session: Session) -> list[Any]:
    """Return the parts by which episodes are compared: messages, step rewards, final rewards, status."""
    messages = [(node.message.model_dump(exclude_none=True), node.reward) for node in session.nodes]
    return [*messages, session.rewards, session.status.value]


async def converse(
    env: Env,
    session: Session,
    players: Mapping[str, Player],
    limits: RolloutConfig,
    *,
    middle: ResumePoint | None = None,
    before_turn: BeforeTurn | None = None,
) -> Status:
    """Let agents and environment take turns until one of them is done or a limit is reached.

    What `step` returns as `StepResult.info` goes into the session's `info`. Arguments are those of `run_episode`; the
    session has no nodes, and the conversations are empty, unless the episode goes on in the middle.

    Raises:
        AgentRLError: a failure; see its `blame`.
    """
    middle = await _open(env, session, players, middle)
    order = list(middle.order or players)
    agents, known, turn = middle.agents or following(env, order), middle.known, middle.turn
    turns = min((limit for limit in (limits.max_turns, env.max_turns) if limit is not None), default=MAX_TURNS)
    while turn + len(agents) <= turns:
        with tracing.scope(turn=turn + 1), tracing.span("turn", agent=", ".join(agents)):
            if before_turn is not None and not known:
                await before_turn(turn, agents, order)
            deadline = time.monotonic() + limits.turn_timeout
            try:
                nodes = known or await moves(env, [players[agent] for agent in agents], turn, deadline)
            except TokenBudgetExceeded as error:
                if turn == 0 and type(error) is TokenBudgetExceeded:
                    _note_overlong(session, error, limits)
                return _truncate(session, str(error))
            known = ()
            if cut := next((node for node in nodes if node.finish_reason is FinishReason.LENGTH), None):
                return _truncate(session, _cut_off(players[cut.agent].conversation, limits))
            result = await answers(env, session, players, nodes, turn, deadline)
            if result.terminated or result.truncated:
                return Status.COMPLETED if result.terminated else _truncate(session, _CUT_OFF)
            turn += len(agents)
            agents = result.next or following(env, order, agents[-1])
            if silent := [agent for agent in agents if not players[agent].conversation.messages]:
                raise EnvError(
                    f"{type(env.unwrapped).__name__}.step: it is {silent[0]!r}'s turn, which has no message to answer"
                )
    return _truncate(session, f"all {turns} {_OUT_OF_TURNS}")


async def _open(env: Env, session: Session, players: Mapping[str, Player], middle: ResumePoint | None) -> ResumePoint:
    """Open the episode, or restore its environment; returns where the turns go on."""
    with environment_call(session, "reset") as seconds:
        if middle is None:
            own = session.task.model_copy(deep=True)  # the group's other sessions have the same object
            openings = await calls.openings(env, own, seed=session.seed)
        elif middle.state is not None:
            await calls.restore(env, middle.state)
    if middle is not None:
        for turn in middle.known:
            context_of(env.unwrapped).note_expert_turn(turn.message)
        return middle
    note(send(players, openings), seconds)
    return ResumePoint(None, 0, order=list(openings))


def episode_state(
    session: Session,
    players: Mapping[str, Player],
    turn: int,
    agents: Sequence[str],
    order: Sequence[str],
    env: EnvState,
) -> EpisodeState:
    """The state of an episode before a turn, given its environment's; arguments as for `BeforeTurn`."""
    heads = {name: player.conversation.head for name, player in players.items()}
    return EpisodeState(
        env,
        turn,
        list(agents),
        list(order),
        {name: head.id for name, head in heads.items() if head is not None},
        [node.reward for node in session.nodes],
        dict(session.counters),
    )


def _note_overlong(session: Session, error: TokenBudgetExceeded, limits: RolloutConfig) -> None:
    """Note that a session's prompt leaves no room for a turn."""
    if limits.overlong == "refuse":
        raise ConfigError(f"task {session.task.id!r}: {error} (rollout.overlong=refuse)")
    session.count(OVERLONG)


def _cut_off(conversation: Conversation, limits: RolloutConfig) -> str:
    """Return why a turn was cut off: by the budget that it used up, or by its own limit."""
    if conversation.budget.left < 1:
        return f"a turn was cut off: {conversation.budget.name} is used up"
    return f"a turn was cut off by its token limit (rollout.turn_tokens={limits.turn_tokens})"


def cut_by_rule(session: Session) -> bool:
    """Return whether an episode was cut off by its environment's rules or number of turns, not by tokens or seconds."""
    return session.status is Status.TRUNCATED and (session.error or "").endswith((_OUT_OF_TURNS, _CUT_OFF))


def _truncate(session: Session, reason: str) -> Status:
    session.error = reason
    return Status.TRUNCATED
