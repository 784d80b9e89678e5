"""What was collected is written before the store's thread ends, and nothing waits for a write that can't come."""

from __future__ import annotations

import asyncio

import pytest

from agentrl.errors import StoreError
from agentrl.sessions.gateway.writer import StoreWriter
from agentrl.sessions.store.store import Store
from agentrl.types import Session, Task
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
