"""Several engines behind the interface of one, while engines are added, removed, hang and die.

A request goes to one member (`admission`). Where that member fails, the turn ends as it would for a publication:
with its tokens so far and `FinishReason.ABORT`, and its caller goes on with it, which brings it to another
member. No sampled token is lost, and version spans record which policy sampled it. A request that keeps failing fails
itself (`failing_requests`); a member that fails is closed, restarted, brought to the fleet's version, and only then
used again (`roster`); the others go on meanwhile.

A publication moves all members at once (`weights.publisher`): nothing is admitted from the first pause to the last
resume, so a request never sees two versions unless the mode is one in which running requests go on.

Given up: SGLang's own router; see docs/decisions/archive/065-no-router.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any

from agentrl.config import FleetConfig
from agentrl.errors import ConfigError, EngineError, InvalidInput
from agentrl.rollout.engines.managed import ManagedEngine
from agentrl.rollout.fleet.admission import Admission, Affinity
from agentrl.rollout.fleet.failing_requests import digest
from agentrl.rollout.fleet.member import Member, MemberState, UpdateTarget, is_engine_fault
from agentrl.rollout.fleet.roster import MakeEngine, Roster, build_engines
from agentrl.rollout.fleet.ticket import Ticket
from agentrl.rollout.weights.publisher import Publisher, PublishOutcome
from agentrl.rollout.weights.receiver import LoadCommit
from agentrl.types import Capabilities, Chunk, Engine, Health, PauseMode, Placed, Sampling, Turn

logger = logging.getLogger(__name__)

_REMEMBERED = 4096  # turns that lost their engine
_RUNNING = (MemberState.READY, MemberState.DRAINING, MemberState.OUTDATED)


class Fleet(ManagedEngine):
    """`agentrl.types.Engine` over several engines.

    Args:
        makers: what builds each engine; the first of each is built at once.
        publisher: brings weights to them.
        config: deadlines and limits.

    Attributes:
        outcome: what became of the last publication.
        admission: which engine takes a request, also of other processes.
    """

    def __init__(self, makers: Sequence[Callable[[], Engine]], publisher: Publisher, config: FleetConfig) -> None:
        if not makers:
            raise InvalidInput("a fleet needs at least one engine")
        self.config, self.publisher, self.colocated = config, publisher, config.shared > 0
        self.outcome: PublishOutcome | None = None
        affinity = Affinity(config.max_imbalance)
        self._roster = Roster(config, self._catch_up, affinity.forget)
        members = [self._roster.add(make, engine) for make, engine in zip(makers, build_engines(makers), strict=True)]
        for member in members[: config.shared]:
            member.colocated = True
        self._capabilities = combine_capabilities([member.engine.capabilities for member in members])
        if publisher.mode not in self._capabilities.pause_modes:
            modes = ", ".join(sorted(self._capabilities.pause_modes))
            raise ConfigError(f"weights.mode={publisher.mode}: these engines can't; allowed: {modes}")
        publisher.require_receivers(member.receiver for member in members)
        version = min(member.engine.version() for member in members)
        self.admission = Admission(self._roster, affinity, config, self._drains, version)
        self._aborted: dict[str, int] = {}

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def engines(self) -> dict[str, Member]:
        """The members by name (a copy)."""
        return dict(self._roster.members)

    @property
    def attached(self) -> bool:  # type: ignore[override]
        """True where some engine's server was running before."""
        return any(member.managed.attached for member in self._roster.members.values())

    @property
    def lost(self) -> int:
        """The number of engines lost so far."""
        return self._roster.lost

    async def start(self) -> None:
        """Wait until every engine is ready, or has been given up; what comes first need not wait for that."""
        self._roster.begin()
        async with self._roster.changed:
            await self._roster.changed.wait_for(
                lambda: not self._roster.in_state(MemberState.STARTING, MemberState.LOST)
            )
        self._roster.require_any()
        ready = self._roster.in_state(MemberState.READY)
        if self.publisher.version is None and ready:  # servers that ran before us have a version already
            self.admission.version = min(member.engine.version() for member in ready.values())

    async def add(self, make: MakeEngine) -> str:
        """Take on another engine while the rest goes on; returns its name. It is used as soon as it is ready."""
        return await self._roster.add_running(make)

    async def drain(self, name: str) -> None:
        """Give an engine nothing new, and wait until it has finished what it has."""
        await self._roster.drain(name)

    async def remove(self, name: str) -> None:
        """Drain an engine, close and forget it."""
        await self._roster.remove(name)

    # -------------------------------------------------------------------------------------- generating

    async def generate(
        self,
        request_id: str,
        input_ids: Sequence[int],
        sampling: Sampling,
        deadline: float | None = None,
        attached: Sequence[Placed] = (),
    ) -> AsyncIterator[Chunk | Turn]:
        """Yield chunks, then one `Turn`; see `agentrl.types.Engine.generate`.

        A turn whose engine was lost ends with `FinishReason.ABORT` and its tokens so far; going on with it, under the
        same `request_id`, continues it elsewhere.
        """
        prompt, started = partial(digest, input_ids), self._aborted.pop(request_id, None)
        while True:
            ticket, succeeded = Ticket(request_id), False
            async with self.admission.attempt(request_id, prompt, deadline, started) as member:
                async with aclosing(member.generate(ticket, input_ids, sampling, deadline, attached)) as items:
                    async for item in items:
                        yield item
                succeeded = True
            if succeeded:
                return
            if ticket.token_ids:
                self._aborted[request_id] = ticket.versions[-1].version
                while len(self._aborted) > _REMEMBERED:
                    del self._aborted[next(iter(self._aborted))]
                yield ticket.aborted()
                return

    async def score(self, input_ids: Sequence[int], temperature: float = 1.0) -> list[float]:
        """Log-probability of each token given those before it, by any engine; EngineError where several fail."""
        for _ in range(self._roster.config.max_attempts):
            scored = await self._score(await self.admission.admit("score", None), input_ids, temperature)
            if scored is not None:
                return scored
        raise EngineError(f"no engine scored a prompt of {len(input_ids)} tokens (fleet.max_attempts)")

    def unrecorded(self, sampling: Sampling) -> str:
        ready = self._roster.in_state(MemberState.READY).values()
        return next(filter(None, (member.managed.unrecorded(sampling) for member in ready)), "")

    async def scores(self, input_ids: Sequence[int], temperature: float = 1.0) -> dict[str, list[float]]:
        """Return `score` by every engine that is in use, to compare them; one that fails meanwhile is left out."""
        ready = self._roster.in_state(MemberState.READY)
        found = await asyncio.gather(*(self._score(member, input_ids, temperature) for member in ready.values()))
        return {name: scored for name, scored in zip(ready, found, strict=True) if scored is not None}

    async def _score(self, member: Member, input_ids: Sequence[int], temperature: float) -> list[float] | None:
        """The engine's answer; None where it fails, or hangs for `weights.timeout` seconds and is given up."""
        try:
            async with asyncio.timeout(self.publisher.timeout):
                return await member.engine.score(input_ids, temperature)
        except TimeoutError:
            await self._roster.lose(member, f"no log-probabilities within {self.publisher.timeout:g} s")
        except EngineError as error:
            if not is_engine_fault(error) or self._roster.closed:
                raise
            await self._roster.report_failure(member, error, b"score")
        return None

    async def checksums(self) -> dict[str, str]:
        """Each engine's digest of its weights: as the last publication compared them, else as it answers now."""
        if self.outcome is not None and self.outcome.version == self.admission.version and self.outcome.checksums:
            return dict(self.outcome.checksums)
        ready = self._roster.in_state(MemberState.READY)
        sums = await asyncio.gather(*(member.checksum(self.publisher.timeout) for member in ready.values()))
        return dict(zip(ready, sums, strict=True))

    # ----------------------------------------------------------------------------------------- weights

    async def publish(self, weights: Iterable[tuple[str, Any]], version: int) -> None:
        """Move every engine to policy `version` and let it generate; those that could not follow are started anew.

        Where every engine was lost on the way, the first ones to come back are sent it again, once.

        Raises:
            EngineError: the weights do not fit the model (nothing was changed), or no engine took them.
        """
        roster = self._roster
        roster.begin()
        await roster.wait(*_RUNNING)
        async with roster.moving:
            await self.publisher.stage(weights, version)
            outcome = await self._send(version)
        if not outcome.done and not outcome.refused:
            await roster.wait(*_RUNNING)
            async with roster.moving:
                outcome = await self._send(version)
        if not outcome.done:
            errors = {**outcome.refused, **outcome.broken}
            reasons = "; ".join(f"{name}: {error}" for name, error in errors.items())
            cause = next(iter(errors.values()), None)  # the death of a trainer whose weights were read, say
            raise EngineError(f"version {version} reached no engine: {reasons}") from cause

    async def _send(self, version: int) -> PublishOutcome:
        """Send the staged version to every engine that runs; who doesn't have it is started anew.

        Where no engine has it, those that refused it go on with what they had.
        """
        self.admission.paused = True
        try:
            targets = {name: UpdateTarget(member, version) for name, member in self._roster.in_state(*_RUNNING).items()}
            outcome = self.outcome = await self.publisher.send(targets, version)
            for name in outcome.done:
                self.admission.version = version
                if targets[name].member.state is MemberState.OUTDATED:
                    targets[name].member.state = MemberState.READY
        finally:
            self.admission.paused = False
            await self._roster.notify()
        lost = {**outcome.refused, **outcome.broken} if outcome.done else outcome.broken
        for name, error in lost.items():
            if not targets[name].lost:
                await self._roster.lose(targets[name].member, f"it does not have version {version}: {error}")
        return outcome

    async def _catch_up(self, member: Member) -> MemberState:
        """Bring a new engine to the fleet's version; OUTDATED where nothing is kept to do it with."""
        if self.publisher.version is None or member.engine.version() == self.admission.version:
            return MemberState.READY
        folder = await self.publisher.folder()
        if folder is None:
            return MemberState.OUTDATED
        await member.pause(PauseMode.RETRACT)
        await member.receiver.load_folder(folder, LoadCommit(self.admission.version, flush=True))
        await member.resume(self.admission.version)
        return MemberState.READY

    async def pause(self, mode: PauseMode = PauseMode.DRAIN) -> None:
        self._roster.begin()
        await self._roster.wait(*_RUNNING)
        self.admission.paused = True
        for member in self._running():
            try:
                await member.pause(mode)
                member.updating = False
            except EngineError as error:
                await self._roster.lose(member, f"it did not pause: {error}")

    async def resume(self) -> None:
        for member in self._running():
            try:
                await member.resume(None)
            except EngineError as error:
                await self._roster.lose(member, f"it did not resume: {error}")
        self.admission.paused = False
        await self._roster.notify()

    async def sleep(self, tags: Sequence[str] = ("weights", "kv_cache")) -> None:
        """Have the colocated engines give their memory back, for a trainer on the same devices; the others go on.

        Their requests finish first with weights.mode=drain, where a turn is of one version; else others continue them.
        """
        self._roster.begin()
        if self._roster.gpus_free.is_set():  # those that are lost later wait for it to be started anew
            await self._roster.wait(*_RUNNING)
            self._roster.gpus_free.clear()
        awake = [member for member in self._running() if member.colocated and not member.asleep]
        for member in awake:
            await self._roster.set(member, MemberState.OUTDATED)
        await asyncio.gather(*(self._put_to_sleep(member, tags) for member in awake))

    async def _put_to_sleep(self, member: Member, tags: Sequence[str]) -> None:
        mode = PauseMode.DRAIN if self._drains() else PauseMode.ABORT
        try:
            async with asyncio.timeout(self.publisher.timeout):
                await member.sleep(mode, tags)
        except TimeoutError:
            await self._roster.lose(member, f"it kept its memory for {self.publisher.timeout:g} s (weights.timeout)")
        except EngineError as error:
            await self._roster.lose(member, f"it did not give its memory back: {error}")

    async def wake(self, tags: Sequence[str] = ("weights", "kv_cache")) -> None:
        """Take the memory again. Weights come back empty: what must come next is `publish`, which ends the pause."""
        for member in self._running():
            await member.wake(tags)
        self._roster.gpus_free.set()

    def _drains(self) -> bool:
        return self.publisher.mode is PauseMode.DRAIN

    def _running(self) -> list[Member]:
        return list(self._roster.in_state(*_RUNNING).values())

    # ---------------------------------------------------------------------------------------- its state

    def version(self) -> int:
        return self.admission.version

    async def health(self) -> Health:
        """Return whether any engine takes requests, all open ones (leases too), and what is wrong with the others."""
        members = self._roster.members.values()
        usable = self._roster.in_state(MemberState.READY, MemberState.DRAINING)
        wrong = [f"{m.name} {m.state.value}: {m.reason}" for m in members if m.name not in usable]
        detail = "closed" if self._roster.closed else "; ".join(wrong)
        running, gone = sum(len(member.open) for member in members), self._roster.gone
        if gone:
            detail = self._roster.reasons()
        return Health(ok=bool(usable) and not self._roster.closed, running=running, detail=detail, gone=gone)

    async def close(self) -> None:
        await self._roster.close()
        await self.publisher.close()


def combine_capabilities(each: Sequence[Capabilities]) -> Capabilities:
    """Return what all engines can promise; InvalidInput where they serve different models."""
    if len({capabilities.vocab_size for capabilities in each}) > 1:
        raise InvalidInput("the engines of a fleet must serve the same model: their vocabularies differ")
    return replace(
        each[0],
        max_context=min(c.max_context for c in each),
        deterministic=all(c.deterministic for c in each),
        score=all(c.score for c in each),
        json_schema=all(c.json_schema for c in each),
        lark=all(c.lark for c in each),
        attachments=frozenset.intersection(*(c.attachments for c in each)),
        inputs=frozenset.intersection(*(c.inputs for c in each)),
        pause_modes=frozenset.intersection(*(c.pause_modes for c in each)),
    )
