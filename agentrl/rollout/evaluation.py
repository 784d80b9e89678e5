"""Measuring a policy: held-out tasks, several sessions each, nothing learned. Scripts need neither model nor torch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from agentrl.config import RunConfig
from agentrl.envs.base import Env
from agentrl.envs.episode import EXPERT, NOOP, Actor
from agentrl.errors import ConfigError, nearest
from agentrl.rollout.groups import Rollouts
from agentrl.rollout.health import failures, finding, redrawn, sessions_of
from agentrl.rollout.programs import Program
from agentrl.rollout.progress import Progress
from agentrl.rollout.stats import Evaluation, evaluate_groups
from agentrl.rollout.tasks import TaskStream
from agentrl.types import Group, Session

SCRIPTED: dict[str, Actor] = {"expert": EXPERT, "noop": NOOP}
"""Policies that need no model."""


def held_out_split(config: RunConfig, env: Env) -> str:
    """The split to measure on: the one that the configuration names, or `eval`, or the environment's last.

    Raises:
        ConfigError: the environment has no such split.
    """
    split = config.eval.split
    if split is None:
        return "eval" if "eval" in env.splits else env.splits[-1]
    if split not in env.splits:
        guess = nearest(split, env.splits)
        hint = f"; did you mean {guess!r}?" if guess else ""
        known = ", ".join(env.splits)
        raise ConfigError(f"eval.split={split!r}: env={config.env.name} has no such split{hint} (splits: {known})")
    return split


async def play_held_out(
    config: RunConfig,
    rollouts: Rollouts,
    who: Actor | Program,
    progress: Progress,
    name: str = "evaluation",
    keep: Callable[[Session], None] = lambda session: None,
) -> tuple[Evaluation, list[Group]]:
    """Play `eval.tasks` tasks, `eval.n` sessions each; the summary, and the sessions themselves.

    Args:
        config: the run's.
        rollouts: plays.
        who: acts.
        progress: is shown how far it is, and told what is wrong with the sessions.
        name: what this evaluation is called there.
        keep: is given each session that has ended, in a thread.

    Raises:
        InfraError: our machinery failed in all of them.
    """
    env = rollouts.make_env()
    split = held_out_split(config, env)
    tasks = TaskStream(env, split, config.seed).once(config.eval.tasks)
    if len(tasks) < config.eval.tasks:
        progress.say(f"{name}: {len(tasks)} tasks, not eval.tasks={config.eval.tasks}: split {split!r} has no more")

    async def draw() -> list[Group]:
        with progress.part(name, len(tasks) * config.eval.n) as one_more:

            async def ended(session: Session) -> None:
                await asyncio.to_thread(keep, session)
                one_more(session)

            return await rollouts.collect(tasks, who, phase="eval", n=config.eval.n, ended=ended)

    groups = await redrawn(draw, name, progress.warn)
    sessions = sessions_of(groups)
    for told in filter(None, [finding(sessions) or failures(sessions)]):
        progress.warn(f"{name}: {told}")
    return evaluate_groups(groups, config.eval.solved_at), groups
