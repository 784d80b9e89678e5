"""The trainer's ranks on the current cluster: each a worker with resources of its own, called and ended together.

They meet at a store in this process, on the address that all nodes reach it by, so no port has to be free on a node;
each rank also sets its heartbeat there. One that raises, dies, is silent or times out ends all.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from agentrl import cluster, watchdog
from agentrl.cluster import Address, Role, Worker
from agentrl.rollout.weights.group import meeting_at
from agentrl.train.trainers.ranks.calls import RankCalls
from agentrl.train.trainers.ranks.worker import SECOND, RankSettings, beat_key
from agentrl.watchdog import Silence

SILENT = 120.0
"""Seconds without a heartbeat after which a rank is given up; a live one would have to hold Python's global lock for as
long."""


class Ranks(RankCalls):
    """A group of ranks on the nodes of the current cluster.

    Args:
        workers: one for each rank.
        timeout: seconds that a call may take; None: as long as the ranks live.
        store: where each sets its heartbeat; None where they do not.

    Raises:
        TrainerError, TrainerTimeout: a rank could not be started.
    """

    def __init__(self, workers: Sequence[Worker], timeout: float | None, store: Any = None) -> None:
        self.workers = workers
        super().__init__(workers, timeout)
        limit = cluster.current().start_timeout
        try:
            self._each("start", [partial(worker.wait_ready, limit) for worker in workers])
        except BaseException:
            self.close()
            raise
        if store is not None:
            threading.Thread(target=self._watch, args=(store,), name="heartbeats of ranks", daemon=True).start()

    @property
    def nodes(self) -> list[str]:
        """The name of each rank's node."""
        return [worker.node for worker in self.workers]

    @property
    def addresses(self) -> tuple[Address, ...]:
        """The address of each rank for other processes."""
        return tuple(worker.address for worker in self.workers)

    @contextmanager
    def leased(self) -> Iterator[None]:
        with self._one_call("lease", "another process computes with"):
            try:
                yield
            except BaseException as error:
                ended = [self._silent] if self._silent else [worker.poll() for worker in self.workers]
                for how in filter(None, ended):
                    error.add_note(str(how))
                self.close()
                raise

    def close(self) -> None:
        if self.alive:
            self._closed.set()
            for worker in self.workers:
                worker.kill()
            for worker in self.workers:
                worker.shutdown()

    def _watch(self, store: Any) -> None:
        """End all ranks where one has no heartbeat: its process hangs, or its node can't be reached."""
        keys = [beat_key(rank) for rank in range(len(self.workers))]
        silent = min(SILENT, (self.timeout or math.inf) / 2)
        silences = [Silence(silent, time.monotonic()) for _ in keys]
        while not self._closed.wait(SECOND):
            for rank, (silence, beats) in enumerate(zip(silences, store.multi_get(keys), strict=True)):
                if silence.lasted(time.monotonic(), int(beats)):
                    self._silent = f"rank {rank} on {self.nodes[rank]} has no heartbeat for {silent:g} s"
                    self.close()
                    return
            if self._use:
                watchdog.progress()  # all ranks run, and the call has a deadline of its own


def start_ranks(settings: RankSettings, role: Role, together: int) -> Ranks:
    """Start ranks by a role, so many consecutive ones on one node; they join each other at a store in this process.

    Raises:
        ConfigError: the cluster has no room for them.
        TrainerError, TrainerTimeout: a rank could not be started.
    """
    here, placed = cluster.current(), list[Role]()
    store = meeting_at(here.host)
    for rank in range(settings.ranks):
        store.set(beat_key(rank), "0")
        own = replace(settings, rank=rank, store=f"{here.host}:{store.port}")
        placed.append(replace(role, arguments=(own,), name=f"rank {rank} of {settings.ranks}"))
    return Ranks(here.spawn_together(placed, together), settings.timeout, store)
