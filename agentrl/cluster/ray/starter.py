"""The actor that Ray starts on a node for each role: it starts the role's process there, and owns it.

Its memory comes beside that of every worker, so it loads no more than starting and watching a process takes: no
settings, no placement, and none of the libraries whose objects Ray would learn to serialize.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray
from ray.util import serialization_addons

from agentrl.cluster import prefork
from agentrl.cluster.base import Role
from agentrl.cluster.local import LocalProcess
from agentrl.cluster.placement.nodes import node_name
from agentrl.cluster.ray import variables
from agentrl.cluster.ray.versions import versions
from agentrl.cluster.wire.connection import Address, Connection
from agentrl.errors import AgentRLError, ConfigError, InfraError

_ray: Any = ray  # parts of it are not typed
if _ray._private.worker.global_worker.mode == ray.WORKER_MODE:  # an actor, and not the driver that imports this, too
    serialization_addons.apply = lambda context: None  # it loads pyarrow, pydantic and starlette where they are: 17 MB


class Starter:
    """Starts a role's process on the actor's node, and owns it.

    Args:
        role: what it runs.
        log: where its output goes, in a folder that the driver has made; None is a temporary file.
        folder: its working directory, where the node has that.
        environment: the driver's variables for it.
        how: further arguments of `LocalProcess`.
    """

    def __init__(
        self, role: Role, log: Path | None, folder: str, environment: Mapping[str, str], how: Mapping[str, Any]
    ) -> None:
        variables.take(environment)  # before anything is said or started by them
        host = str(_ray.util.get_node_ip_address())
        self.node = node_name(host, ray.get_runtime_context().get_node_id())
        self.process: LocalProcess | None = None
        self.connection: Connection | None = None
        self.log = log
        if log is None or log.parent.is_dir():
            there = folder if os.path.isdir(folder) else None
            name = prefork.shared_name()
            self.process = LocalProcess(role, log, self.node, host, there, prefork_name=name, **how)

    def ready(self, timeout: float) -> tuple[str, dict[str, str], Address | AgentRLError]:
        """The node's name, its versions, and the worker's address once it is ready, or why it is not."""
        try:
            self.connection, address = self._require_process().connect(timeout)
        except AgentRLError as error:
            return self.node, versions(), error
        return self.node, versions(), address

    def exit_error(self) -> InfraError:
        """Return how the process ended."""
        return self._require_process().exit_error()

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
        if self.process is not None:
            self.process.close()

    def _require_process(self) -> LocalProcess:
        if self.process is None:
            raise ConfigError(
                f"{self.node} has no folder {self.log and self.log.parent}, which the driver has: cluster=ray needs "
                "the run's folder on a file system that all nodes share (`agentrl doctor cluster=ray folder=…` tries "
                "it on each of them)"
            )
        return self.process
