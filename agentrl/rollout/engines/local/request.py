"""A request in the local engine, and how it ends: data that the scheduler works on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from agentrl.attachments.support import SupportRecorder
from agentrl.errors import EngineError, InvalidInput
from agentrl.rollout.engines.grammars import Matcher
from agentrl.rollout.engines.local.arena import BLOCK, Prefix
from agentrl.rollout.engines.local.flat import BLOCK as KEYS
from agentrl.rollout.engines.local.images import FIRST, SeenPrompt
from agentrl.rollout.engines.local.parts import Shared
from agentrl.rollout.engines.local.sampler import RowSampling
from agentrl.tracing import round_seconds
from agentrl.types import FinishReason, Sampling, TopLogprobs, Turn, VersionSpan


@dataclass(eq=False, slots=True)
class Request:
    """A generation, or a scoring where `sampling` is None, from its arrival to its end.

    `seen` is the prompt with its images, whose tokens in `ids` name features; `placeholder` is the id of these tokens.
    `begins` is the place of the turn's first token: before `prompt` where the turn is continued after an abort.
    `starts` are policy versions, each with the first of its tokens; `row_sampling` is how the next token is drawn.
    """

    id: str
    ids: list[int]
    sampling: Sampling | None
    seed: int
    limit: int
    temperature: float = 1.0
    stops: frozenset[int] = frozenset()
    stop_window: int = 0
    prompt: int = 0
    begins: int = 0
    submitted: float = 0.0
    queued: float = 0.0
    computed: int = 0
    cached: int = 0
    row: int = -1
    prefix: Prefix | None = None
    source: Prefix | None = None
    hashes: tuple[int, ...] = ()
    logprobs: list[float] = field(default_factory=list)
    starts: list[tuple[int, int]] = field(default_factory=list)
    row_sampling: RowSampling | None = None
    attachments: dict[str, bytes] = field(default_factory=dict)
    support: SupportRecorder | None = None
    matcher: Matcher | None = None
    seen: SeenPrompt | None = None
    placeholder: int = 0
    top_logprobs: list[TopLogprobs] = field(default_factory=list)

    def plain(self, ids: list[int]) -> list[int]:
        """The request's ids without names of images' features."""
        return [self.placeholder if one >= FIRST else one for one in ids] if self.seen else ids

    @property
    def versions(self) -> tuple[VersionSpan, ...]:
        """The spans of the policy versions that drew its tokens."""
        if not self.starts:
            return ()
        ends = [*(start for _, start in self.starts[1:]), len(self.logprobs)]
        return tuple(VersionSpan(version, start, end) for (version, start), end in zip(self.starts, ends, strict=True))

    @property
    def owner(self) -> str:
        """The affinity key: the session that it belongs to."""
        return self.id.partition("/")[0]

    def turn(self, reason: FinishReason, stopped_by: int | str | None = None) -> Turn:
        """Return the turn that was generated so far."""
        return Turn(
            token_ids=tuple(self.ids[self.prompt :]),
            logprobs=tuple(self.logprobs),
            versions=self.versions,
            finish_reason=reason,
            stopped_by=stopped_by,
            cached_tokens=self.cached,
            attachments=dict(self.attachments),
            timings={"queue": round_seconds(self.queued)},
            top_logprobs=tuple(self.top_logprobs),
        )


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a request in a step: its turn, or its log-probabilities where it was a scoring, or what broke it."""

    request: Request
    result: Turn | list[float] | EngineError | InvalidInput


def shared_beginnings(decoding: Sequence[Request]) -> list[Shared]:
    """Rows that begin alike, so that attention reads their common keys and values once.

    Each row belongs to at most one of these: the longest beginning that it has in common with another. The samples of a
    group share their prompt, and prompts of agents are long. Only prompts are looked at, by the hashes of their blocks
    that the prefix store needs anyway, and equal hashes are believed only after a comparison.
    """
    alike: dict[tuple[int, int], list[Request]] = defaultdict(list)
    for request in decoding:
        for keys in range(KEYS, request.prompt + 1, KEYS):
            alike[keys, request.hashes[keys // BLOCK - 1]].append(request)
    found: list[Shared] = []
    taken: set[Request] = set()
    for (keys, _), requests in sorted(alike.items(), key=lambda item: -item[0][0]):
        first = next((request for request in requests if request not in taken), None)
        if first is None:
            continue
        beginning = first.ids[:keys]
        same = [r for r in requests if r not in taken and r.ids[:keys] == beginning]
        if len(same) > 1:
            found.append(Shared(tuple(request.row for request in same), keys))
            taken.update(same)
    return found
