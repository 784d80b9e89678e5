"""`agentrl serve`: in this process, or with `workers=N` in several gateway workers that this one starts and restarts.

With several, this process binds every port before it starts a worker and keeps the sockets open. So a worker that ends
is restarted on the same port, and requests wait for it meanwhile; its sessions are in the store, from which the new
process continues them. Workers end with this process, however it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rich.console import Console

from agentrl import cluster
from agentrl.cluster import Role
from agentrl.cluster.pool import WorkerPool
from agentrl.common import cores
from agentrl.common.concurrency import cancel_on, concurrently, current_task
from agentrl.config.unused import UseRule, list_unused, refuse
from agentrl.errors import AgentRLError, InfraError
from agentrl.models.registry import model_folder
from agentrl.overrides import validate
from agentrl.rollout.workers.serve_process import ServeConfig, check_config, serve_config, tls_of, worker_ports

if TYPE_CHECKING:
    from agentrl.sessions.gateway.workers import SessionShard

STOP_SECONDS = 20.0
"""Seconds within which a worker must stop; then it is killed."""
MOST_RESTARTS, WITHIN = 2, 60.0
"""A worker that ends more often within so many seconds ends the server."""

RULES = (UseRule("where sessions are served", "fleet.colocated fleet.max_engines", lambda _config: False),)
"""Settings of a run's engines that a server does not read."""


@cores.one_each()
def serve_command(tree: dict[str, Any], out: Console) -> None:
    """Serve until interrupted or terminated; then engines and store are closed in order.

    Raises:
        ConfigError: a setting is unknown, missing, or of the wrong type.
    """
    config = validate(tree, ServeConfig)
    refuse(list_unused(config, tree, RULES))
    path = check_config(config)

    def announce(text: str) -> None:
        out.print(text, highlight=False, soft_wrap=True)

    with contextlib.suppress(KeyboardInterrupt, asyncio.CancelledError):
        if config.workers == 1:
            asyncio.run(serve_config(config, path, announce))
        else:
            asyncio.run(serve_workers(config, announce))


class ShardRole:
    """The gateway of some of the sessions, in a worker's process.

    Args:
        config: the settings.
        shard: which sessions are this worker's.
        listener: the descriptor of a socket that listens already.
        admin_key: what opening a session needs.
    """

    def __init__(self, config: ServeConfig, shard: SessionShard, listener: int, admin_key: str | None) -> None:
        self._config, self._shard, self._admin_key = config, shard, admin_key
        self._bound = socket.socket(fileno=listener)
        self._serving: asyncio.Task[Any] | None = None

    async def serve(self) -> None:
        """Serve until the caller leaves.

        Raises:
            InfraError: the process was told to end.
            EngineError: no engine is left.
        """
        self._serving = current_task()
        try:
            await serve_config(
                self._config,
                model_folder(self._config.model),
                lambda text: None,
                admin_key=self._admin_key,
                bound=self._bound,
                shard=self._shard,
            )
        except asyncio.CancelledError:
            raise InfraError("it was told to end") from None

    async def stop(self) -> None:
        """Return once all that served is closed, after the caller of `serve` has left."""
        if self._serving is not None:
            await asyncio.wait([self._serving])


async def serve_workers(config: ServeConfig, announce: Callable[[str], object]) -> None:
    """Serve until cancelled, or until a worker ends repeatedly.

    Raises:
        InfraError: a port is taken, or a worker does not stay up.
    """
    from agentrl.sessions.gateway.http.listener import address, listening, serve_app
    from agentrl.sessions.gateway.http.own_host import Hosts, OwnHost
    from agentrl.sessions.gateway.http.server import made_up_key
    from agentrl.sessions.gateway.limits import Limits
    from agentrl.sessions.gateway.workers import Front, SessionShard

    cancel_on(signal.SIGTERM, signal.SIGINT)
    with contextlib.ExitStack() as sockets:
        entrance = sockets.enter_context(listening(config.host, config.port))
        bound = [sockets.enter_context(listening(config.host, port)) for port in worker_ports(config)]
        ports = [one.getsockname()[1] for one in bound]
        key = config.admin_key or made_up_key(config.host, announce)
        tls, pools = tls_of(config), list[WorkerPool]()
        front = Front(config.host, ports, lambda number: bool(pools[number].under_way), Limits().body_bytes, tls)
        try:
            for number, one in enumerate(bound):
                pools.append(_start(config, SessionShard(number, ports), one.fileno(), key))
            async with serve_app(OwnHost(front, Hosts(config.hosts)), entrance, Limits(), tls):
                url = address(entrance, config.host, tls)
                announce(f"the gateway listens on {url} (POST {url}/sessions opens a session); workers: {ports}")
                await concurrently(map(_keep_serving, pools))
        finally:
            await asyncio.gather(*(pool.close() for pool in pools), front.aclose())


def _start(config: ServeConfig, shard: SessionShard, listener: int, key: str | None) -> WorkerPool:
    """Start the worker of a shard, and whichever replaces it, on a socket that listens already."""
    role = Role(
        "gateway",
        f"{__name__}:ShardRole",
        (config, shard, listener, key),
        name=f"gateway {shard.number}",
        threads=cores.choose_threads(None, 1),
        here=True,
        descriptors=(listener,),
        shown=True,
    )
    return WorkerPool(role, 1, cluster.current().start_timeout, MOST_RESTARTS, within=WITHIN)


async def _keep_serving(pool: WorkerPool) -> None:
    """Have a pool's only worker serve, and after its end the one that replaces it."""
    await pool.start()
    while True:
        async with pool.lease() as worker:
            try:
                await worker.call("serve", timeout=None)
            except AgentRLError as error:  # it ends by an error alone
                pool.give_up(worker, str(error))
            except asyncio.CancelledError:
                with contextlib.suppress(AgentRLError):
                    await worker.call("stop", timeout=STOP_SECONDS)
                raise
