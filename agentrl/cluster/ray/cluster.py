"""A cluster of many machines: Ray chooses a node for each role, starts it there, and ends it with the run.

On the node an actor (`ray_starter`) starts the role's process by the same code as on one machine (`LocalProcess`), so
the process itself knows nothing of Ray. Calls go straight to the process (`connection`), not through Ray. When the
driver ends, however it ends, Ray ends its actors; the guard of each process notices within a second. Ray's usage
statistics are off, and its dashboard is not started.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from agentrl.cluster.base import Cluster, ClusterNode, Resources, Role, RoleProcess, Worker
from agentrl.cluster.local import LocalProcess
from agentrl.cluster.placement import elastic, moving
from agentrl.cluster.placement.assignment import Assignment
from agentrl.cluster.placement.bundles import Bundles
from agentrl.cluster.placement.inventory import apply_settings, bundle
from agentrl.cluster.placement.nodes import describe_nodes, nodes_of
from agentrl.cluster.placement.plan import Demand, Wanted, place
from agentrl.cluster.ray import variables
from agentrl.cluster.ray.head import Head
from agentrl.cluster.ray.joining import in_a_line, require_answer, say_briefly
from agentrl.cluster.ray.versions import require_same
from agentrl.cluster.wire.connection import Address, Connection, connect
from agentrl.common.processes import keep_handlers
from agentrl.errors import AgentRLError, ConfigError, DeadlineExceeded, InfraError, brief, require_extra

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")  # a call that comes after the end would start another Ray
os.environ.setdefault("RAY_worker_niceness", "0")  # 15 by default: a busy machine would starve engines and trainer
with require_extra("ray", "ray"):
    import ray
    from ray.exceptions import GetTimeoutError, RayError
    from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

    from agentrl.cluster.ray.groups import create_group, demand_nodes, gpus_of_trainer, in_bundle
    from agentrl.cluster.ray.starter import Starter

ANSWER_SECONDS = 10.0
"""Seconds that a node may take to say how a process of its own ended."""
STARTS = 2
"""Attempts to start Ray on this machine before that is an error: where its node is not up in 30 s, it gives up."""
Release = Callable[[], None] | None
Strategy = str | PlacementGroupSchedulingStrategy | NodeAffinitySchedulingStrategy
_LOOK_SECONDS = 5.0
_THREADS = 4
_ray: Any = ray  # parts of it are not typed
_state: Any = ray._private.state.state  # Ray's own libraries ask it which nodes are drained


class RayProcess(RoleProcess):
    """A role's process on a node that Ray chose.

    Args:
        role: what it runs.
        starter: the handle of the actor that starts it.
        there: what the cluster has, in words.
        gone: says why it can't be started any more; '' as long as it can.
        lost: gets an error when the cluster's head is lost. Ray answers no longer then, and is not asked: it would end
            this process before all workers were waited for.
        release: is called once when it is ended, where it has a place of its own.
    """

    def __init__(
        self, role: Role, starter: Any, there: str, gone: Callable[[], str], lost: Future[InfraError], release: Release
    ) -> None:
        self.role, self._starter, self._there, self._release = role, starter, there, release
        self._explain_missing, self._lost = gone, lost
        self.node = "a node that Ray has not chosen yet"
        self._closed = False

    def connect(self, timeout: float) -> tuple[Connection, Address]:
        self.node, theirs, found = self._await_start(timeout)
        require_same(self.node, theirs)
        if isinstance(found, AgentRLError):
            raise found
        return connect(found, self.exit_error), found

    def _await_start(self, timeout: float) -> tuple[str, dict[str, str], Address | AgentRLError]:
        """The starter's answer; a node that dies meanwhile is noticed, since Ray would wait for it for ever."""
        ready, end = self._starter.ready.remote(timeout), time.monotonic() + timeout
        while True:
            try:
                found: tuple[str, dict[str, str], Address | AgentRLError]
                found = ray.get(ready, timeout=min(_LOOK_SECONDS, max(0.0, end - time.monotonic())))
                return found
            except GetTimeoutError:
                if time.monotonic() >= end:
                    raise DeadlineExceeded(
                        f"{self.role} was not started within {timeout:g} s (cluster.start_timeout); it needs "
                        f"{self.role.resources}, and when that was asked for there was {self._there}"
                    ) from None
            except RayError as error:
                raise InfraError(f"{self.role} could not be started: {in_a_line(error)}") from None
            if gone := self._explain_missing():
                raise InfraError(f"{self.role} could not be started: {gone}")

    def exit_error(self) -> InfraError:
        if self._lost.done():
            return InfraError(f"{self.role} on {self.node} can't be asked how it ended: {self._lost.result()}")
        try:
            found: InfraError = ray.get(self._starter.exit_error.remote(), timeout=ANSWER_SECONDS)
        except (RayError, GetTimeoutError) as error:
            return InfraError(f"{self.role} on {self.node} died, or its node did: {in_a_line(error)}")
        return type(found)(f"on {self.node}: {found}")

    def poll(self) -> InfraError | None:
        """Nothing is known without waiting but what the worker's connection says."""
        return None

    def kill(self) -> None:
        with suppress(Exception):
            ray.kill(self._starter)
        release, self._release = self._release, None
        if release is not None:
            release()

    def close(self) -> None:
        if not self._closed and ray.is_initialized():
            self._closed = True
            ending = self._starter.close.remote()
            with suppress(RayError, GetTimeoutError):
                ray.get(ending, timeout=_LOOK_SECONDS if self._lost.done() else ANSWER_SECONDS)
            self.kill()


class RayCluster(Cluster):
    """The nodes of a Ray cluster.

    Args:
        address: of a running one, `auto` or host:port; None starts Ray on this machine for as long as this is open.
        logs: the folder of the workers' logs, on a file system of all nodes; None are temporary files on each.

    Raises:
        MissingExtra: Ray is not installed.
        ConfigError: no cluster answers at the address, or not in time.
        InfraError: Ray could not be started on this machine.
    """

    name = "ray"

    def __init__(self, address: str | None = None, logs: Path | None = None) -> None:
        self.logs, self._workers = logs, list[Worker]()
        if logs is not None:
            logs.mkdir(parents=True, exist_ok=True)  # nodes on which it is missing then are refused
        self._reserved: tuple[PlacementGroup, Bundles] | None = None
        self._seen: list[ClusterNode] = []
        self._together: dict[str, int] = {}
        self._ours, self._grows = not ray.is_initialized(), address is not None
        if self._ours:
            if address is not None:
                require_answer(address)
            _join(address)
        self.host = str(_ray.util.get_node_ip_address())
        self._head = Head(ray.get_runtime_context().gcs_address)

    @property
    def lost(self) -> Future[InfraError]:
        """Gets an error when the cluster's head has not answered for `head.LOST_SECONDS`."""
        return self._head.lost

    def spawn(self, role: Role) -> Worker:
        self._head.require()
        if role.here:
            worker = Worker(role, LocalProcess(role, self._log(role), host=self.host, **self._how))
            self._keep(worker)
            return worker
        role = apply_settings(role, self.resources)
        if not self._grows:  # else it waits in Ray's queue, which autoscalers read
            self._require_room(role)
        if self._reserved is not None:
            group, bundles = self._reserved
            if (number := bundles.take(role.kind, self._usable(), role.colocated)) is not None:
                role, release = bundles.started_in(number, role), partial(bundles.free, number)
                return self._start(role, in_bundle(group, number), release, bundles.node(number))
        return self._start(role, self._strategy(role))

    def spawn_together(self, roles: Sequence[Role], together: int) -> list[Worker]:
        """Start roles in the places that were reserved, and those that find none there in a group of their own."""
        self._head.require()
        self._together[roles[0].kind] = together
        placed = [apply_settings(role, self.resources) for role in roles]
        reserved = 0
        if self._reserved is not None:
            room = self._reserved[1].available(placed[0].kind, together, self._usable())
            reserved = min(len(roles), room // together * together)
        rest = self._in_own_group(placed[reserved:], together) if reserved < len(roles) else []
        return [self.spawn(role) for role in roles[:reserved]] + rest

    def _in_own_group(self, roles: Sequence[Role], together: int) -> list[Worker]:
        """Start roles in a new placement group, which is removed once all of them have ended."""
        unit, left = roles[0].resources.times(together), list(roles)
        units = Demand(roles[0].kind, len(roles) // together, unit.gpus, unit.cpus, custom=unit.custom)
        if not self._grows:
            place(self.nodes(), Wanted(units, Demand("engine", 0)))
        group = placement_group([bundle(unit)] * units.count, strategy="PACK")

        def release() -> None:
            left.pop()
            if not left and ray.is_initialized() and not self.lost.done():
                remove_placement_group(group)

        return [self._start(role, in_bundle(group, i // together), release) for i, role in enumerate(roles)]

    def _start(self, role: Role, strategy: Strategy, release: Release = None, node: str = "") -> Worker:
        log, wanted, passed = self._log(role), role.resources, variables.select_variables(self.variables)
        in_group = isinstance(strategy, PlacementGroupSchedulingStrategy)
        starter = (
            ray.remote(Starter)
            .options(
                num_cpus=wanted.cpus,
                num_gpus=wanted.gpus,
                memory=None if in_group else bundle(wanted).get("memory"),  # what takes nothing goes anywhere in Ray
                resources=dict(wanted.custom),
                max_concurrency=_THREADS,
                scheduling_strategy=strategy,
            )
            .remote(role.pickled(), log and log.absolute(), os.getcwd(), passed, self._how)
        )
        there, gone = describe_nodes(self.nodes()), partial(self._explain_missing, node)
        worker = Worker(role, RayProcess(role, starter, there, gone, self.lost, release))
        self._keep(worker)
        return worker

    def _keep(self, worker: Worker) -> None:
        self._workers = [*(each for each in self._workers if not each.closed), worker]

    @property
    def _how(self) -> dict[str, Any]:
        """Arguments of `LocalProcess`, wherever processes are started."""
        return {"encrypted": self.encrypted, "silence": self.silence_timeout}

    def awaited(self, wanted: Wanted, timeout: float) -> Assignment:
        """A place for everything once nodes have joined that hold it; autoscalers are asked for them meanwhile.

        Raises:
            ConfigError: they have not after `timeout` seconds.
        """
        end = time.monotonic() + timeout
        with demand_nodes(wanted):
            while True:
                try:
                    return place([node for node in self.nodes() if node.alive], wanted)
                except ConfigError:
                    if time.monotonic() > end:
                        raise
                time.sleep(_LOOK_SECONDS)

    def reserve(
        self,
        assignment: Assignment,
        roles: Mapping[str, Resources],
        timeout: float,
        members: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """Take all places of an assignment at once, as one placement group; roles are started there from now on.

        A place is a bundle, which Ray keeps on one node: that of the assignment. Where a place's node has died, its
        role is started wherever there is room. A colocated engine's bundle has no GPU: it uses those of the trainer's.

        Args:
            assignment: a place for each unit, on the nodes of `nodes`.
            roles: what a worker of each role occupies.
            timeout: seconds in which all of it must be free.
            members: of roles whose places hold several workers, how many.

        Raises:
            ConfigError: it was not; nothing is taken.
            InfraError: a node does not say which GPUs are the trainer's.
        """
        nodes = self.nodes()
        ids = {node.name: node.id for node in nodes}
        group = create_group(assignment, roles, members, ids, timeout, describe_nodes(nodes))
        self._reserved = group, Bundles(assignment, members, gpus_of_trainer(group, assignment))

    def _explain_missing(self, node: str) -> str:
        """The reason why nothing can be started on a node, or ''. An empty name is a node that Ray chooses."""
        if self.lost.done():
            return str(self.lost.result())
        return f"its node {node} has died" if node and node not in self._alive() else ""

    def _alive(self) -> set[str]:
        return {node.name for node in self.nodes() if node.alive}

    def _usable(self) -> set[str]:
        return {node.name for node in self.nodes() if node.alive and not node.draining}

    def _of_kind(self, kind: str) -> list[Worker]:
        return [each for each in self._workers if each.role.kind == kind and not each.closed]

    def occupied(self, kind: str) -> Resources:
        return next((each.role.resources for each in self._of_kind(kind)), super().occupied(kind))

    def movable(self, kind: str) -> bool:
        """See `Cluster.movable`; what they hold on the other nodes is free once they have ended."""
        workers = self._of_kind(kind)
        if not elastic.find_drained(self.nodes()) & {worker.node for worker in workers}:
            return False
        free = self._free(workers)
        return moving.fit(free, workers[0].role.resources, len(workers), self._together.get(kind, 1))

    def _free(self, ended: Sequence[Worker] = ()) -> list[ClusterNode]:
        """The nodes that workers can be started on, with what is free there once these have ended."""
        free, nodes = _state.available_resources_per_node(), self.nodes()
        return [
            moving.free_of(
                node, free.get(node.id, {}), [each.role.resources for each in ended if each.node == node.name]
            )
            for node in nodes
            if node.alive and not node.draining
        ]

    def _strategy(self, role: Role) -> Strategy:
        """Ray's spreading, or the node with room that has fewest workers of the kind: Ray leaves new nodes empty."""
        count = Counter(each.node for each in self._of_kind(role.kind))
        nodes = [node for node in self._free() if node.holds(role.resources)]
        if len({count[node.name] for node in nodes}) < 2:
            return "SPREAD"
        emptiest = min(nodes, key=lambda node: count[node.name])
        return NodeAffinitySchedulingStrategy(emptiest.id, soft=True, _spill_on_unavailable=True)

    def _require_room(self, role: Role) -> None:
        wanted, nodes = role.resources, [node for node in self.nodes() if node.alive]
        if not any(node.holds(wanted) for node in nodes):
            raise ConfigError(f"{role} needs {wanted}, and no node has as much: there is {describe_nodes(nodes)}")

    def nodes(self) -> list[ClusterNode]:
        """The machines that Ray knows, dead ones too, this one first; without an answering head as they were last seen.

        Ray would wait for the head in a thread that can't be cancelled, and end this process after a minute.
        """
        if not self._head.answers():
            return self._seen
        table = sorted(_ray.nodes(), key=lambda row: row["NodeManagerAddress"] != self.host)
        self._seen = nodes_of(table, _state.get_draining_nodes())
        return self._seen

    def close(self) -> None:
        self._head.close()
        with ThreadPoolExecutor(len(self._workers) or 1) as threads:  # those of a dead node are waited for
            list(threads.map(Worker.shutdown, self._workers))
        self._workers.clear()
        if self._reserved is not None and not self.lost.done():
            remove_placement_group(self._reserved[0])
        self._reserved = None
        if self._ours:
            ray.shutdown()


def _join(address: str | None) -> None:
    """Join the cluster at an address, or start Ray on this machine."""
    _ray._private.worker.print_to_stdstream = say_briefly
    for left in reversed(range(STARTS)):
        try:
            with keep_handlers():
                ray.init(address or "local", include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
            return
        except (ConnectionError, ValueError) as error:
            raise ConfigError(f"cluster.address={address!r}: no Ray cluster answers there: {error}") from None
        except Exception as error:  # Ray's own, where its node is not up in time, is no other class
            ray.shutdown()
            if not left:
                raise InfraError(
                    f"cluster=ray: Ray did not start on this machine, {STARTS} times: {brief(str(error))}; the machine "
                    "may be too busy, or short of memory or disk (its logs are in /tmp/ray/session_latest/logs)"
                ) from None
