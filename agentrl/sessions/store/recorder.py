"""Records sessions in a store while they are generated, away from the event loop.

A session is stored when it begins, with status OPEN; after each turn its new nodes are appended, and where it is known
the state of its episode; when it has ended all of it is saved, and only that is awaited. A session that would be
played again anyway is stored once, when it has ended. Writing happens on one thread, in order. What comes within
`TOGETHER` seconds of a commit is the next one, which costs a turn less CPU; a kill loses as much.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Container, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any, Protocol

from agentrl import watchdog
from agentrl.errors import InvalidInput
from agentrl.sessions.store.store import Store
from agentrl.sessions.store.writing import Saving, SessionGrowth
from agentrl.sessions.tree.generation import copy_with
from agentrl.types import Session

TOGETHER = 0.02
"""Seconds between two commits: at 250 turns a second one holds about ten writes instead of three."""
AT_ONCE = 0.002
"""Seconds that each waits for what comes at the same time, as a group's sessions do, which begin one after another."""
_CONTAINERS = [field.name for field in fields(Session) if field.default_factory in (dict, list)]


class Records(Protocol):
    """Keeps sessions while they are generated: `Recorder`, or another process's."""

    async def resume(self, session: Session, state: bytes | None) -> None:
        """See `Recorder.resume`."""

    def update(self, session: Session, state: bytes | None = None) -> None:
        """See `Recorder.update`."""

    async def end(self, session: Session) -> None:
        """See `Recorder.end`."""

    def save_soon(self, session: Session) -> object:
        """See `Recorder.save_soon`."""


def snapshot(session: Session, nodes: int | None = None) -> Session:
    """Copy a session that goes on while it waits to be written, so that its status is stored with the nodes before it.

    Args:
        session: the live one; its nodes themselves are shared.
        nodes: how many of its nodes the copy has; None is all.
    """
    copied = {name: getattr(session, name).copy() for name in _CONTAINERS}
    return copy_with(session, **copied | {"nodes": session.nodes[:nodes]})


@dataclass(frozen=True, slots=True)
class _Begun(Saving):
    """A session that begins."""


@dataclass(frozen=True, slots=True)
class _Ended(Saving):
    """A session as it ended."""


_Work = _Begun | SessionGrowth | _Ended
_Done = asyncio.Future[None] | Future[None] | None
_Queued = tuple[_Work, _Done]


class Recorder:
    """Writes a run's sessions; use it as a context manager, which exits when everything is written.

    Args:
        store: where.
        at_end: phases whose sessions are stored only when they have ended: a process that comes after a kill begins
            them anew.
    """

    def __init__(self, store: Store, at_end: Container[str] = ()) -> None:
        self._store, self._at_end = store, at_end
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="agentrl-recorder")
        self._lock = threading.Lock()
        self._queued: list[_Queued] = []
        self._recorded: dict[str, int] = {}
        self._next_commit = 0.0

    async def resume(self, session: Session, state: bytes | None) -> None:
        """Store a session that begins, or goes on from its nodes and its episode's state.

        It replaces what an earlier process stored of this attempt and later ones.

        Raises:
            StoreError: writing failed.
            InvalidInput: the session holds what JSON can't express.
        """
        if session.phase not in self._at_end:
            self._recorded[session.id] = len(session.nodes)
            await self._wait_written(_Begun(snapshot(session), replace=True, state=state))

    def update(self, session: Session, state: bytes | None = None) -> None:
        """Append the nodes that are new since the last call; a failure is raised by `end`, if it fails as well.

        Args:
            session: what was begun.
            state: its episode's, after these nodes; None leaves the one that is stored.
        """
        if session.phase in self._at_end:
            return
        nodes = session.nodes[self._recorded[session.id] :]
        with suppress(InvalidInput):  # what is left out here comes with a later turn, or is refused with the end
            self._put(SessionGrowth.of(session, nodes, state), None)
            self._recorded[session.id] = len(session.nodes)

    async def end(self, session: Session) -> None:
        """Store the session as it ended.

        Raises:
            StoreError: writing failed.
            InvalidInput: the session holds what JSON can't express.
        """
        await self._wait_written(self._whole(session))

    def save_soon(self, session: Session) -> Future[None]:
        """Queue a session to be stored as it is now; for one that is aborted with the run."""
        done: Future[None] = Future()
        done.set_running_or_notify_cancel()  # it is written also where whoever waits for it is cancelled
        self._put(self._whole(session), done)
        return done

    def _whole(self, session: Session) -> _Work:
        self._recorded.pop(session.id, None)
        return _Begun(session, replace=True) if session.phase in self._at_end else _Ended(session)

    def close(self) -> None:
        """Write what is queued; idempotent."""
        self._thread.shutdown()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _wait_written(self, work: _Work) -> None:
        done = asyncio.get_running_loop().create_future()
        self._put(work, done)
        await done

    def _put(self, work: _Work, done: _Done) -> None:
        with self._lock:
            self._queued.append((work, done))
            first = len(self._queued) == 1
        if first:
            self._thread.submit(self._write)

    def _write(self) -> None:
        watchdog.progress()
        time.sleep(max(AT_ONCE, self._next_commit - time.monotonic()))
        self._next_commit = time.monotonic() + TOGETHER
        with self._lock:
            queued, self._queued = self._queued, []
        try:
            with self._store.batch():
                self._write_all([work for work, _ in queued])
        except Exception:  # of one of them: each is written by itself, so that only that one fails
            _settle((done, self._try([work])) for work, done in queued)
        else:
            _settle((done, None) for _, done in queued)

    def _try(self, works: Sequence[_Work]) -> Exception | None:
        try:
            self._write_all(works)
        except Exception as error:
            return error
        return None

    def _write_all(self, works: Sequence[_Work]) -> None:
        for begun, additions, ended in _rounds(works):
            if begun:
                self._store.begin_all(begun)
            if additions:
                self._store.append_all(additions)
            if ended:
                self._store.save_all(ended)


def _rounds(works: Sequence[_Work]) -> Iterator[tuple[list[_Begun], list[SessionGrowth], list[_Ended]]]:
    """Yield the work kind by kind, that of each session in order; only the order among sessions is another one."""
    begun, additions, ended = list[_Begun](), list[SessionGrowth](), list[_Ended]()
    newest: dict[tuple[Any, ...], type[_Work]] = {}
    for work in works:
        session, kind = work.session, type(work)
        same = (session.group, session.sample, session.phase) if session.group else (session.id,)
        before = newest.get(same)
        if before is not None and (before is _Ended or kind is _Begun):  # beginning deletes what came before
            yield begun, additions, ended
            begun, additions, ended, newest = [], [], [], {}
        newest[same] = kind
        if isinstance(work, _Begun):
            begun.append(work)
        elif isinstance(work, SessionGrowth):
            additions.append(work)
        else:
            ended.append(work)
    yield begun, additions, ended


def _settle(results: Iterable[tuple[_Done, Exception | None]]) -> None:
    """Tell those who wait what became of their work: one call for all of an event loop."""
    waiting: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[None], Exception | None]]] = {}
    for done, error in results:
        if isinstance(done, asyncio.Future):
            waiting.setdefault(done.get_loop(), []).append((done, error))
        elif done is not None:
            _set(done, error)
    for loop, some in waiting.items():
        with suppress(RuntimeError):  # it is closed: nobody waits any more
            loop.call_soon_threadsafe(_set_all, some)


def _set_all(results: Iterable[tuple[asyncio.Future[None], Exception | None]]) -> None:
    for done, error in results:
        if not done.done():  # its task was cancelled
            _set(done, error)


def _set(done: asyncio.Future[None] | Future[None], error: Exception | None) -> None:
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
