"""A run's state: everything that a resumed run needs, saved and restored together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from agentrl.common import formats
from agentrl.errors import ConfigError
from agentrl.rollout.stream.stream import Stream
from agentrl.sessions.store.store import Store
from agentrl.train.algorithms import Algorithm
from agentrl.train.driver.resuming import STATE
from agentrl.train.record.files import write_atomically
from agentrl.train.record.publication import Publication
from agentrl.train.trainers import Trainer
from agentrl.types import Session


@dataclass(frozen=True)
class RunState:
    """The trainer, the algorithm, and the stream that groups come from.

    Attributes:
        trainer: weights, optimizer, schedule, policy version.
        algorithm: what it carries from step to step: a moving baseline, adaptive coefficients.
        stream: the next group's number, what is under way, what is finished and not trained on yet.
        store: has the sessions of finished groups.
        published: what the policy's engine was sent.
        averaged: what the engine of averaged weights was sent, where there is one.
    """

    trainer: Trainer
    algorithm: Algorithm
    stream: Stream
    store: Store
    published: Publication = field(default_factory=Publication)
    averaged: Publication = field(default_factory=Publication)

    def writer(self) -> Callable[[Path], None]:
        """Return a writer of the state as it is now into a checkpoint's folder, for any thread, while groups go on."""
        state = orjson.dumps(
            {**formats.CHECKPOINT.mark(), "stream": self.stream.state(), "algorithm": self.algorithm.snapshot()}
        )

        def write(path: Path) -> None:
            self.trainer.export(path)
            write_atomically(path / STATE, state)
            self.trainer.save(path / "trainer")  # last: a checkpoint that has it is whole

        return write

    def after_step(self, step: int) -> bytes:
        """The state of stream and algorithm after a step, for `stream.json`, the last of the step's files."""
        return orjson.dumps({"step": step, "stream": self.stream.state(), "algorithm": self.algorithm.snapshot()})

    def restore(self, path: Path) -> None:
        """Load a checkpoint.

        Raises:
            ConfigError: it is one of an older version of agentrl.
        """
        self.restore_stream(saved(path)["stream"])
        self.restore_trainer(path)

    def restore_stream(self, state: Mapping[str, Any]) -> None:
        """Continue from the saved state of a stream."""
        self.stream.restore(state, partial(last_attempts, self.store))

    def restore_trainer(self, path: Path) -> None:
        """Load of a checkpoint what learns, the trainer and the algorithm, and leave the stream as it is.

        Raises:
            ConfigError: it is one of an older version of agentrl.
        """
        algorithm = saved(path)["algorithm"]
        self.trainer.load(path / "trainer")
        self.algorithm.load_snapshot(algorithm)


def saved(path: Path) -> dict[str, Any]:
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
