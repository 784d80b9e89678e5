"""Running a recorded run again: the same groups in the same steps, each span of tokens under its recorded version.

A recording is a run's ledger and its session store. What decided the run besides its seeds is in them: which task each
group got, in which step it began and which step trained it, and where a publication cut a turn (`Node.versions`). The
rerun begins a group in its recorded step; `RerunEngine` generates each recorded span once the engine has the span's
version, stops at the span's last token, and holds back a publication until every span of the older versions is
generated. So speed and arrival order no longer decide anything. All that is generated is compared with the recording,
and the first difference ends the rerun.

Sessions that the clock or a failure ended or changed are not played again: each of their turns is generated from its
recorded prompt, and the rest is taken from the recording. With `rerun_answers=recorded`, and for agent programs, that
is done for all sessions.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from agentrl.envs.episode import NO_DEADLINES, Actor
from agentrl.errors import Departed, EngineError
from agentrl.rollout.departures import compare, same, same_prompt
from agentrl.rollout.engines.managed import ManagedEngine, managed
from agentrl.rollout.groups import Deadline, Ended, Rollouts
from agentrl.rollout.outcomes import Outcome, content_hash
from agentrl.rollout.programs import Program
from agentrl.rollout.stream import Stream
from agentrl.sessions import tree
from agentrl.sessions.generation import aclose, generate, joined
from agentrl.types import (
    MAIN,
    Capabilities,
    Chunk,
    Engine,
    FinishReason,
    Group,
    Health,
    Node,
    PauseMode,
    Sampling,
    Session,
    Status,
    Turn,
    VersionSpan,
    collect,
)


@dataclass(frozen=True)
class Recording:
    """What a run is rerun by.

    Attributes:
        trained: the groups that each step (from 1) trained, in order.
        sessions: the sessions of those groups, by group and sample.
        aborted: whether a publication ended the requests under way, so that each later span of a turn was a request of
            its own, with a seed of its own.
        play: whether environments answer again; else all answers are the recorded ones.
    """

    trained: Mapping[int, Sequence[Outcome]] = field(default_factory=dict)
    sessions: Mapping[tuple[str, int], Session] = field(default_factory=dict)
    aborted: bool = False
    play: bool = True

    def substituted(self, session: Session) -> bool:
        """Whether a session is not played again: its end, or an answer in it, was decided by the clock or a failure."""
        ends = [(session.status, session.error), *((branch.status, branch.error) for branch in session.branches)]
        late = any(status is Status.TRUNCATED and "took longer than" in (error or "") for status, error in ends)
        late = late or session.counters.get("branch/late", 0) > 0
        failed = session.status in (Status.INFRA_ERROR, Status.ABORTED, Status.OPEN)
        return not self.play or late or failed or session.counters.get("tool_errors/timeout", 0) > 0


class RerunEngine(ManagedEngine):
    """An engine that generates recorded turns under their recorded versions, and other requests as they come.

    Args:
        engine: generates; deterministic.
        recording: what it is compared with.
    """

    def __init__(self, engine: Engine, recording: Recording) -> None:
        self.inner, self.recording = engine, recording
        self.colocated = managed(engine).colocated
        self._by_id = {session.id: session for session in recording.sessions.values()}
        self._left = {
            (session.id, node.id, span.start): span.version
            for session in self._by_id.values()
            for node in session.nodes
            if node.sampled and node.policy == MAIN
            for span in node.versions
        }
        self._changed = asyncio.Event()
        self._error: BaseException | None = None

    @property
    def capabilities(self) -> Capabilities:
        """The engine's."""
        return self.inner.capabilities

    async def generate(
        self, request_id: str, input_ids: Sequence[int], sampling: Sampling, deadline: float | None = None
    ) -> AsyncIterator[Chunk | Turn]:
        """Yield chunks, then one `Turn`; see `agentrl.types.Engine.generate`.

        Raises:
            Departed: the prompt, or what is generated, differs from the recording.
        """
        name, _, place = request_id.partition("/")
        session = self._by_id.get(name)
        if session is None:
            stream = self.inner.generate(request_id, input_ids, sampling, deadline)
            async for item in stream:
                yield item
            return
        node = self._node(session, int(place))
        async for item in self._recorded(request_id, session, node, input_ids, sampling):
            yield item

    def _node(self, session: Session, place: int) -> Node:
        node = session.nodes[place] if place < len(session.nodes) else None
        if node is None or not node.sampled:
            found = "ended there" if node is None else f"has a message of {node.message.role} there"
            raise Departed(f"session {session.id}, turn {place}: a turn is to be generated, and the recording {found}")
        return node

    async def _recorded(
        self, request_id: str, session: Session, node: Node, input_ids: Sequence[int], sampling: Sampling
    ) -> AsyncIterator[Chunk | Turn]:
        path, opening = tree.path_ids(session, node.parent), node.versions[0].start
        same_prompt(session, node, input_ids)
        ids, parts = list(input_ids), list[Turn]()
        spans = [span for span in node.versions if len(path) + span.end > len(ids)]
        before: VersionSpan | None = None
        for span in spans:
            if before is not None and (self.recording.aborted or before.version == span.version):
                yield replace(joined(parts), finish_reason=FinishReason.ABORT)
                return
            count, more = span.end - span.start, span is not spans[-1]
            await self._reach(span.version, f"session {session.id}, turn {node.id}")
            limit = count if more else sampling.max_new_tokens - (len(ids) - len(input_ids))
            stream = self.inner.generate(request_id, ids, replace(sampling, max_new_tokens=limit))
            turn: Turn | None = None
            at = span.start
            try:
                async for item in stream:
                    if isinstance(item, Turn):
                        turn = item
                        continue
                    self._compare(session, node, at, item.token_ids, item.logprobs)
                    at += len(item.token_ids)
                    yield item
            finally:
                await aclose(stream)
            if turn is None:
                raise EngineError(f"request {request_id!r}: the engine's stream ended without a turn")
            if len(turn.token_ids) != count:
                where = f"session {session.id}, turn {node.id}, token {span.start - opening + len(turn.token_ids)}"
                raise Departed(f"{where}: the rerun's turn ended there, and the recorded span has {count} tokens")
            parts.append(turn)
            ids += turn.token_ids
            before = span
            self._left.pop((session.id, node.id, span.start), None)
            self._changed.set()
        yield joined(parts)

    def _compare(self, session: Session, node: Node, at: int, tokens: Sequence[int], logprobs: Sequence[float]) -> None:
        where, opening = f"session {session.id}, turn {node.id}", node.versions[0].start
        same(where, node.token_ids[at:], tokens, at - opening)
        same(where, node.logprobs[at:], logprobs, at - opening, "log-probability")

    async def _reach(self, version: int, where: str) -> None:
        """Until the engine has a version."""
        while self.inner.version() < version:
            await self._wait()
        if self.inner.version() > version:
            raise Departed(f"{where}: recorded under version {version}, and the rerun is at {self.inner.version()}")

    async def _wait(self) -> None:
        if self._error is not None:
            raise self._error
        self._changed.clear()
        await self._changed.wait()
        if self._error is not None:
            raise self._error

    def fail(self, error: BaseException) -> None:
        """A session failed: whoever waits for its tokens fails with it."""
        self._error = self._error or error
        self._changed.set()

    async def publish(self, weights: Iterable[tuple[str, Any]], version: int) -> None:
        """Publish, once all that was recorded under older versions is generated."""
        while any(older < version for older in self._left.values()):
            await self._wait()
        await self.inner.publish(weights, version)
        self._changed.set()

    async def score(self, input_ids: Sequence[int], temperature: float = 1.0) -> list[float]:
        """The engine's."""
        return await self.inner.score(input_ids, temperature)

    async def scores(self, input_ids: Sequence[int], temperature: float = 1.0) -> dict[str, list[float]]:
        """Those of all engines."""
        return await managed(self.inner).scores(input_ids, temperature)

    async def pause(self, mode: PauseMode = PauseMode.DRAIN) -> None:
        """Pause the engine."""
        await self.inner.pause(mode)

    async def resume(self) -> None:
        """Resume the engine."""
        await self.inner.resume()

    def version(self) -> int:
        """The engine's."""
        return self.inner.version()

    async def health(self) -> Health:
        """The engine's."""
        return await self.inner.health()

    async def start(self) -> None:
        """Start the engine."""
        await managed(self.inner).start()

    async def sleep(self, tags: Sequence[str] = ("weights", "kv_cache")) -> None:
        """Let the engine sleep."""
        await managed(self.inner).sleep(tags)

    async def wake(self, tags: Sequence[str] = ("weights", "kv_cache")) -> None:
        """Wake the engine."""
        await managed(self.inner).wake(tags)

    async def close(self) -> None:
        """Close the engine."""
        await self.inner.close()


@dataclass(frozen=True)
class RerunRollouts(Rollouts):
    """Generates recorded groups again, all at once, and compares them; other groups as `Rollouts` does."""

    recording: Recording = field(default_factory=Recording)

    @staticmethod
    def of(rollouts: Rollouts, recording: Recording) -> RerunRollouts:
        """The same, for a rerun."""
        own = {item.name: getattr(rollouts, item.name) for item in fields(rollouts) if item.init}
        return RerunRollouts(**own, recording=recording)

    async def _with_retries(
        self,
        new: Callable[[int], Session],
        actor: Actor | Program,
        ended: Ended,
        place: int,
        deadline: Deadline | None,
    ) -> Session:
        engine = self.policy.engine
        assert isinstance(engine, RerunEngine)
        first = new(0)
        recorded = self.recording.sessions.get((first.group, first.sample))
        if recorded is None:
            return await super()._with_retries(new, actor, ended, place, deadline)
        try:
            if self.recording.substituted(recorded):
                session = await self._substitute(recorded, engine)
            else:
                for _ in range(self.limits.retries + 1):
                    session = await self._play_recorded(new(recorded.attempt), actor, None)
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
        for node in recorded.nodes:
            if not node.sampled or node.policy != MAIN or node.sampling is None:
                continue
            opening = node.token_ids[: node.versions[0].start]
            prompt = [*tree.path_ids(recorded, node.parent), *opening]
            turn = await collect(generate(engine, f"{recorded.id}/{node.id}", prompt, node.sampling, forever))
            same(f"session {recorded.id}, turn {node.id}", node.token_ids[len(opening) :], turn.token_ids)
        if self.recorder is not None:
            await self.recorder.begin(recorded)
            await self.recorder.end(recorded)
        return recorded


class RerunStream(Stream):
    """The groups of a recording: each is begun and trained in its recorded step; discarded ones are not generated."""

    @property
    def recording(self) -> Recording:
        """What is run again."""
        assert isinstance(self.rollouts, RerunRollouts)
        return self.rollouts.recording

    def _chosen(self) -> list[Group]:
        groups = [
            self._new(outcome.number, outcome.choice, outcome.attempt)
            for outcomes in self.recording.trained.values()
            for outcome in outcomes
            if outcome.begun == self.gate.published
        ]
        begun = {group.number for group in self._taken.values()} | set(self.buffer.begun)
        return [group for group in groups if group.number not in begun]

    def _wanted(self, count: int) -> list[int]:
        return [outcome.number for outcome in self.recording.trained.get(self.gate.published + 1, ())]

    def _ready(self, count: int) -> list[Group] | None:
        numbers = self._wanted(count)
        if not self.buffer.finished.issuperset(numbers):
            return None
        return [self.buffer.drop(number) for number in numbers]

    def published(self, groups: Sequence[Group]) -> list[Group]:
        """A step on these groups has ended; see `Stream.published`.

        Raises:
            Departed: they are not those that the recorded step trained.
        """
        step = self.gate.published + 1
        recorded = {outcome.group: outcome.hash for outcome in self.recording.trained.get(step, ())}
        found = {group.id: content_hash(group.sessions) for group in groups}
        if found != recorded:
            wrong = sorted(name for name in found.keys() | recorded.keys() if found.get(name) != recorded.get(name))
            raise Departed(f"step {step}: {', '.join(wrong)}: the recorded step trained other groups or sessions")
        return super().published(groups)
