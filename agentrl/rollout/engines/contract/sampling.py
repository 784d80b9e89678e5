"""Sampling: log-probabilities are right, frequencies follow them, and other requests in the batch change nothing."""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from agentrl.rollout.engines.contract.subject import EngineSubject, expect
from agentrl.types import MOST_PROBABLE, Sampling, TopLogprobs, Turn


async def logprobs_are_those_of_scoring(subject: EngineSubject) -> None:
    """Behaviour log-probabilities are at the sampling temperature, over the whole vocabulary; top-k changes nothing."""
    for temperature, top_k in ((1.0, None), (0.6, None), (1.7, None), (0.8, 4)):
        prompt = subject.prompt(7, 30)
        sampling = Sampling(temperature=temperature, top_k=top_k, max_new_tokens=20, seed=5)
        turn = await subject.turn(prompt, sampling)
        path = [*prompt, *turn.token_ids]
        await _compare(turn.logprobs, path, temperature, subject)
    turn = await subject.greedy(prompt, 20)
    await _compare(turn.logprobs, [*prompt, *turn.token_ids], 1.0, subject)


async def _compare(logprobs: Sequence[float], path: list[int], temperature: float, subject: EngineSubject) -> None:
    scorers: dict[str, Sequence[float]] = {}
    if subject.engine.capabilities.score:
        scorers["score()"] = await subject.engine.score(path, temperature)
        expect(len(scorers["score()"]) == len(path) and scorers["score()"][0] == 0.0, "score() has the wrong shape")
    if subject.reference is not None:
        scorers["the reference"] = subject.reference(path, temperature)
    for name, scored in scorers.items():
        worst = max(abs(a - b) for a, b in zip(logprobs, scored[-len(logprobs) :], strict=True))
        expect(worst <= subject.tolerance, f"temperature {temperature}: logprobs differ from {name} by {worst:.2g}")


async def the_most_probable_tokens_come_where_they_are_requested(subject: EngineSubject) -> None:
    """Check that they are of the distribution that `logprobs` are of, in order, and change no sample."""
    prompt, most = subject.prompt(12, 20), min(MOST_PROBABLE, subject.engine.capabilities.vocab_size)
    for temperature, top_k in ((0.0, None), (1.0, None), (0.6, None), (1.3, 3)):
        sampling = Sampling(temperature, max_new_tokens=6, seed=4, top_k=top_k)
        plain = await subject.turn(prompt, sampling)
        expect(not plain.top_logprobs, "top_logprobs came that were not requested")
        for count in (3, most):
            asked = replace(sampling, top_logprobs=count)
            items = [item async for item in subject.engine.generate("contract/0", prompt, asked)]
            turn, chunks = items[-1], items[:-1]
            assert isinstance(turn, Turn)
            if sampling.temperature == 0 or subject.engine.capabilities.deterministic:
                expect(turn.token_ids == plain.token_ids, f"temperature {temperature}: {count} of them changed tokens")
            expect(len(turn.top_logprobs) == len(turn.token_ids), f"{len(turn.top_logprobs)} lists of top_logprobs")
            expect(tuple(b for c in chunks for b in c.top_logprobs) == turn.top_logprobs, "the chunks have others")
            for token, logp, best in zip(turn.token_ids, turn.logprobs, turn.top_logprobs, strict=True):
                _check_most_probable(subject, token, logp, best, count)


def _check_most_probable(subject: EngineSubject, token: int, logp: float, best: TopLogprobs, count: int) -> None:
    logps = [value for _, value in best]
    expect(len(dict(best)) == count, f"top_logprobs={count} gave {len(dict(best))} tokens")
    expect(logps == sorted(logps, reverse=True), f"top_logprobs are not in order: {logps}")
    own = dict(best).get(token)
    if own is None:
        expect(logp <= logps[-1] + subject.tolerance, "a more probable token than these was sampled")
    else:
        expect(abs(own - logp) <= subject.tolerance, f"the sampled token's log-probability is {logp}, and here {own}")
    mass = sum(map(math.exp, logps)) + (math.exp(logp) if own is None else 0)
    expect(mass <= 1 + subject.tolerance, f"the probabilities of top_logprobs add up to {mass}")


async def greedy_takes_the_most_probable(subject: EngineSubject) -> None:
    """Temperature 0 repeats itself, and no sample is more probable than its first token."""
    prompt = subject.prompt(8, 20)
    first, again = await subject.greedy(prompt, 8), await subject.greedy(prompt, 8)
    expect(first.token_ids == again.token_ids, "temperature 0 gave two continuations")
    sampled = [await subject.turn(prompt, Sampling(max_new_tokens=1, seed=s)) for s in range(20)]
    best = max(turn.logprobs[0] for turn in sampled)
    expect(best <= first.logprobs[0] + subject.tolerance, "a sample was more probable than the greedy token")


async def samples_follow_the_softmax(subject: EngineSubject) -> None:
    """At temperatures other than 1, frequencies of sampled tokens fit their own log-probabilities (chi-square)."""
    prompt = subject.prompt(9, 20)
    for temperature in (0.5, 1.4):
        sampled: Counter[int] = Counter()
        logprob: dict[int, float] = {}
        samplings = [Sampling(temperature=temperature, max_new_tokens=1, seed=seed) for seed in range(subject.samples)]
        for turn in await asyncio.gather(*[subject.turn(prompt, s, f"sample-{s.seed}/0") for s in samplings]):
            sampled[turn.token_ids[0]] += 1
            logprob[turn.token_ids[0]] = turn.logprobs[0]
        statistic, freedom = _chi_square(sampled, logprob, subject.samples)
        limit = _chi_square_limit(freedom)
        expect(
            statistic <= limit, f"temperature {temperature}: chi-square {statistic:.0f} of {freedom}, over {limit:.0f}"
        )


def _chi_square(sampled: Counter[int], logprob: dict[int, float], total: int) -> tuple[float, int]:
    """The statistic over tokens expected at least 5 times, the rest as one bin; and its degrees of freedom."""
    expected = {token: total * math.exp(value) for token, value in logprob.items()}
    often = [token for token, count in expected.items() if count >= 5]
    bins = [(float(sampled[token]), expected[token]) for token in often]
    rest = total - sum(expected[token] for token in often)
    if rest >= 5:
        bins.append((float(total - sum(sampled[token] for token in often)), rest))
    return sum((seen - meant) ** 2 / meant for seen, meant in bins), max(1, len(bins) - 1)


def _chi_square_limit(freedom: int) -> float:
    """The value that chance exceeds once in about a million times (Wilson and Hilferty, 1931)."""
    part = 2 / (9 * freedom)
    return float(freedom * (1 - part + 4.75 * math.sqrt(part)) ** 3)


async def narrowed_samples_stay_inside(subject: EngineSubject) -> None:
    """top-k, top-p, min-p and biases keep samples inside the support that they leave."""
    prompt = subject.prompt(10, 20)
    best = (await subject.greedy(prompt, 1)).token_ids[0]
    other = (best + 1) % subject.engine.capabilities.vocab_size
    for narrowing in ({"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}):
        turns = [await subject.turn(prompt, Sampling(max_new_tokens=1, seed=s, **narrowing)) for s in range(8)]
        expect(
            {turn.token_ids[0] for turn in turns} == {best}, f"{narrowing} sampled something else than the best token"
        )
    biased = Sampling(max_new_tokens=1, seed=0, logit_bias=((other, 1000.0),))
    expect((await subject.turn(prompt, biased)).token_ids[0] == other, "a bias of 1000 was not felt")


def mixed_requests(subject: EngineSubject) -> list[tuple[str, list[int], Sampling]]:
    """Requests of many lengths and temperatures, some of which share prefixes."""
    dice = random.Random(11)
    longest = min(150, subject.engine.capabilities.max_context // 4)
    stems = [subject.prompt(100 + i, dice.randint(1, longest)) for i in range(8)]
    found = []
    for index in range(subject.requests):
        ids = dice.choice(stems) + subject.prompt(200 + index, dice.randint(1, 40))
        temperature = dice.choice([0.0, 0.7, 1.0, 1.0, 1.3])
        found.append((f"mix-{index}", ids, Sampling(temperature, max_new_tokens=dice.randint(1, 24), seed=index)))
    return found


async def conversations(subject: EngineSubject, order: Sequence[int], together: int) -> dict[str, tuple[Turn, Turn]]:
    """Each mixed request and a second turn after it, in that order, so many at once."""
    requests, gate = mixed_requests(subject), asyncio.Semaphore(together)
    answers: dict[str, tuple[Turn, Turn]] = {}

    async def talk(index: int) -> None:
        name, ids, sampling = requests[index]
        async with gate:
            first = await subject.turn(ids, sampling, f"{name}/0")
            path = [*ids, *first.token_ids, *subject.prompt(300 + index, 9)]
            answers[name] = (first, await subject.turn(path, sampling, f"{name}/1"))

    await asyncio.gather(*[talk(index) for index in order])
    return answers


async def other_requests_change_nothing(subject: EngineSubject) -> None:
    """Check a promise of determinism: the same tokens, bit-equal log-probabilities in any order, beside any request."""
    if not subject.engine.capabilities.deterministic:
        return
    order = list(range(subject.requests))
    runs = []
    for seed, together in ((1, subject.requests), (2, 7), (3, 1)):
        random.Random(seed).shuffle(order)
        runs.append(await conversations(subject, order, together))
    for name, turns in runs[0].items():
        for other in runs[1:]:
            for mine, its in zip(turns, other[name], strict=True):
                expect(mine.token_ids == its.token_ids, f"{name}: other tokens beside other requests")
                expect(mine.logprobs == its.logprobs, f"{name}: other log-probabilities beside other requests")
