"""Checks of a request, the same in every engine and in the same words: sampling parameters, token ids, its deadline."""

from __future__ import annotations

import asyncio
import functools
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import msgspec

from agentrl.errors import AgentRLError, DeadlineExceeded, EngineError, InvalidInput
from agentrl.types import LEAST_TEMPERATURE, MOST_PROBABLE, Sampling, TopLogprobs

_FINITE = ("temperature", "repetition_penalty", "presence_penalty", "frequency_penalty")


def check_sampling(sampling: Sampling, vocab_size: int) -> None:
    """Make sure that every parameter is in its range.

    Raises:
        InvalidInput: one is not; the message names it, its value and what is allowed.
    """
    wrong = None
    if not sampling.temperature >= 0:
        wrong = f"temperature={sampling.temperature} must not be negative"
    elif 0 < sampling.temperature < LEAST_TEMPERATURE:
        wrong = f"temperature={sampling.temperature} must be 0, or at least {LEAST_TEMPERATURE}"
    elif sampling.max_new_tokens < 1:
        wrong = f"max_new_tokens={sampling.max_new_tokens} must be at least 1"
    elif not 0 < sampling.top_p <= 1:
        wrong = f"top_p={sampling.top_p} must be in (0, 1]"
    elif sampling.top_k is not None and sampling.top_k < 1:
        wrong = f"top_k={sampling.top_k} must be at least 1"
    elif not 0 <= sampling.min_p <= 1:
        wrong = f"min_p={sampling.min_p} must be in [0, 1]"
    elif not sampling.repetition_penalty > 0:
        wrong = f"repetition_penalty={sampling.repetition_penalty} must be above 0"
    elif not 0 <= sampling.top_logprobs <= MOST_PROBABLE:
        wrong = f"top_logprobs={sampling.top_logprobs} must be between 0 and {MOST_PROBABLE}"
    elif any(not 0 <= token < vocab_size for token, _ in sampling.logit_bias):
        wrong = f"logit_bias names a token outside the vocabulary of {vocab_size}"
    elif not all(math.isfinite(bias) for _, bias in sampling.logit_bias):
        wrong = f"logit_bias={sampling.logit_bias} must have finite numbers"
    elif (name := next((name for name in _FINITE if not math.isfinite(getattr(sampling, name))), None)) is not None:
        wrong = f"{name}={getattr(sampling, name)} must be finite"
    elif "" in sampling.stop:
        wrong = "stop holds an empty string"
    if wrong:
        raise InvalidInput(f"sampling.{wrong}")


def check_ids(input_ids: Sequence[int], vocab_size: int, max_context: int, free: int = 1) -> list[int]:
    """The path's tokens as a list, checked to be in the vocabulary, and `free` tokens shorter than the context.

    Raises:
        InvalidInput: they are not.
    """
    try:
        ids: list[int] = msgspec.convert(input_ids, _tokens(vocab_size))
    except msgspec.ValidationError:
        ids = list(input_ids)
        wrong = next((i for i in ids if not 0 <= i < vocab_size), None)
        if wrong is not None:
            raise InvalidInput(f"input_ids holds {wrong}, outside the vocabulary of {vocab_size}") from None
    if not ids:
        raise InvalidInput("input_ids is empty: an engine extends at least one token")
    if len(ids) > max_context - free:
        raise InvalidInput(f"input_ids has {len(ids)} tokens; max_context={max_context} leaves no token for the turn")
    return ids


def check_sampled(ids: object, vocab_size: int) -> None:
    """Make sure that what a server calls sampled tokens are tokens; EngineError where they are not."""
    try:
        msgspec.convert(ids, _tokens(vocab_size))
    except msgspec.ValidationError as error:
        raise EngineError(f"the server sent what is no token of a vocabulary of {vocab_size}: {error}") from None


@functools.lru_cache(maxsize=16)
def _tokens(vocab_size: int) -> Any:
    """A list of tokens as msgspec checks one, in less than half the time of `min` and `max`."""
    return list[Annotated[int, msgspec.Meta(ge=0, lt=vocab_size)]]


@contextmanager
def readable() -> Iterator[None]:
    """Read a server's answers within the block: one in another form than its protocol's is the server's error.

    Raises:
        EngineError: it has.
    """
    try:
        yield
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        if isinstance(error, AgentRLError):
            raise
        raise EngineError(f"the server's answer is not understood: {type(error).__name__}: {error}") from error


def check_temperature(temperature: float) -> None:
    """Make sure that log-probabilities exist at a temperature; InvalidInput where it is 0, or too near."""
    if not temperature >= LEAST_TEMPERATURE:
        raise InvalidInput(f"temperature={temperature}: log-probabilities need one of at least {LEAST_TEMPERATURE}")


def most_probable(candidates: Iterable[tuple[int, float]], count: int) -> TopLogprobs:
    """The best `count` of some tokens with their log-probabilities; servers write -9999 where JSON has no infinity."""
    possible = [(token, logp) for token, logp in candidates if math.isfinite(logp) and logp > -9999]
    return tuple(sorted(possible, key=lambda one: (-one[1], one[0]))[:count])


@contextmanager
def end_by(deadline: float | None, inbox: asyncio.Queue[Any], request_id: str) -> Iterator[None]:
    """Put a `DeadlineExceeded` behind what had come before, once the deadline has passed.

    That is a timer for each request, not for each wait.
    """
    if deadline is None:
        yield
        return
    late = DeadlineExceeded(f"request {request_id!r} ran past its deadline")
    timer = asyncio.get_running_loop().call_later(max(0.0, deadline - time.monotonic()), inbox.put_nowait, late)
    try:
        yield
    finally:
        timer.cancel()
