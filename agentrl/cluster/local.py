"""A cluster of one machine: every role is a process that this one starts, and both end together."""

from __future__ import annotations

import os
import secrets
import select
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from agentrl.cluster.base import HERE, Cluster, ClusterNode, Role, RoleProcess, Worker
from agentrl.cluster.liveness import SUFFIX, Liveness
from agentrl.cluster.server import OURS, ServerProcess
from agentrl.cluster.wire.connection import Address, Connection
from agentrl.cluster.wire.frames import encode, receive
from agentrl.cluster.worker import WorkerStart
from agentrl.common import cores
from agentrl.errors import AgentRLError, DeadlineExceeded, InfraError

END_SECONDS = 5.0
"""Seconds after its connection's end that a process that died may still be there."""
_POLL_SECONDS = 0.2
_ROOT = str(Path(__file__).parents[2])


class LocalProcess(RoleProcess):
    """A role's process on this machine, behind the guard that ends it with this process.

    Args:
        role: what it runs.
        log: where its output goes; None is a temporary file.
        node: this machine's name.
        host: the network address that it listens on.
        folder: the working directory; None is this process's.
        encrypted: whether it is called over TLS by others than this process.
        silence: seconds without a sign of life after which it is ended.
        prefork_name: the process that it is forked from, as `prefork.start` takes it.

    Raises:
        EngineError: it could not be started at all.
    """

    def __init__(
        self,
        role: Role,
        log: Path | None,
        node: str = HERE,
        host: str = "127.0.0.1",
        folder: str | None = None,
        *,
        encrypted: bool = False,
        silence: float = Cluster.silence_timeout,
        prefork_name: str | None = None,
    ) -> None:
        self.role, self.node = role, node
        file = None if role.shown or log is None else log.with_suffix(SUFFIX)
        self._socket, theirs = socket.socketpair()
        path = os.pathsep.join(filter(None, (_ROOT, os.environ.get("PYTHONPATH"))))
        with theirs:
            self.server = ServerProcess(
                str(role),
                [sys.executable, "-P", "-W", "ignore", "-m", "agentrl.cluster.worker", str(theirs.fileno())],
                env={"PYTHONPATH": path, **role.environment},
                threads=role.threads,
                descriptors=(theirs.fileno(), *role.descriptors),
                log=OURS if role.shown else log,
                kind=role.kind,
                folder=folder,
                modules=None if role.descriptors else role.modules,
                prefork_name=prefork_name,
                apart=role.apart,
            )
        self._liveness = Liveness(self._socket, f"{role} on {node}", silence, file, self.kill)
        self._socket.sendall(encode(WorkerStart(role.pickled(), node, host, secrets.token_bytes(32), encrypted)))

    def connect(self, timeout: float) -> tuple[Connection, Address]:
        end = time.monotonic() + timeout
        try:
            while not select.select([self._socket], [], [], _POLL_SECONDS)[0]:
                if self.server.exit_status is not None:
                    raise self.exit_error()
                if time.monotonic() > end:
                    raise DeadlineExceeded(f"{self.role} was not ready within {timeout:g} s\n{self.server.tail()}")
            address = receive(self._socket)
        except DeadlineExceeded:  # which is an OSError
            raise
        except (EOFError, OSError, ValueError):  # ValueError: closed by us meanwhile
            raise self.exit_error() from None
        if isinstance(address, AgentRLError):
            raise address
        return Connection(self._socket, str(self.role), self.exit_error), address

    def exit_error(self) -> InfraError:
        self.server.wait(END_SECONDS)
        return self._make_exit_error()

    def poll(self) -> InfraError | None:
        return None if self.server.exit_status is None else self._make_exit_error()

    def _make_exit_error(self) -> InfraError:
        return InfraError(self._liveness.silent) if self._liveness.silent else self.server.exit_error()

    def kill(self) -> None:
        self.server.kill()

    def close(self) -> None:
        self._liveness.close()
        self._socket.close()  # which ends it
        self.server.wait(END_SECONDS)
        self.server.end()


class LocalCluster(Cluster):
    """A cluster of this machine alone.

    Args:
        logs: the folder of the workers' logs; None are temporary files.
    """

    name = "local"

    def __init__(self, logs: Path | None = None) -> None:
        self.logs = logs
        self._workers: list[Worker] = []

    def spawn(self, role: Role) -> Worker:
        worker = Worker(
            role, LocalProcess(role, self._log(role), encrypted=self.encrypted, silence=self.silence_timeout)
        )
        self._workers = [*(each for each in self._workers if not each.closed), worker]
        return worker

    def spawn_together(self, roles: Sequence[Role], together: int) -> list[Worker]:
        return [self.spawn(role) for role in roles]

    def nodes(self) -> list[ClusterNode]:
        return [ClusterNode(HERE, float(len(cores.list_allowed())), 0, {})]

    def close(self) -> None:
        for worker in self._workers:
            worker.shutdown()
        self._workers.clear()
