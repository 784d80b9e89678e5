"""The trainer's ranks on the current cluster: each a worker with resources of its own, called and ended together.

They meet at a store in this process, on the address that all nodes reach it by, so no port has to be free on a node;
each rank also sets its heartbeat there. One that raises, dies, is silent or times out ends all.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from agentrl import cluster, watchdog
from agentrl.cluster import Address, Resources, Role, Worker
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


def start_ranks(
    roles: Sequence[RankSettings],
    timeout: float,
    threads: int | None = None,
    environment: Mapping[str, str] | None = None,
    *,
    gpu: bool = False,
    together: int = 1,
    loads: Sequence[str] = (),
    apart: str = "",
) -> Ranks:
    """Start ranks, which join each other at a store in this process.

    Args:
        roles: one for each rank, their `store` left empty.
        timeout: seconds that a call may take.
        threads: CPU threads of each rank; None leaves it to the environment.
        environment: variables of the ranks beside their node's.
        gpu: whether each occupies a GPU.
        together: how many consecutive ranks are on one node.
        loads: modules that they will need, for where they are forked.
        apart: of `Role`.

    Raises:
        ConfigError: the cluster has no room for them.
        TrainerError, TrainerTimeout: a rank could not be started.
    """
    here = cluster.current()
    store = meeting_at(here.host)
    for role in roles:
        store.set(beat_key(role.rank), "0")
    meeting = f"{here.host}:{store.port}"
    variables = {**({} if gpu else {"CUDA_VISIBLE_DEVICES": ""}), **(environment or {})}
    placed = [
        Role(
            "trainer",
            "agentrl.train.trainers.ranks.worker:RankRole",
            (replace(role, store=meeting),),
            name=f"rank {role.rank} of {role.ranks}",
            resources=Resources(gpus=int(gpu)),
            threads=threads,
            environment=variables,
            loads=loads,
            apart=apart,
        )
        for role in roles
    ]
    return Ranks(here.spawn_together(placed, together), timeout, store)
