"""Checks of one turn: its chunks add up, its limits hold, it ends where it should, and bad requests are refused."""

from __future__ import annotations

import time
from dataclasses import replace

from agentrl.attachments import routed_experts
from agentrl.errors import DeadlineExceeded, InvalidInput
from agentrl.rollout.engines.contract.subject import EngineSubject, expect
from agentrl.types import Chunk, FinishReason, Sampling, Turn, collect

EXPERTS_AGREE = 0.9
"""The least share of experts recorded alike again; near ties may fall otherwise where a prefix is recomputed."""


async def chunks_add_up_to_the_turn(subject: EngineSubject) -> None:
    """Chunks' tokens, log-probabilities and versions are the turn's, in order; the turn comes last, once."""
    sampling = Sampling(max_new_tokens=24, seed=1)
    items = [item async for item in subject.engine.generate("contract/0", subject.prompt(1, 20), sampling)]
    chunks = [item for item in items if isinstance(item, Chunk)]
    turn = items[-1]
    assert isinstance(turn, Turn)
    expect(len(chunks) == len(items) - 1, "more than one turn came")
    expect(tuple(i for c in chunks for i in c.token_ids) == turn.token_ids, "the chunks' tokens are not the turn's")
    expect(tuple(p for c in chunks for p in c.logprobs) == turn.logprobs, "the chunks' logprobs are not the turn's")
    expect(len(turn.token_ids) == len(turn.logprobs), "not one log-probability for each token")
    told = turn.timings
    expect(set(told) <= {"queue"} and all(seconds >= 0 for seconds in told.values()), f"it tells the times {told}")
    covered = [place for span in turn.versions for place in range(span.start, span.end)]
    expect(covered == list(range(len(turn.token_ids))), f"version spans {turn.versions} don't cover the turn")
    expect({span.version for span in turn.versions} == {subject.engine.version()}, "a span names another version")


async def limits_are_kept(subject: EngineSubject) -> None:
    """`max_new_tokens` holds, the context's limit holds, and both end the turn with LENGTH."""
    turn = await subject.turn(subject.prompt(2, 20), Sampling(max_new_tokens=7, seed=1))
    expect(len(turn.token_ids) == 7 and turn.finish_reason is FinishReason.LENGTH, f"max_new_tokens=7 gave {turn}")
    length = subject.engine.capabilities.max_context - 5
    turn = await subject.turn(subject.prompt(3, length), Sampling(max_new_tokens=512, seed=1))
    expect(len(turn.token_ids) == 5, f"a context with 5 tokens left gave {len(turn.token_ids)}")
    expect(turn.finish_reason is FinishReason.LENGTH, f"a full context gave {turn.finish_reason}")


async def stop_tokens_end_a_turn(subject: EngineSubject) -> None:
    """A stop token ends the turn, is part of it, and is named."""
    prompt = subject.prompt(4, 24)
    whole = await subject.greedy(prompt, 16)
    stop = whole.token_ids[-1]
    first = whole.token_ids.index(stop)
    sampling = Sampling(temperature=0.0, max_new_tokens=64, stop_token_ids=(stop,))
    turn = await subject.turn(prompt, sampling)
    expect(turn.finish_reason is FinishReason.STOP and turn.stopped_by == stop, f"stop token {stop} gave {turn}")
    expect(turn.token_ids == whole.token_ids[: first + 1], "the turn does not end with its stop token")


async def stop_strings_end_a_turn(subject: EngineSubject) -> None:
    """A stop string ends the turn with the token that completes it, even across tokens."""
    if subject.tokenizer is None:
        return
    prompt = subject.prompt(5, 24)
    repeats = subject.engine.capabilities.deterministic  # others repeat nothing but their most probable tokens
    sampling = Sampling(temperature=1.0 if repeats else 0.0, max_new_tokens=24, seed=3)
    whole = await subject.turn(prompt, sampling)
    texts = [subject.tokenizer.decode(whole.token_ids[:n]) for n in range(len(whole.token_ids) + 1)]
    stop = next((t[-3:] for t in texts[12:] if len(t) >= 3 and "\ufffd" not in t[-3:]), None)
    if stop is None:
        return
    expected = next(n for n, text in enumerate(texts) if stop in text)
    turn = await subject.turn(prompt, replace(sampling, stop=(stop,)))
    expect(turn.stopped_by == stop and turn.finish_reason is FinishReason.STOP, f"stop={stop!r} gave {turn}")
    expect(turn.token_ids == whole.token_ids[:expected], f"stop={stop!r} came after {len(turn.token_ids)} tokens")


async def bad_requests_are_refused(subject: EngineSubject) -> None:
    """An empty prompt, an unknown token and a full context are the caller's mistakes; a past deadline is a timeout."""
    limits = subject.engine.capabilities
    for ids in ([], [limits.vocab_size], [-1], subject.prompt(6, limits.max_context)):
        try:
            await subject.turn(ids, Sampling(max_new_tokens=1))
        except InvalidInput:
            continue
        raise AssertionError(f"a prompt of {len(ids)} tokens ({ids[:1]} …) was accepted")
    try:
        await collect(subject.engine.generate("late", subject.prompt(6, 20), Sampling(), time.monotonic() - 1))
    except DeadlineExceeded:
        return
    raise AssertionError("a deadline in the past was not noticed")


async def routed_experts_are_those_requested(subject: EngineSubject) -> None:
    """An engine that records routed experts gives one row for each token requested, the last one's unknown.

    They are a function of the path: the next turn's, over the same tokens, agree. Without a request there are none.
    """
    kind, prompt = routed_experts.NAME, subject.prompt(6, 40)
    turn = await subject.turn(prompt, Sampling(max_new_tokens=8, seed=2))
    expect(not turn.attachments, f"attachments came that were not requested: {sorted(turn.attachments)}")
    if kind not in subject.engine.capabilities.attachments:
        return
    turn = await subject.turn(prompt, Sampling(max_new_tokens=8, seed=2, record=((kind, 4),)))
    path = [*prompt, *turn.token_ids]
    expect(kind in turn.attachments, "routed experts were requested, and none came")
    data = turn.attachments[kind]
    rows = routed_experts.count(data)
    expect(rows == len(path) - 4, f"{rows} rows of routed experts for {len(path) - 4} tokens")
    expect(routed_experts.unknown_at_end(data) == 1, "not exactly the last token's routed experts are unknown")
    again = await subject.turn(path, Sampling(max_new_tokens=1, seed=2, record=((kind, 4),)))
    expect(kind in again.attachments, "the next turn brought no routed experts")
    same = routed_experts.unpack(data)[:-1] == routed_experts.unpack(again.attachments[kind])[: len(path) - 5]
    expect(bool(same.mean() > EXPERTS_AGREE), f"of the same tokens' routed experts only {same.mean():.3f} agree")
