"""Records sessions in a store while they are generated, away from the event loop.

A session is stored when it begins, with status OPEN; after each turn its new nodes are appended, and where it is known
the state of its episode; when it has ended all of it is saved, and only that is awaited. Writing happens on one thread,
in order. What comes within `TOGETHER` seconds is one commit, which costs a turn less CPU; a kill loses as much.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import groupby
from typing import Protocol

from agentrl import watchdog
from agentrl.sessions.store.query import Between
from agentrl.sessions.store.store import Store
from agentrl.types import Node, Session

TOGETHER = 0.02
"""Seconds that a commit waits for more: at 250 turns a second it holds about ten writes instead of three."""
_CONTAINERS = [field.name for field in fields(Session) if field.default_factory in (dict, list)]


class Records(Protocol):
    """Keeps sessions while they are generated: `Recorder`, or another process's."""

    async def resume(self, session: Session, state: bytes | None) -> None:
        """See `Recorder.resume`."""
        ...

    def update(self, session: Session, state: bytes | None = None) -> None:
        """See `Recorder.update`."""
        ...

    async def end(self, session: Session) -> None:
        """See `Recorder.end`."""
        ...

    def save_soon(self, session: Session) -> object:
        """See `Recorder.save_soon`."""
        ...


def snapshot(session: Session, nodes: int | None = None) -> Session:
    """Copy a session that goes on while it waits to be written, so that its status is stored with the nodes before it.

    Args:
        session: the live one; its nodes themselves are shared.
        nodes: how many of its nodes the copy has; None is all.
    """
    copied = {name: getattr(session, name).copy() for name in _CONTAINERS}
    return replace(session, **copied | {"nodes": session.nodes[:nodes]})


@dataclass(frozen=True, slots=True)
class _Addition:
    """New nodes of a session, with its episode's state after them."""

    session: Session
    nodes: list[Node]
    state: bytes | None


_Work = Callable[[], None]
_Queued = tuple[_Addition | _Work, Future[None] | None]


class Recorder:
    """Writes a run's sessions; use it as a context manager, which exits when everything is written."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="agentrl-recorder")
        self._lock = threading.Lock()
        self._queued: list[_Queued] = []
        self._recorded: dict[str, int] = {}

    async def resume(self, session: Session, state: bytes | None) -> None:
        """Store a session that begins, or goes on from its nodes and its episode's state.

        It replaces what an earlier process stored of this attempt and later ones.

        Raises:
            StoreError: writing failed.
            InvalidInput: the session holds what JSON can't express.
        """
        self._recorded[session.id] = len(session.nodes)
        await asyncio.wrap_future(self._await(partial(self._begin, snapshot(session), state)))

    def update(self, session: Session, state: bytes | None = None) -> None:
        """Append the nodes that are new since the last call; a failure is raised by `end`, if it fails as well.

        Args:
            session: what was begun.
            state: its episode's, after these nodes; None leaves the one that is stored.
        """
        nodes = session.nodes[self._recorded[session.id] :]
        self._recorded[session.id] = len(session.nodes)
        self._put(_Addition(snapshot(session), nodes, state))

    async def end(self, session: Session) -> None:
        """Store the session as it ended.

        Raises:
            StoreError: writing failed.
            InvalidInput: the session holds what JSON can't express.
        """
        await asyncio.wrap_future(self.save_soon(session))

    def save_soon(self, session: Session) -> Future[None]:
        """Store a session as it is now, without queued; for one that is aborted with the run."""
        self._recorded.pop(session.id, None)
        return self._await(partial(self._store.save, session))

    def close(self) -> None:
        """Write what is queued; idempotent."""
        self._thread.shutdown()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self, session: Session, state: bytes | None) -> None:
        same = {"group": session.group, "sample": session.sample, "phase": session.phase}
        with self._store.batch():
            for stale in self._store.ids(**same, attempt=Between(session.attempt)) if session.group else ():
                self._store.delete(stale)
            self._store.save(session, replace=True, state=state)

    def _await(self, work: _Work) -> Future[None]:
        done: Future[None] = Future()
        done.set_running_or_notify_cancel()  # it is written also where whoever waits for it is cancelled
        self._put(work, done)
        return done

    def _put(self, work: _Addition | _Work, done: Future[None] | None = None) -> None:
        with self._lock:
            self._queued.append((work, done))
            first = len(self._queued) == 1
        if first:
            self._thread.submit(self._write)

    def _write(self) -> None:
        watchdog.progress()
        time.sleep(TOGETHER)
        with self._lock:
            queued, self._queued = self._queued, []
        try:
            with self._store.batch():
                for work in self._join(queued):
                    work()
        except Exception:  # of one of them: each is written by itself, so that only that one fails
            for one in queued:
                _run(next(self._join([one])), one[1])
            return
        for _, done in queued:
            if done is not None:
                done.set_result(None)

    def _join(self, queued: list[_Queued]) -> Iterator[_Work]:
        """Yield the queued work in order: additions that follow each other are written with the same statements."""
        for added, some in groupby((work for work, _ in queued), lambda work: isinstance(work, _Addition)):
            if added:
                additions = [work for work in some if isinstance(work, _Addition)]
                yield partial(self._store.append_all, [(one.session, one.nodes, one.state) for one in additions])
            else:
                yield from (work for work in some if not isinstance(work, _Addition))


def _run(work: _Work, done: Future[None] | None) -> None:
    try:
        work()
    except Exception as error:
        if done is not None:
            done.set_exception(error)
    else:
        if done is not None:
            done.set_result(None)
