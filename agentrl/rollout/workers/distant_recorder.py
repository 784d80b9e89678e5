"""Records sessions in another process, which holds them for the run (`agentrl.train.driver.session_worker`)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from agentrl.cluster.pool import Workers
from agentrl.common.concurrency import hold_task, take_error
from agentrl.common.retries import retry
from agentrl.errors import WorkerLost
from agentrl.types import Session

STORE_SECONDS = 600.0
"""Seconds that storing a session may take; then the worker is given up."""
ATTEMPTS = 3
"""The most session workers that a session is sent to, where each is lost."""


class DistantRecorder:
    """`Records` by a session worker: sessions are stored when they begin and when they end.

    Args:
        workers: the session worker, and those that take its place.
    """

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._aborting: set[asyncio.Task[Any]] = set()

    async def resume(self, session: Session, state: bytes | None) -> None:
        """Store a session that begins, in place of what an earlier process stored of it.

        Raises:
            StoreError: writing failed.
            InfraError: no session worker is left.
        """
        await call_again(self._workers, "begin", replace(session, nodes=[]), state)

    def update(self, session: Session, state: bytes | None = None) -> None:
        """Do nothing: what comes in between is sent with the session's end."""

    async def end(self, session: Session) -> None:
        """Store a session as it ended; raises as `resume` does."""
        await call_again(self._workers, "end", session)

    def save_soon(self, session: Session) -> None:
        """Store a session that is aborted with the run, where there is time for it."""
        hold_task(call_again(self._workers, "end", session), self._aborting).add_done_callback(take_error)


async def call_again(workers: Workers, method: str, *arguments: Any) -> Any:
    """Call a session worker, and where it is lost the one that takes its place."""
    pauses = [0.0] * (ATTEMPTS - 1)
    return await retry(lambda: workers.call(method, *arguments, timeout=STORE_SECONDS), WorkerLost, pauses)
