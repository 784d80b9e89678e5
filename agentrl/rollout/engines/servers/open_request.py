"""A request at a server in another process, and its tokens so far."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agentrl import attachments
from agentrl.attachments import routed_experts, support
from agentrl.attachments.support import SupportRecorder
from agentrl.errors import AgentRLError, EngineError
from agentrl.rollout.engines.checks import most_probable
from agentrl.rollout.engines.folder import Experts
from agentrl.rollout.engines.servers.grammar_mask import GrammarMask
from agentrl.rollout.engines.servers.images import PlacedImage
from agentrl.tracing import round_seconds
from agentrl.types import Chunk, FinishReason, Sampling, TopLogprobs, Turn, VersionSpan

if TYPE_CHECKING:
    from numpy.typing import NDArray

Item = Chunk | Turn | AgentRLError


@dataclass(eq=False, slots=True)
class OpenRequest:
    """A request in progress, and its tokens so far."""

    id: str
    ids: list[int]
    sampling: Sampling
    limit: int
    version: int
    adapter: str | None = None
    images: tuple[PlacedImage, ...] = ()
    inbox: asyncio.Queue[Item] = field(default_factory=asyncio.Queue)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[VersionSpan] = field(default_factory=list)
    cached: int | None = None
    queued: float | None = None
    rid: str = ""
    task: asyncio.Task[None] | None = None
    attachments: dict[str, bytes] = field(default_factory=dict)
    attachments_end: int = 0
    top_logprobs: list[TopLogprobs] = field(default_factory=list)
    support: SupportRecorder | None = None
    mask: GrammarMask | None = None

    @property
    def length(self) -> int:
        """Tokens of the path so far."""
        return len(self.ids) + len(self.token_ids)

    @property
    def experts_from(self) -> int | None:
        """The first token whose routed experts are wanted and not known yet."""
        record = attachments.list_unrecorded(self.sampling.record, self.attachments, self.attachments_end)
        return dict(record).get(routed_experts.NAME)

    def add_experts(self, experts_TLk: NDArray[Any], start: int, experts: Experts) -> None:
        """Add the routed experts that a server gives of all layers, for the path's tokens from `start` on but the last.

        Raises:
            EngineError: they are not of so many tokens, or of another shape.
        """
        import numpy as np

        expected = (self.length - 1 - start, experts.layers, experts.topk)
        if experts_TLk.shape != expected:
            raise EngineError(
                f"request {self.id!r}: routed experts of shape {experts_TLk.shape} arrived; expected {expected}"
            )
        rows_TLk = experts_TLk[:, list(experts.sparse)].astype(np.int32)
        last_1Lk = np.full((1, *rows_TLk.shape[1:]), -1, dtype=np.int32)
        data = routed_experts.pack(np.concatenate((rows_TLk, last_1Lk)), experts.count)
        self.attachments = attachments.join(
            self.attachments, {routed_experts.NAME: data}, self.length - self.attachments_end
        )
        self.attachments_end = self.length

    def take(
        self,
        token_ids: Sequence[int],
        logprobs: Sequence[float],
        version: int,
        candidates: Sequence[Iterable[tuple[int, float]]] = (),
        kept: Sequence[Sequence[int] | None] = (),
    ) -> None:
        """Add tokens and pass them to the client.

        Args:
            token_ids: the tokens.
            logprobs: one for each.
            version: of the policy.
            candidates: for each, some of the tokens in its place, the most probable ones among them.
            kept: where supports are recorded, for each the tokens that it was drawn from; None: not known.

        Raises:
            EngineError: the most probable tokens were requested, and don't come for each.
        """
        if not token_ids:
            return
        if self.support is not None:
            for token, ids in zip(token_ids, kept, strict=True):
                self.support.add_ids(ids, token)
        start, end = len(self.token_ids), len(self.token_ids) + len(token_ids)
        self.token_ids.extend(token_ids)
        self.logprobs.extend(logprobs)
        if self.versions and self.versions[-1].version == version:
            start = self.versions.pop().start
        self.versions.append(VersionSpan(version, start, end))
        count = self.sampling.top_logprobs
        best = tuple(most_probable(some, count) for some in candidates) if count else ()
        if count and len(best) != len(token_ids):
            raise EngineError(
                f"request {self.id!r}: {len(token_ids)} tokens came, and {len(best)} lists of top_logprobs"
            )
        self.top_logprobs.extend(best)
        self.inbox.put_nowait(Chunk(tuple(token_ids), tuple(logprobs), version, best))

    def note_versions(self, spans: Sequence[VersionSpan], *, whole: bool) -> None:
        """Take the versions that the server noted in place of those that chunks came with.

        Args:
            spans: for all tokens so far.
            whole: whether the turn has ended by itself; else spans that don't fit are left out.

        Raises:
            EngineError: they are not of the tokens that came.
        """
        edges = [0, *(edge for span in spans for edge in (span.start, span.end)), len(self.token_ids)]
        fits = all(before == after for before, after in zip(edges[::2], edges[1::2], strict=True))
        if fits and all(type(edge) is int for edge in edges) and all(span.version >= 0 for span in spans):
            self.versions = list(spans)
        elif whole:
            noted = [(span.version, span.start, span.end) for span in spans]
            raise EngineError(f"request {self.id!r}: {len(self.token_ids)} tokens came with the versions {noted}")

    def turn(self, reason: FinishReason, stopped_by: int | str | None = None) -> Turn:
        """The tokens so far, as a turn."""
        attached = attachments.join(self.attachments, {}, self.length - self.attachments_end)
        if self.support is not None:
            attached[support.NAME] = self.support.data()
        return Turn(
            tuple(self.token_ids),
            tuple(self.logprobs),
            tuple(self.versions),
            reason,
            stopped_by=stopped_by,
            cached_tokens=self.cached or 0,
            attachments=attached,
            timings={} if self.queued is None else {"queue": round_seconds(self.queued)},
            top_logprobs=tuple(self.top_logprobs),
        )


def routing(request: OpenRequest) -> dict[str, str]:
    """The header that a router in between goes by: the session, so that its turns find their prefix."""
    return {"x-smg-routing-key": request.id.partition("/")[0]}
