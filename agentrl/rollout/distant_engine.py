"""The engines of the run's process for other processes: environment workers generate by them over a connection."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from agentrl.cluster import Address, Connection, connect
from agentrl.errors import DeadlineExceeded, EngineError
from agentrl.rollout.policies import Policy
from agentrl.rollout.prompts import Continued, ForgottenPrompt, PromptReceiver, PromptSender
from agentrl.types import MAIN, Capabilities, Chunk, Engine, Health, PauseMode, Sampling, Turn

HEALTH_SECONDS = 60.0


class EngineAccess:
    """Engines' calls for other processes; deadlines are in seconds from now, since clocks differ.

    Args:
        policies: those of the run as they are now, by name; past versions come and go.
    """

    def __init__(self, policies: Callable[[], Mapping[str, Policy]]) -> None:
        self._policies, self._prompts = policies, PromptReceiver()

    def _engine(self, policy: str) -> Engine:
        found = self._policies().get(policy)
        if found is None or found.engine is None:
            raise EngineError(f"policy {policy!r} has no engine (any more)")
        return found.engine

    async def generate(
        self, policy: str, caller: str, request_id: str, prompt: Continued, sampling: Sampling, seconds: float | None
    ) -> AsyncIterator[Chunk | Turn]:
        """See `Engine.generate`.

        Raises:
            ForgottenPrompt: the whole prompt is needed.
        """
        engine = self._engine(policy)
        deadline = None if seconds is None else time.monotonic() + seconds
        input_ids = self._prompts.restored(f"{caller}/{policy}/{session_of(request_id)}", prompt).tolist()
        async with aclosing(engine.generate(request_id, input_ids, sampling, deadline)) as items:  # type: ignore[type-var]
            async for item in items:
                yield item

    async def score(self, policy: str, input_ids: Sequence[int], temperature: float) -> list[float]:
        """See `Engine.score`."""
        return await self._engine(policy).score(input_ids, temperature)

    async def health(self, policy: str) -> Health:
        """See `Engine.health`."""
        return await self._engine(policy).health()


class EngineCalls:
    """A process's connection to an `EngineAccess`, shared by its engines.

    Args:
        address: of the other process.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self._connection: Connection | None = None
        self.prompts, self.caller = PromptSender(), secrets.token_hex(8)

    @property
    def connection(self) -> Connection:
        """The connection, made anew where it has ended."""
        if self._connection is None or self._connection.ended.done():
            self._connection = connect(self._address)
        return self._connection

    def close(self) -> None:
        """Close it. Idempotent."""
        if self._connection is not None:
            self._connection.close()


class DistantEngine:
    """`agentrl.types.Engine` in another process; it only generates and scores.

    Args:
        calls: the connection.
        capabilities: the engine's.
        policy: whose engine it is.
    """

    def __init__(self, calls: EngineCalls, capabilities: Capabilities, policy: str = MAIN) -> None:
        self._calls, self.capabilities, self._policy = calls, capabilities, policy

    async def generate(
        self, request_id: str, input_ids: Sequence[int], sampling: Sampling, deadline: float | None = None
    ) -> AsyncIterator[Chunk | Turn]:
        """Yield chunks, then one `Turn`."""
        seconds = None if deadline is None else deadline - time.monotonic()
        if seconds is not None and seconds <= 0:
            raise DeadlineExceeded(f"request {request_id!r} came after its deadline")
        session, caller = f"{self._policy}/{session_of(request_id)}", self._calls.caller
        for whole in (False, True):
            prompt = self._calls.prompts.shortened(session, input_ids, whole=whole)
            request = (self._policy, caller, request_id, prompt, sampling, seconds)
            items = self._calls.connection.stream("generate", *request, timeout=seconds)
            with contextlib.suppress(ForgottenPrompt):  # before anything was generated
                async with aclosing(items):
                    async for item in items:
                        yield item
                    return

    async def score(self, input_ids: Sequence[int], temperature: float = 1.0) -> list[float]:
        """Log-probability of each token given those before it."""
        connection = self._calls.connection
        found: list[float] = await connection.call("score", self._policy, list(input_ids), temperature, timeout=None)
        return found

    async def health(self) -> Health:
        """The engine's."""
        found: Health = await self._calls.connection.call("health", self._policy, timeout=HEALTH_SECONDS)
        return found

    def version(self) -> int:
        """Unknown here: each turn says which version generated it."""
        return 0

    async def publish(self, weights: Any, version: int) -> None:
        """Weights go to engines from the run's process."""
        raise EngineError("weights are published by the run's process")

    async def pause(self, mode: PauseMode = PauseMode.DRAIN) -> None:
        """See `publish`."""
        raise EngineError("engines are paused by the run's process")

    async def resume(self) -> None:
        """See `publish`."""
        raise EngineError("engines are resumed by the run's process")

    async def close(self) -> None:
        """Close the connection."""
        self._calls.close()


def session_of(request_id: str) -> str:
    """The session that a request is of."""
    return request_id.partition("/")[0]
