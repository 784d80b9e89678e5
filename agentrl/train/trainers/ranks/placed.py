"""The trainer's ranks on a cluster's nodes: each a worker with resources of its own, called and ended together.

They meet at a store in this process, on the address that all nodes reach it by, so no port has to be free on a node;
each rank also sets its heartbeat there. As with `Ranks`, one that raises, dies, is silent or times out ends all.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from agentrl import cluster, watchdog
from agentrl.cluster import Address, Resources
from agentrl.cluster import Role as ClusterRole
from agentrl.common.imports import load
from agentrl.rollout.weights.group import meeting_at
from agentrl.train.trainers.ranks.calls import RankCalls, drain
from agentrl.train.trainers.ranks.heartbeat import SECOND, SILENT
from agentrl.train.trainers.ranks.worker import Builder, RankSettings, store_of

if TYPE_CHECKING:
    from agentrl.rollout.weights.buckets import Convert, Shapes


class RankRole:
    """One rank, as a role of the cluster; it joins the process group when it is made."""

    def __init__(self, role: RankSettings) -> None:
        self._number = role.rank
        self._builder: Builder = load(role.builder, "a builder of ranks")(role)
        self._rank: Any = None
        threading.Thread(target=_beat, args=(role,), name="heartbeat", daemon=True).start()

    def run(self, method: str, arguments: tuple[Any, ...]) -> Any:
        """Call a method of the rank, or one of this class."""
        target = self if method in ("build", "save_weights") else self._rank
        return getattr(target, method)(*arguments)

    def build(self, *arguments: Any) -> None:
        """Build the rank's part of a model, and free an earlier one."""
        if self._rank is not None:
            self._rank.forget()
        self._rank = None
        self._rank = self._builder.build(*arguments)

    def tensors(self, method: str, arguments: tuple[Any, ...]) -> Iterator[tuple[str, Tensor]]:
        """The named tensors that a method yields, copied, since an average is where the weights are only meanwhile."""
        for name, tensor in getattr(self._rank, method)(*arguments):
            yield name, tensor.detach().to("cpu", copy=True)

    def save_weights(self, folder: Path, base: Path, limit: int, convert: Convert | None, method: str) -> Shapes:
        """Write the weights that `method` yields, which all ranks gather, on rank 0."""
        from agentrl.rollout.weights.snapshot import save_snapshot

        weights = self.tensors(method, ())
        if self._number:
            drain(weights)
            return {}
        return save_snapshot(weights if convert is None else convert(weights), folder, base, limit)


class PlacedRanks(RankCalls):
    """A group of ranks on the nodes of the current cluster, with the methods of `Ranks`.

    Args:
        roles: one for each rank, their `store` left empty.
        timeout: seconds that a call may take.
        threads: CPU threads of each rank; None leaves it to the environment.
        environment: variables of the ranks beside their node's.
        gpu: whether each occupies a GPU.
        together: how many consecutive ranks are on one node.
        loads: modules that they will need, for nodes where they are forked.

    Raises:
        ConfigError: the cluster has no room for them.
        TrainerError, TrainerTimeout: a rank could not be started.
    """

    def __init__(
        self,
        roles: Sequence[RankSettings],
        timeout: float,
        threads: int | None = None,
        environment: Mapping[str, str] | None = None,
        *,
        gpu: bool = False,
        together: int = 1,
        loads: Sequence[str] = (),
    ) -> None:
        here = cluster.current()
        self._store = meeting_at(here.host)
        for role in roles:
            self._store.set(_beat_key(role.rank), "0")
        meeting = f"tcp://{here.host}:{self._store.port}"
        variables = {**({} if gpu else {"CUDA_VISIBLE_DEVICES": ""}), **(environment or {})}
        placed = [
            ClusterRole(
                "trainer",
                "agentrl.train.trainers.ranks.placed:RankRole",
                (replace(role, store=meeting),),
                name=f"rank {role.rank} of {role.ranks}",
                resources=Resources(gpus=int(gpu)),
                threads=threads,
                environment=variables,
                loads=loads,
            )
            for role in roles
        ]
        self._workers = here.spawn_together(placed, together)
        super().__init__(self._workers, timeout)
        self._each("start", [partial(worker.wait_ready, here.start_timeout) for worker in self._workers])
        threading.Thread(target=self._watch, name="heartbeats of ranks", daemon=True).start()

    @property
    def nodes(self) -> list[str]:
        """The name of each rank's node."""
        return [worker.node for worker in self._workers]

    @property
    def addresses(self) -> tuple[Address, ...]:
        """The address of each rank for other processes."""
        return tuple(worker.address for worker in self._workers)

    @contextmanager
    def leased(self) -> Iterator[None]:
        with self._one_call("lease", "another process computes with"):
            try:
                yield
            except BaseException as error:
                ended = [self._silent] if self._silent else [worker.poll() for worker in self._workers]
                for how in filter(None, ended):
                    error.add_note(str(how))
                self.close()
                raise

    def close(self) -> None:
        if self.alive:
            self._closed.set()
            for worker in self._workers:
                worker.kill()
            for worker in self._workers:
                worker.shutdown()

    def _watch(self) -> None:
        """End all ranks where one has no heartbeat: its process hangs, or its node can't be reached."""
        keys = [_beat_key(rank) for rank in range(len(self._workers))]
        seen, heard = list[Any](keys), [time.monotonic()] * len(keys)
        silent = min(SILENT, self.timeout / 2)
        while not self._closed.wait(SECOND):
            for rank, value in enumerate(self._store.multi_get(keys)):
                if value != seen[rank]:
                    seen[rank], heard[rank] = value, time.monotonic()
                elif (quiet := time.monotonic() - heard[rank]) > silent:
                    self._silent = f"rank {rank} on {self.nodes[rank]} has no heartbeat for {quiet:.0f} s"
                    self.close()
                    return
            if self._use:
                watchdog.progress()  # all ranks run, and the call has a deadline of its own


def _beat_key(rank: int) -> str:
    return f"beat-{rank}"


def _beat(role: RankSettings) -> None:
    """Set this rank's heartbeat every second, as long as the trainer's process is there."""
    store, count = store_of(role), 0
    while True:
        count += 1
        try:
            store.set(_beat_key(role.rank), str(count))
        except RuntimeError:
            return
        time.sleep(SECOND)
