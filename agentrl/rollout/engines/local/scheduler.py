"""Continuous batching, in one thread: a row for each sequence, and the tokens of each step.

A request waits, is admitted to a row of the arena (copying in the longest prefix that is already computed),
has the rest of its tokens prefilled in segments, and then decodes one token at each step until something stops
it. New requests join between steps. Whoever shares a prompt with a request that is just being prefilled waits
for it, since copying is cheaper than computing.

Everything here runs in the engine's worker thread; `LocalEngine` is the only one who talks to it.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from agentrl.attachments import routed_experts, support
from agentrl.errors import EngineError, InvalidInput
from agentrl.rollout.engines.local.arena import BLOCK, Arena, Prefix, Prefixes, bucket, chain
from agentrl.rollout.engines.local.parts import Shared
from agentrl.rollout.engines.local.request import Finished, Request, shared_beginnings
from agentrl.rollout.engines.local.runner import QUANTUM, ModelRunner, RowSegment
from agentrl.rollout.engines.local.sampler import RowSampling, log_probs, sample
from agentrl.types import FinishReason, Turn

_SEGMENT_OVERHEAD = 8  # cost of a further segment besides its tokens, in tokens


class Scheduler:
    """Waiting requests, running rows, and the step that moves them on."""

    def __init__(
        self,
        runner: ModelRunner,
        *,
        store_tokens: int,
        prefill_tokens: int,
        score_tokens: int,
        decode: Callable[[Sequence[int]], str] | None,
    ) -> None:
        self.runner = runner
        self.version = 0
        self.waiting: deque[Request] = deque()
        self.running: dict[int, Request] = {}
        self.admitting, self.frozen, self.progress = True, False, False
        self.prefixes = Prefixes(store_tokens)
        self.decode = decode
        self._prefill_tokens, self._score_tokens = prefill_tokens, score_tokens
        self._decoded: list[tuple[Request, int]] = []
        self._alike: list[Shared] = []

    @property
    def arena(self) -> Arena:
        """The runner's rows."""
        return self.runner.arena

    @property
    def generating(self) -> list[Request]:
        """Running requests that are not scorings."""
        return [request for request in self.running.values() if request.sampling is not None]

    @property
    def ready(self) -> bool:
        """True where a step would do anything."""
        return bool(self._moving()) or any(self._admissible(request) for request in self.waiting)

    # -------------------------------------------------------------------------------- coming and going

    def submit(self, request: Request) -> None:
        """Queue a request."""
        request.prompt, request.submitted = len(request.ids), time.monotonic()
        request.hashes = chain(request.ids)
        if request.sampling is not None:
            request.row_sampling = RowSampling(request.sampling, request.seed, 0, (), support=request.support)
        self.waiting.append(request)

    def cancel(self, request: Request) -> None:
        """Forget a request, wherever it is; its computed tokens stay for others to share."""
        if request.row >= 0:
            self._release(request)
        elif request in self.waiting:
            self.waiting.remove(request)

    def abort_running(self) -> list[Finished]:
        """End all running generations with what they have."""
        ended = [Finished(request, self._turn(request, FinishReason.ABORT)) for request in self.generating]
        for done in ended:
            self._release(done.request)
        return ended

    def forget_computed(self) -> None:
        """Drop all keys and values (the weights changed); running requests are recomputed from their tokens."""
        self.prefixes.clear()
        self.arena.clear()
        for request in self.running.values():
            request.computed, request.source, request.prefix = 0, None, None
            if request.sampling is None:
                request.logprobs.clear()

    def _admissible(self, request: Request) -> bool:
        return self.admitting or request.sampling is None

    def _admit(self) -> None:
        if not self.waiting:
            return
        kept: deque[Request] = deque()
        while self.waiting:
            request = self.waiting.popleft()
            if not self._admissible(request) or not self._place(request):
                kept.append(request)
                if len(self.running) >= self.arena.rows or self._needs_longer_rows(request):
                    break  # overtaking a request that waits for longer rows would starve it
        kept.extend(self.waiting)
        self.waiting = kept

    def _needs_longer_rows(self, request: Request) -> bool:
        return self._admissible(request) and bucket(request.prompt + request.limit) > self.arena.length

    def _place(self, request: Request) -> bool:
        """Give a request a row, if one is free and no other request is computing its prefix."""
        if len(self.running) >= self.arena.rows:
            return False
        if self._needs_longer_rows(request):
            length = request.prompt + request.limit
            if len(self.running) >= self.arena.rows_for(length):
                return False
            self._compact(self.arena.rows_for(length))
            self.arena.reserve(length)
        found, shared = (None, 0) if request.sampling is None else self.prefixes.find(request.ids, request.hashes)
        usable = 0
        if found is not None and self.arena.states is not None:
            found, usable = self._find_stored(found, min(shared, request.prompt - 1))
        elif found is not None:
            usable = min(shared, found.computed, request.prompt - 1)
            if found.row is not None and min(shared, request.prompt - 1) >= usable + BLOCK:
                return False
        row = next(row for row in range(self.arena.rows) if row not in self.running)
        if found is not None and usable:
            if found.kv is not None:
                self.arena.copy_in(row, found.kv, found, usable)
            elif found.row is not None:
                self.arena.move(found.row, row, usable)
        request.row, request.computed, request.cached = row, usable, usable
        request.queued = time.monotonic() - request.submitted
        request.source = found if found is not None and found.kv is not None and usable == found.computed else None
        self.running[row] = request
        if request.sampling is not None:
            request.prefix = Prefix(request.owner, request.ids, usable, request.hashes, row=row)
            self.prefixes.add(request.prefix)
        return True

    @staticmethod
    def _find_stored(found: Prefix, shared: int) -> tuple[Prefix | None, int]:
        """A stored prefix whose state was taken within what is shared, and how many tokens can be copied: all."""
        if found.state is None or found.state.place > shared:
            return None, 0
        return found, found.state.place

    def _release(self, request: Request) -> None:
        """Take a request off its row; what it computed goes into the store."""
        if request.prefix is not None:
            self.prefixes.remove(request.prefix)
        if request.sampling is not None and request.computed >= BLOCK:
            if request.source is not None and request.source.owner == request.owner:
                self.prefixes.remove(request.source)
            ids = request.ids[: request.computed]
            kv = self.arena.copy_out(request.row, request.computed)
            chosen = self.arena.routed_experts_out(request.row, request.computed)
            state = self.arena.state_out(request.row, request.computed)
            weight = 0 if state is None else state.bytes // self.arena.token_bytes
            self.prefixes.add(Prefix(request.owner, ids, request.computed, chain(ids), kv, None, chosen, state, weight))
        del self.running[request.row]
        request.row = -1

    def _compact(self, rows: int) -> None:
        for row in sorted(self.running, reverse=True):
            free = next((at for at in range(rows) if at not in self.running), None)
            if free is None or free > row:
                return
            request = self.running.pop(row)
            self.arena.move(row, free, request.computed)
            self.running[free], request.row = request, free
            if request.prefix is not None:
                request.prefix.row = free

    # ----------------------------------------------------------------------------------------- a step

    def step(self) -> list[Finished]:
        """Admit, compute, sample; return what ended. `progress` is whether there was anything to compute."""
        self.progress = False
        self._admit()
        decode = [r for r in self._moving() if r.sampling is not None and len(r.ids) - r.computed == 1]
        rows = self._decoding_rows(decode)  # moves requests, so it comes before whatever names a row
        segments, owners, size = self._segments()
        if not decode and not segments:
            return []
        sampled = [(r, r.row) for r in decode]
        scored: list[tuple[Request, RowSegment]] = []
        score_places: list[int] = []
        for index, (segment, request) in enumerate(zip(segments, owners, strict=True)):
            base, count = rows + index * size, len(segment.tokens)
            if request.sampling is None:
                scored.append((request, segment))
                score_places.extend(range(base, base + count))
            elif segment.start + count == len(request.ids):
                sampled.append((request, base + count - 1))
        tokens = [(r.row, r.computed, r.ids[-1]) for r in decode]
        keep = [place for _, place in sampled] + score_places
        axes = [one for r in decode if r.seen for one in r.seen.placed(r.row, r.computed, r.computed + 1)]
        ahead = []
        for index, (segment, request) in enumerate(zip(segments, owners, strict=True)):
            if request.seen:
                end = segment.start + len(segment.tokens)
                axes += request.seen.placed(rows + index * size, segment.start, end)
                ahead += request.seen.ahead(rows + index * size, segment.start, end)
        logits = self.runner.step(rows, tokens, segments, size, keep, self._find_shared(decode), axes, ahead)
        self._advance(decode, segments, owners)
        self.progress = True
        count = len(sampled)
        return self._score(logits[count:], scored) + self._sample(logits[:count], [r for r, _ in sampled])

    def _moving(self) -> list[Request]:
        return [r for r in self.running.values() if not self.frozen or r.sampling is None]

    def _decoding_rows(self, decode: list[Request]) -> int:
        """The number of the arena's first rows in the decoding block; many idle ones among them are squeezed out."""
        if not decode:
            return 0
        if 1 + max(r.row for r in decode) >= max(2 * len(self.running), QUANTUM):
            self._compact(len(self.running))
        return 1 + max(r.row for r in decode)

    def _find_shared(self, decode: list[Request]) -> list[Shared]:
        """The common beginnings of decoding rows; looked for again only where the rows are others than a step ago.

        On a CPU alone, where reading memory is what a step costs: each of these is a few small products by itself.
        """
        if self.runner.device.type != "cpu":
            return []
        now = [(request, request.row) for request in decode]
        if now != self._decoded:
            self._decoded, self._alike = now, shared_beginnings(decode)
        return self._alike

    @staticmethod
    def _advance(decode: list[Request], segments: list[RowSegment], owners: list[Request]) -> None:
        for request in decode:
            request.computed += 1
            if request.prefix is not None:
                request.prefix.computed = request.computed
        for segment, request in zip(segments, owners, strict=True):
            request.computed = segment.start + len(segment.tokens)
            if request.prefix is not None:
                request.prefix.computed = request.computed

    def _segments(self) -> tuple[list[RowSegment], list[Request], int]:
        """The tokens that are prefilled in this step, in segments of the size that wastes least."""
        todo: list[tuple[Request, int]] = []
        prefill_left, score_left = self._prefill_tokens, self._score_tokens
        for request in self._moving():
            left = len(request.ids) - request.computed
            if request.sampling is None:
                take = min(left, prefill_left, score_left)
                score_left -= take
            else:
                take = min(left, prefill_left) if left > 1 else 0
            if take > 0:
                take = request.seen.without_cut(request.computed, take) if request.seen else take
                prefill_left -= take
                todo.append((request, take))
        if not todo:
            return [], [], QUANTUM
        size = min((16, 32, 64, 128, 256), key=lambda c: sum(-(-n // c) * (c + _SEGMENT_OVERHEAD) for _, n in todo))
        segments: list[RowSegment] = []
        owners: list[Request] = []
        for request, take in todo:
            for start in range(request.computed, request.computed + take, size):
                end = min(start + size, request.computed + take)
                segments.append(RowSegment(request.row, start, request.ids[start:end]))
                owners.append(request)
        return segments, owners, size

    def _sample(self, logits_BV: Tensor, sampled: list[Request]) -> list[Finished]:
        failed: dict[Request, InvalidInput] = {}
        rows = [_next_sampling(request, failed) for request in sampled]
        if not rows:
            return []
        tokens, logprobs, best = sample(logits_BV, rows)
        ended: list[Finished] = []
        for request, token, logprob, candidates in zip(sampled, tokens, logprobs, best, strict=True):
            result: Turn | EngineError | InvalidInput | None = failed.get(request)
            if result is not None:
                request.computed = 0
            elif math.isfinite(logprob):
                request.ids.append(token)
                request.logprobs.append(logprob)
                if candidates:
                    request.top_logprobs.append(candidates)
                if not request.starts or request.starts[-1][0] != self.version:
                    request.starts.append((self.version, len(request.logprobs) - 1))
                result = self._check_stop(request, token)
            else:
                request.computed = 0  # these keys and values must not be shared
                result = EngineError(f"policy version {self.version} gives logits that are not finite")
            if result is not None:
                ended.append(Finished(request, result))
                self._release(request)
        return ended

    def _check_stop(self, request: Request, token: int) -> Turn | None:
        if token in request.stops:
            return self._turn(request, FinishReason.STOP, token)
        if request.matcher is not None:
            request.matcher.accept(token)
            if request.matcher.ended:
                return self._turn(request, FinishReason.STOP, request.matcher.end)
        if request.stop_window and self.decode is not None and request.sampling is not None:
            tail = self.decode(request.ids[max(request.prompt, len(request.ids) - request.stop_window) :])
            found = [(tail.find(stop), stop) for stop in request.sampling.stop if stop in tail]
            if found:
                return self._turn(request, FinishReason.STOP, min(found)[1])
        if len(request.logprobs) >= request.limit:
            return self._turn(request, FinishReason.LENGTH)
        return None

    def _turn(self, request: Request, reason: FinishReason, stopped_by: int | str | None = None) -> Turn:
        """The request's turn, with the attachments that it asks for, while routed experts are still in its row."""
        if request.support is not None:
            request.attachments[support.NAME] = request.support.data()
        recorder, chosen = self.runner.recorder, self.arena.routed_experts
        start = None if request.sampling is None else request.sampling.record_from(routed_experts.NAME)
        if recorder is not None and chosen is not None and start is not None:
            start = max(0, min(start, len(request.ids)))
            data = recorder.recorded(chosen[request.row], start, request.computed, len(request.ids))
            request.attachments[routed_experts.NAME] = data
        return request.turn(reason, stopped_by)

    def _score(self, logits_TV: Tensor, scored: list[tuple[Request, RowSegment]]) -> list[Finished]:
        ended: list[Finished] = []
        base = 0
        for request, segment in scored:
            count = len(segment.tokens)
            targets = request.plain(request.ids[segment.start + 1 : segment.start + count + 1])
            logp_TV = log_probs(logits_TV[base : base + len(targets)], [request.temperature] * len(targets))
            target_T1 = torch.tensor(targets, dtype=torch.long, device=logp_TV.device)[:, None]
            request.logprobs.extend(logp_TV.gather(1, target_T1)[:, 0].tolist())
            base += count
            if segment.start + count == len(request.ids):
                ended.append(Finished(request, [0.0, *request.logprobs]))
                self._release(request)
        return ended


def _next_sampling(request: Request, failed: dict[Request, InvalidInput]) -> RowSampling:
    """The sampling of the request's next token, with the tokens so far where penalties count them.

    `failed` takes the request, and why, where its grammar can't say what may come next.
    """
    row = request.row_sampling
    assert row is not None
    row.position = len(request.ids)
    if row.narrowed:
        try:
            row.allowed = None if request.matcher is None else request.matcher.allowed()
        except InvalidInput as error:
            failed[request], row.allowed = error, None
        if row.sampling.penalised:
            row.generated = request.ids[request.begins :]
            if row.sampling.repetition_penalty != 1:
                row.prompt = request.plain(request.ids[: request.begins])
    return row
