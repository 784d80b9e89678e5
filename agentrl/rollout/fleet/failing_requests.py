"""Failures of requests, told from failures of their engines.

A prompt that a server can't serve fails wherever it goes, and one that kills its engine would kill them all in turn:
each restart is followed by the same request. So a request has a few attempts, and then it is the request that fails.
What it was is remembered by its prompt, since clients repeat what failed: by a digest (`digest`), since other processes
have requests of their own run, and send no prompts.

When an engine dies, most of the requests on it are not the cause. Their last attempt is therefore made one at a time:
if the engine dies again, only one of them was there.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence, Set

import orjson

from agentrl.errors import EngineError

REMEMBERED = 1024
"""Requests that failed, and prompts under which engines died; the oldest are forgotten first."""
FORGIVEN_AFTER = 600.0
"""Seconds after which a prompt may be tried again."""
Prompt = Callable[[], bytes]
"""Returns a prompt's digest, which is computed where a request has failed: of a long path it takes milliseconds."""
PAUSE = 0.05
"""Seconds before a failed request's second attempt; each further pause is twice as long."""


class FailingRequests:
    """The requests of a fleet that failed.

    Args:
        max_attempts: how often a request may fail, or be on an engine that dies.
    """

    def __init__(self, max_attempts: int) -> None:
        self._max_attempts = max_attempts
        self._deaths: OrderedDict[bytes, dict[int, float]] = OrderedDict()
        self._failures: OrderedDict[str, int] = OrderedDict()
        self._prompts: OrderedDict[str, bytes] = OrderedDict()
        self._failed_on: OrderedDict[str, set[int]] = OrderedDict()
        self._alone = asyncio.Lock()

    def key(self, request_id: str, prompt: Prompt) -> bytes:
        """Return a request's key: the digest of the prompt that it began with, whatever was sampled since."""
        known = self._prompts.get(request_id)
        return prompt() if known is None else known

    def check(self, request_id: str, prompt: Prompt) -> None:
        """Refuse a request whose attempts are used up.

        Raises:
            EngineError: engines died under it lately, too often.
        """
        deaths = self._deaths_of(request_id, prompt)
        if deaths >= self._max_attempts:
            raise EngineError(
                f"request {request_id!r}: {deaths} engines died with this prompt on them (fleet.max_attempts), so no "
                f"other gets it for {FORGIVEN_AFTER:g} s"
            )

    def is_last_attempt(self, request_id: str, prompt: Prompt) -> bool:
        """Return whether this is the last attempt of a request that engines died with."""
        return self._max_attempts > 1 and self._deaths_of(request_id, prompt) == self._max_attempts - 1

    def has_failed(self, request_id: str) -> bool:
        """Return whether an attempt at a request, which may follow, has failed before."""
        return request_id in self._failed_on

    async def begin_last_attempt(self) -> None:
        """Wait until no other last attempt is under way; `done` ends one's own."""
        await self._alone.acquire()

    def end_last_attempt(self) -> None:
        """The last attempt that `turn` began is over."""
        self._alone.release()

    async def failed(self, request_id: str, prompt: Prompt, engine: int, died: bool, why: str) -> None:
        """Note a failed attempt, and pause before the next.

        Args:
            request_id: the request.
            prompt: the digest of what its engine was given; see `digest`.
            engine: which engine (`Member.start`).
            died: whether it died, or lives and only refused.
            why: what it said.

        Raises:
            EngineError: that was the last attempt.
        """
        key = self._prompts[request_id] = self.key(request_id, prompt)
        if died:
            self._deaths.setdefault(key, {})[engine] = time.monotonic()
            self._deaths.move_to_end(key)
        failures = self._failures[request_id] = self._failures.get(request_id, 0) + (not died)
        self._failed_on.setdefault(request_id, set()).add(engine)
        for kept in (self._deaths, self._failures, self._prompts, self._failed_on):
            while len(kept) > REMEMBERED:
                kept.popitem(last=False)
        if max(failures, len(self._deaths.get(key, ()))) >= self._max_attempts:
            self.forget(request_id, succeeded=False)
            raise EngineError(
                f"request {request_id!r} failed {self._max_attempts} times (fleet.max_attempts), lastly: {why}"
            )
        if not died:
            await asyncio.sleep(PAUSE * 2 ** (failures - 1))

    def failed_on(self, request_id: str) -> Set[int]:
        """The engines (`Member.start`) that a request has failed on: its next attempt goes to another."""
        return self._failed_on.get(request_id, frozenset())

    def forget(self, request_id: str, *, succeeded: bool) -> None:
        """The request has ended; `succeeded` forgets what its prompt did before."""
        self._failures.pop(request_id, None)
        self._failed_on.pop(request_id, None)
        key = self._prompts.pop(request_id, None)
        if succeeded and key is not None:
            self._deaths.pop(key, None)

    def _deaths_of(self, request_id: str, prompt: Prompt) -> int:
        if not self._deaths:
            return 0
        engines = self._deaths.get(self.key(request_id, prompt), {})
        oldest = time.monotonic() - FORGIVEN_AFTER
        return sum(at > oldest for at in engines.values())


def digest(input_ids: Sequence[int]) -> bytes:
    """Return a prompt's digest, 16 bytes."""
    return hashlib.blake2b(orjson.dumps(input_ids), digest_size=16).digest()
