"""An engine's life between and beside its turns: it caches, aborts, pauses, takes new weights, and closes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

from agentrl.errors import EngineError
from agentrl.rollout.engines.contract.subject import PATIENCE, EngineSubject, expect
from agentrl.types import FinishReason, PauseMode, Sampling, Turn


async def prefixes_are_reused(subject: EngineSubject) -> None:
    """A session's next turn takes nine tenths of its prefix from the cache, but for an unfinished block of it."""
    prompt = subject.prompt(12, min(400, subject.engine.capabilities.max_context // 2))
    first = await subject.turn(prompt, Sampling(max_new_tokens=32, seed=1), "reuse/0")
    path = [*prompt, *first.token_ids]
    again = await subject.turn([*path, *subject.prompt(13, 8)], Sampling(max_new_tokens=4, seed=1), "reuse/1")
    least = min(0.9 * len(path), len(path) - subject.engine.capabilities.cache_block)
    expect(again.cached_tokens >= least, f"only {again.cached_tokens} of {len(path)} tokens were cached")


async def closing_the_stream_frees_the_engine(subject: EngineSubject) -> None:
    """Leaving a stream aborts its request."""
    stream = subject.engine.generate("leave/0", subject.prompt(14, 20), Sampling(max_new_tokens=100_000, seed=1))
    async for _ in stream:
        break
    await stream.aclose()  # type: ignore[attr-defined]
    await _until(subject, lambda running: running == 0, "a request that was left goes on")


async def _until(subject: EngineSubject, done: Callable[[int], bool], complaint: str) -> None:
    end = time.monotonic() + PATIENCE
    while not done((await subject.engine.health()).running):
        expect(time.monotonic() < end, complaint)
        await asyncio.sleep(0.01)


_PAUSES = 10
"""The most pauses until one comes amid a turn: a tiny model may end it in less time than a call takes."""


async def _paused(subject: EngineSubject, mode: PauseMode, prompt: list[int], sampling: Sampling) -> tuple[Turn, bool]:
    """Pause amid a turn and resume; the turn, and whether it was under way all the time."""
    engine = subject.engine
    task = asyncio.create_task(subject.turn(prompt, sampling, f"pause-{mode}/0"))
    await _until(subject, lambda running: running > 0, "a request did not start")
    await asyncio.wait_for(engine.pause(mode), PATIENCE)
    late = asyncio.create_task(subject.turn(prompt, Sampling(max_new_tokens=1), "late/0"))
    await asyncio.sleep(0.1)
    expect(not late.done(), f"{mode}: a request was admitted while paused")
    held = not task.done()
    await engine.resume()
    turn = await task
    await late
    return turn, held


async def pausing_works_in_every_mode(subject: EngineSubject) -> None:
    """DRAIN lets requests finish, ABORT ends them, the others hold them; new ones wait until `resume`."""
    engine, sampling = subject.engine, Sampling(max_new_tokens=200, seed=4)
    prompt = subject.prompt(15, min(20, engine.capabilities.max_context // 4))
    sampling = replace(sampling, max_new_tokens=min(200, engine.capabilities.max_context // 2))
    whole = await subject.turn(prompt, sampling)
    for mode in sorted(engine.capabilities.pause_modes):
        for _ in range(_PAUSES):
            turn, held = await _paused(subject, mode, prompt, sampling)
            if held == (mode in (PauseMode.RETRACT, PauseMode.IN_PLACE)):
                break  # else it had ended before the pause arrived, or not begun, which proves nothing
        expect(held == (mode in (PauseMode.RETRACT, PauseMode.IN_PLACE)), f"{mode}: held while paused is {held}")
        if mode is PauseMode.ABORT and turn.finish_reason is FinishReason.ABORT:
            rest = replace(sampling, max_new_tokens=sampling.max_new_tokens - len(turn.token_ids))
            more = await subject.turn([*prompt, *turn.token_ids], rest, f"pause-{mode}/0")
            turn = replace(more, token_ids=turn.token_ids + more.token_ids, logprobs=turn.logprobs + more.logprobs)
        expect(len(turn.token_ids) == len(whole.token_ids), f"{mode}: {len(turn.token_ids)} tokens came")
        if engine.capabilities.deterministic:
            expect(turn.token_ids == whole.token_ids, f"{mode}: the pause changed the tokens")


async def publications_are_whole(subject: EngineSubject) -> None:
    """Wrong weights are refused and change nothing; right ones raise the version, and each token knows its own."""
    if subject.weights is None:
        return
    engine, prompt = subject.engine, subject.prompt(16, 20)
    before, version = await subject.greedy(prompt, 8), engine.version()
    weights = list(subject.weights())
    lost = weights[len(weights) // 2][0]
    bad = {
        "a missing name": [pair for pair in weights if pair[0] != lost],
        "an unknown name": [*weights, ("no.such.weight", weights[0][1])],
    }
    for what, wrong in bad.items():
        try:
            await engine.publish(wrong, version + 1)
        except EngineError as error:
            expect(lost in str(error) or "no.such.weight" in str(error), f"{what}: {error} names no weight")
            continue
        raise AssertionError(f"weights with {what} were accepted")
    expect(engine.version() == version, "a refused publication changed the version")
    await engine.publish(((name, tensor + 0.05) for name, tensor in weights), version + 1)
    expect(engine.version() == version + 1, "version() is not the published one")
    changed = await subject.greedy(prompt, 8)
    expect(changed.logprobs != before.logprobs, "published weights were not used")
    expect({span.version for span in changed.versions} == {version + 1}, f"spans {changed.versions}")
    await engine.publish(weights, version + 2)
    after = await subject.greedy(prompt, 8)
    expect(after.token_ids == before.token_ids, "the first weights, published again, give other tokens")


async def closing_is_final(subject: EngineSubject) -> None:
    """`close` may be called twice, ends open requests with EngineError, and refuses new ones."""
    open_one = asyncio.create_task(subject.turn(subject.prompt(17, 20), Sampling(max_new_tokens=100_000, seed=1)))
    await _until(subject, lambda running: running > 0, "a request did not start")
    await subject.engine.close()
    await subject.engine.close()
    for attempt in (open_one, subject.turn([1], Sampling(max_new_tokens=1))):
        try:
            turn = await attempt
        except EngineError:
            continue
        expect(turn.finish_reason is FinishReason.LENGTH, "a closed engine answered")  # it may just have finished
    expect(not (await subject.engine.health()).ok, "a closed engine calls itself healthy")
