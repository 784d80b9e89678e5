"""Writing to the store: on one thread, in order. A turn is written at once, or some milliseconds after the last commit.

A commit costs more than its content: two thread switches, the store's locks, and full pages of its log. So turns that
end soon after one are written together. A process that is killed loses the turns of its last `COMMIT_SECONDS` and the
record that it was writing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from agentrl.errors import StoreError
from agentrl.sessions.gateway.http.api_error import ApiError
from agentrl.sessions.store.store import Store
from agentrl.sessions.store.writing import SessionGrowth
from agentrl.types import Node, Session

T = TypeVar("T")
COMMIT_SECONDS = 0.005
"""Seconds between two commits: less than a restart of the process, more than a turn's own work."""
MOST_UNWRITTEN = 512
"""Additions that may be unwritten before turns wait for the store."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """An addition to a session, and what becomes done when it is written."""

    addition: SessionGrowth
    written: asyncio.Future[None]


class StoreWriter:
    """Writes for a gateway, on whose event loop it is called; a caller that is cancelled doesn't stop a write."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="agentrl-store")
        self._waiting: list[_Waiting] = []
        self._unwritten, self._next_commit = 0, 0.0
        self._keeps_up = asyncio.Event()
        self._keeps_up.set()
        self._closed = False

    async def do(self, work: Callable[[], T]) -> T:
        """Run this after all earlier work."""
        self._write_waiting()
        return await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._thread, work))

    async def keeps_up(self, seconds: float) -> None:
        """Wait while `MOST_UNWRITTEN` additions or more are unwritten, so that a slow store slows its clients.

        Raises:
            ApiError: they are so after that time.
        """
        if self._keeps_up.is_set():
            return
        try:
            async with asyncio.timeout(seconds):
                await self._keeps_up.wait()
        except TimeoutError:
            raise ApiError(503, "the session store can't keep up", "store_busy", retry_after=1) from None

    async def append(self, session: Session, nodes: Sequence[Node], state: bytes | None = None) -> None:
        """Add these nodes to a stored session, and rewrite its head; see `Store.append`.

        Raises:
            StoreError: writing failed, or `close` was called.
            InvalidInput: the session holds what JSON can't express.
        """
        if self._closed:
            raise StoreError(f"session {session.id!r}: the gateway has stopped")
        addition = SessionGrowth.of(session, nodes, state)
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_at(self._next_commit, self._write_waiting)
        waiting = _Waiting(addition, loop.create_future())
        self._waiting.append(waiting)
        self._count(1)
        await waiting.written

    def _count(self, new: int) -> None:
        self._unwritten += new
        if self._unwritten < MOST_UNWRITTEN:
            self._keeps_up.set()
        else:
            self._keeps_up.clear()

    def _write_waiting(self) -> None:
        """Write what has been collected, on the thread."""
        if not self._waiting:
            return
        additions, self._waiting = self._waiting, []
        loop = asyncio.get_running_loop()
        self._next_commit = loop.time() + COMMIT_SECONDS

        def written(writing: asyncio.Future[list[Exception | None]]) -> None:
            self._count(-len(additions))
            for addition, error in zip(additions, writing.result(), strict=True):
                if addition.written.done():  # its caller was cancelled
                    continue
                if error is None:
                    addition.written.set_result(None)
                else:
                    addition.written.set_exception(error)

        loop.run_in_executor(self._thread, self._write, additions).add_done_callback(written)

    def _write(self, additions: Sequence[_Waiting]) -> list[Exception | None]:
        if len(additions) > 1:
            try:
                self._store.append_all([one.addition for one in additions])
                return [None] * len(additions)
            except Exception:
                pass
        return [self._failure(one) for one in additions]

    def _failure(self, waiting: _Waiting) -> Exception | None:
        try:
            self._store.append_all([waiting.addition])
        except Exception as error:
            return error
        return None

    def close(self) -> None:
        """Write what has been collected, and finish the writes in progress; idempotent."""
        self._write_waiting()
        self._closed = True
        self._thread.shutdown()
