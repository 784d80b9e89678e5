"""Running a recorded run again: the same groups in the same steps, each span of tokens under its recorded version.

A recording is a run's ledger and its session store. What decided the run besides its seeds is in them: which task each
group got, in which step it began and which step trained it, and where a publication cut a turn (`Node.versions`). The
rerun begins a group in its recorded step; `RerunEngine` generates each recorded span once the engine has the span's
version, stops at the span's last token, and holds back a publication until every span of the older versions is
generated. So speed and arrival order no longer decide anything. All that is generated is compared with the recording,
and the first difference ends the rerun.

An agent program runs again as well. Its requests may arrive in any order, several at once; the gateway takes them, and
sends the replies, in the recorded order (`sessions.gateway.schedule`).

Sessions that the clock or a failure ended or changed are not played again: each of their turns is generated from its
recorded prompt, and the rest is taken from the recording. With `rerun_answers=recorded` that is done for all sessions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields

from agentrl.common.concurrency import concurrently
from agentrl.common.deadline import Deadline
from agentrl.envs.episode import NO_DEADLINES
from agentrl.envs.turns import Actor
from agentrl.errors import Diverged
from agentrl.rollout.episodes.groups import Ended, Rollouts
from agentrl.rollout.episodes.programs import Program
from agentrl.rollout.rerun.divergence import compare, same
from agentrl.rollout.rerun.engine import Recording, RerunEngine
from agentrl.rollout.stream.stream import Stream
from agentrl.rollout.workers.held import has_content
from agentrl.sessions.gateway.schedule import prompt_of
from agentrl.sessions.tree.generation import generate
from agentrl.types import MAIN, Group, Node, Sampling, Session, Status, collect


@dataclass(frozen=True)
class RerunRollouts(Rollouts):
    """Generates recorded groups again, all at once, and compares them; other groups as `Rollouts` does."""

    recording: Recording = field(default_factory=Recording)

    @staticmethod
    def of(rollouts: Rollouts, recording: Recording) -> RerunRollouts:
        """Return the rollouts for a rerun."""
        own = {item.name: getattr(rollouts, item.name) for item in fields(rollouts) if item.init}
        return RerunRollouts(**own, recording=recording)

    async def _with_retries(
        self, new: Callable[[int], Session], actor: Actor | Program, ended: Ended, place: int, deadline: Deadline | None
    ) -> Session:
        first = new(0)
        recorded = self.recording.sessions.get((first.group, first.sample))
        if recorded is None:
            return await super()._with_retries(new, actor, ended, place, deadline)
        engine = self.policy.engine
        assert isinstance(engine, RerunEngine)
        try:
            if self.recording.substituted(recorded):
                session = await self._substitute(recorded, engine)
            else:
                for _ in range(self.limits.retries + 1):
                    session = new(recorded.attempt)
                    who = actor.again(recorded) if isinstance(actor, Program) else actor
                    session = await self._play_recorded(session, who, None)
                    engine.check()
                    if session.status is not Status.INFRA_ERROR:
                        break
                compare(recorded, session)
        except BaseException as error:
            engine.fail(error)
            raise
        await ended(session)
        return session

    async def _substitute(self, recorded: Session, engine: RerunEngine) -> Session:
        """Generate each turn of a session from its recorded prompt; the rest is the recording's."""
        forever = time.monotonic() + NO_DEADLINES.timeout

        async def again(node: Node, sampling: Sampling) -> None:
            prompt = prompt_of(recorded, node)
            turn = await collect(generate(engine, f"{recorded.id}/{node.id}", prompt, sampling, forever))
            same(f"session {recorded.id}, turn {node.id}", node.token_ids[node.versions[0].start :], turn.token_ids)

        # All at once: of two turns that were generated together, the first may go on under a version that is published
        # only when the second is there.
        await concurrently(
            again(node, node.sampling) for node in recorded.nodes if node.policy == MAIN and node.sampling is not None
        )
        if self.recorder is not None:
            await self.recorder.resume(recorded, None)
            await self.recorder.end(recorded)
        return recorded


class RerunStream(Stream):
    """The groups of a recording: each is begun and trained in its recorded step; discarded ones are not generated."""

    rollouts: RerunRollouts

    @property
    def recording(self) -> Recording:
        """The recording that is run again."""
        return self.rollouts.recording

    def _choose(self) -> list[Group]:
        groups = [
            self._new(outcome.number, outcome.choice, outcome.attempt)
            for outcomes in self.recording.trained.values()
            for outcome in outcomes
            if outcome.begun == self.gate.published
        ]
        begun = {group.number for group in self._taken.values()} | set(self.buffer.begun)
        return [group for group in groups if group.number not in begun]

    def _list_wanted(self, count: int) -> list[int]:
        return [outcome.number for outcome in self.recording.trained.get(self.gate.published + 1, ())]

    def _ready(self, count: int) -> list[Group] | None:
        numbers = self._list_wanted(count)
        if not self.buffer.finished.issuperset(numbers):
            return None
        return [self.buffer.drop(number) for number in numbers]

    def published(self, groups: Sequence[Group]) -> list[Group]:
        """A step on these groups has ended; see `Stream.published`.

        Raises:
            Diverged: they are not those that the recorded step trained.
        """
        step = self.gate.published + 1
        recorded = {outcome.group: outcome.hash for outcome in self.recording.trained.get(step, ())}
        found = {group.id: group for group in groups}
        same = {name for name, group in found.items() if has_content(group.sessions, recorded.get(name))}
        if wrong := sorted((found.keys() | recorded.keys()) - same):
            raise Diverged(f"step {step}: {', '.join(wrong)}: the recorded step trained other groups or sessions")
        return super().published(groups)
