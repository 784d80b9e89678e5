"""Attempts at what may fail."""

from __future__ import annotations

import time
from itertools import islice
from types import SimpleNamespace

import pytest

from agentrl.common import retries
from agentrl.common.retries import before, doubling, retry


class Refused(Exception):
    """Another attempt may have more luck."""


async def test_the_pauses_are_those_that_were_given_or_longer_where_the_failure_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept, asked = list[float](), iter([0.0, 7.0, 0.0])

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async def attempt() -> str:
        if len(slept) < 3:
            raise Refused
        return "done"

    monkeypatch.setattr(retries, "asyncio", SimpleNamespace(sleep=sleep))  # other threads have loops of their own
    assert await retry(attempt, Refused, doubling(1.0, 3), lambda error: next(asked)) == "done"
    assert slept == [1.0, 7.0, 4.0]


async def test_the_last_error_is_raised_as_it_is_and_one_of_another_kind_ends_the_attempts() -> None:
    errors = [Refused("first"), Refused("second"), KeyError("third")]

    async def attempt() -> None:
        raise errors.pop(0)

    with pytest.raises(Refused, match="second"):
        await retry(attempt, Refused, [0.0])
    with pytest.raises(KeyError, match="third"):
        await retry(attempt, Refused, [0.0] * 5)


def test_pauses_double_up_to_the_longest_and_end_before_the_deadline() -> None:
    assert list(doubling(0.5, 5, 3.0)) == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert list(islice(doubling(1.0), 4)) == [1.0, 2.0, 4.0, 8.0]
    assert list(before(time.monotonic() + 1000, [1.0, 10_000.0, 1.0])) == [1.0]
