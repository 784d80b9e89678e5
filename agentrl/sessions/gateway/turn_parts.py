"""Functions on turns and streams that an exchange uses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from agentrl.sessions.renderers.base import Delta
from agentrl.types import Chunk, FinishReason, Message, Turn, VersionSpan

Event = tuple[int, Delta]
"""A part of a reply: the choice's index, and what is new in that choice."""


def deltas_of(message: Message) -> list[Delta]:
    """A whole message as deltas."""
    deltas = [Delta(reasoning=message.reasoning_content)] if message.reasoning_content else []
    if message.text:
        deltas.append(Delta(content=message.text))
    for index, call in enumerate(message.tool_calls or ()):
        deltas.append(Delta(call=index, name=call.function.name, id=call.id, arguments=call.function.arguments))
    return deltas


def cut_turn(chunks: Sequence[Chunk], turn: Turn | None, length: int) -> Turn:
    """A turn of the first `length` tokens, which the gateway ended after a complete call."""
    if turn is not None:
        ids, logprobs, best = turn.token_ids, turn.logprobs, turn.top_logprobs
        spans = turn.versions
    else:
        ids = tuple(token for chunk in chunks for token in chunk.token_ids)
        logprobs = tuple(logp for chunk in chunks for logp in chunk.logprobs)
        best = tuple(one for chunk in chunks for one in chunk.top_logprobs)
        found: list[VersionSpan] = []
        at = 0
        for chunk in chunks:
            end = at + len(chunk.token_ids)
            if found and found[-1].version == chunk.version:
                found[-1] = VersionSpan(chunk.version, found[-1].start, end)
            elif end > at:
                found.append(VersionSpan(chunk.version, at, end))
            at = end
        spans = tuple(found)
    versions = tuple(VersionSpan(v.version, v.start, min(v.end, length)) for v in spans if v.start < length)
    return Turn(ids[:length], logprobs[:length], versions, FinishReason.STOP, top_logprobs=best[:length])


async def merge_streams(streams: Sequence[AsyncIterator[Event]]) -> AsyncIterator[Event]:
    """Several streams as one, in order of arrival; the first failure ends all."""
    queue: asyncio.Queue[Event | None] = asyncio.Queue()

    async def pump(stream: AsyncIterator[Event]) -> None:
        try:
            async for event in stream:
                queue.put_nowait(event)
        finally:
            queue.put_nowait(None)

    tasks = [asyncio.ensure_future(pump(stream)) for stream in streams]
    try:
        running = len(tasks)
        while running:
            event = await queue.get()
            if event is not None:
                yield event
                continue
            running -= 1
            for task in tasks:
                if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                    raise error
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
