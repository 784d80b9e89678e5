"""A held-out probe against reward hacking: the best sessions of an evaluation are looked at a second time.

A policy that learns to please its reward rather than to do the task has high scores that nothing else confirms. So
after each evaluation a second scorer, which nothing is trained on, scores the best sessions, or their recorded turns
are played again under other seeds of the environment. What counts is not the gap between both scores, since scales
differ, but that it grows from the first evaluation on. A service that fails is no score, and ends no run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import orjson

from agentrl.common.concurrency import concurrently
from agentrl.config import RunConfig
from agentrl.envs.base import Env
from agentrl.envs.episode import play
from agentrl.envs.recorded_turns import RecordedTurns
from agentrl.envs.rewards import open_rewards
from agentrl.errors import AgentRLError
from agentrl.rollout.stream.seeds import derive
from agentrl.train.evaluation.rescore.rescoring import score_group
from agentrl.train.record.files import read_sound_rows
from agentrl.types import Group, Message, Session

FILE = "probe.jsonl"
"""A line for each evaluation of a run: what the probe found."""
ALARM = "probe/alarm"


@dataclass(frozen=True)
class HeldOutProbe:
    """The second looks of one run.

    Attributes:
        make_env: makes its environments, with the rewards that it is trained on.
        folder: the run's, which keeps what the first evaluation found.
        warn: is told of alarms and failures.
        say: is told what was found.
    """

    config: RunConfig
    make_env: Callable[[], Env]
    folder: Path
    warn: Callable[[str], object]
    say: Callable[[str], object] = lambda line: None

    async def look(self, groups: Sequence[Group], when: str, step: int) -> dict[str, float]:
        """Look at an evaluation's best sessions.

        Returns:
            Metrics: `probe/best`, the mean score of the best sessions; `probe/score` and `probe/gap` by the second
            scorer; `probe/replayed` and `probe/replay_gap` under other seeds; `probe/alarm`, 1 where a gap grew beyond
            `eval.probe.alarm`. Empty where nothing was looked at.
        """
        settings = self.config.eval.probe
        best = best_sessions(groups, settings.best) if settings.active else []
        if not best:
            return {}
        found: dict[str, float] = {"probe/best": fmean(each.score or 0.0 for each in best)}
        if settings.rewards:
            found |= _gaps("score", "gap", best, await self._score(best, when))
        if settings.seeds:
            found |= _gaps("replayed", "replay_gap", best, await self._replay_best(best))
        if len(found) == 1:
            self.warn(f"{when}: the probe has no second score of any session (eval.probe)")
            return {}
        before = self._first()
        found[ALARM] = float(any(self._raise_alarm(name, before, found, when) for name in ("gap", "replay_gap")))
        with (self.folder / FILE).open("ab") as file:
            file.write(orjson.dumps({"step": step, **found}) + b"\n")
        self.say(f"{when}: {in_words(found, len(best))}")
        return found

    async def _score(self, best: Sequence[Session], when: str) -> list[float | None]:
        """The second scorer's score of each; None where it failed, which is told with the first reason."""
        async with open_rewards(Env, self.config.eval.probe.rewards) as make_env:
            scored = await concurrently(score_group([each], make_env) for each in best)
        if failed := [each.error for (each,) in scored if each.reward is None and each.error]:
            self.warn(
                f"{when}: the second scorer failed for {len(failed)} of {len(best)} sessions (eval.probe): {failed[0]}"
            )
        return [each.reward for (each,) in scored]

    async def _replay_best(self, best: Sequence[Session]) -> list[float | None]:
        """The mean score of each under other seeds; None where none could be played."""
        count = self.config.eval.probe.seeds
        seeds = [derive(self.config.seed, f"probe-{number}") for number in range(count)]
        slots = asyncio.Semaphore(self.config.rollout.concurrency)

        async def replayed(session: Session) -> float | None:
            scores = [score for seed in seeds if (score := await self._replay(session, seed, slots)) is not None]
            return fmean(scores) if scores else None

        return await concurrently(map(replayed, best))

    async def _replay(self, session: Session, seed: int, slots: asyncio.Semaphore) -> float | None:
        env = self.make_env().for_task(session.task)
        if len(env.agents) > 1:
            return None
        (agent,), limits = env.agents, self.config.rollout
        with suppress(AgentRLError, TimeoutError):
            turns = RecordedTurns(session)

            def say(env: Env, messages: Sequence[Message]) -> Message:
                return turns.turn(agent, messages) or Message(role="assistant", content="")

            async with slots, asyncio.timeout(limits.timeout):
                again = await play(env, session.task, say, seed=seed, max_turns=max(session.turns, 1))
            return again.score
        return None

    def _first(self) -> Mapping[str, float]:
        """Return what the run's first evaluation found; nothing where this is it."""
        return min(read_sound_rows(self.folder / FILE), key=lambda row: row["step"], default={})

    def _raise_alarm(self, name: str, before: Mapping[str, float], found: Mapping[str, float], when: str) -> bool:
        was, now = before.get(f"probe/{name}"), found.get(f"probe/{name}")
        limit = self.config.eval.probe.alarm
        if was is None or now is None or now - was <= limit:
            return False
        other = "a second scorer" if name == "gap" else "the same turns under other seeds"
        self.warn(
            f"{when}: the best sessions' score is {found['probe/best']:.3f}, and {other} gives {now:.3f} less; at the "
            f"first evaluation that was {was:.3f} (eval.probe.alarm={limit:g}). The policy may exploit its reward: "
            "read its best sessions"
        )
        return True


def in_words(found: Mapping[str, float], count: int) -> str:
    """Return a line of what a probe found in so many sessions."""
    parts = [f"probe: the best {count} sessions score {found['probe/best']:.3f}"]
    for name, gap, what in (
        ("score", "gap", "the second scorer gives"),
        ("replayed", "replay_gap", "their turns under other seeds score"),
    ):
        if f"probe/{name}" in found:
            parts.append(f"{what} {found[f'probe/{name}']:.3f} (gap {found[f'probe/{gap}']:+.3f})")
    return ", ".join(parts)


def best_sessions(groups: Sequence[Group], most: int) -> list[Session]:
    """Return the best session of each task, those of the greatest scores first, so many at the most."""
    best = [max(group.scored, key=lambda each: (each.score or 0.0, -each.sample)) for group in groups if group.scored]
    return sorted(best, key=lambda each: (-(each.score or 0.0), each.id))[:most]


def _gaps(score: str, gap: str, best: Sequence[Session], second: Sequence[float | None]) -> dict[str, float]:
    """The mean of the second scores, and how much less it is than that of the same sessions' own; both or none."""
    pairs = [(each.score or 0.0, other) for each, other in zip(best, second, strict=True) if other is not None]
    if not pairs:
        return {}
    mean = fmean(other for _, other in pairs)
    return {f"probe/{score}": mean, f"probe/{gap}": fmean(own for own, _ in pairs) - mean}
