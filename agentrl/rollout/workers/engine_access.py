"""The engines of the run's process for other processes: who generates where is decided here, tokens don't pass.

A process asks for a lease (`EngineAccess.lease`), and keeps that question open while it generates a session's turns by
the engine directly. Whatever ends the process ends the lease. What a fleet does for its own requests it does for these:
admission, the count of open requests, the watch for engines that hang, what follows from a failure, and the end of
requests whose engine is lost or put to sleep.

An engine that other processes can't reach (one in the run's own process) generates for them here.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from array import array
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager

from agentrl import cluster, watchdog
from agentrl.cluster import Address
from agentrl.cluster.wire.calls import Listener
from agentrl.errors import AgentRLError, EngineError
from agentrl.rollout.engines.reach import EngineAddress
from agentrl.rollout.episodes.policies import Policy
from agentrl.rollout.fleet.admission import Admission, SharedEngine
from agentrl.rollout.workers.leases import EngineLease, NotReachable
from agentrl.types import Capabilities, Chunk, Engine, Health, PauseMode, Placed, Sampling, Turn, begin_turn


@asynccontextmanager
async def serve_engines(
    engine: Engine, policies: Callable[[], Mapping[str, Policy]]
) -> AsyncIterator[tuple[Address, Capabilities]]:
    """Answer other processes' calls of policies' engines; yields where, and what `engine` is capable of."""
    here, name = cluster.current(), "the run's engines"
    capabilities = await asyncio.to_thread(lambda: engine.capabilities)
    key = secrets.token_bytes(32)
    async with Listener(EngineAccess(policies), name, name, here.host, key, encrypted=here.encrypted) as address:
        yield address, capabilities


class EngineAccess:
    """Engines' calls for other processes; deadlines are in seconds from now, since clocks differ.

    Args:
        policies: those of the run as they are now, by name; past versions come and go.
    """

    def __init__(self, policies: Callable[[], Mapping[str, Policy]]) -> None:
        self._policies = policies

    def _engine(self, policy: str) -> Engine:
        found = self._policies().get(policy)
        if found is None or found.engine is None:
            raise EngineError(f"policy {policy!r} has no engine (any more)")
        return found.engine

    def _admission(self, policy: str) -> Admission:
        engine = self._engine(policy)
        if not isinstance(engine, SharedEngine):
            raise NotReachable(f"the engine of policy {policy!r} is in the run's process")
        return engine.admission

    # ---------------------------------------------------------------------------------------- leases

    async def lease(
        self, policy: str, request_id: str, prompt: bytes, started: int | None, seconds: float | None
    ) -> AsyncGenerator[EngineLease | int | PauseMode, None]:
        """A lease, then what its holder is to be told (`LeasedTicket.notices`), until that closes the stream.

        Args:
            policy: whose engine.
            request_id: the first request; see `Engine.generate`.
            prompt: its digest (`failing_requests.digest`).
            started: likewise.
            seconds: how long it may take to be admitted; None: as long as it takes.

        Raises:
            NotReachable: call `generate` instead.
            AgentRLError: see `Engine.generate`; or the engine is gone.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        admission = self._admission(policy)
        async with admission.leased(request_id, lambda: prompt, deadline, started) as (member, ticket):
            if member.managed.reach is None:
                raise NotReachable(f"{member.name} of policy {policy!r} can't be reached from other processes")
            yield EngineLease(member.name, member.start, member.engine.version(), ticket.single)
            async for notice in ticket.notices():
                yield notice

    def reach(self, policy: str, start: int) -> EngineAddress | None:
        """Return the engine address of a lease; None where the engine is gone."""
        member = self._admission(policy).started_as(start)
        return None if member is None else member.managed.reach

    def knows(self, policy: str, start: int, version: int) -> bool:
        """Return whether the engine of a lease has had a policy version, or is being given it."""
        member = self._admission(policy).started_as(start)
        return member is not None and version in member.versions

    def progressed(self, policy: str, start: int, turns: int) -> None:
        """Tokens came lately from the engine of a lease, and so many turns ended."""
        watchdog.progress()
        member = self._admission(policy).started_as(start)
        if member is not None:
            member.progressed()
            if turns:
                member.succeeded(turns)

    def succeeded(self, policy: str, request_id: str) -> None:
        """The turn of a request that had failed before has come."""
        self._admission(policy).succeeded(request_id)

    async def failed(self, policy: str, start: int, request_id: str, prompt: bytes, error: AgentRLError) -> None:
        """Report a failed request; see `Admission.failed`."""
        watchdog.progress()
        await self._admission(policy).failed(start, request_id, lambda: prompt, error)

    # ------------------------------------------------------------------------------------- everything else

    async def generate(
        self,
        policy: str,
        request_id: str,
        input_ids: array[int],
        sampling: Sampling,
        seconds: float | None,
        attached: Sequence[Placed] = (),
    ) -> AsyncIterator[Chunk | Turn]:
        """Generate a turn, for engines that can't be leased."""
        engine = self._engine(policy)
        deadline = None if seconds is None else time.monotonic() + seconds
        stream = begin_turn(engine, request_id, input_ids.tolist(), sampling, deadline, attached)
        async with aclosing(stream) as items:  # type: ignore[type-var]
            async for item in items:
                yield item

    async def score(self, policy: str, input_ids: Sequence[int], temperature: float) -> list[float]:
        """Return log-probabilities under the policy's engine."""
        return await self._engine(policy).score(input_ids, temperature)

    async def health(self, policy: str) -> Health:
        """Return the health of the policy's engine."""
        return await self._engine(policy).health()
