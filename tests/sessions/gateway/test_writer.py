"""What was collected is written before the store's thread ends, and nothing waits for a write that can't come."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from typing import Any

import pytest

from agentrl.errors import StoreError
from agentrl.sessions.gateway import writer as writing
from agentrl.sessions.gateway.limits import Limits
from agentrl.sessions.gateway.writer import StoreWriter
from agentrl.sessions.store.store import Store
from agentrl.types import Session, Task
from tests.sessions.gateway.conftest import Serve
from tests.sessions.gateway.test_sessions import ASK, post, until
from tests.train.trees import environment_node


async def test_turns_that_wait_to_be_written_are_written_as_the_writer_closes() -> None:
    """A gateway that stopped within 5 ms of a reply lost its turn, and stopped after ten seconds."""
    session = Session("a", Task(id="t"))
    with Store(":memory:") as store:
        store.save(session)
        writer = StoreWriter(store)
        writing = asyncio.ensure_future(writer.append(session, [environment_node(session, None, [1, 2])]))
        await asyncio.sleep(0)
        writer.close()
        await writing
        assert len(store.load("a").nodes) == 1
        with pytest.raises(StoreError, match="has stopped"):
            await writer.append(session, [])


async def test_a_turn_is_written_at_once_and_those_that_end_soon_after_wait_to_be_written_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each turn waited 5 ms for others, though where none came nothing was written meanwhile."""
    monkeypatch.setattr(writing, "COMMIT_SECONDS", 3600.0)
    session = Session("a", Task(id="t"))
    with Store(":memory:") as store:
        store.save(session)
        writer = StoreWriter(store)
        await writer.append(session, [environment_node(session, None, [1, 2])])
        later = [asyncio.ensure_future(writer.append(session, [environment_node(session, 0, [n])])) for n in (3, 4)]
        await asyncio.sleep(0.02)
        assert len(store.load("a").nodes) == 1
        writer.close()
        await asyncio.gather(*later)
        assert len(store.load("a").nodes) == 3


class HeldStore(Store):
    """A store whose additions wait."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.free = threading.Event()
        self.free.set()

    def append_all(self, additions: Iterable[Any]) -> None:
        self.free.wait()
        super().append_all(additions)


@pytest.mark.slow
async def test_a_request_whose_reply_was_sent_is_no_longer_in_progress_however_slow_the_store_is(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixteen clients at once were answered 429: their last 500 turns waited for a store that a busy loop slowed.

    A client is slowed by its store only once many turns are unwritten, and is refused by it only after a turn's time.
    """
    monkeypatch.setattr(writing, "MOST_UNWRITTEN", 4)
    with HeldStore(":memory:") as store:
        async with serve(store=store, limits=Limits(in_flight=1, turn_timeout=2)) as served:
            access = [await served.open() for _ in range(6)]
            store.free.clear()
            try:
                answers = [await post(served, one, "v1/chat/completions", **ASK) for one in access[:4]]
                assert [one.status_code for one in answers] == [200] * 4
                refused = await post(served, access[4], "v1/chat/completions", **ASK)
                assert (refused.status_code, refused.json()["error"]["code"]) == (503, "store_busy")
                waiting = asyncio.ensure_future(post(served, access[5], "v1/chat/completions", **ASK))
                await until(lambda: served.gateway.in_flight == 1)
            finally:
                store.free.set()
            assert (await waiting).status_code == 200
