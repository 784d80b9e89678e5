"""A step's work on its groups: shape rewards, compute values, credit, pack, train.

This is the part of a step that needs sessions' tokens. It is done in the run's process, or where sessions are held
(`agentrl.train.driver.session_worker`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol, cast

from agentrl import faults, tracing
from agentrl.config.learners import LearningConfig
from agentrl.rollout.engines.managed import as_managed
from agentrl.rollout.fleet import asleep
from agentrl.rollout.stream.batch_metrics import staleness
from agentrl.rollout.stream.seeds import derive
from agentrl.sessions.store.store import Store
from agentrl.train.algorithms import Algorithm
from agentrl.train.algorithms.credit import Values
from agentrl.train.algorithms.shaping import reference_kl, shaped_groups, views_of
from agentrl.train.algorithms.values import compute_values, per_token
from agentrl.train.driver import lost_tokens
from agentrl.train.forest.forest import Forest
from agentrl.train.forest.joint_paths import JointPaths
from agentrl.train.forest.packing import pack_credited, path_tokens
from agentrl.train.record import trainer_logprobs
from agentrl.train.record.provenance import Evidence
from agentrl.train.trainers import Computing, Critic, JointCritic, MemoryReleasing, Rewarder, missing_model
from agentrl.train.trainers.teachers.teachers import Teachers
from agentrl.types import Engine, Group

Part = Callable[[str], AbstractContextManager[Any]]
"""Shows that a part of a step is under way."""


class Clock:
    """Seconds by phase, since its creation."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._phases: dict[str, float] = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            with tracing.span(phase):
                yield
        finally:
            self.add({phase: time.monotonic() - began})

    @property
    def phases(self) -> dict[str, float]:
        """Seconds by phase so far."""
        return dict(self._phases)

    def add(self, phases: Mapping[str, float]) -> None:
        """Add seconds that another process took."""
        for phase, seconds in phases.items():
            self._phases[phase] = self._phases.get(phase, 0.0) + seconds

    def metrics(self) -> dict[str, float]:
        """time/<phase> for each, time/step for the whole, and time/ended: now, in seconds since 1970."""
        phases = {f"time/{name}": seconds for name, seconds in self._phases.items()}
        return {**phases, "time/step": time.monotonic() - self._began, "time/ended": time.time()}


@asynccontextmanager
async def computing(trainer: Computing, engine: Engine) -> AsyncIterator[None]:
    """Let the trainer compute meanwhile: what colocated engines need of their GPUs is free before and after."""
    async with asleep(engine):
        yield
        await leave(trainer, engine)


async def leave(trainer: Computing, engine: Engine) -> None:
    """Have the trainer give back memory that it does not use, where an engine is on its GPUs."""
    if as_managed(engine).colocated and isinstance(trainer, MemoryReleasing):
        await asyncio.to_thread(trainer.release)


@dataclass(frozen=True)
class Batch:
    """The groups and settings of a step's learning.

    Attributes:
        groups: the step's.
        step: from 0.
        trainer: of the policy.
        algorithm: credit, and what it carries from step to step; it is changed.
        evidence: gets what is trained on.
        clock: gets the seconds of each phase.
    """

    groups: Sequence[Group]
    step: int
    trainer: Computing
    algorithm: Algorithm
    evidence: Evidence = field(default_factory=Evidence)
    clock: Clock = field(default_factory=Clock)


class Learner(Protocol):
    """A learner from batches of groups."""

    async def learn(self, batch: Batch) -> dict[str, float]:
        """Train on a batch; returns metrics. The trainer has the next version then, and the algorithm has seen them."""

    async def record(self) -> None:
        """Write what only the learner has of the last batch into the run's record."""

    async def digests(self, **filters: Any) -> dict[str, str]:
        """Digests of the stored sessions that fit every filter, by id; see `Store.digests`."""

    async def close(self) -> None:
        """End what learning opened; idempotent."""


@dataclass(frozen=True)
class Learning:
    """Learns from batches in this process.

    Attributes:
        config: the settings that it works by.
        folder: the run's.
        engine: sleeps while the trainer computes, where it is colocated; None: whoever calls this sees to that.
        part: shows a part of the step.
        teachers: the policies that the algorithm asks.
    """

    config: LearningConfig
    folder: Path
    engine: Engine | None
    part: Part
    teachers: Teachers

    @classmethod
    def of(cls, config: LearningConfig, folder: Path, engine: Engine | None, part: Part) -> Learning:
        """Return a policy's learner, which opens the policies that the algorithm asks when it first asks them."""
        teachers = Teachers(config.asked, config.own, config.seed, folder)
        return cls(config, folder, engine, part, teachers)

    async def learn(self, batch: Batch) -> dict[str, float]:
        """Train on a batch and return the metrics."""
        views = views_of(batch.groups, batch.algorithm.config)
        batch.evidence.begin(batch.algorithm.snapshot())
        views, shaped = await self._shape(batch, views)
        paths = JointPaths.of(batch.groups, views) if batch.algorithm.reads_joint_paths else None
        values = await self._values(batch, views, paths)
        with batch.clock("pack"):
            forests, read, credited = await asyncio.to_thread(self._credit, batch, views, values, paths)
        if self.config.record_logprobs:
            await self._record_logprobs(batch, views)
        learned = shaped | await self._train(batch, forests, read)
        batch.algorithm.learned(learned)
        masked = learned.get("correction/mask_fraction", 0.0)
        signal = lost_tokens.take_away(credited, lost_tokens.Cause.MASKED, masked)
        updates = batch.algorithm.config.epochs * learned.get("minibatches", 1.0)
        skipped = min(learned.get("skipped_updates", 0.0) / max(updates, 1.0), 1.0)
        return lost_tokens.take_away(signal, lost_tokens.Cause.SKIPPED, skipped) | learned

    async def close(self) -> None:
        await self.teachers.close()

    async def record(self) -> None:
        """Do nothing: the batch's evidence has the record."""

    async def digests(self, **filters: Any) -> dict[str, str]:
        """Return digests of the sessions that pass the filters."""
        return await asyncio.to_thread(digests, self.folder, **filters)

    @asynccontextmanager
    async def _computing(self, batch: Batch) -> AsyncIterator[None]:
        if self.engine is None:
            yield
            return
        async with computing(batch.trainer, self.engine):
            yield

    async def _shape(self, batch: Batch, groups: Sequence[Group]) -> tuple[list[Group], dict[str, float]]:
        """The groups with shaped rewards, a KL penalty included where it is one, and metrics of that."""
        algo, adaptive, budget = batch.algorithm.config, batch.algorithm.adaptive, self.config.own.trainer.token_budget
        estimates, metrics = None, adaptive.metrics(algo)
        if algo.kl_coef and algo.kl_as == "reward":
            seed = derive(self.config.seed, "reference", batch.step)
            with batch.clock("reference"):
                async with self._computing(batch):
                    estimates = await asyncio.to_thread(reference_kl, batch.trainer, groups, algo, budget, seed)
            metrics |= estimates.metrics()
        return shaped_groups(groups, algo, adaptive, estimates), metrics

    async def _values(self, batch: Batch, groups: Sequence[Group], paths: JointPaths | None) -> Values | None:
        """The critic's value of each token's state, its process reward, or a teacher's log-probability of it."""
        needs, trainer, budget = batch.algorithm.needs, batch.trainer, self.config.own.trainer.token_budget
        seed = derive(self.config.seed, "values", batch.step)
        if needs.critic:
            if not isinstance(trainer, Critic):
                raise missing_model(self.config.own.trainer, batch.algorithm.config, "critic")
            compute = partial(compute_values, trainer, groups, batch.algorithm.critic_config, budget, seed, paths)
        elif needs.reward_model:
            if not isinstance(trainer, Rewarder):
                raise missing_model(self.config.own.trainer, batch.algorithm.config, "reward model")
            compute = partial(per_token, groups, trainer.token_rewards, budget, seed)
        elif needs.teacher:
            with batch.clock("teachers"), self.part("asking the teacher"):
                computing = partial(self._computing, batch)
                return await self.teachers.score(batch.algorithm, groups, batch.step, trainer, computing)
        else:
            return None
        with batch.clock("values"):
            async with self._computing(batch):
                return await asyncio.to_thread(compute)

    def _credit(
        self, batch: Batch, groups: Sequence[Group], values: Values | None, paths: JointPaths | None
    ) -> tuple[list[Forest], list[Forest], dict[str, float]]:
        """Advantages for the groups' nodes, packed into forests, and the forests that a critic of joint paths reads."""
        budget, seed = self.config.own.trainer.token_budget, derive(self.config.seed, "pack", batch.step)
        credit, forests = pack_credited(batch.algorithm, groups, values, budget, seed)
        read = [] if paths is None else paths.pack(batch.algorithm, groups, credit, budget, seed)
        version = batch.trainer.version
        batch.evidence.train(groups, credit, forests, version, require=self.config.require_provenance)
        tokens = sum(len(forest) for forest in forests)
        packed = {
            "pack/forests": float(len(forests)),
            "pack/signal": float(any(map(has_signal, forests))),
            "pack/tokens": float(tokens),
            "pack/sharing": path_tokens(groups, credit) / tokens if tokens else 1.0,
        }
        if any(node.sampled for group in batch.groups for session in group.sessions for node in session.nodes):
            signal = lost_tokens.account(batch.groups, credit, batch.algorithm.config)
        else:
            signal = lost_tokens.account_demonstrated(groups, credit)
        return forests, read, packed | staleness(groups, version) | credit.metrics | signal

    async def _record_logprobs(self, batch: Batch, groups: Sequence[Group]) -> None:
        """Store the trainer's log-probability of each token that the step may train."""
        budget, seed = self.config.own.trainer.token_budget, derive(self.config.seed, "logprobs", batch.step)
        with batch.clock("logprobs"):
            async with self._computing(batch):
                found = await asyncio.to_thread(per_token, groups, batch.trainer.logprobs, budget, seed)
            trainer_logprobs.write(self.folder, batch.step + 1, batch.trainer.version, found)

    async def _train(self, batch: Batch, forests: Sequence[Forest], read: Sequence[Forest]) -> dict[str, float]:
        """Take the optimizer's steps; a batch without any signal takes none, but counts for the schedule."""
        with batch.clock("train"), self.part("optimizer step"):
            await faults.async_point("trainer.step")
            async with self._computing(batch):
                state = batch.algorithm.snapshot()
                if read:
                    return await asyncio.to_thread(cast(JointCritic, batch.trainer).step, forests, state, read)
                return await asyncio.to_thread(batch.trainer.step, forests, state)


def digests(folder: Path, **filters: Any) -> dict[str, str]:
    """Digests of stored sessions of a run, read beside what is being written; see `Store.digests`."""
    with Store(folder / "sessions.db", read_only=True) as store:
        return store.digests(**filters)


def has_signal(forest: Forest) -> bool:
    """Return whether any advantage of a forest is not 0."""
    return any(bool(channel.any()) for channel in (forest.advantage, forest.advantage_minus) if channel is not None)
