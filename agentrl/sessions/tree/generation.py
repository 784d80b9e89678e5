"""Generating one turn to its end, across weight updates.

An engine may abort a turn because new weights arrive (`FinishReason.ABORT`). The turn is then continued from its own
tokens under the new version: nothing is sampled twice, nothing is discarded, and the version spans say which policy
sampled which token. What is given up: a stop string that spans such an abort is not seen by the engine.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import fields, replace
from functools import cache
from operator import attrgetter
from typing import Any, TypeVar

from agentrl import attachments, faults, tracing, watchdog
from agentrl.errors import DeadlineExceeded, EngineError
from agentrl.types import Chunk, Engine, FinishReason, Placed, Sampling, Turn, VersionSpan, begin_turn, collect

T = TypeVar("T")
RESUME_DELAY = 0.01
"""Seconds between an aborted attempt and the next: an engine that aborts at once must not keep the event loop busy."""


async def generate(
    engine: Engine,
    request_id: str,
    input_ids: Sequence[int],
    sampling: Sampling,
    deadline: float,
    attached: Sequence[Placed] = (),
) -> AsyncIterator[Chunk | Turn]:
    """Yield a turn's chunks, then the whole `Turn`, whose finish reason is `stop` or `length`.

    Closing the iterator aborts the generation.

    Args:
        engine: generates.
        request_id: "<session id>/<anything>".
        input_ids: the whole path so far.
        sampling: as in `Engine.generate`; `max_new_tokens` counts over all attempts, and what one of them has recorded
            the next is not requested again.
        attached: as in `Engine.generate`.
        deadline: in seconds of `time.monotonic()`, over all attempts.

    Raises:
        DeadlineExceeded: the deadline passed first.
        EngineError: the engine failed, or broke its contract.
    """
    items = _attempts(engine, request_id, input_ids, sampling, deadline, attached)
    try:
        while (item := await _before(deadline, anext(items, None))) is not None:
            yield item
    finally:
        await aclose(items)


async def generate_turn(
    engine: Engine,
    request_id: str,
    input_ids: Sequence[int],
    sampling: Sampling,
    deadline: float,
    attached: Sequence[Placed] = (),
) -> Turn:
    """The turn that `generate` ends in, for a caller that needs no chunks: the deadline costs one timer, not many."""
    items = _attempts(engine, request_id, input_ids, sampling, deadline, attached)
    try:
        return await _before(deadline, collect(items))
    finally:
        await aclose(items)


async def _attempts(
    engine: Engine,
    request_id: str,
    input_ids: Sequence[int],
    sampling: Sampling,
    deadline: float,
    attached: Sequence[Placed] = (),
) -> AsyncIterator[Chunk | Turn]:
    """`generate`, whose waits nothing limits here."""
    attempts: list[Turn] = []
    ids = input_ids
    began, began_at = time.monotonic(), time.time()
    first: float | None = None
    while True:
        done = sum(len(attempt.token_ids) for attempt in attempts)
        remaining = sampling
        if done:
            seed = _attempt_seed(sampling.seed, done)
            remaining = replace(sampling, max_new_tokens=sampling.max_new_tokens - done, seed=seed)
        stream = begin_turn(engine, request_id, ids, remaining, deadline, attached)
        turn: Turn | None = None
        try:
            async for item in stream:
                watchdog.progress()
                first = first or time.monotonic()
                if isinstance(item, Turn):
                    turn = item
                else:
                    yield item
        finally:
            await aclose(stream)
        await faults.async_point("engine.reply")
        if turn is None:
            raise EngineError(f"request {request_id!r}: the engine's stream ended without a turn")
        if len(turn.logprobs) != len(turn.token_ids):
            counts = f"{len(turn.token_ids)} tokens with {len(turn.logprobs)} log-probabilities"
            raise EngineError(f"request {request_id!r}: the engine answered {counts}")
        if turn.top_logprobs and len(turn.top_logprobs) != len(turn.token_ids):
            raise EngineError(f"request {request_id!r}: top_logprobs came for {len(turn.top_logprobs)} tokens")
        attempts.append(turn)
        if turn.finish_reason is not FinishReason.ABORT:
            break
        ids = [*ids, *turn.token_ids]
        sampling = replace(sampling, record=attachments.list_unrecorded(sampling.record, turn.attachments, len(ids)))
        if done + len(turn.token_ids) >= sampling.max_new_tokens:
            attempts[-1] = replace(turn, finish_reason=FinishReason.LENGTH)
            break
        await asyncio.sleep(RESUME_DELAY)
    turn = join_attempts(attempts)
    if not turn.token_ids:
        raise EngineError(f"request {request_id!r}: the engine generated a turn without tokens")
    seconds = {"began": began_at, "generation": time.monotonic() - began, "first_token": (first or began) - began}
    timings = turn.timings | {name: tracing.round_seconds(value) for name, value in seconds.items()}
    tokens = {"prompt_tokens": len(input_ids), "cached_tokens": turn.cached_tokens, "tokens": len(turn.token_ids)}
    session = request_id.partition("/")[0]
    tracing.record("generate", began, session=session, attempts=len(attempts), finish=turn.finish_reason, **tokens)
    yield copy_with(turn, timings=timings)


def join_attempts(attempts: Sequence[Turn]) -> Turn:
    """The attempts at one turn as a single turn, with the last one's finish reason."""
    if len(attempts) == 1:
        return attempts[0]
    versions: list[VersionSpan] = []
    before = 0
    for attempt in attempts:
        versions += [VersionSpan(v.version, v.start + before, v.end + before) for v in attempt.versions]
        before += len(attempt.token_ids)
    attached: dict[str, bytes] = {}
    for attempt in attempts:
        attached = attachments.join(attached, attempt.attachments, len(attempt.token_ids))
    return replace(
        attempts[-1],
        token_ids=tuple(token for attempt in attempts for token in attempt.token_ids),
        logprobs=tuple(logp for attempt in attempts for logp in attempt.logprobs),
        versions=tuple(versions),
        cached_tokens=attempts[0].cached_tokens,
        attachments=attached,
        engines=tuple(dict.fromkeys(name for attempt in attempts for name in attempt.engines)),
        timings=attempts[0].timings,
        top_logprobs=tuple(best for attempt in attempts for best in attempt.top_logprobs),
    )


async def _before(deadline: float, work: Awaitable[T]) -> T:
    """Await `work`; DeadlineExceeded once the deadline (`time.monotonic()`) has passed."""
    try:
        async with asyncio.timeout(deadline - time.monotonic()):
            return await work
    except TimeoutError as error:
        if isinstance(error, DeadlineExceeded):
            raise
        raise DeadlineExceeded("the engine did not finish the turn before its deadline") from None


async def aclose(stream: AsyncIterator[Chunk | Turn]) -> None:
    """Close a stream that knows how to be closed; closing aborts its request."""
    close = getattr(stream, "aclose", None)
    if close is not None:
        await close()


def _attempt_seed(seed: int | None, done: int) -> int | None:
    """A different seed for each later attempt, which would otherwise reuse the first one's random numbers."""
    if seed is None or done == 0:
        return seed
    return (seed + done * 0x9E3779B97F4A7C15) % 2**63


def copy_with(record: T, **changes: Any) -> T:
    """Return a copy of a dataclass's instance with other values, at a third of what `dataclasses.replace` takes.

    Args:
        record: the instance; its class has two fields or more, all of which its constructor takes by position.
        changes: new values by field.

    Raises:
        KeyError: there is no such field.
    """
    kind: Any = type(record)
    read, places = _places_of(kind)
    values = list(read(record))
    for name, value in changes.items():
        values[places[name]] = value
    return type(record)(*values)


@cache
def _places_of(kind: Any) -> tuple[Callable[[Any], tuple[Any, ...]], dict[str, int]]:
    names = [field.name for field in fields(kind)]
    return attrgetter(*names), {name: place for place, name in enumerate(names)}
