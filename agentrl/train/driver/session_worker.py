"""A process beside the run's own that holds its sessions: it stores them, computes their credit, and trains on them.

With `cluster.sessions`, environment workers send finished sessions to it, and the run's process gets their heads
(`agentrl.rollout.workers.held`). When a step has chosen its groups, it is told their sessions' ids, reads them, does
what needs tokens (`agentrl.train.driver.learning`), and calls the trainer's processes itself. So tokens, forests and
what follows from them never go through the run's process, which decides everything as it does without.

It has nothing but what is in the run's folder. Where it dies, another one takes its place: a session that was on its
way is sent again, and a step that was under way is taken again by a trainer that is started anew, since it may have had
a part of it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agentrl import cluster, faults, tracing
from agentrl.cluster import Role
from agentrl.cluster.pool import WorkerPool
from agentrl.config import ClusterConfig
from agentrl.config.learners import LearningConfig
from agentrl.errors import AgentRLError, InfraError, StoreError, TrainerError, WorkerLost
from agentrl.rollout.workers.distant_recorder import call_again
from agentrl.rollout.workers.environment_workers import Holding
from agentrl.rollout.workers.held import digest_of
from agentrl.sessions.store.recorder import Recorder
from agentrl.sessions.store.store import Store
from agentrl.train.algorithms import make_algorithm
from agentrl.train.driver.learning import Batch, Learning, Part, computing, digests
from agentrl.train.driver.recovery import find_death
from agentrl.train.record import provenance
from agentrl.train.record.files import append, write_atomically
from agentrl.train.record.seals import read_losses
from agentrl.train.trainers import ShareableTrainer, TrainerAccess
from agentrl.types import Engine, Group, Session

logger = logging.getLogger(__name__)
PENDING = "provenance.pending"
"""The record of a step that the run has not recorded yet."""
KEPT_TOKENS = 1 << 22
"""Tokens of sessions that are kept in memory, in some 370 MB, until a step trains on them; others are read from the
store."""


ChosenGroups = Sequence[tuple[Group, Sequence[tuple[str, bytes]]]]
"""Groups without their sessions, and of these the ids and digests (`held.digest_of`)."""


@dataclass(frozen=True)
class LearnRequest:
    """A step's batch, without its sessions.

    Attributes:
        groups: the step's.
        step: from 0.
        trainer: how the trainer is called.
        algorithm: its state (`Algorithm.snapshot`).
        known: the weights that engines had, where tokens of others are refused.
    """

    groups: ChosenGroups
    step: int
    trainer: TrainerAccess
    algorithm: Mapping[str, Any]
    known: Mapping[tuple[int, int], provenance.Published] = field(default_factory=dict)


@dataclass(frozen=True)
class LearnReply:
    """A batch's result: metrics, the algorithm's state, the trainer's version, and the seconds of each phase."""

    metrics: dict[str, float]
    algorithm: Mapping[str, Any]
    version: int
    seconds: Mapping[str, float]


class SessionRole:
    """Holds a run's sessions, in a worker's process; `traces`: where its spans are sent."""

    def __init__(self, config: LearningConfig, folder: Path, traces: tracing.Destination | None = None) -> None:
        self._folder, self._open = folder, ExitStack()
        self._store = self._open.enter_context(Store(folder / "sessions.db"))
        self._recorder = self._open.enter_context(Recorder(self._store))
        self._learning = Learning.of(config, folder, None, _show_nothing)
        self._algorithm = make_algorithm(config.own.algo)
        self._kept = KeptSessions()
        if traces is not None:
            self._open.enter_context(tracing.export_spans(*traces, logger.warning))

    async def begin(self, session: Session, state: bytes | None) -> None:
        """Store a session that begins; see `Recorder.resume`."""
        self._store.losses = read_losses(self._folder)  # the run's process has written them before the first session
        await self._recorder.resume(session, state)

    async def end(self, session: Session) -> None:
        """Store a session as it ended; see `Recorder.end`."""
        await self._recorder.end(session)
        self._kept.add(session)

    async def learn(self, request: LearnRequest) -> LearnReply | AgentRLError:
        """Train on a batch; see `Learner.learn`.

        Returns:
            What became of it, or the error that ended it. What is raised by a call is this process's own end.
        """
        try:
            with tracing.span("learn", root=True, step=request.step + 1):
                return await self._learn(request)
        except AgentRLError as error:
            return find_death(error) or error  # causes are not sent

    async def _learn(self, request: LearnRequest) -> LearnReply:
        algorithm = self._algorithm
        algorithm.load_snapshot(request.algorithm)
        kept = {name: self._kept.take(name) for _, ids in request.groups for name, _ in ids}
        groups = await asyncio.to_thread(self._read, request, kept)
        evidence = provenance.Evidence(dict(request.known))
        with closing(request.trainer.open()) as trainer:
            batch = Batch(groups, request.step, trainer, algorithm, evidence)
            metrics = await self._learning.learn(batch)
            write_atomically(self._folder / PENDING, provenance.lines(request.step + 1, evidence.take()))
            return LearnReply(metrics, algorithm.snapshot(), trainer.version, batch.clock.phases)

    def _read(self, request: LearnRequest, kept: Mapping[str, Session | None]) -> list[Group]:
        return read_groups(self._store, request.groups, kept)

    def record(self) -> None:
        """Write the last batch's lines of the run's record."""
        pending, file = self._folder / PENDING, self._folder / provenance.NAME
        with suppress(FileNotFoundError):
            lines = pending.read_bytes()
            if not _ends_with(file, lines):  # else another worker wrote them, and was lost
                append(file, lines)
            os.unlink(pending)

    async def digests(self, filters: Mapping[str, Any]) -> dict[str, str]:
        """Return digests of the sessions that pass the filters."""
        return await asyncio.to_thread(digests, self._folder, **filters)

    def close(self) -> None:
        """Write what is queued, and close the store."""
        self._open.close()


def refer_to_groups(groups: Sequence[Group]) -> ChosenGroups:
    """Return the groups with their sessions by id and digest, as `read_groups` takes them."""
    return [(replace(group, sessions=[]), [(each.id, digest_of(each)) for each in group.sessions]) for group in groups]


def read_groups(store: Store, groups: ChosenGroups, kept: Mapping[str, Session | None]) -> list[Group]:
    """The groups with those sessions that the run's process chose.

    Another session of the same id may be kept, of an environment worker that died before it had answered.

    Raises:
        StoreError: the store has another session under an id.
    """

    def read(name: str, digest: bytes) -> Session:
        session = kept.get(name)
        if session is None or digest_of(session) != digest:
            session = store.load(name)
            if digest_of(session) != digest:
                raise StoreError(f"session {name!r} of the store is not the one that is to be trained on")
        return session

    return [replace(group, sessions=[read(*each) for each in ids]) for group, ids in groups]


class KeptSessions:
    """Finished sessions in memory, the newest ones.

    Args:
        limit: tokens that all of them may have.
    """

    def __init__(self, limit: int = KEPT_TOKENS) -> None:
        self._limit, self._tokens, self._found = limit, 0, dict[str, Session]()

    def add(self, session: Session) -> None:
        """Keep a session, in place of an earlier one of its id."""
        self.take(session.id)
        self._found[session.id] = session
        self._tokens += _length(session)
        while self._tokens > self._limit:
            self.take(next(iter(self._found)))

    def take(self, session_id: str) -> Session | None:
        """A session, which is kept no longer; None where it is not there."""
        found = self._found.pop(session_id, None)
        self._tokens -= _length(found) if found is not None else 0
        return found


def _length(session: Session) -> int:
    return sum(len(node.token_ids) for node in session.nodes)


def _ends_with(file: Path, data: bytes) -> bool:
    if not file.exists() or file.stat().st_size < len(data):
        return False
    with file.open("rb") as content:
        content.seek(-len(data), os.SEEK_END)
        return content.read() == data


@contextmanager
def _show_nothing(name: str) -> Iterator[None]:
    yield


@asynccontextmanager
async def holding(config: LearningConfig, limits: ClusterConfig, store: Store) -> AsyncIterator[Holding]:
    """The process that holds a run's sessions and learns from them (`cluster.sessions`).

    It is about to start (`WorkerPool.start`).

    Raises:
        InfraError: it was lost too often.
    """
    arguments = (config, Path(store.path).parent.absolute(), tracing.destination())
    role = Role("sessions", f"{__name__}:SessionRole", arguments, threads=1, here=True)
    pool = WorkerPool(role, 1, limits.start_timeout, limits.max_restarts)
    try:
        async with cluster.while_not_lost(pool.none_left):
            yield Holding(pool, store)
    finally:
        with suppress(InfraError):
            await pool.close()


def reply_or_raise(found: LearnReply | AgentRLError) -> LearnReply:
    """Return a batch's result, or raise its error."""
    if isinstance(found, AgentRLError):
        raise found
    return found


@dataclass(frozen=True)
class DistantLearning:
    """Learns from batches in the process that holds their sessions; see `agentrl.train.driver.learning.Learner`.

    A trainer that no other process reaches is called here instead, with the sessions that the store has.

    Attributes:
        config: the settings that learning works by.
        folder: the run's.
        workers: the session worker, and those that take its place.
        engine: sleeps while the trainer computes, where it is colocated.
        part: shows a part of the step.
    """

    config: LearningConfig
    folder: Path
    workers: WorkerPool
    engine: Engine
    part: Part

    async def learn(self, batch: Batch) -> dict[str, float]:
        """Train on a batch and return the metrics.

        Raises:
            TrainerError: the trainer died, or the session worker, while a step was under way.
        """
        trainer = batch.trainer
        if not isinstance(trainer, ShareableTrainer):
            return await self._learn_here(batch)
        known = batch.evidence.known if self.config.require_provenance else {}
        groups, state = refer_to_groups(batch.groups), batch.algorithm.snapshot()
        request = LearnRequest(groups, batch.step, trainer.access(), state, known)
        with self.part("optimizer step"):
            await faults.async_point("trainer.step")
            async with computing(trainer, self.engine):
                try:
                    with trainer.leased():
                        learned = reply_or_raise(await self.workers.call("learn", request, timeout=None))
                except WorkerLost as error:
                    raise TrainerError(f"the session worker was lost, and with it what it trained: {error}") from error
        batch.algorithm.load_snapshot(learned.algorithm)
        trainer.stepped(learned.version)
        batch.clock.add(learned.seconds)
        return learned.metrics

    async def _learn_here(self, batch: Batch) -> dict[str, float]:
        def read() -> list[Group]:
            with Store(self.folder / "sessions.db", read_only=True) as store:
                return read_groups(store, refer_to_groups(batch.groups), {})

        here = Learning.of(self.config, self.folder, self.engine, self.part)
        return await here.learn(replace(batch, groups=await asyncio.to_thread(read)))

    async def record(self) -> None:
        """Write what only the learner has of the last batch into the run's record."""
        await call_again(self.workers, "record")

    async def close(self) -> None:
        """Do nothing: the worker ends by itself."""

    async def digests(self, **filters: Any) -> dict[str, str]:
        """Return digests of the sessions that pass the filters."""
        found: dict[str, str] = await call_again(self.workers, "digests", filters)
        return found
