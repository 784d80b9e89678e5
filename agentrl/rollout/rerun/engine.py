"""The engine of a run that is run again: recorded turns, each span of tokens under its recorded version.

See `rollout.rerun.rollouts`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agentrl.envs.results import IN_TOOLS
from agentrl.errors import Diverged, EngineError
from agentrl.rollout.engines.managed import ManagedEngine, as_managed
from agentrl.rollout.rerun.divergence import same, same_prompt
from agentrl.rollout.stream.outcomes import GroupOutcome
from agentrl.sessions.gateway.schedule import is_answered, prompt_of
from agentrl.sessions.tree import tree
from agentrl.sessions.tree.generation import aclose, join_attempts
from agentrl.types import (
    MAIN,
    Capabilities,
    Chunk,
    Engine,
    FinishReason,
    Health,
    Node,
    PauseMode,
    Placed,
    Sampling,
    Session,
    Status,
    Turn,
    VersionSpan,
    begin_turn,
)


class DelegatingEngine(ManagedEngine):
    """All of `types.Engine` but `generate`, and of `ManagedEngine` what starts, scores and ends, by another engine."""

    def __init__(self, engine: Engine) -> None:
        self.inner = engine
        self.colocated = as_managed(engine).colocated

    @property
    def capabilities(self) -> Capabilities:
        return self.inner.capabilities

    def unrecorded(self, sampling: Sampling) -> str:
        return as_managed(self.inner).unrecorded(sampling)

    async def score(self, input_ids: Sequence[int], temperature: float = 1.0) -> list[float]:
        return await self.inner.score(input_ids, temperature)

    async def scores(self, input_ids: Sequence[int], temperature: float = 1.0) -> dict[str, list[float]]:
        return await as_managed(self.inner).scores(input_ids, temperature)

    async def checksums(self) -> dict[str, str]:
        return await as_managed(self.inner).checksums()

    async def publish(self, weights: Iterable[tuple[str, Any]], version: int) -> None:
        await self.inner.publish(weights, version)

    async def pause(self, mode: PauseMode = PauseMode.DRAIN) -> None:
        await self.inner.pause(mode)

    async def resume(self) -> None:
        await self.inner.resume()

    def version(self) -> int:
        return self.inner.version()

    async def health(self) -> Health:
        return await self.inner.health()

    async def start(self) -> None:
        await as_managed(self.inner).start()

    async def sleep(self, tags: Sequence[str] = ("weights", "kv_cache")) -> None:
        await as_managed(self.inner).sleep(tags)

    async def wake(self, tags: Sequence[str] = ("weights", "kv_cache")) -> None:
        await as_managed(self.inner).wake(tags)

    async def close(self) -> None:
        await self.inner.close()


@dataclass(frozen=True)
class Recording:
    """A run's recording, for a rerun.

    Attributes:
        trained: the groups that each step (from 1) trained, in order.
        sessions: the sessions of those groups, by group and sample.
        aborted: whether a publication ended the requests under way, so that each later span of a turn was a request of
            its own, with a seed of its own.
        play: whether environments answer again; else all answers are the recorded ones.
    """

    trained: Mapping[int, Sequence[GroupOutcome]] = field(default_factory=dict)
    sessions: Mapping[tuple[str, int], Session] = field(default_factory=dict)
    aborted: bool = False
    play: bool = True

    def substituted(self, session: Session) -> bool:
        """Return whether a session is not played again: the clock or a failure decided its end, or an answer."""
        ends = [(session.status, session.error), *((branch.status, branch.error) for branch in session.branches)]
        late = any(status is Status.TRUNCATED and "took longer than" in (error or "") for status, error in ends)
        late = late or session.counters.get("branch/late", 0) > 0 or not is_answered(session)
        failed = session.status in (Status.INFRA_ERROR, Status.ABORTED, Status.OPEN) or IN_TOOLS in session.counters
        return not self.play or late or failed or session.counters.get("tool_errors/timeout", 0) > 0


class RerunEngine(DelegatingEngine):
    """An engine that generates recorded turns under their recorded versions, and other requests as they come.

    Args:
        engine: generates; deterministic.
        recording: what it is compared with.
    """

    def __init__(self, engine: Engine, recording: Recording) -> None:
        super().__init__(engine)
        self.recording = recording
        self._by_id = {session.id: session for session in recording.sessions.values()}
        self._left = {
            (session.id, node.id, span.start): span.version
            for session in self._by_id.values()
            for node in session.nodes
            if node.sampled and node.policy == MAIN
            for span in node.versions
        }
        self._requested: dict[str, Node] = {}
        self._changed = asyncio.Event()
        self._error: BaseException | None = None

    async def generate(
        self,
        request_id: str,
        input_ids: Sequence[int],
        sampling: Sampling,
        deadline: float | None = None,
        attached: Sequence[Placed] = (),
    ) -> AsyncIterator[Chunk | Turn]:
        """Yield chunks, then one `Turn`; see `agentrl.types.Engine.generate`.

        Raises:
            Diverged: the prompt, or what is generated, differs from the recording.
        """
        name, _, place = request_id.partition("/")
        session = self._by_id.get(name)
        if session is None:
            stream = begin_turn(self.inner, request_id, input_ids, sampling, deadline, attached)
            async for item in stream:
                yield item
            return
        try:
            node = (
                self._node(session, int(place))
                if place.isdecimal()
                else self._of_request(session, request_id, input_ids, sampling)
            )
            async for item in self._play_recorded(request_id, session, node, input_ids, sampling, attached):
                yield item
        except Diverged as error:
            self.fail(error)  # whoever asked may be an agent program, which sees a failed request only
            raise

    def _of_request(self, session: Session, request_id: str, input_ids: Sequence[int], sampling: Sampling) -> Node:
        """The recorded turn of an agent program's request, by its prompt and its seed, which the attempt decides."""
        node = self._requested.get(request_id)  # known where a publication ended the turn's first part
        if node is not None:
            return node
        ids, taken = list(input_ids), {id(turn) for turn in self._requested.values()}
        left = [turn for turn in session.nodes if turn.sampled and id(turn) not in taken]
        for turn in left:
            if turn.sampling is not None and turn.sampling.seed == sampling.seed and prompt_of(session, turn) == ids:
                self._requested[request_id] = turn
                return turn
        if not left:
            raise Diverged(f"session {session.id}: a turn is requested after the last one of the recording")
        likely = max(left, key=lambda turn: _count_shared(prompt_of(session, turn), ids))
        same_prompt(session, likely, ids)
        where = f"session {session.id}, turn {likely.id}"
        raise Diverged(f"{where}: it is requested as another attempt than the recorded one, or with another seed")

    def _node(self, session: Session, place: int) -> Node:
        node = session.nodes[place] if place < len(session.nodes) else None
        if node is None or not node.sampled:
            found = "ended there" if node is None else f"has a message of {node.message.role} there"
            raise Diverged(f"session {session.id}, turn {place}: a turn is to be generated, and the recording {found}")
        return node

    async def _play_recorded(
        self,
        request_id: str,
        session: Session,
        node: Node,
        input_ids: Sequence[int],
        sampling: Sampling,
        attached: Sequence[Placed],
    ) -> AsyncIterator[Chunk | Turn]:
        path, opening = tree.path_ids(session, node.parent), node.versions[0].start
        same_prompt(session, node, input_ids)
        ids, parts = list(input_ids), list[Turn]()
        spans = [span for span in node.versions if len(path) + span.end > len(ids)]
        before: VersionSpan | None = None
        for span in spans:
            if before is not None and (self.recording.aborted or before.version == span.version):
                yield replace(join_attempts(parts), finish_reason=FinishReason.ABORT)
                return
            count, more = span.end - span.start, span is not spans[-1]
            await self._reach(span.version, f"session {session.id}, turn {node.id}")
            limit = count if more else sampling.max_new_tokens - (len(ids) - len(input_ids))
            part = replace(sampling, max_new_tokens=limit)
            stream = begin_turn(self.inner, request_id, ids, part, None, attached)
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
                raise Diverged(f"{where}: the rerun's turn ended there, and the recorded span has {count} tokens")
            parts.append(turn)
            ids += turn.token_ids
            before = span
            self._left.pop((session.id, node.id, span.start), None)
            self._changed.set()
        yield join_attempts(parts)

    def _compare(self, session: Session, node: Node, at: int, tokens: Sequence[int], logprobs: Sequence[float]) -> None:
        where, opening = f"session {session.id}, turn {node.id}", node.versions[0].start
        same(where, node.token_ids[at:], tokens, at - opening)
        same(where, node.logprobs[at:], logprobs, at - opening, "log-probability")

    async def _reach(self, version: int, where: str) -> None:
        while self.inner.version() < version:
            await self._wait()
        if self.inner.version() > version:
            raise Diverged(f"{where}: recorded under version {version}, and the rerun is at {self.inner.version()}")

    async def _wait(self) -> None:
        self.check()
        self._changed.clear()
        await self._changed.wait()
        self.check()

    def check(self) -> None:
        """Raise what a session failed with."""
        if self._error is not None:
            raise self._error

    def fail(self, error: BaseException) -> None:
        """Fail whoever waits for a failed session's tokens."""
        self._error = self._error or error
        self._changed.set()

    async def publish(self, weights: Iterable[tuple[str, Any]], version: int) -> None:
        """Publish, once all that was recorded under older versions is generated."""
        while any(older < version for older in self._left.values()):
            await self._wait()
        await super().publish(weights, version)
        self._changed.set()


def _count_shared(one: Sequence[int], other: Sequence[int]) -> int:
    return next((place for place, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), len(one))
