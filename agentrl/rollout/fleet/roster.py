"""The members of a fleet: started, probed, lost, restarted, added and removed while a run goes on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from agentrl.common.concurrency import hold_task
from agentrl.config import FleetConfig
from agentrl.errors import AgentRLError, EngineError, InvalidInput, brief
from agentrl.rollout.fleet.member import Member, MemberState
from agentrl.rollout.fleet.ticket import InvalidEngineOutput
from agentrl.types import Engine

logger = logging.getLogger(__name__)

MakeEngine = Callable[[], Engine]
"""Builds an engine; called again, in a thread, whenever that engine must be started anew."""
_BACKOFF = 30.0  # seconds at most between two starts of one engine
_CLOSED = "the fleet is closed"


def build_engines(makers: Sequence[Callable[[], Engine]]) -> list[Engine]:
    """Engines that can say what they promise. They load at the same time; one that dies meanwhile is built again.

    Raises:
        EngineError: that one died as well.
    """
    engines = [make() for make in makers]
    for index, engine in enumerate(engines):
        try:
            _ = engine.capabilities
        except EngineError as error:
            logger.warning("engine-%d is started anew: %s", index, brief(str(error)))
            engines[index] = makers[index]()
    return engines


async def _build(make: MakeEngine, wanted: Callable[[], bool]) -> Engine | None:
    """Build an engine in a thread; one that is not wanted any more once it is there is closed: None.

    A thread can't be cancelled: a server that it starts would outlive its fleet. So a canceller waits for it.
    """
    building = asyncio.ensure_future(asyncio.to_thread(make))
    try:
        engine = await asyncio.shield(building)
    except asyncio.CancelledError:
        await asyncio.wait([building])
        if not building.cancelled() and building.exception() is None:
            await building.result().close()
        raise
    if wanted():
        return engine
    await engine.close()
    return None


class Roster:
    """The members, and the tasks that supervise them.

    Args:
        config: deadlines and limits.
        catch_up: brings a new engine to the fleet's version and returns its state.
        on_lost: called with the name of a member that has lost its cache.

    Attributes:
        members: by name.
        changed: notified whenever a member's state changes, and of requests' ends where `drain` waits for them.
        moving: held while versions change, so that no member comes into use half-way.
        lost: how often a member was lost.
        gpus_free: set while the trainer does not compute on the GPUs that it shares with colocated members.
    """

    def __init__(
        self, config: FleetConfig, catch_up: Callable[[Member], Awaitable[MemberState]], on_lost: Callable[[str], None]
    ) -> None:
        self.config, self._catch_up, self._on_lost = config, catch_up, on_lost
        self.members: dict[str, Member] = {}
        self.changed, self.moving = asyncio.Condition(), asyncio.Lock()
        self.gpus_free = asyncio.Event()
        self.gpus_free.set()
        self.lost, self.closed, self._begun, self._numbers, self._draining = 0, False, False, 0, 0
        self._makers: dict[str, MakeEngine] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, make: MakeEngine, engine: Engine) -> Member:
        """A new member, not supervised yet."""
        name = f"engine-{self._numbers}"
        self._numbers += 1
        self._makers[name] = make
        member = self.members[name] = Member(name, engine, self.config)
        return member

    def begin(self) -> None:
        """Supervise the members, once there is an event loop; EngineError where all is closed."""
        if self.closed:
            raise EngineError(_CLOSED)
        if not self._begun:
            self._begun = True
            for member in self.members.values():
                self._supervise(member)

    async def add_running(self, make: MakeEngine) -> str:
        """Add another engine while the rest goes on; returns its name. It is used as soon as it is ready."""
        self.begin()
        engine = await _build(make, lambda: not self.closed)
        if engine is None:
            raise EngineError(_CLOSED)
        member = self.add(make, engine)
        self._supervise(member)
        return member.name

    async def drain(self, name: str) -> None:
        """Give an engine nothing new, and wait until it has finished what it has."""
        member = self._find(name)
        await self.set(member, MemberState.DRAINING)
        member.recall()
        self._draining += 1
        try:
            async with self.changed:
                await self.changed.wait_for(lambda: not member.open or member.state is not MemberState.DRAINING)
        finally:
            self._draining -= 1

    async def remove(self, name: str) -> None:
        """Drain an engine, close and forget it."""
        await self.drain(name)
        member = self.members.pop(name)
        del self._makers[name]
        await self.set(member, MemberState.STOPPED)
        await member.close()

    def _find(self, name: str) -> Member:
        if name not in self.members:
            raise InvalidInput(f"no engine is called {name!r}; there are {', '.join(self.members)}")
        return self.members[name]

    def in_state(self, *states: MemberState) -> dict[str, Member]:
        """The members in one of these states."""
        return {name: member for name, member in self.members.items() if member.state in states}

    async def wait(self, *states: MemberState) -> None:
        """Wait until a member is in one of these states.

        Raises:
            EngineError: none ever will be: all of them were given up.
        """
        async with self.changed:
            await self.changed.wait_for(lambda: self.closed or (self.require_any() and bool(self.in_state(*states))))
        self.begin()

    def require_any(self) -> bool:
        """True as long as a member is left; EngineError where all members were given up; with the reasons."""
        if self.gone:
            raise EngineError(self.reasons())
        return True

    @property
    def gone(self) -> bool:
        """True where all members were given up."""
        return all(member.state is MemberState.STOPPED for member in self.members.values())

    def reasons(self) -> str:
        """Say why no member is left, each reason once."""
        reasons: dict[str, list[str]] = {}
        for member in self.members.values():
            reasons.setdefault(brief(member.reason), []).append(member.name)
        lines = [f"{', '.join(names)}: {reason}" for reason, names in reasons.items()]
        return "\n".join(["no engine is left, and none could be started:", *lines])

    async def set(self, member: Member, state: MemberState) -> None:
        """Change a member's state."""
        async with self.changed:
            member.state = state
            self.changed.notify_all()

    async def request_ended(self) -> None:
        """Let `drain` look again; requests that wait to be admitted, thousands perhaps, are not woken up for it."""
        if self._draining:
            await self.notify()

    async def notify(self) -> None:
        """Wake up the tasks that wait for a change."""
        async with self.changed:
            self.changed.notify_all()

    # ---------------------------------------------------------------------------------- coming and going

    def _supervise(self, member: Member) -> None:
        hold_task(self._bring_up(member), self._tasks)
        hold_task(self._watch(member), self._tasks)

    async def _bring_up(self, member: Member) -> None:
        try:
            await member.managed.start()
            async with self.moving:
                await self.set(member, await self._catch_up(member))
            member.served = True
            for other in self.members.values():
                other.recall()  # their sessions may go to it with the next turn
        except AgentRLError as error:
            await self.lose(member, f"it did not start: {error}")

    async def _watch(self, member: Member) -> None:
        while member.state is not MemberState.STOPPED:
            await asyncio.sleep(self.config.probe_every)
            if member.state in (MemberState.READY, MemberState.DRAINING, MemberState.OUTDATED):
                await self.probe(member)
            if member.state is MemberState.READY:
                member.regain_restart()

    async def probe(self, member: Member) -> None:
        """Probe a member; lose it where something is wrong."""
        engine = member.engine
        wrong = await member.find_fault()
        if wrong and engine is member.engine:
            await self.lose(member, wrong)

    async def report_failure(self, member: Member, error: AgentRLError, request: bytes) -> None:
        """Start the engine anew after a failed request, or let it try again where it seems healthy.

        One request that fails over and over is no evidence against an engine that generates a probe's token.
        """
        if member.state not in (MemberState.READY, MemberState.DRAINING):
            return
        engine = member.engine
        member.failed_requests.add(request)
        member.failures += 1
        many = member.failures >= self.config.max_failures
        wrong = isinstance(error, InvalidEngineOutput) or len(member.failed_requests) >= self.config.max_failures
        if wrong or (many and not await member.generates()):
            if engine is member.engine:
                await self.lose(member, str(error))
        else:
            await self.probe(member)

    async def lose(self, member: Member, reason: str) -> None:
        """Take an engine out of service, end its requests, and start it anew."""
        if member.state in (MemberState.LOST, MemberState.STOPPED):
            return
        self.lost += 1
        logger.warning("%s is lost: %s", member.name, brief(reason))
        member.lose(reason)
        self._on_lost(member.name)
        hold_task(self._restart(member), self._tasks)
        await self.notify()

    async def _restart(self, member: Member) -> None:
        await member.close()
        while member.restarts < self._restarts(member):
            await asyncio.sleep(min(2.0**member.restarts - 1, _BACKOFF))
            member.restarts += 1
            if member.colocated:
                await self.gpus_free.wait()
            if member.name not in self._makers:  # removed meanwhile
                return
            try:
                engine = await _build(self._makers[member.name], lambda: member.name in self._makers)
            except AgentRLError as error:
                member.reason = f"it could not be built: {error}"
                continue
            if engine is None:
                return
            member.set_engine(engine)
            await self.set(member, MemberState.STARTING)
            await self._bring_up(member)
            return
        logger.error("%s is given up", member.name)
        await self.set(member, MemberState.STOPPED)

    def _restarts(self, member: Member) -> int:
        """The number of restarts of an engine. One that never started fails again for the same reason.

        It gets a second start all the same (its port may have been taken meanwhile), unless it is a server that runs
        already: waiting for that one has failed.
        """
        most = self.config.max_restarts
        return most if member.served else min(most, 0 if member.managed.attached else 1)

    async def close(self) -> None:
        """Close every engine; waiting tasks get an EngineError. Idempotent."""
        if self.closed:
            return
        self.closed = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        open_ones = [member for member in self.members.values() if member.state is not MemberState.STOPPED]
        for member in open_ones:
            member.lose("the fleet was closed")
        await asyncio.gather(*(member.close() for member in open_ones))
        await self.notify()
