"""A recorded session that is run again: requests are taken, and replies sent, in the recorded order."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest

from agentrl.errors import Diverged
from agentrl.sessions.gateway.schedule import RecordedOrder, is_answered, prompt_of
from agentrl.types import Message, Session, Task
from tests.sessions.gateway.conftest import Serve, Served
from tests.sessions.gateway.fakes import ScriptedEngine, assistant
from tests.sessions.gateway.inside import exchange, turn_request

SAME = [{"role": "user", "content": "Say something."}]
OTHER = [{"role": "user", "content": "Say another thing."}]
MANY = [{"role": "user", "content": "Say several things."}]


def words(prompt: str) -> Message:
    return assistant(f"after {len(prompt)} characters")


async def program(served: Served, session: Session, seed: int) -> list[str]:
    """A program whose requests come together, and whose next ones depend on which reply was first; what it was told."""
    await served.gateway.open(session)
    entry = served.gateway.entries[session.id]
    chance, told = random.Random(seed), list[str]()

    async def ask(messages: Sequence[Any], **fields: Any) -> str:
        await asyncio.sleep(chance.random() / 50)
        _, nodes = await exchange(served.gateway, entry, turn_request(list(messages), **fields))
        told.append(nodes[-1].message.text)
        return told[-1]

    both = [ask(SAME), ask(SAME), ask(OTHER), ask(SAME), ask(MANY, n=2)]
    replies = [await each for each in asyncio.as_completed(both)]
    question = {"role": "user", "content": f"Why {replies[0]!r} before {replies[-1]!r}?"}
    await asyncio.gather(ask([*SAME, question]), ask([*OTHER, question]))
    return told


class Slow(ScriptedEngine):
    """Takes a random time for each turn."""

    async def generate(self, *args: Any) -> Any:
        await asyncio.sleep(random.random() / 50)
        async for item in super().generate(*args):
            yield item


def followed(nodes: Session) -> list[Any]:
    return [(node.parent, node.token_ids, node.sampling, node.arrival) for node in nodes.nodes]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
async def test_a_session_whose_requests_arrive_in_another_order_is_the_recorded_one_again(
    serve: Serve, seed: int
) -> None:
    async with serve(Slow(words), session_tokens=600) as served:
        recorded = Session("a", Task(id="t"))
        told = await program(served, recorded, seed)
        numbers = [node.arrival.number for node in recorded.nodes if node.arrival is not None]
        assert sorted(set(numbers)) == list(range(7))
        assert is_answered(recorded)
        again = Session("b", Task(id="t"))
        served.gateway.schedules["b"] = RecordedOrder(again, recorded, pytest.fail, 30)
        assert await program(served, again, seed + 100) == told
        assert followed(again) == followed(recorded)


async def test_attempts_at_a_request_are_numbered_in_the_order_of_their_arrival(serve: Serve) -> None:
    async with serve(Slow(words)) as served:
        session = Session("a", Task(id="t"))
        await program(served, session, 0)
        same = {}
        for node in session.nodes:
            if node.arrival is not None:
                same.setdefault(tuple(prompt_of(session, node)), set()).add((node.arrival.number, node.arrival.attempt))
        most = sorted(max(same.values(), key=len))
        assert [attempt for _, attempt in most] == [0, 1, 2]


@pytest.mark.slow
async def test_a_program_that_leaves_out_a_request_departs_at_its_turn(serve: Serve) -> None:
    failures: list[BaseException] = []
    async with serve(ScriptedEngine(words)) as served:
        recorded, again = Session("a", Task(id="t")), Session("b", Task(id="t"))
        await served.gateway.open(recorded)
        for messages in (SAME, OTHER):
            await exchange(served.gateway, served.gateway.entries["a"], turn_request(messages))
        served.gateway.schedules["b"] = RecordedOrder(again, recorded, failures.append, 0.2)
        await served.gateway.open(again)
        with pytest.raises(Diverged, match=r"session a, turn 1: the program did not request it within 0\.2 s"):
            await exchange(served.gateway, served.gateway.entries["b"], turn_request(OTHER))
        assert len(failures) == 1


@pytest.mark.slow
async def test_a_session_with_a_request_that_got_no_turn_is_known_by_its_numbers(serve: Serve) -> None:
    async with serve(ScriptedEngine(words)) as served:
        session = Session("a", Task(id="t"))
        await served.gateway.open(session)
        entry = served.gateway.entries["a"]
        served.engine.fail = RuntimeError("an engine that fails")
        with pytest.raises(RuntimeError):
            await exchange(served.gateway, entry, turn_request(SAME))
        served.engine.fail = None
        assert is_answered(session)
        _, (turn,) = await exchange(served.gateway, entry, turn_request(OTHER))
        assert turn.arrival is not None
        assert turn.arrival.number == 1
        assert not is_answered(session)
        assert served.store.load("a").nodes[-1].arrival == turn.arrival
