"""Groups of sessions, drawn side by side.

Everything about a session follows from its place (phase, step, group, sample): its id, what its environment
draws, what its turns sample. So neither the order in which sessions finish nor a neighbour's failure changes
it, and a session that our own machinery spoiled is drawn again from the same seeds: the group's baseline is
what it would have been.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from agentrl.config import RolloutConfig
from agentrl.envs import calls
from agentrl.envs.base import Env
from agentrl.errors import EngineError
from agentrl.rollout.episode import Actor, run_episode
from agentrl.rollout.programs import Program
from agentrl.rollout.seeds import derive
from agentrl.sessions.codec import make_storable
from agentrl.sessions.conversation import Conversation
from agentrl.sessions.renderers.base import Renderer
from agentrl.types import Engine, Group, Session, Status, Task


@dataclass(frozen=True)
class Rollouts:
    """Draws groups; a plain object that a worker process can hold.

    Attributes:
        make_env: builds an environment for one episode.
        renderer: the model's conversation format.
        engine: what generates; None where only experts speak.
        limits: budgets, deadlines, concurrency.
        seed: the run's.
        strip_reasoning: whether a user's message leaves earlier reasoning behind; see `Conversation`.
    """

    make_env: Callable[[], Env]
    renderer: Renderer
    engine: Engine | None
    limits: RolloutConfig
    seed: int
    strip_reasoning: bool = False

    async def collect(
        self,
        tasks: Sequence[Task],
        actor: Actor | Program,
        *,
        phase: str,
        step: int,
        n: int,
        ended: Callable[[Session], None] = lambda session: None,
    ) -> list[Group]:
        """Play `n` sessions of each task; `ended` is told of each as soon as it has ended.

        Returns:
            One group for each task, in their order; a session that failed for good is in its group as INFRA_ERROR.

        Raises:
            AgentRLError: a failure that the user must mend; the other sessions are cancelled.
            EngineError: no engine is left, and none can be started.
        """
        groups = [Group(f"{phase}-{step}-{place}", task) for place, task in enumerate(tasks)]
        info = {"phase": phase, "step": step}
        gate = asyncio.Semaphore(self.limits.concurrency)
        await calls.prepare(self.make_env(), tasks, min(self.limits.concurrency, n * len(tasks)))
        drafts = [partial(self._draft, group, sample, info) for group in groups for sample in range(n)]
        work = [asyncio.create_task(self._draw(draft, actor, gate, ended)) for draft in drafts]
        try:
            sessions = await asyncio.gather(*work)
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
        for place, group in enumerate(groups):
            group.sessions = list(sessions[place * n : (place + 1) * n])
        return groups

    def _draft(self, group: Group, sample: int, info: dict[str, Any]) -> Session:
        seed = derive(self.seed, group.id)
        name = f"{group.id}-{sample}"
        return Session(name, group.task, group=group.id, sample=sample, seed=seed, info=dict(info))

    async def _draw(
        self,
        draft: Callable[[], Session],
        actor: Actor | Program,
        gate: asyncio.Semaphore,
        ended: Callable[[Session], None],
    ) -> Session:
        async with gate:
            for attempt in range(self.limits.retries + 1):
                session = await self._play(draft(), actor)
                if wrong := make_storable(session):
                    session.status, session.reward, session.error = Status.INFRA_ERROR, None, wrong
                if attempt:
                    session.count("infra_retries", attempt)
                if session.status is not Status.INFRA_ERROR:
                    break
                await self._check_engine()
            ended(session)
            return session

    async def _check_engine(self) -> None:
        """After a failure of ours: drawing again can't help where no engine is left."""
        health = None if self.engine is None else await self.engine.health()
        if health is not None and health.gone:
            raise EngineError(health.detail)

    async def _play(self, session: Session, actor: Actor | Program) -> Session:
        env = self.make_env()
        if isinstance(actor, Program):
            return await actor.play(env, session, self.limits)
        conversation = Conversation(
            session,
            self.renderer,
            self.engine,
            tools=env.tools.schemas(),
            context_tokens=self.limits.context_tokens,
            session_tokens=self.limits.session_tokens,
            strip_reasoning=self.strip_reasoning,
        )
        return await run_episode(env, conversation, actor, self.limits)
