"""A run's state: everything that a resumed run needs, saved and restored together.

Each policy that learns has a part of its own: trainer, algorithm, publications. A run of one policy has one part.

A publication is begun to be sent, or recorded. A version's number says neither: an engine may have it of a trainer that
died before the version was compared and recorded, and another trainer learns a version of the same number. So a
publication is done when it is recorded, and until then it begins anew with whatever trainer there is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import orjson

from agentrl.common import formats
from agentrl.errors import ConfigError
from agentrl.rollout.engines.managed import as_managed
from agentrl.rollout.stream.stream import Stream
from agentrl.sessions.store.store import Store
from agentrl.train.algorithms import Algorithm
from agentrl.train.driver.resuming import STATE
from agentrl.train.record.files import write_atomically
from agentrl.train.record.manifest import TRAINER
from agentrl.train.record.provenance import Evidence
from agentrl.train.trainers import Trainer
from agentrl.types import MAIN, Engine, Group, Session

POLICIES = "policies"
"""The folder of a checkpoint with the parts of policies besides the main one, a folder each."""


NEVER = -1
"""`Publication.sent` of an engine that is started with other weights than the trainer begins with."""


@dataclass
class Publication:
    """An engine's last version, as part of a run's state (`train.record.state`).

    Attributes:
        sent: the last version that was begun to be sent; None: the engine has what it was started with.
        recorded: the last version that the engine has for certain.
    """

    sent: int | None = None
    recorded: int | None = None

    def begin(self, engine: Engine, version: int) -> bool:
        """Begin to send a version where it is to be sent; False where the engine was started with it, or has it.

        A server that ran before may have a version of the same number from elsewhere: another run, another policy.
        """
        started_with = self.sent is None and not as_managed(engine).attached and engine.version() == version
        if self.recorded == version or started_with:
            return False
        self.sent = version
        return True

    def lose(self) -> None:
        """A trainer has learned the versions anew, as others than they were."""
        self.recorded = None


@dataclass(frozen=True)
class LearnedPolicy:
    """A policy that a run trains, with all that the run has of it.

    Attributes:
        trainer: weights, optimizer, schedule, policy version.
        algorithm: what it carries from step to step: a moving baseline, adaptive coefficients.
        published: what the policy's engine was sent.
        averaged: what the engine of averaged weights was sent, where there is one.
        evidence: what the run's record gets of the policy.
    """

    trainer: Trainer
    algorithm: Algorithm
    published: Publication = field(default_factory=Publication)
    averaged: Publication = field(default_factory=Publication)
    evidence: Evidence = field(default_factory=Evidence)


@dataclass(frozen=True)
class RunState:
    """The policies that learn, and the stream that groups come from.

    Attributes:
        learned: by name, the main one among them.
        stream: the next group's number, what is under way, what is finished and not trained on yet.
        store: has the sessions of finished groups.
    """

    learned: Mapping[str, LearnedPolicy]
    stream: Stream
    store: Store

    @property
    def main(self) -> LearnedPolicy:
        """The main policy."""
        return self.learned[MAIN]

    def with_trainer(self, trainer: Trainer) -> RunState:
        """The state with another trainer of the main policy."""
        return replace(self, learned={**self.learned, MAIN: replace(self.main, trainer=trainer)})

    def writer(self) -> Callable[[Path], None]:
        """Return a writer of the state as it is now into a checkpoint's folder, for any thread, while groups go on."""
        state = orjson.dumps({**formats.CHECKPOINT.mark(), **self._stream_and_algorithms()})

        def write(path: Path) -> None:
            others = {name: policy.trainer for name, policy in self.learned.items() if name != MAIN}
            self.main.trainer.export(path)  # first: it makes the folder
            for name, trainer in others.items():
                part(path, name).parent.mkdir(exist_ok=True)
                trainer.export(part(path, name))
                trainer.save(part(path, name) / TRAINER)
            write_atomically(path / STATE, state)
            self.main.trainer.save(path / TRAINER)  # last: a checkpoint that has it is whole

        return write

    def after_step(self, step: int) -> bytes:
        """The state of stream and algorithms after a step, for `stream.json`, the last of the step's files."""
        return orjson.dumps({"step": step, **self._stream_and_algorithms()})

    def restore(self, path: Path) -> None:
        """Load a checkpoint."""
        self.restore_stream(read_saved(path)["stream"])
        self.restore_trainers(path)

    def restore_stream(self, state: Mapping[str, Any]) -> None:
        """Continue from the saved state of a stream."""
        self.stream.restore(state, partial(last_attempts, self.store))

    def restore_algorithms(self, state: Mapping[str, Any]) -> None:
        """Continue from the saved state of the algorithms, in a checkpoint or after a step."""
        snapshots = {MAIN: state["algorithm"], **state.get(POLICIES, {})}
        if odd := sorted(snapshots.keys() ^ self.learned.keys()):
            raise ConfigError(f"policies.{odd[0]} learns in the run or in the checkpoint, and not in both")
        for name, policy in self.learned.items():
            policy.algorithm.load_snapshot(snapshots[name])

    def restore_trainers(self, path: Path) -> None:
        """Load of a checkpoint what learns, trainers and algorithms, and leave the stream as it is."""
        state = read_saved(path)
        for name, policy in self.learned.items():
            policy.trainer.load(part(path, name) / TRAINER)
        self.restore_algorithms(state)

    def _stream_and_algorithms(self) -> dict[str, Any]:
        others = {name: policy.algorithm.snapshot() for name, policy in self.learned.items() if name != MAIN}
        own = {"stream": self.stream.state(), "algorithm": self.main.algorithm.snapshot()}
        return own | ({POLICIES: others} if others else {})


def part(checkpoint: Path, policy: str) -> Path:
    """The part of a checkpoint with a policy's model and trainer: the checkpoint itself for the main one."""
    return checkpoint if policy == MAIN else checkpoint / POLICIES / policy


def read_saved(path: Path) -> dict[str, Any]:
    """The state of stream and algorithm in a checkpoint.

    Raises:
        ConfigError: an older version of agentrl wrote it.
        NewerFormat: a later one did.
    """
    try:
        state: dict[str, Any] = orjson.loads((path / STATE).read_bytes())
    except FileNotFoundError:
        raise ConfigError(f"{path}: {STATE} is missing: an older agentrl wrote this checkpoint") from None
    formats.CHECKPOINT.check(state, path)
    return state


def last_attempts(store: Store, group: str) -> list[Session]:
    """The stored sessions of a group in the order of its samples: of each sample the last attempt."""
    stored = sorted(store.sessions(group=group), key=lambda session: session.attempt)
    last = {session.sample: session for session in stored}
    return [last[sample] for sample in sorted(last)]


def groups_of(sessions: Sequence[Session]) -> Iterator[Group]:
    """The groups of an evaluation, with the last attempt at each session."""
    newest = max((session.group_attempt for session in sessions), default=0)
    ordered = sorted(sessions, key=lambda session: (session.group_number or 0, session.attempt))
    for number, members in groupby(ordered, key=lambda session: session.group_number or 0):
        last = {session.sample: session for session in members if session.group_attempt == newest}
        kept = [last[sample] for sample in sorted(last)]
        if kept:
            yield Group(kept[0].group, kept[0].task, kept, number=number)
