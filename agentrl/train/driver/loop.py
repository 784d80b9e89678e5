"""The loop: generate, score, learn (compute values, credit, pack, train), publish.

It knows roles, not their kinds: any source of groups, any engine or none, any trainer, any algorithm. Everything that
a step does follows from its number, its groups' numbers and the run's seed, so a run that was killed goes on from its
last checkpoint as if nothing had happened.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TypeVar, cast

from agentrl import faults, tracing
from agentrl.config import RunConfig
from agentrl.errors import AgentRLError, ConfigError, NoSignal, brief
from agentrl.rollout.episodes.past import PastVersions
from agentrl.rollout.episodes.policies import Policy
from agentrl.rollout.fleet.reference import ReferenceEngine
from agentrl.rollout.stream.batch_metrics import Evaluation, idle, rollout_metrics
from agentrl.rollout.stream.filters import FILTERS, make_measure
from agentrl.rollout.stream.health import HealthMonitor, sessions_of, with_retries
from agentrl.rollout.stream.outcomes import GroupOutcome
from agentrl.rollout.stream.stream import Stream
from agentrl.rollout.weights.buckets import Weights
from agentrl.rollout.workers.held import sizes_of
from agentrl.sessions.tree.perspective import group_seen_by
from agentrl.train.algorithms import Algorithm
from agentrl.train.algorithms.selection import chooser, select
from agentrl.train.display.console import Display
from agentrl.train.display.step_warnings import StepWarnings
from agentrl.train.driver import lost_tokens, probe, resizing
from agentrl.train.driver.interrupt import Stopped, run_unless_stopped
from agentrl.train.driver.learning import Batch, Clock, Learner
from agentrl.train.driver.recovery import Recovery, find_death
from agentrl.train.driver.resuming import step_of
from agentrl.train.record import provenance, ratings
from agentrl.train.record.files import append
from agentrl.train.record.run_folder import RunFolder
from agentrl.train.record.state import RunState
from agentrl.train.trainers import Averager, BaseSharing, Trainer
from agentrl.types import GREEDY, MAIN, Engine, Group

logger = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass
class Loop:
    """The training of a policy, and of others beside it, step by step; without an engine nothing is published."""

    policy: Policy
    state: RunState
    folder: RunFolder
    display: Display
    learner: Learner
    recovery: Recovery
    clock: Clock = field(default_factory=Clock)
    health: HealthMonitor = field(default_factory=HealthMonitor)
    measure: Callable[[int], Awaitable[Evaluation]] | None = None
    stop_requested: asyncio.Event = field(default_factory=asyncio.Event)
    selected: dict[str, float] = field(default_factory=dict)
    left_out: int = 0
    past: Sequence[PastVersions] = ()
    probe_bound: float = math.inf
    top_scores: frozenset[float] = frozenset()
    reference: ReferenceEngine | None = None
    others: Mapping[str, probe.InTraining] = field(default_factory=dict)

    async def run(self, start: int = 0) -> int:
        """Take the steps from `start` to `config.steps`, or to the one after which nothing is left to learn.

        Returns:
            The steps that are done.

        Raises:
            Stopped: `stop_requested` was set; a checkpoint of the last step that was taken is written.
            NoSignal: nothing can be learned; a checkpoint is written likewise.
        """
        rows = [lost_tokens.keep_metrics(row) for row in self.folder.metrics()]
        async with self.stream:
            try:
                for step in range(start, self.config.steps):
                    with tracing.span("step", root=True, step=step + 1):
                        rows.append(lost_tokens.keep_metrics(await self.take_step(step)))
                    if await self.over(step + 1, rows):
                        return step + 1
            except Stopped:
                await self.save(step)
                raise
        return self.config.steps

    async def over(self, step: int, rows: Sequence[Mapping[str, float]]) -> bool:
        """Return whether nothing is left to learn after `step` steps with these metrics; a checkpoint is written then.

        Raises:
            NoSignal: nothing can be learned; likewise.
        """
        found = None if self.others else lost_tokens.ending(rows, self.top_scores)  # another may still learn
        if found is None:
            return False
        if self.config.allow_no_signal:
            if lost_tokens.ending(rows[:-1], self.top_scores) is None:  # else it was told of the step before
                self.display.warn(f"step {step}: {found.reason} (allow_no_signal=true)")
            return False
        if not self.saves_after(step):
            await self.recovering(step, partial(self.save, step))
        if not found.learned:
            raise NoSignal(f"step {step}: {found.reason}. allow_no_signal=true goes on nevertheless")
        self.display.say(f"step {step}: {found.reason}")
        return True

    async def take_step(self, step: int) -> dict[str, float]:
        """Take one step, and return its metrics; `step` counts from 0."""
        self.clock = Clock()
        groups = await run_unless_stopped(self.stop_requested, self.generate(step))
        await faults.async_point("groups.taken")
        trained = await self.recovering(step, partial(self.train, groups, step))
        await faults.async_point("step.published")
        await self.keep_version(step + 1)
        measured = await self.evaluate(step + 1)
        fresh = self.stream.published(groups)
        await self.learner.record()
        outcomes = self.stream.take_outcomes()
        found = await self.learner.digests(group=[each.group for each in outcomes if each.hash is not None])
        rated = await self.rate(step + 1, fresh)
        row = self.record(step + 1, fresh, trained | measured | rated, outcomes, found)
        await self.recovering(step + 1, partial(self.checkpoint, step + 1))
        await resizing.resize(self, step + 1)
        return row

    @property
    def config(self) -> RunConfig:
        """The settings that the run goes on with."""
        return self.folder.config

    @property
    def stream(self) -> Stream:
        return self.state.stream

    @property
    def engine(self) -> Engine | None:
        """The policy's engine; None where groups are read."""
        return self.policy.engine

    @property
    def warnings(self) -> StepWarnings:
        """The warnings of its steps."""
        how, reads = (self.config, self.algorithm, self.display, self.policy.renderer.name), self.engine is None
        return StepWarnings(*how, reads, self.health)

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm: which groups are trained on, and their credit."""
        return self.state.main.algorithm

    @property
    def in_training(self) -> Mapping[str, probe.InTraining]:
        """The policies that are trained, by name, the main one first."""
        own = probe.InTraining(self.config.learners[MAIN], self.policy, self.learner, self.probe_bound, self.reference)
        return {self.policy.name: own, **self.others}

    async def close(self) -> None:
        """End trainers, learners and the reference."""
        for learned in self.state.learned.values():
            learned.trainer.close()
        for each in self.in_training.values():
            await each.learner.close()
            if each.reference is not None:
                await each.reference.close()

    @property
    def trainer(self) -> Trainer:
        """The policy's trainer."""
        return self.state.main.trainer

    async def generate(self, step: int) -> list[Group]:
        """The step's groups of finished, rewarded sessions."""
        count, size = self.config.rollout.groups_per_step, self.stream.sessions_each
        lost: list[Group] = []
        left_out: list[Group] = []

        def drop(groups: Sequence[Group], why: str) -> None:
            left_out.extend(groups)
            self.stream.drop(groups, why)

        async def attempt() -> list[Group]:
            self.stream.discard(lost)
            with self.display.part("rollout", count * size, detail=self.stream.__str__) as ended:
                lost[:] = await self.stream.take(count, ended)
            return list(lost)

        with self.clock("rollout"):
            groups = await with_retries(attempt, f"step {step + 1}", self.display.warn)
            most = self.config.rollout.max_replaced * count
            choose = chooser(self.algorithm, make_measure(FILTERS, self.config.rollout.filter))
            groups, self.selected = await select(choose, groups, self.stream.take, drop, most)
            again = self.stream.reuse(int(self.config.rollout.reuse * count))
            self.selected["groups/replayed"] = float(len(again))
            members = (session for session in sessions_of(left_out) if session.phase != GREEDY)
            self.left_out = sum(sizes_of(session).sampled for session in members)
            return sorted([*again, *groups], key=lambda group: group.number)

    async def train(self, groups: Sequence[Group], step: int, *, again: bool = False) -> dict[str, float]:
        """Learn from a step's groups and publish the new weights; `again`: it was published before."""
        due = [name for name in self.in_training if self.config.learns(name, step)]
        learned: dict[str, float] = {}
        if self.config.lora.active and self.config.lora.tenants == "mixed" and len(due) > 1:
            first, *others = [self.state.learned[name].trainer for name in due]
            assert isinstance(first, BaseSharing)
            with first.mixing(others):
                found = await asyncio.gather(*(self._learn_mixed(n, groups, step) for n in due), return_exceptions=True)
            for each in found:
                if isinstance(each, BaseException):
                    raise each
                learned |= each
        else:
            for name in due:
                learned |= await self._learn(name, groups, step)
        published = {} if again else await self.publish()
        if not again:
            self.recovery.learned(step, groups)
        return learned | published

    async def _learn_mixed(self, name: str, groups: Sequence[Group], step: int) -> dict[str, float]:
        try:
            return await self._learn(name, groups, step)
        finally:
            await asyncio.to_thread(cast(BaseSharing, self.state.learned[name].trainer).end_mixing)

    async def _learn(self, name: str, groups: Sequence[Group], step: int) -> dict[str, float]:
        """Learn one policy from a step's groups, as it sees them; its metrics have its name."""
        own, each = self.state.learned[name], self.in_training[name]
        seen = [group_seen_by(group, name, self.config.agents) for group in groups] if self.others else groups
        batch = Batch(seen, step, own.trainer, own.algorithm, own.evidence, self.clock)
        found = await each.learner.learn(batch)
        scores = [session.score or 0.0 for group in seen for session in group.scored] if name in self.others else []
        own_mean = {"reward/mean": fmean(scores)} if scores else {}
        return probe.name_metrics(name, own_mean | found)

    async def recovering(self, done: int, work: Callable[[], Awaitable[T]]) -> T:
        """The work's result; where the trainer dies meanwhile, another one takes its place and the work is done again.

        Args:
            done: the steps that the trainer has learned from when the work begins.
            work: needs the trainer.
        """
        dead = False
        while True:
            try:
                if dead:
                    await self.restart_trainer(done)
                return await work()
            except AgentRLError as error:
                if not self.recovery.possible(error):
                    raise
                dead = True
                self.display.warn(f"the trainer is started anew: {brief(str(find_death(error)))}")

    async def restart_trainer(self, done: int) -> None:
        """Put a new trainer in the place of one that died, after the same steps."""
        checkpoint = next(reversed(self.folder.checkpoints()), None)
        with self.display.part("starting the trainer anew"):
            self.state = await asyncio.to_thread(self.recovery.restart, self.state, checkpoint)
        if checkpoint is None and self.recovery.imitate is not None:
            await self.recovery.imitate()
        first = step_of(checkpoint) if checkpoint else 0
        for step in range(first, done):
            groups = await asyncio.to_thread(self.recovery.groups, step, self.state)
            await self.train(groups, step, again=True)
        if first < done and not self.trainer.deterministic:  # engines have other weights of that version
            self.state.main.published.lose()
            self.state.main.averaged.lose()
            await self.publish()
            self.write_published(done)
        where = checkpoint.name if checkpoint else "the beginning"
        self.display.say(f"the trainer continues from {where}; steps up to {done} are trained again")

    async def restore_trainers(self, checkpoint: Path) -> None:
        """Load a checkpoint into the run's trainers."""
        self.state.restore_trainers(checkpoint)

    async def publish(self) -> dict[str, float]:
        """Send each policy's new weights to its engine; see `probe.publish`."""
        found: dict[str, float] = {}
        for name, each in self.in_training.items():
            learned, losses = self.state.learned[name], self.state.store.losses
            found |= probe.name_metrics(name, await probe.publish(each, learned, losses, self.clock, self.display))
        return found

    def write_published(self, step: int) -> None:
        """Add the publications that are not in the run's record yet, after `step` steps."""
        lines = b"".join(provenance.lines(step, each.evidence.take_published()) for each in self.state.learned.values())
        self.folder.seals.add(step, lines={provenance.NAME: lines})
        append(self.folder.path / provenance.NAME, lines)

    async def publish_average(self, engine: Engine) -> None:
        """Send the average of the weights to an engine of its own, as the policy's version."""
        averaged, version = self.state.main.averaged, self.trainer.version
        if not averaged.begin(engine, version):
            return
        if not isinstance(self.trainer, Averager):
            raise ConfigError(f"eval.weights=averaged: trainer={self.config.trainer.name} has no averaged_weights()")
        with self.clock("publish_average"), self.display.part("publishing averaged weights"):
            await engine.publish(Weights.of(self.trainer, "averaged_weights"), version)
        averaged.recorded = version

    async def keep_version(self, step: int) -> None:
        """Keep the weights after `step` steps for later groups to play against, where the run does and it is due."""
        for past in (each for each in self.past if each.due(step)):
            with self.clock("past"), self.display.part("keeping a version"):
                await self.recovering(step, partial(self._keep, past, step))

    async def _keep(self, past: PastVersions, step: int) -> None:
        oldest = next(map(step_of, self.folder.checkpoints()), 0)
        await past.keep(step, self.state.learned[past.config.of].trainer.export, oldest=oldest)
        await asyncio.to_thread(self.folder.seal_version, step, past.path(step))

    async def evaluate(self, step: int) -> dict[str, float]:
        """Measure the policy on held-out tasks, where it is due; the last step's policy is measured after the run."""
        every = self.config.eval.every
        if self.measure is None or every is None or step % every or step == self.config.steps:
            return {}
        with self.clock("eval"):
            result = await self.measure(step)
        if self.engine is None:
            return {f"eval/{name}": value for name, value in result.metrics.items()}
        parts = {f"eval/{name}": value for name, value in result.metrics.items() if name.startswith(("env/", "probe/"))}
        averaged = {"eval/averaged": 1.0} if self.config.eval.weights == "averaged" else {}
        return {"eval/mean": result.mean, "eval/low": result.low, "eval/high": result.high} | parts | averaged

    async def rate(self, step: int, groups: Sequence[Group]) -> dict[str, float]:
        """Write a step's games against the first policy's versions, and return their metrics; the fit grows with it."""
        if not self.past:
            return {}
        name, every = self.past[0].name, self.past[0].config.every
        return await asyncio.to_thread(ratings.record, self.folder.path, step, name, every, groups)

    def record(
        self,
        step: int,
        groups: Sequence[Group],
        metrics: dict[str, float],
        outcomes: Sequence[GroupOutcome],
        digests: Mapping[str, str],
    ) -> dict[str, float]:
        """Log the numbers, show the progress; returns the numbers."""
        metrics = lost_tokens.add_left_out(metrics, self.left_out)
        row = {**rollout_metrics(groups), **self.selected, **metrics, "version": float(self.trainer.version)}
        row |= {f"{name}/version": float(self.state.learned[name].trainer.version) for name in self.others}
        row |= self.stream.metrics() | self.clock.metrics()
        row |= idle(row)
        tokens = sum(sizes_of(session).tokens for session in sessions_of(groups))
        seconds = row["time/step"] - row.get("time/eval", 0.0)
        row["throughput/tokens_per_s"] = tokens / seconds
        row["throughput/sessions_per_s"] = row["sessions/count"] / seconds
        self.display.step(row, row.get("reward/mean", 0.0) if self.engine is not None else row["loss"])
        row["time/left"] = self.display.seconds_left()
        for policy in self.state.learned.values():
            provenance.write(self.folder.path, step, policy.evidence.take())
        self.folder.log(step, row, outcomes, digests, self.state.after_step(step))
        for warning in self.warnings.find(step, groups, row):
            self.display.warn(warning)
        return row

    async def checkpoint(self, step: int) -> None:
        """Save what a resumed run needs, where one is due."""
        if self.saves_after(step):
            await self.save(step)

    def saves_after(self, step: int) -> bool:
        """Return whether a checkpoint is due after `step` steps."""
        return step % self.config.checkpoint_every == 0 or step == self.config.steps

    async def save(self, step: int) -> None:
        """Write the checkpoint after `step` steps."""
        write, keep = self.state.writer(), self.config.keep_checkpoints
        await asyncio.to_thread(self.folder.save_checkpoint, step, write, keep, self.config.keep_best)
        self.recovery.saved(self.folder.checkpoints())
