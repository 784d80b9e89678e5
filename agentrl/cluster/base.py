"""The contract of a cluster: roles started as processes, here or on other machines, called, watched and ended.

    worker = cluster.spawn(Role("engine", "agentrl.rollout.engines.local.engine_role:EngineRole", (folder, settings)))
    await worker.ready(timeout=900)                    # started, on its node; its errors are raised here
    await worker.call("health", timeout=20)            # one result
    async for item in worker.stream("generate", …):    # many
    worker.address                                     # where other workers reach it (`cluster.connect`)
    worker.ended                                       # a future of the error with which it died
    await worker.close()                               # ends it, with all that it started

A role is a plain class that knows no cluster: its methods are called by name. Plain methods run one after another
in the process's main thread, `async` ones beside each other. What yields is streamed; an attribute is read as a call.
"""

from __future__ import annotations

import asyncio
import pickle
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.cluster.wire.connection import Address, Calling, Connection
from agentrl.common import custom_code
from agentrl.common.concurrency import in_thread
from agentrl.common.imports import ImportedFile, files, find_files, search_folders
from agentrl.errors import InfraError

if TYPE_CHECKING:  # what starts a process needs no settings
    from agentrl.config.cluster import RoleResources

HERE = "this machine"
"""The node of local processes."""


@dataclass(frozen=True)
class Resources:
    """The resources that a worker occupies on its node.

    Attributes:
        cpus: CPU cores, as Ray counts them: they reserve a place, and bind nothing.
        gpus: whole GPUs.
        custom: other resources by name, such as `sandbox`.
    """

    cpus: float = 0.0
    gpus: int = 0
    custom: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        amounts = {"CPU": self.cpus, "GPU": self.gpus, **self.custom}
        found = [f"{amount:g} {format_amount(amount, name)}" for name, amount in amounts.items() if amount]
        return ", ".join(found) or "no CPU and no GPU of its own"

    def times(self, count: int) -> Resources:
        """Return the resources of so many workers together."""
        custom = {name: amount * count for name, amount in self.custom.items()}
        return Resources(self.cpus * count, self.gpus * count, custom)


def format_amount(amount: float, name: str) -> str:
    """A resource's name after so many of it: CPUs and GPUs have a plural, names that people gave have none."""
    return name if amount == 1 or name not in ("CPU", "GPU") else f"{name}s"


@dataclass(frozen=True)
class PickledArguments:
    """A role's arguments as they are sent to its process.

    Attributes:
        data: the arguments, pickled.
        files: the plug-ins' files as this process has imported them: classes of theirs may be among the arguments.
        folders: where this process looks for modules (`imports.search_folders`).
        code: the code of model folders that may run (`custom_code.list_granted`).
    """

    data: bytes
    files: Mapping[str, ImportedFile]
    folders: Sequence[str] = ()
    code: frozenset[str] = frozenset()

    def loaded(self) -> Sequence[Any]:
        """The arguments, in the role's process."""
        find_files(self.files, self.folders)
        custom_code.grant(self.code)
        found: Sequence[Any] = pickle.loads(self.data)
        return found


@dataclass(frozen=True)
class Role:
    """The work of a worker, and what it needs.

    Attributes:
        kind: `engine`, `trainer`, `environments`, `rewards`, `gateway` or `sessions`; logs and faults go by it.
        make: the import path of the class (or function) that is called in the new process.
        arguments: its arguments, picklable; paths among them must exist on the worker's node.
        name: what errors call it; empty is `kind`.
        resources: what it occupies.
        threads: CPU threads of the process; None leaves it to the environment.
        environment: environment variables beside this process's.
        colocated: its GPUs are those of the trainer, which it takes turns with, where places were reserved like that.
        here: it runs on the machine of the process that starts it, and reserves nothing.
        loads: modules that it will need beside its own: where it is forked, it has them already (`prefork`).
        apart: the name of the process that forks it, where its modules change others for good; "" is the one for all.
        descriptors: open files that its process gets under the same numbers, where it runs here; it is not forked then.
        shown: its output goes where this process's goes, and not to a log.
    """

    kind: str
    make: str
    arguments: Sequence[Any] | PickledArguments = ()
    name: str = ""
    resources: Resources = Resources()
    threads: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    colocated: bool = False
    here: bool = False
    loads: Sequence[str] = ()
    apart: str = ""
    descriptors: Sequence[int] = ()
    shown: bool = False

    def __str__(self) -> str:
        return self.name or self.kind

    @property
    def modules(self) -> list[str]:
        """The modules that its process loads first: its own module where that is ours, and `loads`."""
        own = self.make.partition(":")[0]
        return [*([own] if own.startswith("agentrl.") else []), *self.loads]

    def pickled(self) -> Role:
        """The role as it is sent to its process."""
        if isinstance(self.arguments, PickledArguments):
            return self
        data = pickle.dumps(self.arguments, pickle.HIGHEST_PROTOCOL)
        return replace(self, arguments=PickledArguments(data, files(), search_folders(), custom_code.list_granted()))


@dataclass(frozen=True)
class ClusterNode:
    """A machine of a cluster.

    Attributes:
        name: what messages call it.
        cpus: CPU cores, all together.
        gpus: GPUs, all together.
        custom: other resources by name.
        alive: whether it answers.
        draining: it is about to be taken away: what runs there may end its work, and nothing new is started there.
        gpu_memory: memory of each GPU in GiB; 0 where it is not known.
        host: the address under which other nodes reach it.
        id: what the cluster itself calls it.
    """

    name: str
    cpus: float
    gpus: int
    custom: Mapping[str, float] = field(default_factory=dict)
    alive: bool = True
    gpu_memory: float = 0.0
    host: str = ""
    draining: bool = False
    id: str = ""

    def holds(self, worker: Resources) -> bool:
        """Return whether it has what a worker occupies."""
        custom = all(self.custom.get(name, 0.0) >= amount for name, amount in worker.custom.items())
        return self.cpus >= worker.cpus and self.gpus >= worker.gpus and custom


class RoleProcess(ABC):
    """A role's process, seen from the process that started it.

    Attributes:
        node: the name of the machine that it is on.
    """

    node: str = HERE

    @abstractmethod
    def connect(self, timeout: float) -> tuple[Connection, Address]:
        """Wait until the role is built; returns a connection to it, and its address for other workers.

        Raises:
            AgentRLError: what the role raised while it was built.
            EngineError, InfraError: the process died, or could not be placed.
            DeadlineExceeded: it was not ready in time.
        """

    @abstractmethod
    def exit_error(self) -> InfraError:
        """Return how the process ended, with the last lines of its log; waits a few seconds for its end."""

    @abstractmethod
    def poll(self) -> InfraError | None:
        """Return how the process ended; None while it runs, as far as is known without waiting."""

    @abstractmethod
    def kill(self) -> None:
        """Kill the process, with all that it started. Idempotent."""

    @abstractmethod
    def close(self) -> None:
        """Have the process end, kill what still runs seconds later, and free its resources. Idempotent."""


class Worker(Calling):
    """A role that runs in a process of its own.

    Attributes:
        ended: the error with which it died.
        closed: whether it was closed, and holds nothing any more.
    """

    def __init__(self, role: Role, process: RoleProcess) -> None:
        self.role, self.process, self.closed = role, process, False
        self._connection: Connection | None = None
        self._address: Address | None = None
        self.ended: Future[InfraError] = Future()

    @property
    def node(self) -> str:
        """The name of the machine that it is on."""
        return self.process.node

    @property
    def address(self) -> Address:
        """The address at which other workers reach this one; InfraError where it is not ready yet."""
        if self._address is None:
            raise InfraError(f"{self.role} is not ready yet")
        return self._address

    def wait_ready(self, timeout: float) -> None:
        """Wait until the role is built; see `RoleProcess.connect` for what is raised."""
        if self._connection is None:
            self._connection, self._address = self.process.connect(timeout)
            self._connection.ended.add_done_callback(self._over)

    async def ready(self, timeout: float) -> None:
        """`wait_ready` for an event loop."""
        await asyncio.to_thread(self.wait_ready, timeout)

    def _over(self, ended: Future[InfraError]) -> None:
        if not self.ended.done():
            self.ended.set_result(ended.result())

    @property
    def connection(self) -> Connection:
        if self._connection is None:
            raise InfraError(f"{self.role} is not ready yet")
        return self._connection

    def poll(self) -> InfraError | None:
        """Return how the process ended; None while it runs."""
        return self.ended.result() if self.ended.done() else self.process.poll()

    def kill(self) -> None:
        self.process.kill()

    def shutdown(self) -> None:
        """`close` for callers without an event loop."""
        if self._connection is not None:
            self._connection.close(InfraError(f"{self.role} was closed"))
        self.process.close()
        self.closed = True

    async def close(self) -> None:
        """End the process, also where this is cancelled; open calls get an InfraError. Idempotent."""
        await in_thread(self.shutdown)


class Cluster(ABC):
    """Starts roles; `agentrl.cluster.local` does on this machine, `agentrl.cluster.ray.cluster` on many.

    Attributes:
        name: as in the setting `cluster`.
        host: the address under which workers reach this process.
        resources: what roles reserve by the settings; None is what they ask for themselves.
        logs: the folder of the workers' logs, which all nodes see; None are temporary files on each.
        start_timeout: seconds that a worker may take to be placed and built.
        encrypted: whether workers are called over TLS.
        variables: the names of those of this process's environment that workers elsewhere get (`select_variables`).
        silence_timeout: seconds without a sign of life after which a worker's process is ended.
    """

    name: str
    host: str = "127.0.0.1"
    resources: RoleResources | None = None
    logs: Path | None = None
    start_timeout: float = 900.0
    encrypted: bool = False
    variables: Sequence[str] = ()
    silence_timeout: float = 30.0

    @cached_property
    def _started(self) -> Counter[str]:
        return Counter()

    @property
    def lost(self) -> Future[InfraError]:
        """Gets an error when nothing can be started on it any more; this one never does."""
        return Future()

    def _log(self, role: Role) -> Path | None:
        """The file of a worker's output: its role, and how many of its kind were started before."""
        self._started[role.kind] += 1
        return None if self.logs is None else self.logs / f"{role.kind}-{self._started[role.kind] - 1}.log"

    @abstractmethod
    def spawn(self, role: Role) -> Worker:
        """Start a role; returns at once, `Worker.ready` waits.

        Raises:
            EngineError: it could not be started at all.
        """

    @abstractmethod
    def spawn_together(self, roles: Sequence[Role], together: int) -> list[Worker]:
        """Start roles of one kind, each `together` consecutive ones on one node; all find a place, or none starts."""

    @abstractmethod
    def nodes(self) -> list[ClusterNode]:
        """The machines, this one first."""

    def occupied(self, kind: str) -> Resources:
        """The resources that each worker of a kind occupies; nothing where none runs."""
        return Resources(cpus=0.0)

    def movable(self, kind: str) -> bool:
        """Return whether workers of a kind are on drained nodes, and the others have all free that they take."""
        return False

    @abstractmethod
    def close(self) -> None:
        """End every worker. Idempotent."""
