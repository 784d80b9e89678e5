"""The gateway without HTTP: sessions and their keys, opened, found, rewarded, closed, sealed, reopened.

A training run uses this object in its own process; the web application is a thin layer over it. Open sessions
are in memory and in the store; sealed ones are in the store alone, so memory is bounded by what is open.
All of it runs on one event loop; writing happens on one thread, in order, and is awaited.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from agentrl.common.concurrency import hold_task
from agentrl.errors import DeadlineExceeded, InvalidInput, StoreError
from agentrl.sessions.gateway import rewards
from agentrl.sessions.gateway.entries import SessionEntry, Speaker
from agentrl.sessions.gateway.exchange import Parts
from agentrl.sessions.gateway.http.api_error import ApiError
from agentrl.sessions.gateway.limits import Limits
from agentrl.sessions.gateway.replies.kept import Replies
from agentrl.sessions.gateway.rewards import CloseBody, RewardBody
from agentrl.sessions.gateway.schedule import RecordedOrder
from agentrl.sessions.gateway.session_state import SessionState
from agentrl.sessions.gateway.writer import StoreWriter
from agentrl.sessions.store.recorder import snapshot
from agentrl.sessions.store.store import Store
from agentrl.types import AGENT, RewardState, Session, Status

T = TypeVar("T")
SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class Access:
    """A client's access to a session, besides the gateway's address."""

    id: str
    api_key: str


class Gateway:
    """Sessions for HTTP clients.

    Args:
        parts: the engine, the renderer and the limits.
        store: where the sessions are kept.
        model: the name under which the model is listed.
        secret: sessions' keys are derived from it; None makes a new one, so that keys are valid for this process only.
        score: sets a closed session's rewards, or its error, where its client gave none.

    Attributes:
        closing: called as it stops.
        entries: the sessions in memory, by their id: open ones, and closed ones that wait for their rewards.
        schedules: the recorded order of sessions that are to be run again, by their id; `open` takes it from here.
        jobs: replies that are made in the background.
    """

    def __init__(
        self,
        parts: Parts,
        store: Store,
        model: str = "agentrl",
        secret: bytes | None = None,
        score: Callable[[Session], Awaitable[None]] | None = None,
    ) -> None:
        self.parts, self.store, self.model, self._score = parts, store, model, score
        self._secret, self._reopens = secret or secrets.token_bytes(SECRET_BYTES), secret is not None
        self.in_flight = 0
        self.begun = 0
        self.closing: list[Callable[[], Awaitable[None]]] = []
        self.schedules: dict[str, RecordedOrder] = {}
        self.entries: dict[str, SessionEntry] = {}
        self._writer = StoreWriter(store)
        self._sealing: set[asyncio.Task[None]] = set()
        self._scoring: set[asyncio.Task[None]] = set()
        self.jobs: set[asyncio.Task[None]] = set()

    @property
    def open_sessions(self) -> int:
        """Sessions that are in memory: open ones, and closed ones that wait for their rewards."""
        return len(self.entries)

    # -------------------------------------------------------------------------------------- opening

    async def open(
        self, session: Session, limits: Limits | None = None, speakers: Mapping[str, Speaker] | None = None
    ) -> Access:
        """Open a new session; it is stored before this returns.

        Args:
            session: it.
            limits: how its requests are read; None is as all others are.
            speakers: answer its requests, as in `SessionEntry`; None is the gateway's own policy.

        Raises:
            ApiError: too many sessions are open.
            InvalidInput: the session is open here already, or its id can't be part of a URL.
        """
        if len(self.entries) >= self.parts.limits.sessions:
            raise ApiError(429, f"{len(self.entries)} sessions are open", "too_many_sessions", retry_after=5)
        if session.id in self.entries:
            raise InvalidInput(f"session_id={session.id!r} is open already")
        if not session.id or not all(c.isalnum() or c in "-_.~" for c in session.id):
            raise InvalidInput(f"session_id={session.id!r} can't be part of a URL: use letters, digits, '-', '_', '.'")
        session.nonce, session.reward_state = secrets.token_hex(16), RewardState.PENDING
        session.started = session.started or time.time()
        self._add_entry(session, limits, speakers)
        await self.write(lambda: self.store.save(session, replace=True))
        return Access(session.id, self._key(session.id, session.nonce))

    def _key(self, session_id: str, nonce: str) -> str:
        """A session's key, derived from the gateway's secret, so that the store need not keep it.

        It holds the session's nonce: a key is compared before anything is read from the store for it.
        """
        mac = hmac.new(self._secret, f"{session_id} {nonce}".encode(), hashlib.sha256)
        return f"sk-{nonce}-{mac.hexdigest()}"

    def _by_key(self, session_id: str, key: str) -> Session:
        nonce = key.removeprefix("sk-").partition("-")[0]
        if not hmac.compare_digest(self._key(session_id, nonce).encode(), key.encode()):
            raise _no_such_session()
        session = self._find_stored(session_id)
        if session is None or session.nonce != nonce:
            raise _no_such_session()
        return session

    def _add_entry(
        self, session: Session, limits: Limits | None = None, speakers: Mapping[str, Speaker] | None = None
    ) -> SessionEntry:
        state = SessionState(session, schedule=self.schedules.pop(session.id, None), by_agent=bool(speakers))
        speakers = speakers or {AGENT: Speaker(self.parts, limits or self.parts.limits)}
        entry = SessionEntry(state, speakers, key=self._key(session.id, session.nonce).encode())
        entry.state.stored = len(session.nodes)
        self.entries[session.id] = entry
        if session.status is Status.OPEN:
            self._schedule(entry, self.parts.limits.session_timeout, self._expire)
        else:
            closed = max(time.time() - (session.ended or 0.0), 0.0)  # a clock that was set back makes no deadline later
            self._await_rewards(entry, self.parts.limits.reward_deadline - closed)
        return entry

    def entry(self, session_id: str, key: str) -> SessionEntry:
        """The session of an id and its key; after a restart it is loaded from the store.

        Raises:
            ApiError: the key is not this session's, or the session is sealed.
        """
        entry = self.entries.get(session_id)
        if entry is None:
            session = self._by_key(session_id, key)
            if session.reward_state is RewardState.SEALED:
                raise ApiError(410, f"session {session_id!r} is sealed", "session_sealed")
            entry = self._add_entry(session)
            entry.state.retries.reopened = time.monotonic()
            if self._reopens and (stored := self.store.state(session_id)) is not None:
                entry.state.replies = Replies.unpacked(stored)
            return entry
        if not hmac.compare_digest(entry.key, key.encode()):
            raise _no_such_session()
        return entry

    def read(self, session_id: str, key: str) -> Session:
        """The session's tree, sealed or not; ApiError where the key is not this session's."""
        entry = self.entries.get(session_id)
        if entry is None:
            return self._by_key(session_id, key)
        if not hmac.compare_digest(entry.key, key.encode()):
            raise _no_such_session()
        return entry.state.session

    def _find_stored(self, session_id: str) -> Session | None:
        try:
            session = self.store.load(session_id)
        except InvalidInput:
            return None
        return session if session.nonce else None

    # ---------------------------------------------------------------------------------------- ending

    async def reward(self, session_id: str, key: str, body: RewardBody) -> Session:
        """Give a reward, before or after the close.

        Raises:
            ApiError: wrong key, sealed session, unknown turn, or another value was given before.
        """
        entry = self.entry(session_id, key)
        final = rewards.add_reward(entry.state, body)
        return await self._after_reward(entry, final)

    async def close(self, session_id: str, key: str, body: CloseBody | None = None) -> Session:
        """End a session; a repeated call changes nothing, but may add rewards.

        Raises:
            ApiError: wrong key, sealed session, or a contradicting reward.
        """
        entry = self.entry(session_id, key)
        return await self._close(entry, body or CloseBody())

    async def finish(self, session_id: str, body: CloseBody) -> Session:
        """Close and seal a session of this process at once, whatever was rewarded.

        Raises:
            InvalidInput: no such session is open.
        """
        entry = self.entries.get(session_id)
        if entry is None:
            raise InvalidInput(f"session_id={session_id!r} is not open")
        await self._close(entry, body)
        await self._seal(entry)
        return entry.state.session

    async def sealed(self, session_id: str, timeout: float) -> Session:
        """Wait until a session is sealed; DeadlineExceeded where it was not within `timeout` seconds."""
        entry = self.entries.get(session_id)
        if entry is None:
            return self.store.load(session_id)
        try:
            async with asyncio.timeout(timeout):
                await entry.sealed.wait()
        except TimeoutError:
            raise DeadlineExceeded(f"session {session_id!r} was not sealed within {timeout:g} s") from None
        return entry.state.session

    async def _close(self, entry: SessionEntry, body: CloseBody) -> Session:
        session = entry.state.session
        was_open = session.status is Status.OPEN
        complete = rewards.end(entry.state, body)
        if was_open:
            session.ended = time.time()
            for pending in list(entry.state.pending):
                session.count("gateway/unanswered")
                pending.cancel()
            self.parts.exclusion.apply(session, by_agent=entry.state.by_agent)
            self._await_rewards(entry, self.parts.limits.reward_deadline)
        return await self._after_reward(entry, complete)

    def _await_rewards(self, entry: SessionEntry, seconds: float) -> None:
        """Seal a closed session after so many seconds, or as soon as its rewards are computed here."""
        session = entry.state.session
        counts = session.status not in (Status.ABORTED, Status.INFRA_ERROR)
        if self._score is not None and counts and session.reward is None:
            self._schedule(entry, 0.0, partial(self._score_soon, self._score))
        else:
            self._schedule(entry, seconds, self._seal_soon)

    def _score_soon(self, score: Callable[[Session], Awaitable[None]], entry: SessionEntry) -> None:
        hold_task(self._score_entry(score, entry), self._scoring)

    async def _score_entry(self, score: Callable[[Session], Awaitable[None]], entry: SessionEntry) -> None:
        """Compute a closed session's rewards, and seal it; what its client gives meanwhile goes first."""
        session = entry.state.session
        scored = replace(session)
        await score(scored)
        if entry.sealed.is_set():
            return
        if session.reward is None:
            session.reward, session.rewards, session.agent_rewards = scored.reward, scored.rewards, scored.agent_rewards
            session.status, session.error = scored.status, scored.error
        if session.reward is not None or session.status is Status.INFRA_ERROR:
            await self._seal(entry)
        else:
            self._schedule(entry, self.parts.limits.reward_deadline, self._seal_soon)

    async def _after_reward(self, entry: SessionEntry, complete: bool) -> Session:
        session = entry.state.session
        if complete and session.status is not Status.OPEN:
            await self._seal(entry)
        else:
            await self.write(_saving(self.store, entry.state))
        return session

    async def _seal(self, entry: SessionEntry) -> None:
        session = entry.state.session
        if entry.sealed.is_set():
            return
        session.reward_state = RewardState.SEALED
        if entry.timer is not None:
            entry.timer.cancel()
        entry.sealed.set()
        await self.write(_saving(self.store, entry.state))
        self.entries.pop(session.id, None)

    def _seal_soon(self, entry: SessionEntry) -> None:
        hold_task(self._seal(entry), self._sealing)

    def _expire(self, entry: SessionEntry) -> None:
        end = CloseBody(status=Status.ABORTED, error="the session was not closed before session_timeout")
        hold_task(self._end(entry, end), self._sealing)

    async def _end(self, entry: SessionEntry, body: CloseBody) -> None:
        await self._close(entry, body)
        await self._seal(entry)

    def _schedule(self, entry: SessionEntry, seconds: float, then: Callable[[SessionEntry], None]) -> None:
        if entry.timer is not None:
            entry.timer.cancel()
        entry.timer = asyncio.get_running_loop().call_later(max(0.0, seconds), then, entry)

    # --------------------------------------------------------------------------------------- storing

    async def store_keeps_up(self, seconds: float) -> None:
        """Wait while too many turns are unwritten; see `StoreWriter.keeps_up`."""
        await self._writer.keeps_up(seconds)

    async def save(self, state: SessionState) -> None:
        """Write new nodes, counters and replies."""
        counted = state.counters_changed()
        nodes = state.unstored()
        kept = state.replies.unstored() if self._reopens and state.session.status is Status.OPEN else None
        if not nodes and not counted and kept is None:
            return
        try:
            await self._writer.append(state.session, nodes, kept)
        except StoreError as error:
            state.broken = str(error)
            raise

    async def write(self, work: Callable[[], T]) -> T:
        """Run `work` on the store's thread, after all earlier work; cancelling the caller doesn't stop it."""
        return await self._writer.do(work)

    async def aclose(self) -> None:
        """Stop: requests in progress are aborted, open sessions stay open in the store; idempotent."""
        for scoring in list(self._scoring):
            scoring.cancel()  # sessions that are closed and not sealed are scored when they are next read
        await asyncio.gather(*self._scoring, return_exceptions=True)
        for entry in self.entries.values():
            if entry.timer is not None:
                entry.timer.cancel()
            for pending in list(entry.state.pending):
                pending.cancel()
        await asyncio.gather(*self.jobs, return_exceptions=True)
        for entry in list(self.entries.values()):
            await self.write(_saving(self.store, entry.state))
        self.entries.clear()
        self._writer.close()
        for close in self.closing:
            await close()


def _no_such_session() -> ApiError:
    how = "send the api_key that opening it returned, as 'Authorization: Bearer KEY' or x-api-key"
    return ApiError(401, f"no such session, or the key is not its own: {how}", "invalid_api_key")


def _saving(store: Store, state: SessionState) -> Callable[[], None]:
    """Writes the session as it is now, without nodes that are yet to be written."""
    return partial(store.save, snapshot(state.session, state.stored))


def persistent_secret(store: Path) -> bytes:
    """The secret in a file next to a store, readable by its owner alone.

    With it a gateway that is restarted on the store accepts the keys of the previous one.

    Raises:
        StoreError: the file does not have the secret's length; keys of a shorter one could be guessed.
    """
    file = store.with_name(f"{store.name}.secret")
    with contextlib.suppress(FileExistsError):
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as new:
            new.write(secrets.token_bytes(SECRET_BYTES))
            new.flush()
            os.fsync(descriptor)
    secret = file.read_bytes()
    if len(secret) != SECRET_BYTES:
        raise StoreError(
            f"{file} has {len(secret)} bytes, not {SECRET_BYTES}: it is damaged; remove it, which ends the keys of "
            "sessions that are open"
        )
    return secret
