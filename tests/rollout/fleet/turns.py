"""Turns that tests of fleets begin, and what they wait for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from agentrl.rollout.fleet.fleet import Fleet
from agentrl.rollout.fleet.member import Member, MemberState
from agentrl.sessions.tree.generation import generate
from agentrl.types import Sampling, Turn, collect

PATIENCE = 500.0
PROMPT = [5, 6, 7, 8, 9, 10, 11, 12]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.02)


async def until_ready(fleet: Fleet) -> None:
    await until(lambda: all(member.state is MemberState.READY for member in fleet.engines.values()))


async def turn(fleet: Fleet, name: str, tokens: int, seed: int = 0) -> Turn:
    stream = generate(fleet, name, [*PROMPT, seed % 50], Sampling(max_new_tokens=tokens), time.monotonic() + PATIENCE)
    return await collect(stream)


def drawing(member: Member) -> int:
    """How many turns of an engine have tokens so far."""
    return sum(bool(ticket.token_ids) for ticket in member.open)


async def turns_under_way(
    fleet: Fleet, name: str, count: int, tokens: int, condition: Callable[[], bool]
) -> list[asyncio.Task[Turn]]:
    """Turns of so many tokens, as soon as `condition` is true of them.

    They are begun anew where a busy machine ends one before that, or moves them to another engine.
    """
    for attempt in range(10):
        await until_ready(fleet)
        turns = [asyncio.create_task(turn(fleet, f"{name}-{attempt}-{n}/0", tokens, n)) for n in range(count)]
        await until(lambda turns=turns: condition() or any(one.done() for one in turns))  # type: ignore[misc]
        if condition():
            return turns
        await asyncio.gather(*turns)
    pytest.fail("never did enough turns draw at once")
