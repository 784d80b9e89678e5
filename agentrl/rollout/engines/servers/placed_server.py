"""An inference server on a node of the cluster: a role starts it there, and ends with it.

The node decides what depends on the machine: where the interpreter is, which version of the server it has, whether a
driver library is missing. The server listens on the node's loopback; other nodes reach it through the role, with a key
that each start draws anew (`agentrl.cluster.wire.forwarding`). Its output is the role's, whose log is in the run's
folder.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from agentrl import cluster
from agentrl.cluster import Resources, Role
from agentrl.cluster.placement.inventory import on_gpus
from agentrl.cluster.server import probed
from agentrl.cluster.wire.forwarding import Forwarder
from agentrl.errors import DeadlineExceeded, EngineError, InfraError
from agentrl.rollout.engines.servers.server_settings import ServerConfig

OUTPUT = "/dev/stdout"
"""The role's own output, as a file."""
ANSWER_SECONDS = 30.0
"""Seconds that the role may take to answer."""


class ServerRole:
    """Starts an inference server on this machine, and ends when it does.

    Args:
        path: the model's folder.
        config: the engine's section.

    Raises:
        MissingExtra, ConfigError: no supported server is installed here.
    """

    def __init__(self, path: Path, config: ServerConfig) -> None:
        from agentrl.rollout.engines import make_engine

        _leave_python_path()
        engine: Any = make_engine(config.model_copy(update={"log": config.log or OUTPUT}), path)
        self._server, self._url, self._ending = engine.server, urlsplit(engine.client.url), False
        self._forwarder: Forwarder | None = None
        threading.Thread(target=self._follow, name="waiting for the server's end", daemon=True).start()

    def _follow(self) -> None:
        """End this process, and with it the worker, when the server ends."""
        status = None
        while status is None:
            status = self._server.wait(1.0)
        if not self._ending:
            _tell(status)
            os._exit(1)

    async def forward(self, host: str, key: str) -> str:
        """Let those who know the key reach the server at an address of this machine; returns the URL."""
        self._forwarder = Forwarder(int(self._url.port or 0), key)
        return f"http://{host}:{await self._forwarder.listen(host)}"

    def tail(self) -> str:
        """The last lines of the server's output."""
        return str(self._server.tail())

    async def close(self) -> None:
        """End the server."""
        self._ending = True
        if self._server.exit_status is not None:  # the fleet was first to notice
            _tell(self._server.exit_status)
        if self._forwarder is not None:
            await self._forwarder.close()
        await asyncio.to_thread(self._server.kill)


def _tell(status: int) -> None:
    print(f"the server ended with exit status {status}", flush=True)


class PlacedServer:
    """A server on a node, with the methods of `agentrl.cluster.server.ServerProcess` that an engine calls.

    Args:
        name: the engine's name.
        path: the model's folder, on the node too.
        config: the engine's section.
        ranks: GPUs that it occupies where it computes on them.
        reached: called with the server's URL once it is known.

    Attributes:
        key: the bearer token that it requires.
        worker: the role's.
    """

    def __init__(self, name: str, path: Path, config: ServerConfig, ranks: int, reached: Callable[[str], None]) -> None:
        self._name, self._reached, self.key = name, reached, secrets.token_urlsafe(32)
        self.worker = cluster.current().spawn(
            Role(
                "engine",
                "agentrl.rollout.engines.servers.placed_server:ServerRole",
                (path.absolute(), config),
                name=f"engine={name}",
                resources=Resources(gpus=ranks if config.device == "cuda" else 0),
                threads=config.threads,
                colocated=config.colocated,
            )
        )

    async def wait_ready(self, probe: Callable[[], Awaitable[bool]], timeout: float) -> None:
        """See `ServerProcess.wait_ready`; being placed on a node is a part of it.

        Raises:
            ConfigError, MissingExtra: the node can't run the server.
            EngineError: it died, or took longer than `timeout` seconds.
        """
        end = time.monotonic() + timeout
        try:
            await self.worker.ready(timeout)
            self._reached(await self.worker.call("forward", self.worker.address.host, self.key, timeout=ANSWER_SECONDS))
            if not await probed(probe, lambda: self.exit_status, end):
                if self.exit_status is not None:
                    raise self.exit_error()
                tail = await self.worker.call("tail", timeout=ANSWER_SECONDS)
                raise EngineError(
                    f"{self._name} on {self.worker.node} was not ready within {timeout:g} s (engine.start_timeout); "
                    f"its last lines:\n{tail}"
                )
        except EngineError:
            raise
        except InfraError as error:
            hint = " (engine.start_timeout)" if isinstance(error, DeadlineExceeded) else ""
            raise EngineError(f"{error}{hint}") from None

    @property
    def exit_status(self) -> int | None:
        """1 once its process on the node has ended; None while it runs, as far as is known."""
        return None if self.worker.poll() is None else 1

    def exit_error(self) -> EngineError:
        """The error of a server that has ended, with the last lines of its log."""
        error = self.worker.poll()
        return error if isinstance(error, EngineError) else EngineError(str(error))

    def kill(self) -> None:
        """Kill the server's processes."""
        self.worker.kill()

    async def close(self) -> None:
        """End the server; idempotent."""
        await self.worker.close()


def on_nodes(config: ServerConfig) -> ServerConfig:
    """The settings of a server on a cluster's nodes: `engine.device=auto` goes by what they have."""
    if config.device != "auto" or config.url is not None or cluster.current().name == "local":
        return config
    chosen = "cuda" if on_gpus(config.device, cluster.current().nodes()) else "cpu"
    return config.model_copy(update={"device": chosen})


def _leave_python_path() -> None:
    """Take this package's folder off the path of processes that are started: the server's interpreter has its own.

    The worker was started with it, and where it is a `site-packages`, the server would import this environment's torch.
    """
    root = str(Path(__file__).parents[4])
    kept = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder not in ("", root)]
    os.environ["PYTHONPATH"] = os.pathsep.join(kept)
