"""One request and its reply: matched to the tree, generated, parsed, and stored once the reply has been sent.

Content and reasoning are sent while they are generated. Tool calls wait for the turn's end: a call of a turn that
a length limit truncated must never be run.

A forced call (`tool_choice`) is done by writing its beginning for the model, into the untrained tokens that open the
turn: what is generated after it is still sampled from the whole vocabulary, so it can be trained on.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from agentrl.attachments import support
from agentrl.errors import EngineError, RenderError
from agentrl.sessions.gateway.attempts import Attempts
from agentrl.sessions.gateway.echoes import match_extended
from agentrl.sessions.gateway.exclusion import Exclusion
from agentrl.sessions.gateway.http.api_error import ApiError
from agentrl.sessions.gateway.limits import Limits
from agentrl.sessions.gateway.matching import extended_digest, root_key
from agentrl.sessions.gateway.reading import Reading, forced_tokens
from agentrl.sessions.gateway.retries import PendingRequest, RetryDetection
from agentrl.sessions.gateway.session_state import SessionState
from agentrl.sessions.gateway.sizes import LARGE, LARGE_HISTORY, characters, check_length, check_text, off_loop
from agentrl.sessions.gateway.turn_parts import Event, cut_turn, deltas_of, merge_streams
from agentrl.sessions.gateway.turn_request import TurnRequest
from agentrl.sessions.renderers.base import RenderedMessage, Renderer, Span, SpanKind, ToolSchema, drops_name, parse
from agentrl.sessions.renderers.call_grammar import before_arguments, call_grammar
from agentrl.sessions.renderers.strip import StrippedBranch, count_stripped
from agentrl.sessions.tree.generation import aclose
from agentrl.sessions.tree.turn_generator import GeneratedTurn, Prompt, TurnGenerator
from agentrl.types import Chunk, Engine, Message, Node, Sampling, Turn


def _nothing() -> None:
    """Cancels nothing."""


@dataclass(frozen=True)
class Parts:
    """State that a gateway's exchanges share: identical requests that are retries, and roots that are no task's."""

    generator: TurnGenerator
    limits: Limits
    retry_detection: RetryDetection = "lost"
    exclusion: Exclusion = field(default_factory=Exclusion)

    @property
    def engine(self) -> Engine:
        """The generator's engine."""
        return self.generator.require_engine()

    @property
    def renderer(self) -> Renderer:
        """The generator's renderer."""
        return self.generator.renderer


@dataclass
class Exchange:
    """A request in progress: `prepare`, then `events` to their end, then `commit`; `end` in any case."""

    parts: Parts
    state: SessionState
    request: TurnRequest
    reply_id: str = field(default_factory=lambda: secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time.time()))
    prompt_tokens: int = 0
    is_retry: bool = False

    def __post_init__(self) -> None:
        self.choices: list[GeneratedTurn] = []
        self.pending: PendingRequest | None = None
        self.committed: float | None = None
        self.malformed = self.not_allowed = 0
        self.loose_calls = False
        self.branch: StrippedBranch | None = None

    # ------------------------------------------------------------------------------------- preparation

    async def prepare(self, cancel: Callable[[], object] = _nothing) -> None:
        """Match the request to the tree and render what is new; find out whether it is a retry.

        Args:
            cancel: called when the client repeats this request because it gave it up.

        Raises:
            ApiError, RenderError: the request can't be served as it is.
            TokenBudgetExceeded: the context or the session's budget is used up.
        """
        generator, prompt = self.parts.generator, await self._render(self.parts.generator.max_context)
        if self.state.schedule is not None:
            await self.state.schedule.arrival(prompt.token_ids, self.request.agent)
            prompt = await self._render(generator.max_context)  # the tree may have grown meanwhile
        budget = generator.budget(len(prompt.token_ids), self.state.size + prompt.new_tokens)
        digest = self.state.index.path_digest(prompt.parent, self.request.agent)
        for message in prompt.new:
            digest = extended_digest(digest, message.token_ids, message.message.images)
        self.sampling = self._with_calls(generator.with_stops(self.request.sampling))
        detection, mixed = self.parts.retry_detection, self.parts.limits.sampling == "mixed"
        parent, opening = self.state.stored_path(self.match.parent_key, prompt.new), prompt.opening
        attempts = Attempts(
            self.state, self.request, parent, opening, digest, self.sampling, budget.left, detection, mixed
        )
        self.pending = pending = PendingRequest(digest, attempts.samplings(0), 0, cancel, self.request.key)
        retried = attempts.retried(pending)
        stored = None if retried is None else attempts.stored(retried)
        if stored and retried is not None:
            self._resend(stored, pending, retried)
            return
        generator.clamp(budget, self.sampling)
        pending.attempt = attempt = attempts.next(pending)
        samplings = attempts.samplings(attempt) if attempt else pending.samplings
        self.samplings = [generator.clamp(budget, sampling) for sampling in samplings]
        self.call_ids = hashlib.blake2b(b"%d" % attempt + digest, digest_size=5).hexdigest()
        self.arrival = self.state.arrive(pending)

    def _with_calls(self, sampling: Sampling) -> Sampling:
        """Add the grammar of the tools' calls, where one is strict and what is drawn under it can be trained.

        What a client demands of the form of a text is then a part of it.
        """
        request, engine, renderer, tools = self.request, self.parts.engine, self.parts.renderer, self._list_demanded()
        if not tools or not self._has_checked_calls():
            return sampling
        checked = None if self.parts.generator.strict_calls else request.strict
        try:
            if request.prefill or sampling.regex is not None:
                raise RenderError("a turn that is begun, or has another grammar, has no grammar of calls")
            if not engine.capabilities.lark or support.NAME not in engine.capabilities.attachments:
                raise RenderError("the engine has no grammars of calls that are trained")
            begun, form = (None if request.force is None else self.forced), sampling.json_schema
            lark = call_grammar(renderer, tools, checked=checked, begun=begun, parallel=request.parallel, form=form)
        except RenderError:
            self.loose_calls = True
            return sampling
        return replace(sampling, lark=lark, json_schema=None)

    def _has_checked_calls(self) -> bool:
        """Return whether any call has to fit its tool's schema."""
        return self.parts.generator.strict_calls or bool(self.request.strict)

    def _list_demanded(self) -> list[ToolSchema]:
        """The tools that the turn may call."""
        request, named = self.request, {tool["function"]["name"]: tool for tool in self.request.callable}
        return [tool for name, tool in named.items() if request.may_call(name) and request.force in (None, "", name)]

    async def count(self) -> int:
        """Return the number of the prompt's tokens; nothing is generated.

        Raises:
            ApiError, RenderError: the request can't be served as it is.
        """
        return len((await self._render()).token_ids)

    async def _render(self, limit: int | None = None) -> Prompt:
        """Match the request to the tree and render what is new; `limit` is how many tokens the prompt may have."""
        request, state, generator = self.request, self.state, self.parts.generator
        new_bytes = 0 if request.history is None else len(request.history.raw) - len(state.known_beginning(request))
        matching = partial(state.match, request, self.parts.limits.messages)
        large = new_bytes >= LARGE_HISTORY or (new_bytes > 0 and bool(self.parts.limits.images))  # a bomb is small
        match, self.known = await asyncio.to_thread(matching) if large else matching()
        match, echo = await match_extended(state, generator.renderer, match, limit, request.callable)
        new = [] if echo is None else [echo]
        self.branch = generator.branch(state.session, match.parent, match.new, new)
        if self.branch is not None:
            above = self.branch.parent
            key = root_key(request.tools, request.agent) if above is None else above
            match, new = replace(match, parent_key=key, branch_cause="reasoning"), list(self.branch.copies)
        after = state.session.nodes[match.parent] if match.parent is not None else None
        after = new[-1].as_node() if new else after
        if match.new:
            new += await self._render_messages(match.new, match.parent, after, limit)
            after = new[-1].as_node()
        if after is None:
            before = " before the beginning of the reply" if request.prefill else ""
            raise ApiError(400, f"a conversation needs at least one message{before}", param="messages")
        self.match, self.forced = match, forced_tokens(generator.renderer, request)
        if request.force is not None and self._has_checked_calls():
            with contextlib.suppress(RenderError):
                self.forced = before_arguments(generator.renderer, self._list_demanded(), self.forced)
        return self._prompt(new, [*generator.renderer.generation_prompt(after), *self.forced])

    async def _render_messages(
        self, messages: Sequence[Message], parent: int | None, after: Node | None, limit: int | None
    ) -> list[RenderedMessage]:
        """New messages with their tokens; large ones are tokenised in a thread."""
        generator, tools = self.parts.generator, self.request.tools
        if any(drops_name(generator.renderer, message) for message in messages):
            self.request.ignored["name"] = "name"
        tokenizer, size = generator.renderer.tokenizer, characters(messages, tools if after is None else ())
        remaining = None if limit is None else limit - len(self.state.path_ids(parent))

        def render() -> list[RenderedMessage]:
            if remaining is not None and size >= LARGE:
                check_text(tokenizer, max((message.text for message in messages), key=len), remaining)
            return generator.render(messages, tools=tools, after=after)

        if remaining is not None:
            check_length(tokenizer, size, remaining)
        shown = any(message.images for message in messages)  # whose pixels are prepared
        return await off_loop(max(size, LARGE) if shown else size, render)

    def _prompt(self, new: Sequence[RenderedMessage], opening: list[int]) -> Prompt:
        ids = list(self.state.path_ids(self.match.parent))
        for message in new:
            ids += message.token_ids
        ids += opening
        self.prompt, self.prompt_tokens = Prompt(self.match.parent, new, opening, ids), len(ids)
        return self.prompt

    def _resend(self, stored: Sequence[Node], pending: PendingRequest, attempt: int) -> None:
        """Send a stored reply again, which its client has lost."""
        for node in stored:
            start = node.versions[0].start
            opening = node.token_ids[:start]
            choice = GeneratedTurn(opening, node.turn(), node.drawn_with, node.message, node=node)
            thoughts = (span for span in self.spans(choice) if span.kind is SpanKind.REASONING)
            choice.reasoning_tokens = sum(span.end - span.start for span in thoughts)
            self.choices.append(choice)
        self.is_retry, pending.attempt = True, attempt
        self.reply_id = (stored[0].reply_id or self.reply_id).partition("#")[0]

    # ------------------------------------------------------------------------------------- generation

    async def events(self) -> AsyncIterator[Event]:
        """Generate all choices, concurrently, and yield what is to be sent.

        Closing the iterator aborts what is being generated. At its end `choices` holds every turn.

        Raises:
            DeadlineExceeded, EngineError: see `generation.generate`.
        """
        if self.is_retry:
            for index, choice in enumerate(self.choices):
                for delta in deltas_of(choice.message):
                    yield index, delta
            return
        generated: list[GeneratedTurn | None] = [None] * self.request.n
        deadline = time.monotonic() + self.parts.limits.turn_timeout
        streams = [self._choice(index, deadline, generated) for index in range(self.request.n)]
        together = merge_streams(streams) if len(streams) > 1 else streams[0]
        try:
            async for event in together:
                yield event
        finally:
            await together.aclose()  # type: ignore[attr-defined]
        self.choices = [choice for choice in generated if choice is not None]
        if self.state.schedule is not None:
            await self.state.schedule.reply(self.arrival)

    async def _choice(self, index: int, deadline: float, generated: list[GeneratedTurn | None]) -> AsyncIterator[Event]:
        sampling, ids = self.samplings[index], f"call_{self.call_ids}_{index}_"
        reading = self._reading(ids)
        chunks: list[Chunk] = []
        turn: Turn | None = None
        stream = self._items(sampling, deadline, f"{self.reply_id}-{index}")
        try:
            async for item in stream:
                if isinstance(item, Turn):
                    turn = item
                    fed = item.token_ids[reading.read :]
                else:
                    chunks.append(item)
                    fed = item.token_ids
                deltas, cut = await off_loop(reading.size(fed), partial(reading.feed, fed))
                for delta in deltas:
                    yield index, delta
                if cut:
                    turn = cut_turn(chunks, turn, reading.read)
                    break
        finally:
            await aclose(stream)
        if turn is None:
            raise EngineError(f"request {self.reply_id}-{index}: the engine's stream ended without a turn")
        last, message = await off_loop(reading.size(), partial(reading.finish, turn.finish_reason))
        for delta in last:
            yield index, delta
        self.malformed += reading.malformed
        self.not_allowed += reading.not_allowed
        reply = self.reply_id if index == 0 else f"{self.reply_id}#{index}"
        stored = replace(sampling, top_logprobs=0) if sampling.top_logprobs else sampling
        thoughts = reading.reasoning_tokens
        generated[index] = GeneratedTurn(self.prompt.opening, turn, stored, message, reply, self.arrival, thoughts)

    async def _items(self, sampling: Sampling, deadline: float, request: str) -> AsyncIterator[Chunk | Turn]:
        """A turn's chunks and the turn; the turn alone where nothing of it is needed before its end."""
        generator, session = self.parts.generator, self.state.session
        if not self.request.stream and self.request.parallel:
            yield await generator.generate_turn(session, self.prompt, sampling, deadline, request)
            return
        stream = generator.generate(session, self.prompt, sampling, deadline, request)
        try:
            async for item in stream:
                yield item
        finally:
            await aclose(stream)

    def _reading(self, call_ids: str) -> Reading:
        return Reading(self.parts.renderer, self.request, self.forced, call_ids)

    # ------------------------------------------------------------------------------------- storing

    def commit(self) -> list[Node]:
        """Add to the tree what was sent, and count how it was matched."""
        session, match = self.state.session, self.match
        self.committed = time.monotonic()
        for name in self.request.ignored.values():
            session.count(f"gateway/ignored/{name}")
        if self.loose_calls:
            session.count(f"gateway/ignored/{'tools.strict' if self.request.strict else 'strict_calls'}")
        if self.is_retry:
            session.count("gateway/retries")
            nodes = [choice.node for choice in self.choices if choice.node is not None]
            self.state.cache_history(self.request, self.known, nodes[0].above)
            return nodes
        cause = match.branch_cause or self._concurrent_cause()
        if cause is not None:
            session.count(f"gateway/branches/{cause}")
        elif any(message.copied_tokens is not None for message in self.prompt.new):
            session.count("gateway/extended")
        elif match.parent is not None:
            session.count("gateway/clean")
        if self.branch is not None:
            count_stripped(session, self.branch)
        counts = {"loose": match.loose_matches, "dropped_tokens": match.dropped_tokens, "malformed": self.malformed}
        counts |= {"not_allowed": self.not_allowed, "reordered": match.reordered}
        for name, number in counts.items():
            if number:
                session.count(f"gateway/{name}", number)
        if len(self.choices) > 1:
            session.count("gateway/branches/choices", len(self.choices) - 1)
        return self.state.commit(self.parts.generator, self.request, match, self.known, self.prompt, self.choices)

    def _concurrent_cause(self) -> str | None:
        """The cause of a branch: other requests may have continued the same node while this turn was generated."""
        index, key = self.state.index, self.match.parent_key
        for message in self.prompt.new:
            shared = index.same_child(key, message.message, message.token_ids)
            if shared is None:
                if message.copied_tokens is not None:
                    return None  # a sibling of the turn that it continues
                siblings = index.has_children(key) if isinstance(key, int) else bool(self.state.session.nodes)
                return "parallel" if siblings else None
            key = shared.id
        return "resampled" if isinstance(key, int) and index.sampled_children(key) else None

    def end(self) -> None:
        """The request has ended, with or without a reply; idempotent."""
        if self.pending is not None and self.pending in self.state.pending:
            self.state.pending.remove(self.pending)
            self.pending.cancel = _nothing  # else it and what it cancels would be a reference cycle
            self.pending.unanswered = self.committed is None
            if self.pending.unanswered and not self.pending.superseded:
                self.state.retries.note_unanswered(self.request)

    def note_lost(self) -> None:
        """The reply's connection broke: an identical request soon afterwards is a retry."""
        if self.pending is not None and self.committed is not None:
            self.state.retries.note_lost(self.pending, self.committed)

    def spans(self, choice: GeneratedTurn) -> list[Span]:
        """Return the kinds of a choice's sampled tokens, as spans."""
        ids, request = [*self.forced, *choice.turn.token_ids], self.request
        parsed = parse(self.parts.renderer, ids, request.callable, calls=request.reads_calls)
        forced = len(self.forced)
        return [Span(s.kind, max(0, s.start - forced), s.end - forced) for s in parsed.spans if s.end > forced]
