"""Groups of sessions, generated concurrently.

A group's number decides its task and its seed, and a session's index in it decides the seeds of its turns. So neither
the order in which sessions finish nor the failure of another one changes it. A session that ended in an infrastructure
error is generated again from the same seeds: the group's baseline is what it would have been without the failure. In a
resumed run sessions of groups that were in progress are continued (`rollout.stream.unfinished`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from agentrl import faults, tracing
from agentrl.common.concurrency import concurrently
from agentrl.common.deadline import Deadline
from agentrl.config import RolloutConfig
from agentrl.envs import calls
from agentrl.envs.base import Env
from agentrl.envs.context import alone
from agentrl.envs.episode import ScriptedActor, episode_state, run_episode
from agentrl.envs.results import IN_TOOLS, error_text, invalid
from agentrl.envs.scoring.group_rewards import give_group_rewards
from agentrl.envs.turns import Actor, Player, nothing_to_record
from agentrl.errors import EngineError, EnvError
from agentrl.rollout.episodes.branching import play_forked
from agentrl.rollout.episodes.combinations import grow_tree, repeat_known, skip_known
from agentrl.rollout.episodes.counterfactuals import play_counterfactual
from agentrl.rollout.episodes.fork_rules import ForkRule, make_rule
from agentrl.rollout.episodes.policies import Partners, Policy
from agentrl.rollout.episodes.programs import Program, RemoteSessionRunner, ServedProgram
from agentrl.rollout.episodes.tool_faults import ToolFaults
from agentrl.rollout.stream.seeds import group_seed
from agentrl.rollout.stream.slots import Slots
from agentrl.rollout.stream.unfinished import Left, LeftSessions, Restored, StateSaver, restore_env
from agentrl.rollout.workers.held import hold
from agentrl.sessions.store.recorder import Records
from agentrl.sessions.tree import tree
from agentrl.sessions.tree.codec import make_storable
from agentrl.sessions.tree.conversation import Conversation
from agentrl.types import GREEDY, Engine, Group, Session, Status, Task

TRAIN = "train"
"""The phase of the groups that are trained on."""
EVAL = "eval"
"""The phase of the groups that measure a policy."""
DEMO = "demo"
"""The phase of demonstrations that are imitated, which get no rewards that the run adds."""
EVALUATION = -1
"""The place of all other groups in the queue of sessions: before those of training."""

Ended = Callable[[Session], Awaitable[None]]
"""Called with each session as soon as it has ended."""


async def nothing(session: Session) -> None:
    """Ignore a session that has ended."""


def new_group(phase: str, number: int, task: Task, attempt: int = 0) -> Group:
    """A group without sessions yet; its id consists of phase, number and attempt."""
    return Group(f"{phase}-{number}.{attempt}", task, number=number, attempt=attempt)


@dataclass(frozen=True)
class Rollouts:
    """Generates groups, with one limit on concurrent sessions for all of them.

    Attributes:
        make_env: builds an environment for one episode.
        policy: plays all agents but those of `partners`.
        limits: budgets, deadlines, concurrency.
        seed: the run's.
        partners: play agents in its place.
        environment: the name under which the environment was configured.
        recorder: stores the sessions while they are generated, every attempt at one included; None stores nothing.
        load: reads a stored session by its id: those of an evaluation leave the memory; None keeps them there.
        left: the sessions that an earlier process of the run left; empty where it was not resumed.
        views: whether a critic reads what environments tell it (`Env.critic_view`).
        counterfactuals: how often each joint turn of training is continued again for each agent (`algo=coma`).
        combinations: how the completions of a group's tree of joint turns are paired; "" where it has none.
        elsewhere: plays sessions in other processes; None plays them here.
    """

    make_env: Callable[[], Env]
    policy: Policy
    limits: RolloutConfig
    seed: int
    partners: Partners = field(default_factory=dict)
    environment: str = ""
    recorder: Records | None = None
    load: Callable[[str], Session] | None = None
    left: LeftSessions = field(default_factory=LeftSessions, repr=False, compare=False)
    views: bool = False
    counterfactuals: int = 0
    combinations: str = ""
    elsewhere: RemoteSessionRunner[Rollouts] | None = field(default=None, repr=False, compare=False)
    slots: Slots = field(init=False, repr=False, compare=False)
    rule: ForkRule = field(init=False, repr=False, compare=False)
    states: StateSaver = field(init=False, repr=False, compare=False)
    tool_faults: ToolFaults = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "slots", Slots(self.limits.concurrency))
        object.__setattr__(self, "rule", make_rule(self.limits.branch))
        object.__setattr__(self, "states", StateSaver(self.limits.save_states))
        object.__setattr__(self, "tool_faults", ToolFaults())

    def limited(self, limits: RolloutConfig, *, apart: bool, policy: Policy | None = None) -> Rollouts:
        """Return rollouts under other limits, perhaps by another policy; `apart`: with slots of their own."""
        other = replace(self, limits=limits, policy=policy or self.policy)
        if not apart:
            object.__setattr__(other, "slots", self.slots)
        return other

    @property
    def policies(self) -> dict[str, Policy]:
        """All policies by name, `policy` first."""
        others = (policy for partner in self.partners.values() for policy in partner.policies)
        return {policy.name: policy for policy in (self.policy, *others)}

    @property
    def engines(self) -> list[Engine]:
        """The engines of all policies, that of `policy` first."""
        return [policy.engine for policy in self.policies.values() if policy.engine is not None]

    async def collect(
        self,
        tasks: Sequence[Task],
        actor: Actor | Program,
        *,
        phase: str,
        n: int,
        step: int | None = None,
        attempt: int = 0,
        ended: Ended = nothing,
    ) -> list[Group]:
        """Play `n` sessions of each task; `step` and `attempt` make the groups' ids different from earlier ones'.

        Returns:
            One group for each task, in their order; a session whose retries all failed is in its group as INFRA_ERROR.
            It raises what `generate` does.
        """
        name = phase if step is None else f"{phase}{step}"
        groups = [new_group(name, number, task, attempt) for number, task in enumerate(tasks)]
        await self.prepare(tasks, n)
        await concurrently(self.generate(group, actor, n, phase=phase, step=step, ended=ended) for group in groups)
        return groups

    async def prepare(self, tasks: Sequence[Task], n: int) -> None:
        """Let the environment prepare for `n` sessions of each task."""
        await calls.prepare(self.make_env(), tasks, min(self.limits.concurrency, n * len(tasks)))

    async def generate(
        self,
        group: Group,
        actor: Actor | Program,
        n: int,
        *,
        phase: str,
        step: int | None = None,
        seconds: float | None = None,
        ended: Ended = nothing,
        greedy: Actor | None = None,
    ) -> None:
        """Play the group's `n` sessions and put them into the group.

        Under the limit on concurrent sessions those of the lowest group number go first, and those of an evaluation
        before all others. After `seconds` sessions under way are TRUNCATED, and rewarded as they are; those that still
        wait for a slot are ABORTED, and have no reward. Both count as `group_deadline`.

        Args:
            group: without sessions.
            actor: writes the messages of the agents that `policy` plays.
            n: how many.
            phase: what the sessions are for.
            step: the training step in which they begin.
            seconds: until all sessions end, from now; None has no such deadline.
            ended: called with each session that has ended.
            greedy: acts in one more session, the last one, of the phase `GREEDY`; None: there is none.

        Raises:
            AgentRLError: a failure that the user must fix; the other sessions are cancelled.
            EngineError: no engine is left, and none can be started.
        """

        def new(sample: int, attempt: int, **info: Any) -> Session:
            return Session(
                f"{group.id}-{sample}" + (f"~{attempt}" if attempt else ""),
                group.task,
                group=group.id,
                group_number=group.number,
                group_attempt=group.attempt,
                sample=sample,
                attempt=attempt,
                seed=group_seed(self.seed, phase, group.number),
                phase=phase if sample < n or info else GREEDY,
                step=step,
                environment=group.task.environment or self.environment,
                info=info,
            )

        place = group.number if phase == TRAIN else EVALUATION
        deadline = None if seconds is None else Deadline(seconds, time.monotonic() + seconds)
        actors = [actor] * n + ([greedy] if greedy is not None else [])
        play = partial(self._with_retries, ended=ended, place=place, deadline=deadline)
        group.sessions = await concurrently(play(partial(new, sample), each) for sample, each in enumerate(actors))
        if self.combinations and phase == TRAIN and not isinstance(actor, Program):
            group.sessions = await grow_tree(group.sessions, n, self.combinations, actor, new, play)
        if await give_group_rewards(self.make_env, group.sessions) and self.recorder is not None:
            await asyncio.gather(*map(self.recorder.end, group.sessions))
        if phase == EVAL and self.load is not None:
            group.sessions = [hold(session, self.load) for session in group.sessions]

    async def play(self, session: Session, actor: Actor) -> Session:
        """Play a new session by itself, once."""
        return await self._play_recorded(session, actor, None)

    async def _with_retries(
        self, new: Callable[[int], Session], actor: Actor | Program, ended: Ended, place: int, deadline: Deadline | None
    ) -> Session:
        first = new(0)
        left = self.left.take(first.group, first.sample, first.task, first.seed)
        if left is not None and left.ended:
            self.left.counts["taken"] += 1
            await ended(left.session)
            return left.session
        retries = self.limits.retries
        begin = left.attempt if left is not None and left.attempt <= retries else 0
        with self.tool_faults.playing() as attempts:
            session = first
            for attempt in range(begin, max(retries, 1) + 1):
                following = new(attempt) if attempt else first
                blamed = await attempts.judge(following, max(retries, 1), self._limits(deadline).timeout)
                if attempt > retries and not blamed:
                    await faults.async_point("session.ended")
                    await ended(session)
                    break
                session = following
                async with self.slots.slot(place, deadline.at if deadline else None):
                    session = await self._continue(left, actor, deadline) or await self._play_recorded(
                        session, actor, deadline
                    )
                    self.tool_faults.ended(session)
                    left, late = None, deadline is not None and deadline.left() <= 0
                    over = session.status is not Status.INFRA_ERROR or bool(invalid(session)) or late
                    if not over:  # an invalid number would be the same again
                        attempts.lost(session)
                        await self._check_engine()
                    alone = not retries and not attempt and IN_TOOLS in session.counters  # perhaps, which is judged
                    if over or (attempt >= retries and not alone):
                        await faults.async_point("session.ended")
                        await ended(session)
                        break
        return session

    async def _continue(self, left: Left | None, actor: Actor | Program, deadline: Deadline | None) -> Session | None:
        """Play a session that an earlier process left; None where there is none, or it can't be continued."""
        if left is None:
            return None
        env = self.make_env().for_task(left.session.task)
        whole = isinstance(actor, Program) or self.rule.active or self.counterfactuals  # forks need its beginning
        if whole or left.state is None or not await restore_env(env, left.state):
            self.left.counts["again"] += 1
            return None
        self.left.counts["continued"] += 1
        return await self._play_recorded(left.session, actor, deadline, Restored(env, left.state))

    async def _play_recorded(
        self, session: Session, actor: Actor | Program, deadline: Deadline | None, restored: Restored | None = None
    ) -> Session:
        """Play a session, and keep it in the store from its beginning to whatever end it has."""
        if self.elsewhere is not None and self.elsewhere.records and restored is None:
            return await self.elsewhere.play(self, session, actor, deadline)
        session.started = session.started or time.time()
        if self.recorder is not None:
            await self.recorder.resume(session, restored.state.to_bytes() if restored else None)
        try:
            session = await self._play_until(session, actor, deadline, restored)
        except BaseException as error:
            if self.recorder is not None:
                why = error_text(error) if isinstance(error, Exception) else "cancelled"
                session.status, session.error, session.ended = Status.ABORTED, why, time.time()
                make_storable(session)
                self.recorder.save_soon(session)
            raise
        session.ended = time.time()
        if wrong := make_storable(session):
            session.status, session.reward, session.error = Status.ABORTED, None, wrong
        if session.attempt:
            session.count("infra_retries", session.attempt)
        if self.recorder is not None:
            await self.recorder.end(session)
        if wrong:
            raise EnvError(wrong)
        return session

    async def _check_engine(self) -> None:
        """After an infrastructure error: a retry can't help where no engine is left."""
        for engine in self.engines:
            if (health := await engine.health()).gone:
                raise EngineError(health.detail)

    async def _play_until(
        self, session: Session, actor: Actor | Program, deadline: Deadline | None, restored: Restored | None
    ) -> Session:
        if deadline is None:
            return await self._play(session, actor, None, restored)
        if deadline.left() <= 0:
            session.status = Status.ABORTED
        else:
            session = await self._play(session, actor, deadline, restored)
        if session.status is Status.ABORTED or (session.status is Status.TRUNCATED and deadline.left() <= 0):
            session.error = f"the group took longer than rollout.group_deadline={deadline.seconds:g} s"
            session.count("group_deadline")
        return session

    async def _play(
        self, session: Session, actor: Actor | Program, deadline: Deadline | None, restored: Restored | None
    ) -> Session:
        if self.elsewhere is not None and restored is None:  # whose environment is here
            return await self.elsewhere.play(self, session, actor, deadline)
        about: dict[str, Any] = {"group": session.group, "phase": session.phase, "step": (session.step or 0) + 1}
        with tracing.scope(session=session.id), tracing.span("session", root=True, **about):
            env = restored.env if restored is not None else self.make_env().for_task(session.task)
            with alone(env.unwrapped):
                session = await self._play_session(env, session, actor, deadline, restored)
            tracing.note(status=session.status, turns=session.turns)
            return session

    async def _play_session(
        self, env: Env, session: Session, actor: Actor | Program, deadline: Deadline | None, restored: Restored | None
    ) -> Session:
        if isinstance(actor, Program):
            assert isinstance(actor, ServedProgram)
            return await actor.play(env, session, self._limits(deadline))
        if session.phase == TRAIN and self.rule.active:
            (agent,) = env.agents
            return await play_forked(
                self.rule,
                session,
                env,
                make_env=lambda: self.make_env().for_task(session.task),
                player=lambda env, part, head: self._player(env, part, agent, head, actor, forked=head is not None),
                limits=lambda: self._limits(deadline),
            )
        heads = restored.heads(session) if restored is not None else {}
        players = {agent: self._player(env, session, agent, heads.get(agent), actor) for agent in env.agents}

        async def before_turn(turn: int, agents: Sequence[str], order: Sequence[str]) -> None:
            if self.recorder is not None and session.phase != DEMO:  # which a resumed run begins anew
                made = partial(episode_state, session, players, turn, agents, order)
                await self.states.save(self.recorder, session, env, made)

        if session.phase == TRAIN and self.counterfactuals:
            return await play_counterfactual(
                session,
                env,
                players,
                self.counterfactuals,
                make_env=lambda: self.make_env().for_task(session.task),
                player=partial(replace(self, recorder=None)._player, actor=skip_known(actor)),
                limits=lambda: self._limits(deadline),
                before_turn=before_turn,
            )
        middle = restored.middle(session) if restored is not None else None
        return await run_episode(env, session, players, self._limits(deadline), middle=middle, before_turn=before_turn)

    def _limits(self, deadline: Deadline | None) -> RolloutConfig:
        """The limits of an episode that begins now; a timeout of 0 where it is too late."""
        if deadline is None:
            return self.limits
        return self.limits.model_copy(update={"timeout": min(self.limits.timeout, max(deadline.left(), 0.0))})

    def _player(
        self, env: Env, session: Session, agent: str, head: int | None, actor: Actor, *, forked: bool = False
    ) -> Player:
        partner = self.partners.get(agent)
        policy, own = (partner and partner.plays(session)) or (self.policy, actor)
        own = repeat_known(actor, own)
        generator = policy.turn_generator(self.limits)
        if forked and head is not None:  # the budget of a session is for each of its continuations
            others = tree.size(session) - len(tree.path_ids(session, head))
            generator = replace(generator, session_tokens=self.limits.session_tokens + others)
        tools, stop = env.tools.schemas(), env.stop_strings
        conversation = Conversation(session, generator, tools=tools, agent=agent, head=head, stop=stop)
        scripted = isinstance(actor, ScriptedActor)  # a script plays every agent, by what the environment knows
        record = partial(self.recorder.update, session) if self.recorder is not None else nothing_to_record
        viewed = self.views and not policy.frozen
        return Player(conversation, actor if scripted else own, not policy.frozen, viewed, record)
